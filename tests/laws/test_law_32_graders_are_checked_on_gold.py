"""LAW 32: a grader is checked on gold answers when a dataset is loaded: gold scores 1, a wrong one does not."""

import pytest

from astraflow.core.data import Value
from astraflow.core.dataset import reasoning_gym
from astraflow.errors import DataError


@pytest.mark.parametrize(
    ("marks", "words"), [(0.0, "scores 0.0, expected 1"), (1.0, "scores 1.0, expected less than 1")]
)
def test_a_grader_that_does_not_look_is_found_at_load(
    monkeypatch: pytest.MonkeyPatch, marks: float, words: str
) -> None:
    monkeypatch.setattr(reasoning_gym, "score", lambda *_, **__: Value(marks))
    with pytest.raises(DataError, match=words):
        reasoning_gym.get_reasoning_gym_rl_dataset("gcd", size=1)


def test_a_sound_grader_passes() -> None:
    assert len(reasoning_gym.get_reasoning_gym_rl_dataset("gcd", size=3)) == 3
