"""Rewards for form alone, 1 or 0; whether the answer is right is not asked."""

from __future__ import annotations

import re
from typing import Any

_ANSWER_LINE = re.compile(r"(?:^|\n)####[ \t]*-?\$?\d[\d,]*(?:\.\d+)?\s*\Z")
_EQUATION = re.compile(r"\s*-?\d+(?: ?[-+*/×÷] ?-?\d+)+ ?= ?-?\d+(?:\.\d+)?\.?\s*")


def ends_in_answer_line(
    prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], **row: Any
) -> float:
    """Whether the last line is "#### " and a number.

    A second #### takes the reward away: otherwise writing several answers would pay.
    """
    return float(completions.count("####") == 1 and _ANSWER_LINE.search(completions) is not None)


def is_one_equation(
    prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], **row: Any
) -> float:
    """Whether the text is an equation such as "17 + 28 = 45" and nothing else; a full stop may follow."""
    return float(_EQUATION.fullmatch(completions) is not None)
