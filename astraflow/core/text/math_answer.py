"""From a text to the value of its final answer, exactly and without a computer algebra system.

People and models write one number in many forms (½, \\frac{1}{2}, 0.5, 1,000, 1×10³, √4, 42 cm, x = 3). `final_answer`
finds where the answer stands, `normalise` brings it to one plain form, `value_of` computes it as a fraction where it is
rational. Whatever is left (roots, symbols, intervals) is for a computer algebra system.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from math import isqrt

MAX_EXPONENT = 400
"""Powers beyond it are not computed here: an answer must not cost memory."""
MAX_DIGITS = 400

_SYMBOLS = str.maketrans(
    {
        **dict.fromkeys("−–—", "-"),
        **dict.fromkeys("×·⋅∙∗✕", "*"),
        **dict.fromkeys("÷⁄∕", "/"),
        **dict.fromkeys("\u00a0\u2009\u202f\u2007", " "),
        "π": "\\pi",
        "∞": "\\infty",
        "°": "",
    }
)
_VULGAR = "".join(chr(c) for c in (*range(0xBC, 0xBF), *range(0x2150, 0x215F), 0x2189))
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_MARKER = re.compile(r"(?:final\s+)?answer(?:\s+is)?\s*[:=]?\s*(?:is\s+)?(?=\S)|####\s*", re.IGNORECASE)
_NUMBER = re.compile(r"\d+(?:\.\d*)?(?:[eE][+-]?\d{1,3})?|\.\d+")
_ARITHMETIC = re.compile(r"(?:sqrt|[\d.+\-*/^() ])+")
_LATEX_NOISE = re.compile(r"\\(?:left|right|displaystyle|textstyle|limits|bigl?|bigr?|[,!;: ])|\\?\$|\^\{?\\circ\}?|~")
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf|textit|operatorname|mbox)\s*\{([^{}]*)\}")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:,|\{,\}| )\d{3})+(?![\d,])")
_ABBREVIATED = "mm|cm|dm|km|mg|kg|ml|cl|ms|min|hrs?|mph|kWh|Hz|[mgslhLVWAJNKC]"
_UNIT = re.compile(
    rf"(?<=[\d).])(?:\s*\\?%|(?:\s*(?:mm|cm|dm|km|mg|kg|ml)|\s+(?:{_ABBREVIATED}|(?!sqrt)[a-zA-Z]{{3,}}))"
    r"(?:(?:\s*[\^/]\s*|\s+)(?:[a-zA-Z]+|\(?-?[23]\)?))*)\s*$"
)


def final_answer(text: str) -> str:
    """Where the answer stands: the last box, else what follows the last "answer is" or "####", else the whole text."""
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed
    markers = list(_MARKER.finditer(text))
    if not markers:
        return text
    line = text[markers[-1].end() :].strip().splitlines()
    return re.split(r"(?<=[\w)}$%])[.;!?](?:\s|$)", line[0])[0] if line else ""


def last_boxed(text: str) -> str | None:
    """The content of the last complete \\boxed{…}, braces balanced; None where there is none."""
    for match in reversed(list(re.finditer(r"\\f?boxed\s*\{", text))):
        depth = 1
        for position in range(match.end(), len(text)):
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            if depth == 0:
                return text[match.end() : position]
    return None


def normalise(text: str) -> str:
    """One plain form: ASCII operators, sqrt(…), (a)/(b), no units, no thousands separators, no "x =" in front."""
    # a run of digits is looked at once, from its start: a long one must not cost its length squared
    text = re.sub(f"((?<!\\d)\\d+)?([{_VULGAR}])", _vulgar, text.strip())
    text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺]+", lambda run: f"^({run[0].translate(_SUPERSCRIPTS)})", text)
    text = re.sub(r"√\s*(\d+(?:\.\d+)?|[a-zA-Z]|\([^()]*\)|\{[^{}]*\})", lambda m: f"sqrt({m[1].strip('(){}')})", text)
    text = unicodedata.normalize("NFKC", text.translate(_SYMBOLS)).translate(_SYMBOLS)
    text = _plain_latex(text)
    text = _THOUSANDS.sub(lambda run: re.sub(r"[,{} ]", "", run[0]), text)
    if text.count("=") == 1 and not re.search(r"[<>!]=", text):
        text = text.partition("=")[2]
    text = _UNIT.sub("", text.rstrip(" .,;:*\n"))
    return text.rstrip(" .,;:*").lstrip(" ,;:*\n")


def value_of(text: str) -> Fraction | None:
    """The exact value of normalised arithmetic; None where it is not rational, not arithmetic, or too large."""
    if not text or len(text) > 4 * MAX_DIGITS:
        return None
    mixed = re.fullmatch(r"(-?)(\d+)\s+(\d+)/(\d+)", text)
    if mixed and int(mixed[4]):
        value = int(mixed[2]) + Fraction(int(mixed[3]), int(mixed[4]))
        return -value if mixed[1] else value
    try:
        return _Arithmetic(text).value()
    except (ValueError, ZeroDivisionError, RecursionError):
        return None


def last_value(text: str) -> Fraction | None:
    """The value of the last arithmetic in a text."""
    for run in reversed(_ARITHMETIC.findall(text)):
        value = value_of(run.rstrip(" .+-*/^(").lstrip(" *+/^)"))
        if value is not None:
            return value
    return None


def _vulgar(match: re.Match[str]) -> str:
    fraction = unicodedata.normalize("NFKC", match[2]).replace("⁄", "/")
    return f"({match[1]}+{fraction})" if match[1] else f"({fraction})"


def _plain_latex(text: str) -> str:
    text = _LATEX_NOISE.sub("", text)
    without_text = _TEXT.sub("", text)
    text = without_text if without_text.strip() else _TEXT.sub(r"\1", text)
    text = re.sub(r"\\(?:times|cdot)(?![a-zA-Z])", "*", text)
    text = re.sub(r"\\div(?![a-zA-Z])", "/", text)
    text = re.sub(r"\\[dtc]?frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\sqrt\s*(\d)", r"\\sqrt{\1}", text)
    for _ in range(8):  # innermost first; deeper nesting is left to the computer algebra system
        before = text
        text = re.sub(r"(?<=\d)\s*\\[dtc]?frac\s*\{(\d+)\}\s*\{(\d+)\}", r"+\1/\2", text)
        text = re.sub(r"\\[dtc]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"((\1)/(\2))", text)
        text = re.sub(r"\\sqrt\s*\{([^{}]*)\}", r"sqrt(\1)", text)
        text = re.sub(r"\^\s*\{([^{}]*)\}", r"^(\1)", text)
        if text == before:
            break
    return text


class _Arithmetic:
    """A recursive-descent evaluator: + - * / ^ sqrt ( ), numbers, and a factor written against a bracket."""

    def __init__(self, text: str) -> None:
        self._text = text.replace(" ", "")
        self._at = 0

    def value(self) -> Fraction:
        value = self._sum()
        if self._at != len(self._text):
            raise ValueError(self._text)
        return value

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, token: str) -> bool:
        if self._text.startswith(token, self._at):
            self._at += len(token)
            return True
        return False

    def _sum(self) -> Fraction:
        value = self._product()
        while True:
            if self._take("+"):
                value += self._product()
            elif self._take("-"):
                value -= self._product()
            else:
                return value

    def _product(self) -> Fraction:
        value = self._signed()
        while True:
            if self._take("*"):
                value *= self._signed()
            elif self._take("/"):
                value /= self._signed()
            elif self._peek() in ("(", "s"):
                value *= self._power()
            else:
                return value

    def _signed(self) -> Fraction:
        if self._take("-"):
            return -self._signed()
        return self._signed() if self._take("+") else self._power()

    def _power(self) -> Fraction:
        base = self._atom()
        if not self._take("^"):
            return base
        exponent = self._signed()
        digits = len(str(max(abs(base.numerator), base.denominator))) * abs(exponent)
        if exponent.denominator != 1 or abs(exponent) > MAX_EXPONENT or digits > MAX_DIGITS:
            raise ValueError("not computed here")
        return base ** int(exponent)

    def _atom(self) -> Fraction:
        if self._take("("):
            value = self._sum()
            if not self._take(")"):
                raise ValueError(self._text)
            return value
        if self._take("sqrt("):
            value = self._sum()
            root = Fraction(isqrt(abs(value.numerator)), isqrt(value.denominator))
            if not self._take(")") or root * root != value:
                raise ValueError("not rational")
            return root
        number = _NUMBER.match(self._text, self._at)
        if number is None:
            raise ValueError(self._text)
        self._at = number.end()
        return Fraction(number[0].rstrip(".") if number[0].endswith(".") else number[0])
