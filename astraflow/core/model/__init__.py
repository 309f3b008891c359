"""One decoder definition for the trainer and the embedded engine, in Hugging Face's layout."""

from astraflow.core.model.attention import packed_attention, packed_positions
from astraflow.core.model.config import ModelConfig
from astraflow.core.model.decoder import Attend, Decoder
from astraflow.core.model.hf import load_model, named_weights, save_model, tied_aliases
from astraflow.core.model.memory import return_free_memory, return_large_blocks
from astraflow.core.model.presets import PRESETS, new_model

__all__ = [
    "PRESETS",
    "Attend",
    "Decoder",
    "ModelConfig",
    "load_model",
    "named_weights",
    "new_model",
    "packed_attention",
    "packed_positions",
    "return_free_memory",
    "return_large_blocks",
    "save_model",
    "tied_aliases",
]
