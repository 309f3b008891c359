"""From an answer's text to its tokens, in one pass: what a sequence of characters means is decided here alone."""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

from astraflow.errors import DataError

MAX_CHARACTERS = 1500
"""No answer is longer; degenerate text is refused before it costs anything."""


class UnreadableError(DataError):
    """A text is no answer that can be read to its end."""


class Token(NamedTuple):
    """kind: number, name (a letter, a command or a function), word (of prose), mark (an operator or bracket)."""

    kind: str
    text: str
    spaced: bool = False
    """Whether a space stands before it."""


_SYMBOLS = str.maketrans(
    {
        **dict.fromkeys("−–—‒", "-"),
        **dict.fromkeys("·⋅∙∗✕×", "*"),
        **dict.fromkeys("÷⁄∕", "/"),
        **dict.fromkeys("\u00a0\u2009\u202f\u2007\u200b", " "),
        "π": r"\pi ",
        "∞": r"\infty ",
        "°": r"\degree ",
        "º": r"\degree ",
        "√": r"\root ",
        "∛": r"\cbrt ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "≠": r"\ne ",
        "⩽": r"\le ",
        "⩾": r"\ge ",
        "±": r"\pm ",
        "∓": r"\mp ",
        "∪": r"\cup ",
        "∈": r"\in ",
        "∅": r"\emptyset ",
        "ℝ": r"\reals ",
        "ℤ": r"\integers ",
        "≈": r"\approx ",
        "θ": r"\theta ",
        "φ": r"\phi ",
        "α": r"\alpha ",
        "β": r"\beta ",
        "λ": r"\lambda ",
        "ω": r"\omega ",
        "⌊": r"\lfloor ",
        "⌋": r"\rfloor ",
        "⌈": r"\lceil ",
        "⌉": r"\rceil ",
        "∣": "|",
        "′": "'",
        "∨": r"\lor ",
        "“": "",
        "”": "",
        "’": "'",
        "，": ",",
        "：": ":",
        "（": "(",
        "）": ")",
    }
)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_VULGAR = "".join(chr(c) for c in (*range(0xBC, 0xBF), *range(0x2150, 0x215F), 0x2189))
_NOISE = re.compile(
    r"(\\\\)|\\(?:left|right|displaystyle|textstyle|limits|[bB]ig{1,2}[lr]?|quad|qquad|hspace\{[^{}]*\}|hfill)(?![a-zA-Z])"
    r"|\\[,!;:>() \[\]]|(?<!\\)\$|~|\*\*(?=\s*$)|^\s*\*\*"
)
_ALIASES = {
    **dict.fromkeys(("dfrac", "tfrac", "cfrac"), "frac"),
    **dict.fromkeys(("dbinom", "tbinom"), "binom"),
    **dict.fromkeys(("leq", "leqslant"), "le"),
    **dict.fromkeys(("geq", "geqslant"), "ge"),
    **dict.fromkeys(("lvert", "rvert", "vert", "mid"), "|"),
    **dict.fromkeys(("varnothing", "empty"), "emptyset"),
    "neq": "ne",
    "lbrace": "{",
    "rbrace": "}",
    "lbrack": "[",
    "rbrack": "]",
    "circ": "degree",
    "lt": "<",
    "gt": ">",
    "times": "*",
    "cdot": "*",
    "ast": "*",
    "div": "/",
    "colon": ":",
    "lparen": "(",
    "rparen": ")",
    "land": "and",
    "lor": "or",
    "vee": "or",
    "wedge": "and",
    "bullet": "*",
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
}
_MARKS = {"le", "ge", "ne", "<", ">", "*", "/", ":", "(", ")", "[", "]", "|", "pm", "mp", "cup", "in", "approx"}
_TEXT = {"text", "textbf", "textit", "textrm", "mathrm", "mathbf", "mbox", "operatorname", "rm", "textnormal", "textsf"}
FUNCTIONS = {
    *("sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan", "sinh", "cosh", "tanh", "ln", "log", "lg"),
    *("exp", "sqrt", "cbrt", "abs", "gcd", "lcm", "max", "min", "floor", "ceil", "binom", "arcsin", "arccos", "arctan"),
}
_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"
_GROUPED = r"\d{1,3}(?:(?:\{,\}|\\,)\d{3})+(?!\d)(?:\.\d+)?|\d{1,3}(?: \d{3})+(?![\d/])(?:\.\d+)?"
_COMMAS = re.compile(r"\d{1,3}(?:,\d{3})+(?![\d])(?!,\d)(?:\.\d+)?")
_TOKEN = re.compile(
    rf"(?P<space>\s+)|(?P<grouped>{_GROUPED})|(?P<number>{_NUMBER}(?:[eE][+-]?\d{{1,4}}(?![\dA-Za-z]))?)"
    r"|\\(?P<text>text(?:bf|it|rm|normal|sf)?|mathrm|mathbf|mbox|operatorname|rm)\s*\{(?P<content>[^{}]*)\}"
    r"|\\(?P<command>[a-zA-Z]+|[{}%$#&|\\])"
    r"|(?P<letters>[aApP]\.[mM]\b\.?|[^\W\d_]{3,}(?:['-][^\W\d_]{3,})+|[^\W\d_]+)|(?P<mark><=|>=|!=|==|\*\*|[-+*/^_=<>()\[\]{},;:|!%&'.?])"
    r"|(?P<currency>[€£¥])"
)
_TIMES_TEN = re.compile(r"(?<=\d) ?[xX] ?(?=10 ?(?:\^|\*\*))")


def tokens(text: str) -> list[Token]:
    """Every token of an answer, wrappers and closing punctuation left out. UnreadableError where one is not known."""
    if len(text) > MAX_CHARACTERS:
        raise UnreadableError(f"{len(text)} characters, expected at most {MAX_CHARACTERS}")
    plain = _plain(text)
    found: list[Token] = []
    at, depth, spaced = 0, 0, False
    while at < len(plain):
        commas = _COMMAS.match(plain, at) if depth == 0 else None
        match = commas or _TOKEN.match(plain, at)
        if match is None:
            raise UnreadableError(f"no answer is written with {plain[at]!r}")
        at = match.end()
        if match.lastgroup == "space":
            spaced = True
            continue
        made = [Token("number", re.sub(r"[^\d.]", "", match[0]), spaced)] if commas else _made(match, spaced)
        depth += sum({"(": 1, "[": 1, "set": 1, ")": -1, "]": -1, "unset": -1}.get(each.text, 0) for each in made)
        found += made
        spaced = match.lastgroup == "content"
    return found


def _plain(text: str) -> str:
    text = re.sub(f"[{_VULGAR}]", _vulgar, text.strip())
    text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺]+", lambda run: f"^{{{run[0].translate(_SUPERSCRIPTS)}}}", text)
    text = re.sub("[₀₁₂₃₄₅₆₇₈₉]+", lambda run: f"_{{{run[0].translate(_SUBSCRIPTS)}}}", text)
    text = unicodedata.normalize("NFKC", text.translate(_SYMBOLS)).translate(_SYMBOLS)
    text = text.replace(r",\!", ",")
    text = re.sub(r"(\d)\\,(?=\d{3}(?!\d))", r"\1{,}", text)
    text = _TIMES_TEN.sub("*", _NOISE.sub(lambda noise: noise[1] or " ", text).strip())
    return text.rstrip(" .,;:?\n").strip()


def _vulgar(match: re.Match[str]) -> str:
    above, below = unicodedata.normalize("NFKC", match[0]).replace("⁄", "/").split("/")
    return rf"\frac{{{above}}}{{{below}}}"


def _made(match: re.Match[str], spaced: bool) -> list[Token]:
    if match["number"] or match["grouped"]:
        return [Token("number", match["number"] or re.sub(r"[^\d.]", "", match[0]), spaced)]
    if match["text"]:
        return _text(match["text"], match["content"], spaced)
    if match["command"]:
        return [_command(match["command"], spaced)]
    if match["letters"]:
        return _letters(match["letters"], spaced)
    same = {"==": "=", "<=": "le", ">=": "ge", "!=": "ne", "**": "^"}
    return [Token("word" if match["currency"] else "mark", same.get(match[0], match[0]), spaced)]


def _text(command: str, content: str, spaced: bool) -> list[Token]:
    """What stands in \\text{…}: a letter of \\mathrm is a name, all other letters are words."""
    inner = [Token(each.kind, each.text, each.spaced) for each in tokens(content)] if content.strip() else []
    if command in ("mathrm", "mathbf", "operatorname") and len(inner) == 1:
        return [inner[0]._replace(spaced=spaced)]
    return [
        each._replace(kind="word" if each.kind == "name" and each.text.isalpha() else each.kind, spaced=True)
        for each in inner
    ]


def _command(name: str, spaced: bool) -> Token:
    if name in "{}":
        return Token("mark", "set" if name == "{" else "unset", spaced)
    if name == "\\":
        return Token("mark", "row", spaced)
    name = _ALIASES.get(name, name)
    if name == "{":
        return Token("mark", "set", spaced)
    if name == "}":
        return Token("mark", "unset", spaced)
    if name in ("%", "&"):
        return Token("mark", name, spaced)
    if name in ("$", "or", "and"):
        return Token("word", name, spaced)
    return Token("mark" if name in _MARKS else "name", name if name in _MARKS else "\\" + name, spaced)


def _letters(run: str, spaced: bool) -> list[Token]:
    lower = run.lower()
    if len(run) == 1:
        return [Token("name", run, spaced)]
    if run in FUNCTIONS:
        return [Token("name", "\\" + _ALIASES.get(run, run), spaced)]
    if lower in ("pi", "infinity", "inf", "infty") and run not in ("PI", "Pi"):
        return [Token("name", r"\pi" if lower == "pi" else r"\infty", spaced)]
    return [Token("word", run, spaced)]
