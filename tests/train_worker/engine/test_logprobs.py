"""Log-probabilities in one piece and in slices."""

from __future__ import annotations

import torch

from astraflow.train_worker.engine.logprobs import entropy_of, token_logprobs


def run(max_logits: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    head = torch.nn.Linear(4, 10, bias=False)
    hidden = torch.randn(7, 4, generator=generator).requires_grad_()
    with torch.no_grad():
        head.weight.copy_(torch.randn(10, 4, generator=generator))
    logprobs, entropy = token_logprobs(hidden, torch.arange(7), head, 10, temperature=0.7, max_logits=max_logits)
    (logprobs.sum() + entropy.sum()).backward()
    assert hidden.grad is not None
    assert head.weight.grad is not None
    return logprobs, entropy, torch.cat([hidden.grad, head.weight.grad])


def test_values() -> None:
    logprobs, entropy, _ = run(10_000)
    assert (logprobs < 0).all()
    assert (entropy > 0).all()
    logits = torch.randn(3, 5)
    actual = token_logprobs(logits, torch.zeros(3, dtype=torch.int64), lambda hidden: hidden, 5, temperature=2.0)
    torch.testing.assert_close(actual[0], (logits / 2).log_softmax(-1)[:, 0])
    torch.testing.assert_close(actual[1], entropy_of(logits / 2))


def test_slices_change_nothing() -> None:
    for whole, sliced in zip(run(10_000), run(20), strict=True):
        torch.testing.assert_close(whole, sliced)


def test_no_targets() -> None:
    logprobs, entropy = token_logprobs(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), torch.nn.Linear(4, 10), 10)
    assert logprobs.shape == entropy.shape == (0,)
