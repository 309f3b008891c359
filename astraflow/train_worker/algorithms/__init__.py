"""What turns rewards into gradients: pure functions of packed tensors, each with its source. No state, no IO."""
