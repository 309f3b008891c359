"""Reward 1 where the final answer equals the gold answer mathematically, else 0.

Both are read to their end by `core.text.math_forms` and compared by `math_equality`, in well under a millisecond. What
these do not read (sums, integrals, set builders) is for math-verify (an optional extra), whose own timeouts cannot
interrupt everything: it must run in a killable worker.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any

from astraflow.core.data import Invalid, Reward, Value
from astraflow.core.text.math_answer import final_answer, last_boxed, said
from astraflow.core.text.math_equality import same
from astraflow.core.text.math_forms import Form, Words, read
from astraflow.core.text.math_tokens import UnreadableError
from astraflow.errors import ConfigError

try:
    from math_verify import LatexExtractionConfig, parse, verify
except ImportError as error:
    raise ConfigError("reward 'math_verify' needs an extra: pip install 'astraflow[math]'") from error

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns at each call that its timeouts are off

MAX_FORMULA = 300
"""Characters that math-verify is given: its grammar takes long over nested brackets."""
MAX_BRACKETS = 12
_COMMANDS = re.compile(r"\\[a-zA-Z]+|\\.")


def math_verify_reward(
    prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], answer: Any = None, **row: Any
) -> Reward:
    """Value(1) or Value(0), which an unparsable answer is too; Invalid(gold) where the gold answer cannot be parsed."""
    gold = _gold("" if answer is None else str(answer))
    if gold is None:
        return Invalid("gold")
    given = final_answer(completions)
    form = _read(given)
    if form is None and last_boxed(completions) is None and _is_prose(given) and (sentence := said(given)):
        given, form = sentence, _read(sentence)
    return Value(float(_equal(gold, given, form)))


class _Gold:
    """A gold answer, read once."""

    def __init__(self, text: str, form: Form | None) -> None:
        self.text = text
        self.form = form


@lru_cache(4096)
def _gold(text: str) -> _Gold | None:
    plain = final_answer(text)
    form = _read(plain)
    if isinstance(form, Words) and not form.declared:
        return None
    return _Gold(plain, form) if form is not None or _parse(plain) else None


def _equal(gold: _Gold, given: str, form: Form | None) -> bool:
    if gold.form is not None and form is not None:
        return same(gold.form, form)
    if not given.strip():
        return False
    if gold.text.split() == given.split():
        return True
    answer = _parse(given)
    reference = _parse(gold.text) if answer else []
    return bool(reference) and bool(verify(reference, answer, timeout_seconds=None))


def _read(text: str) -> Form | None:
    try:
        return read(text)
    except UnreadableError:
        return None


def _parse(text: str) -> list[Any]:
    """math-verify's reading of one whole formula; empty where it is none (prose is not, though letters multiply)."""
    plain = text.strip().strip("$")
    if not plain or len(plain) > MAX_FORMULA or sum(map(plain.count, "([{")) > MAX_BRACKETS or _is_prose(plain):
        return []
    result: list[Any] = parse(
        f"${plain}$", [LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=None
    )
    return result


def _is_prose(text: str) -> bool:
    words = re.findall(r"[^\W\d_]+", _COMMANDS.sub(" ", text))
    return not any(char.isalnum() for char in text) or any(len(word) > 2 for word in words) or r"\text" in text
