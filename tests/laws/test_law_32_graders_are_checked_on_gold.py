"""LAW 32: a grader is checked on gold answers when a dataset is loaded: gold scores 1, a wrong one does not."""

import json
from pathlib import Path

import pytest

from astraflow.core.data import Value
from astraflow.core.dataset import gsm8k, reasoning_gym
from astraflow.core.workflow.registry import REWARD_REGISTRY
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


def test_what_gsm8k_lets_through_the_reward_grades_alike(tmp_path: Path) -> None:
    """The loader's check reads a text as the reward does: each gold scores 1 as a solution, its successor does not."""
    pytest.importorskip("math_verify")
    reward = REWARD_REGISTRY.resolve("math_verify")
    solutions = ["9 * 2 = <<9*2=18>>18 dollars\n#### 18", "#### 1,000", "a box of 5\n#### -3", "so 7 - 6.5\n#### 0.5"]
    rows = [{"question": f"{number}?", "answer": solution} for number, solution in enumerate(solutions)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for row, solution in zip(gsm8k.get_gsm8k_rl_dataset(str(tmp_path)), solutions, strict=True):
        wrong = f"#### {float(row['answer']) + 1}"
        assert reward("", solution, [], [], **row) == Value(1.0)
        assert reward("", wrong, [], [], **row) == Value(0.0)
