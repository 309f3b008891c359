"""CASES.md, Rewards: maths after our own normaliser."""

import pytest

from astraflow.core.data import Invalid, Value

pytest.importorskip("math_verify")
from astraflow.core.workflow.reward.math_verify import math_verify_reward


def reward(completion: str, answer: object):
    return math_verify_reward("", completion, [], [], answer=answer)


@pytest.mark.parametrize(
    ("completion", "gold", "value"),
    [
        ("½", ".5", 1),
        ("the answer is 42", "42", 1),
        (r"\boxed{1,000}", "1000", 1),
        ("x=3", "3", 1),
        (r"first \boxed{3}, then \boxed{4}", "4", 1),
        (r"first \boxed{4}, then \boxed{3}", "4", 0),
        ("√4", "2", 1),
        ("12/3", "4", 1),
        ("3/12", "4", 0),
        ("1×10^3", "1000", 1),
        ("1×10^3", "1", 0),
        ("", "4", 0),
        ("???", "4", 0),
        ("I do not know", "4", 0),
        (r"\boxed{2\sqrt{3}}", r"\sqrt{12}", 1),
        (r"\boxed{x^2+1}", "1+x^2", 1),
        (r"\boxed{(1,2)}", "(1,2)", 1),
        (r"\boxed{\pi/2}", r"\frac{\pi}{2}", 1),
        ("0.333333", "1/3", 1),
        ("1000001", "1000000", 0),
        ("3.14", r"\pi", 0),
        ("B", "B", 1),
        ("A", "B", 0),
        ("18", 18, 1),
        ("18", "steps\n#### 18", 1),
    ],
)
def test_answers(completion: str, gold: object, value: float) -> None:
    assert reward(completion, gold) == Value(value)


@pytest.mark.parametrize("gold", [None, "", "???", "banana", "hello world"])
def test_a_gold_that_cannot_be_parsed_is_invalid(gold: object) -> None:
    assert reward("4", gold) == Invalid("gold")
