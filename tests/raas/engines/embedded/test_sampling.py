"""The distribution that is sampled, and that its logprobs are what is reported."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from astraflow.core.data import GenerationHyperparameters, ModelRequest
from astraflow.raas.engines.embedded.sampling import Sampler, truncate
from astraflow.raas.engines.embedded.scheduler import Sequence

V = 6
LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0])


def place(configs: list[GenerationHyperparameters], budget: int = 4, ends: frozenset[int] = frozenset()) -> Sampler:
    sampler = Sampler(len(configs), V, 4096, 5, torch.device("cpu"))
    sequences = []
    for row, config in enumerate(configs):
        request = ModelRequest(rid=str(row), input_ids=np.array([1]), gconfig=config)
        sequences.append(Sequence(request, budget, ends, 0.0, row=row))
    sampler.place(sequences)
    return sampler


def draw(
    config: GenerationHyperparameters, n: int, ends: frozenset[int] = frozenset()
) -> tuple[torch.Tensor, torch.Tensor]:
    """n tokens and logprobs of one row, from fixed logits."""
    sampler = place([config], n, ends)
    pairs = [sampler.sample(LOGITS[None], torch.tensor([[i]])) for i in range(n)]
    return torch.cat([token for token, _ in pairs]).view(-1), torch.cat([logprob for _, logprob in pairs]).view(-1)


@pytest.mark.parametrize(
    "config",
    [
        GenerationHyperparameters(),
        GenerationHyperparameters(temperature=0.5),
        GenerationHyperparameters(temperature=2.0, top_k=3),
        GenerationHyperparameters(top_p=0.8),
        GenerationHyperparameters(temperature=1.5, top_k=4, top_p=0.7),
    ],
)
def test_frequencies_follow_the_reported_logprobs(config: GenerationHyperparameters) -> None:
    logits = LOGITS / config.temperature
    expected = truncate(logits[None], torch.tensor([[config.top_k or V]]), torch.tensor([[config.top_p]])).log_softmax(
        -1
    )[0]
    tokens, logprobs = draw(config, 4000)
    torch.testing.assert_close(logprobs, expected[tokens])
    frequencies = torch.bincount(tokens, minlength=V) / 4000
    assert (frequencies - expected.exp()).abs().max() < 0.03
    assert (frequencies[expected.isinf()] == 0).all()


def test_truncation_keeps_the_smallest_set_that_reaches_the_mass() -> None:
    probs = torch.tensor([[0.1, 0.5, 0.3, 0.1]])

    def kept(k: int, p: float) -> list[int]:
        out = truncate(probs.log(), torch.tensor([[k]]), torch.tensor([[p]]))
        return out[0].isfinite().nonzero().view(-1).tolist()

    assert kept(4, 0.5) == [1]
    assert kept(4, 0.51) == [1, 2]
    assert kept(2, 1.0) == [1, 2]
    assert kept(1, 0.01) == [1]
    assert kept(2, 0.7) == [1, 2]  # of the two left, 0.5 and 0.3, the first has 0.625 of the mass


def test_greedy_reports_temperature_one_and_mixes_with_sampled_rows() -> None:
    greedy = GenerationHyperparameters(greedy=True, temperature=0.3, top_k=1)
    sampler = place([greedy, GenerationHyperparameters(temperature=2.0)])
    tokens, logprobs = sampler.sample(LOGITS.repeat(2, 1), torch.zeros(2, 1, dtype=torch.int64))
    assert tokens[0] == 0
    assert logprobs[0].item() == pytest.approx(LOGITS.log_softmax(-1)[0].item())
    assert logprobs[1].item() == pytest.approx((LOGITS / 2).log_softmax(-1)[tokens[1]].item(), abs=1e-6)


def test_a_seed_makes_a_row_reproducible_whatever_runs_beside_it() -> None:
    seeded = GenerationHyperparameters(seed=11)
    alone, _ = draw(seeded, 20)
    other = GenerationHyperparameters(temperature=2.0)
    sampler = place([other, other, seeded], 20)
    together = [sampler.sample(LOGITS.repeat(3, 1), torch.full((3, 1), i))[0][2].item() for i in range(20)]
    assert together == alone.tolist()
    assert draw(GenerationHyperparameters(seed=12), 20)[0].tolist() != alone.tolist()


def test_end_tokens_are_banned_before_min_new_tokens() -> None:
    config = GenerationHyperparameters(min_new_tokens=30, max_new_tokens=40)
    tokens, logprobs = draw(config, 40, frozenset({0, 1}))
    assert (tokens[:30] >= 2).all()
    assert (tokens[30:] < 2).any()
    banned = LOGITS.clone()
    banned[:2] = float("-inf")
    torch.testing.assert_close(logprobs[:30], banned.log_softmax(-1)[tokens[:30]])


def test_frequency_penalty_counts_what_was_sampled() -> None:
    tokens, logprobs = draw(GenerationHyperparameters(frequency_penalty=2.0, greedy=True), 4)
    assert tokens.tolist() == [0, 1, 2, 0]  # 2, 1, .5, then 0 at 2 - 2 = 0 before 3 at 0
    penalised = LOGITS - torch.tensor([2.0, 0, 0, 0, 0, 0])
    assert logprobs[1].item() == pytest.approx(penalised.log_softmax(-1)[1].item(), abs=1e-6)


def test_a_draw_at_the_very_end_still_has_mass() -> None:
    sampler = place([GenerationHyperparameters()])
    sampler._draws[:] = 1.0
    logits = torch.tensor([[0.0, 0.0, 0.0, float("-inf"), float("-inf"), float("-inf")]])
    token, logprob = sampler.sample(logits, torch.zeros(1, 1, dtype=torch.int64))
    assert token.item() == 2
    assert logprob.isfinite().all()
