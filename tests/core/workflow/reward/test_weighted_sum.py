from typing import Any

from astraflow.core.data import Invalid, Value
from astraflow.core.workflow.reward.weighted_sum import WeightedSum


def length(prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], **row: Any) -> float:
    return float(len(completions))


def asked(prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], **row: Any) -> Value:
    return Value(float(row["wanted"] in completions), {"inner": 1.0})


def test_it_adds_up_and_shows_the_parts_unweighted() -> None:
    reward = WeightedSum(asked=(1.0, asked), length=(-0.25, length))
    assert reward("", "ab", [], [], wanted="b") == Value(0.5, {"asked": 1.0, "length": 2.0})


def test_a_part_that_cannot_say_makes_the_whole_invalid() -> None:
    def never(*args: object, **row: object) -> Invalid:
        return Invalid("gold", "no number")

    def nan(*args: object, **row: object) -> float:
        return float("nan")

    assert WeightedSum(length=(1.0, length), gold=(0.0, never))("", "", [], []) == Invalid("gold", "gold: no number")
    assert WeightedSum(nan=(1.0, nan))("", "", [], []) == Invalid("nan", "nan: ")
