"""Where the final answer of a text stands, and the number that it is.

The last box counts, also where it is cut off: then there is no answer. Whatever stands at that place is read to its
end; a number is taken out of a sentence only where no box says what the answer is.
"""

from __future__ import annotations

import re
from fractions import Fraction

from astraflow.core.text.math_equality import holds
from astraflow.core.text.math_forms import Equation, Form, Quantity, read
from astraflow.core.text.math_tokens import MAX_CHARACTERS, UnreadableError
from astraflow.core.text.math_value import exact

_BOX = re.compile(r"\\f?boxed\s{0,9}\{")
_MARKER = re.compile(r"answer|####", re.IGNORECASE)
_AFTER_MARKER = re.compile(r"(?:answer(?:\s+is)?|####)[\s*]*[:=]?[\s*]*(?:is\s+)?", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[\w)}$%*])[.?](?=\s|$)")
_INLINE = re.compile(r"\$([^$]{1,300})\$|\\\((.{1,300}?)\\\)|\\\[(.{1,300}?)\\\]")
_AROUND = "*$(),;:!?\"'.`"
_OPERATORS = re.compile(r"[-+*/^<>×÷·≤≥≠±\\_]+$")


def final_answer(text: str) -> str:
    """Where the answer stands: the last box, else what follows the last "answer is" or "####", else the whole text."""
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed
    text = text.strip()
    markers = [found.start() for found in _MARKER.finditer(text)]
    for start in reversed(markers[-3:]):
        after = _AFTER_MARKER.match(text, start)
        line = text[after.end() :].lstrip().splitlines() if after else []
        if line:
            return _SENTENCE_END.split(line[0], maxsplit=1)[0]
    return text


def last_boxed(text: str) -> str | None:
    """The content of the last \\boxed{…}, braces balanced: "" where it is cut off; None where there is no box."""
    start = -1
    for match in _BOX.finditer(text):
        start = match.end()
    if start < 0:
        return None
    depth = 1
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start:position]
    return ""


def said(text: str) -> str | None:
    """The formula or number that a sentence ends in, if it is one: "so she has 42 apples" says 42."""
    lines = text[-MAX_CHARACTERS:].strip().splitlines()
    line = next((each for each in reversed(lines) if any(char.isalnum() for char in each)), "")
    formulas = list(_INLINE.finditer(line))
    if formulas and not any(char.isdigit() for char in line[formulas[-1].end() :]):
        return next(each for each in formulas[-1].groups() if each)
    words = line.split()
    for at in range(len(words) - 1, -1, -1):
        if any(char.isdigit() for char in words[at]):
            beside = [*words[max(at - 1, 0) : at], *words[at + 1 : at + 2]]
            word = words[at].strip(_AROUND) if words[at][-1:] != "!" else ""
            if at and words[at - 1].strip(_AROUND).isdigit():  # a mixed number, or two numbers side by side
                word = f"{words[at - 1].strip(_AROUND)} {word}"
            alone = not any(_OPERATORS.match(each) for each in beside)
            return word if alone and number_in(word) is not None else None
    return None


def number_in(text: str) -> Fraction | None:
    """The rational number that a text is, as a whole; None for any other text."""
    try:
        form: Form = read(text)
    except UnreadableError:
        return None
    while isinstance(form, Equation) and (form.label or holds(form)):
        form = form.right
    return exact(form.tree) if isinstance(form, Quantity) else None
