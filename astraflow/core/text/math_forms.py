"""What an answer can be: a quantity, a group or union of answers, a relation, a matrix, a ratio, a time, or words.

`read` takes the whole of a text or raises UnreadableError.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from astraflow.core.text.math_expression import Cursor, Tree, formula, is_letters
from astraflow.core.text.math_tokens import Token, UnreadableError, tokens
from astraflow.core.text.math_units import UNIT_LETTERS, UNITS
from astraflow.core.text.math_words import ANSWERS, NOT_A_UNIT, NOTHING, spelled

MAX_NESTING = 12
Tokens = Sequence[Token]


@dataclass(frozen=True)
class Quantity:
    """A formula, with what stands around it."""

    tree: Tree
    unit: str = ""
    percent: bool = False
    last_place: Fraction | None = None
    """Of a decimal: what one in its last place is worth. None: written exactly."""


@dataclass(frozen=True)
class Group:
    """kind: "list" (1, 2), "set" {1, 2}, "union", or the two brackets of a tuple or interval: "()", "[)"."""

    kind: str
    items: tuple[Form, ...]


@dataclass(frozen=True)
class Equation:
    """label: the left side where it only names something ("x", "f(3)"); else left is its formula."""

    label: str
    left: Tree | None
    right: Form


@dataclass(frozen=True)
class Inequality:
    """trees[0] signs[0] trees[1] …"""

    trees: tuple[Tree, ...]
    signs: tuple[str, ...]


@dataclass(frozen=True)
class Matrix:
    rows: tuple[tuple[Form, ...], ...]
    determinant: bool = False


@dataclass(frozen=True)
class Ratio:
    """3 : 4, or a time of the day, half of which says "am" or "pm"."""

    parts: tuple[Tree, ...]
    digits: tuple[str, ...]
    half: str = ""


@dataclass(frozen=True)
class Words:
    text: str
    declared: bool = False
    """Written as an answer: in \\text{…}, or one of the words that mathematics answers with."""


Form = Quantity | Group | Equation | Inequality | Matrix | Ratio | Words

_OPENING = {"(", "[", "{", "set", r"\lfloor", r"\lceil", r"\begin"}
_CLOSING = {")", "]", "}", "unset", r"\rfloor", r"\rceil", r"\end"}
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_RELATIONS = {"<", ">", "le", "ge", "ne"}
_TURNED = {"<": ">", ">": "<", "le": "ge", "ge": "le", "ne": "ne"}


def read(text: str) -> Form:
    """The whole of a text as one answer."""
    try:
        return _list(tokens(text), 0)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(str(error)) from error


def _list(found: Tokens, depth: int) -> Form:
    if not found or depth > MAX_NESTING:
        raise UnreadableError("empty" if not found else "nested too deeply")
    words = _words(found)
    if words is not None:
        return words
    unions = _split(found, ("cup",))
    if len(unions) > 1:
        return Group("union", tuple(_item(each, depth) for each in unions))
    items = _items(found)
    return _item(items[0], depth) if len(items) == 1 else Group("list", tuple(_item(each, depth) for each in items))


def _items(found: Tokens) -> list[Tokens]:
    """The parts between commas, "and" and "or"; "3, 4, and 5" has three."""
    parts = _split(found, (",", ";", "and", "or"))
    return [part for part in parts if part] if any(each.text in ("and", "or") for each in found) else parts


def _split(found: Tokens, marks: Sequence[str]) -> list[Tokens]:
    """The parts between marks that stand in no bracket."""
    parts: list[Tokens] = []
    depth = start = 0
    for at, token in enumerate(found):
        depth += (token.text in _OPENING) - (token.text in _CLOSING)
        if depth == 0 and token.text in marks and token.kind in ("mark", "word"):
            parts.append(found[start:at])
            start = at + 1
    if depth:
        raise UnreadableError("brackets do not match")
    return [*parts, found[start:]]


def _item(found: Tokens, depth: int) -> Form:
    if not found or depth > MAX_NESTING:
        raise UnreadableError("an empty part" if not found else "nested too deeply")
    words = _words(found)
    if words is not None:
        return words
    named = _named(found)
    if named is not None:
        return named
    for reader in (_equation, _inequality, _membership, _ratio):
        form = reader(found, depth)
        if form is not None:
            return form
    return _grouped(found, depth) or _matrix(found, depth) or _quantity(found)


def _named(found: Tokens) -> Form | None:
    texts = [each.text for each in found]
    if texts in ([r"\emptyset"], ["set", "unset"], ["{", "}"]):
        return Words("none", True)
    if texts in ([r"\reals"], [r"\mathbb", "{", "R", "}"], [r"\mathbb", "R"], [r"\Bbb", "{", "R", "}"], [r"\R"]):
        infinity: Tree = ("name", "infty")
        ends = (("-", ("number", Fraction(0)), infinity), infinity)
        return Group("()", tuple(Quantity(each) for each in ends))
    return None


def _words(found: Tokens) -> Form | None:
    """Words and nothing else; None where there is something else, or only letters that are multiplied."""
    if not all(each.kind == "word" or (each.kind == "name" and len(each.text) == 1) for each in found):
        return None
    if not any(each.kind == "word" for each in found):
        return None
    if len(found) == 1 and len(found[0].text) == 1:
        return Quantity(("name", found[0].text)) if found[0].text.isalpha() else None
    if all(each.kind == "name" or (is_letters(Cursor([each])) and not each.spaced) for each in found):
        return None
    text = " ".join(each.text for each in found).lower().replace("-", " ")
    number = spelled(text.split())
    if number is not None:
        return Quantity(("number", Fraction(number)))
    if text in ("all real numbers", "all reals", "all real x", "real numbers"):
        return _named([Token("name", r"\reals")])
    if any(each.text in ("or", "and") for each in found[1:-1]) and len(found) > 2:
        return None
    if text in NOTHING:
        return Words("none", True)
    plain = re.sub(r"^(?:the|a|an) ", "", text)
    plain = "dne" if plain in ("does not exist", "undefined") else plain
    declared = any(each.spaced and each.kind == "word" for each in found[:1]) or plain in ANSWERS
    return Words(plain, declared or found[0].text.isupper())


def _equation(found: Tokens, depth: int) -> Form | None:
    exact, *rounded = _split(found, ("approx",))
    if rounded and not _label(exact):  # an exact value, and what it is roughly
        _formula(rounded[-1])
        return _item(exact, depth + 1)
    parts = _split(found, ("=", "approx"))
    if len(parts) < 2:
        return None
    form = _item(parts[-1], depth + 1)
    for part in reversed(parts[:-1]):
        label = _label(part)
        form = Equation(label, None if label else _formula(part), form)
    return form


def _label(found: Tokens) -> str:
    """The left side of an equation where it is only a name; "" where it is a formula."""
    texts = [each.text for each in found]
    if not found or found[0].kind == "number" or texts[0] in ("+", "-", "|", r"\frac", r"\sqrt"):
        return ""
    outside = [part for part in _split_brackets(found) if part.text not in ("_", ".", "'")]
    if any(each.kind == "number" or each.text in ("+", "-", "*", "/", "^", "!", "|", "%") for each in outside):
        return ""
    if any(each.text in (r"\frac", r"\sqrt", r"\root", r"\log", r"\ln", r"\binom") for each in found):
        return ""
    if "(" in texts and outside and (len(outside) > 1 or outside[0].text in "xyzabcn"):
        return ""
    return "".join(texts)


def _split_brackets(found: Tokens) -> list[Token]:
    """The tokens that stand in no bracket and are no subscript."""
    kept: list[Token] = []
    depth = 0
    for at, token in enumerate(found):
        if token.text in _OPENING:
            depth += 1
        elif token.text in _CLOSING:
            depth -= 1
        elif depth == 0 and not (at and found[at - 1].text == "_"):
            kept.append(token)
    return kept


def _inequality(found: Tokens, depth: int) -> Form | None:
    parts = _split(found, tuple(_RELATIONS))
    if len(parts) < 2:
        return None
    signs = [each.text for each in found if each.kind == "mark" and each.text in _RELATIONS]
    if len(signs) != len(parts) - 1:
        raise UnreadableError("an inequality in brackets")
    return bounds(tuple(_formula(each) for each in parts), tuple(signs))


def bounds(trees: tuple[Tree, ...], signs: tuple[str, ...]) -> Inequality:
    """An inequality, written with "less than"."""
    if signs[0] in (">", "ge"):
        return Inequality(trees[::-1], tuple(_TURNED[each] for each in signs[::-1]))
    return Inequality(trees, signs)


def _membership(found: Tokens, depth: int) -> Form | None:
    parts = _split(found, ("in",))
    if len(parts) != 2 or not any(each.text == "in" and each.kind == "mark" for each in found):
        return None
    label = _label(parts[0])
    if not label:
        raise UnreadableError("an element that is no name")
    return Equation(label, None, _list(parts[1], depth + 1))


def _ratio(found: Tokens, depth: int) -> Form | None:
    half = ""
    if found[-1].kind == "word" and found[-1].text.lower().replace(".", "") in ("am", "pm"):
        half = found[-1].text.lower().replace(".", "")
        found = found[:-1]
    parts = _split(found, (":",))
    if len(parts) < 2:
        if half:
            raise UnreadableError("a time without minutes")
        return None
    digits = tuple(each[0].text if len(each) == 1 and each[0].text.isdigit() else "" for each in parts)
    return Ratio(tuple(_formula(each) for each in parts), digits, half)


def _grouped(found: Tokens, depth: int) -> Form | None:
    """What stands in one pair of brackets and is more than a formula."""
    pair = found[0].text + found[-1].text
    if found[0].text not in ("(", "[", "set", "{") or not _one_pair(found):
        return None
    inner = found[1:-1]
    parts = _split(inner, (",", ";"))
    if pair in ("setunset", "{}"):
        return (
            Group("set", tuple(_item(each, depth + 1) for each in parts)) if len(parts) > 1 or "set" in pair else None
        )
    if len(parts) == 1:
        if pair not in ("()", "[]"):
            raise UnreadableError("brackets do not match")
        nested = inner and (_words(inner) or _grouped(inner, depth + 1) or _matrix(inner, depth + 1))
        return Group("[]", (nested,)) if pair == "[]" and isinstance(nested, Group) else nested or None
    return Group(pair, tuple(_item(each, depth + 1) for each in parts))


def _one_pair(found: Tokens) -> bool:
    depth = 0
    for at, token in enumerate(found):
        depth += (token.text in _OPENING) - (token.text in _CLOSING)
        if depth == 0:
            return at == len(found) - 1
    return False


def _matrix(found: Tokens, depth: int) -> Form | None:
    texts = [each.text for each in found]
    if texts[0] != r"\begin" or len(texts) < 9 or texts[-4] != r"\end" or texts[1:4] != texts[-3:]:
        return None
    if texts[2] not in ("pmatrix", "bmatrix", "matrix", "vmatrix", "Bmatrix", "smallmatrix", "array"):
        raise UnreadableError(f"{texts[2]!r} is not read")
    body = found[4:-4]
    if texts[2] == "array" and texts[4] == "{" and "}" in texts:
        body = found[texts.index("}", 4) + 1 : -4]
    rows = [row for row in _split(body, ("row",)) if row]
    return Matrix(
        tuple(tuple(_item(cell, depth + 1) for cell in _split(row, ("&",))) for row in rows), texts[2] == "vmatrix"
    )


def _formula(found: Tokens) -> Tree:
    cursor = Cursor(list(found))
    tree = formula(cursor)
    if cursor.peek().kind != "end":
        raise UnreadableError(f"{cursor.peek().text!r} after a formula")
    return tree


def _quantity(found: Tokens) -> Form:
    unit, found = _currency(found)
    cursor = Cursor(list(found))
    tree = formula(cursor)
    place = _last_place(cursor.tokens[: cursor.at])
    if cursor.peek().text in _SCALES:
        scale = Fraction(10 ** _SCALES[cursor.next().text])
        tree, place = ("*", tree, ("number", scale)), place and place * scale
    percent = cursor.take("%") is not None
    if not percent and cursor.peek().text in ("percent", "per") and cursor.peek(0).kind == "word":
        percent = cursor.next().text == "percent" or cursor.next().text == "cent"
    if tree[0] == "degrees":
        tree, unit = tree[1], "degree"
    rest = cursor.tokens[cursor.at :]
    unit = _unit(rest, unit)
    signs = [_chosen(tree, sign) for sign in ("+", "-")]
    if signs[0] != signs[1]:
        return Group("list", tuple(Quantity(each, unit, percent) for each in signs))
    return Quantity(tree, unit, percent, place)


def _currency(found: Tokens) -> tuple[str, Tokens]:
    for at in range(min(2, len(found))):
        if found[at].kind == "word" and found[at].text in ("$", "€", "£", "¥", "USD"):
            return UNITS.get(found[at].text, "gbp"), [*found[:at], *found[at + 1 :]]
    return "", found


def _last_place(found: Tokens) -> Fraction | None:
    """What one in the last place of a decimal is worth; None for what is no single decimal."""
    plain = [each.text for each in found if each.text not in "+-{}()"]
    if not plain or found[0].kind not in ("number", "mark") or not re.fullmatch(r"[\d.]+(?:[eE][+-]?\d+)?", plain[0]):
        return None
    mantissa, _, exponent = plain[0].lower().partition("e")
    power = int(exponent or 0)
    if plain[1:4] == ["*", "10", "^"] and len(plain) == 5 and plain[4].isdigit() and len(plain[4]) < 5:
        power += -int(plain[4]) if any(each.text == "-" for each in found[-3:]) else int(plain[4])
    elif len(plain) > 1:
        return None
    decimals = len(mantissa.partition(".")[2])
    return Fraction(10) ** (power - decimals) if "." in mantissa and abs(power) < 500 else None


def _unit(rest: Tokens, before: str) -> str:
    """The unit that tokens after a formula say. UnreadableError where they are no unit."""
    parts: list[str] = [before] if before else []
    previous = ""
    for token in rest:
        text = token.text
        if token.kind == "word" and (text.lower() in NOT_A_UNIT or len(parts) > 3):
            raise UnreadableError(f"{text!r} after a number")
        if token.kind == "word" or (token.kind == "name" and text in UNIT_LETTERS | {r"\degree"}):
            if text != "of" and (name := UNITS.get(text, text.lower().strip("\\"))) != before:
                parts.append(name)
        elif text in ("2", "3") and previous in ("^", "{", "-"):
            parts[-1:] = [f"{parts[-1]}^{text}"] if parts else []
        elif not (text in ("/", "^", "{", "}", "-", "*") and parts):
            raise UnreadableError(f"{text!r} after a number")
        previous = text
    return " ".join(parts)


def _chosen(tree: Tree, sign: str) -> Tree:
    """A formula with one of the signs of its ±."""
    if tree[0] in ("number", "name", "base"):
        return tree
    parts = tuple(_chosen(each, sign) if isinstance(each, tuple) else each for each in tree)
    if parts[0] not in ("pm", "mp"):
        return parts
    chosen = sign if parts[0] == "pm" else ("-" if sign == "+" else "+")
    left = ("number", Fraction(0)) if parts[1] is None else parts[1]
    return (chosen, left, parts[2]) if chosen == "-" or parts[1] is not None else parts[2]
