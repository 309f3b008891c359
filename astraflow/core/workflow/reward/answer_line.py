"""Reward for form alone: does a text end in a line "#### <number>"?"""

from __future__ import annotations

import re
from typing import Any

_ANSWER_LINE = re.compile(r"(?:^|\n)####[ \t]*-?\$?\d[\d,]*(?:\.\d+)?\s*\Z")


def ends_in_answer_line(
    prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], **row: Any
) -> float:
    """1 where the last line is "#### " and a number and no line before it is, else 0; whether it is right is not asked.

    A second #### takes the reward away: otherwise writing several answers would pay.
    """
    return float(completions.count("####") == 1 and _ANSWER_LINE.search(completions) is not None)
