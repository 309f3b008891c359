"""Reward 1 where the final answer equals the gold answer mathematically, else 0.

Rational numbers are compared exactly by our own normaliser, in microseconds; the rest by math-verify (an optional
extra), whose own timeouts cannot interrupt everything ($10^{10^{10}}$): it must run in a killable worker.
"""

from __future__ import annotations

import logging
import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

from astraflow.core.data import Invalid, Reward, Value
from astraflow.core.text.math_answer import final_answer, last_value, normalise, value_of
from astraflow.errors import ConfigError

try:
    from math_verify import parse, verify
except ImportError as error:
    raise ConfigError("reward 'math_verify' needs an extra: pip install 'astraflow[math]'") from error

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns at each call that its timeouts are off

DECIMAL_TOLERANCE = Fraction(1, 10**6)
"""Relative; only where one side is written as a decimal, which may be rounded. All else compares exactly."""


def math_verify_reward(
    prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], answer: Any = None, **row: Any
) -> Reward:
    """Value(1) or Value(0), which an unparsable answer is too; Invalid(gold) where the gold answer cannot be parsed."""
    gold = _gold("" if answer is None else str(answer))
    if gold is None:
        return Invalid("gold")
    return Value(float(_equal(final_answer(completions), gold)))


class _Gold:
    """A gold answer, read once."""

    def __init__(self, text: str, value: Fraction | None, parsed: list[Any]) -> None:
        self.text = text
        self.value = value
        self.parsed = parsed


@lru_cache(4096)
def _gold(text: str) -> _Gold | None:
    plain = normalise(final_answer(text))
    value = value_of(plain)
    parsed = [] if value is not None else _parse(plain)
    return _Gold(plain, value, parsed) if value is not None or parsed else None


def _equal(given: str, gold: _Gold) -> bool:
    plain = normalise(given)
    value = value_of(plain)
    if gold.value is not None:
        if value is None:
            value = last_value(plain)
        if value is not None:
            return _same_number(value, gold.value, "." in plain or "." in gold.text)
    elif plain == gold.text:
        return True
    answer = _parse(plain)
    reference = gold.parsed or _parse(gold.text)
    return bool(answer) and bool(verify(reference, answer, timeout_seconds=None))


def _same_number(given: Fraction, gold: Fraction, rounded: bool) -> bool:
    return given == gold or (rounded and abs(given - gold) <= DECIMAL_TOLERANCE * max(Fraction(1), abs(gold)))


def _parse(plain: str) -> list[Any]:
    """math-verify's reading of a formula; empty where it is none (prose is not, though its letters would multiply)."""
    if not plain or _is_prose(plain):
        return []
    result: list[Any] = parse(f"${_latex(plain)}$", parsing_timeout=None)
    return result


def _is_prose(plain: str) -> bool:
    words = re.findall(r"(?<!\\)\b[^\W\d_]+", plain.replace("sqrt", " "))
    return not any(char.isalnum() for char in plain) or any(len(word) > 2 for word in words)


def _latex(plain: str) -> str:
    return re.sub(r"(?<!\\)sqrt\(([^()]*)\)", r"\\sqrt{\1}", plain)
