import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from astraflow.core.observability.run_directory import RunDirectory
from astraflow.dashboard.episodes import HEAD_TOKENS, TAIL_TOKENS, sample_episodes
from astraflow.errors import DataError


def test_the_gap_is_the_trainers_logprob_less_the_engines(make_run: Callable[..., Path], tmp_path: Path) -> None:
    episodes = sample_episodes(RunDirectory(make_run(tmp_path / "run")), 50)
    first, second, dropped = episodes[:3]
    # two rows of one sample keep their order; what did not train has no gap
    assert first.gaps == [None, 0.0, -0.25, 0.0]
    assert second.gaps == [None, -0.5, 0.0, 0.0]
    assert dropped.gaps == [None] * 4
    assert first.sampled == 3


def test_logprobs_that_do_not_fit_give_no_gap(make_run: Callable[..., Path], tmp_path: Path) -> None:
    run = RunDirectory(make_run(tmp_path / "run"))
    run.trainer_logprobs(1, "model0").write_text('{"sample_id": 10, "logprobs": [0.0]}\n')
    run.trainer_logprobs(2, "model0").unlink()
    episodes = sample_episodes(run, 50)
    assert {tuple(e.gaps) for e in episodes if e.step in (1, 2)} == {(None,) * 4}
    assert any(gap is not None for e in episodes if e.step == 3 for gap in e.gaps)


@pytest.mark.parametrize("most", [1, 5, 12, 20])
def test_the_sample_is_even_over_steps_and_outcomes(make_run: Callable[..., Path], tmp_path: Path, most: int) -> None:
    episodes = sample_episodes(RunDirectory(make_run(tmp_path / "run")), most)
    assert len(episodes) == most
    steps = Counter(e.step for e in episodes)
    assert max(steps.values()) - min(steps.values()) <= 1
    assert [e.step for e in episodes] == sorted(e.step for e in episodes)
    if most >= 5:
        assert {1, 12} <= set(steps)
        outcomes = Counter(e.outcome == "trained" for e in episodes)
        assert abs(outcomes[True] - outcomes[False]) <= most // 3 + 1


def test_a_long_trajectory_is_cut_in_the_middle(make_run: Callable[..., Path], tmp_path: Path) -> None:
    run = RunDirectory(make_run(tmp_path / "run"))
    n = HEAD_TOKENS + TAIL_TOKENS + 37
    line = json.loads(run.kept_trajectories(1).read_text().splitlines()[0])
    line |= {"ids": list(range(n)), "mask": [1] * n, "versions": [1] * n, "logprobs": [-1.0] * n, "pieces": None}
    run.kept_trajectories(1).write_text(json.dumps(line) + "\n")
    episode = sample_episodes(run, 50)[0]
    assert (episode.hidden, episode.hidden_at, episode.sampled) == (37, HEAD_TOKENS, n)
    assert len(episode.texts) == len(episode.mask) == len(episode.versions) == len(episode.gaps) == n - 37
    assert episode.texts[HEAD_TOKENS - 1 : HEAD_TOKENS + 1] == [f" {HEAD_TOKENS - 1}", f" {n - TAIL_TOKENS}"]


def test_a_broken_file_is_named(make_run: Callable[..., Path], tmp_path: Path) -> None:
    run = RunDirectory(make_run(tmp_path / "run"))
    run.kept_trajectories(4).write_text("{}\n")
    with pytest.raises(DataError, match=r"step_000004\.jsonl"):
        sample_episodes(run, 50)
