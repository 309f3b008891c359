import pytest

from astraflow.core.data import Invalid, Value

pytest.importorskip("math_verify")
from astraflow.core.workflow.reward.math_format import math_format_reward


@pytest.mark.parametrize(
    ("text", "correct", "form"),
    [("2 + 5\n#### 7", 1, 1), ("The answer is 7.", 1, 0), ("#### 8", 0, 1), ("I do not know", 0, 0)],
)
def test_right_pays_one_and_form_a_tenth(text: str, correct: float, form: float) -> None:
    reward = math_format_reward("", text, [], [], answer="7")
    assert isinstance(reward, Value)
    assert (reward.value, reward.parts) == (pytest.approx(correct + 0.1 * form), {"correct": correct, "format": form})


def test_a_gold_that_is_no_number_is_invalid() -> None:
    reward = math_format_reward("", "#### 7", [], [], answer="?")
    assert isinstance(reward, Invalid)
    assert reward.reason == "gold"
