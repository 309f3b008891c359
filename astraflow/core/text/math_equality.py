"""Whether an answer is the gold answer. Both were read whole; what is not surely the same is not equal."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from astraflow.core.text.math_expression import Tree
from astraflow.core.text.math_forms import Equation, Form, Group, Inequality, Matrix, Quantity, Ratio, Words
from astraflow.core.text.math_units import UNITS
from astraflow.core.text.math_value import UnknownValueError, equal, exact, letters, near, proportional, value

DECIMAL_TOLERANCE = 1e-6
"""Relative, and at most one in the last place; only where one side is written as a decimal, which may be rounded."""
MOST_ITEMS = 60


def same(gold: Form, given: Form) -> bool:
    """Whether the given answer is the gold answer."""
    if gold == given:
        return True
    if isinstance(given, Equation) or isinstance(gold, Equation):
        return _same_equation(gold, given)
    match gold, given:
        case Quantity(), Quantity():
            return _same_quantity(gold, given)
        case Words(), Words():
            return gold.text == given.text
        case Words(), Quantity() | Group() | Ratio():
            return False
        case Inequality(), Inequality():
            return _same_inequality(gold, given)
        case (Inequality(), Group()) | (Group(), Inequality()):
            return _same_range(gold, given)
        case Matrix(), _:
            return _same_matrix(gold, given)
        case _, Matrix():
            return _same_matrix(given, gold)
        case (Ratio(), _) | (_, Ratio()):
            return _same_ratio(gold, given)
        case _:
            return _same_group(gold, given)


def _same_equation(gold: Form, given: Form) -> bool:
    """Compare what stands right of a name; two equations between formulas are equal if they are proportional."""
    if isinstance(gold, Equation) and isinstance(given, Equation):
        if gold.label and given.label:
            letters_differ = gold.label != given.label and len(gold.label) == len(given.label) == 1
            return not letters_differ and same(gold.right, given.right)
        return _same_curve(gold, given)
    outer, inner = (gold, given) if isinstance(gold, Equation) else (given, gold)
    assert isinstance(outer, Equation)
    if not outer.label and not holds(outer):
        return False
    return same(outer.right, inner) if outer is gold else same(inner, outer.right)


def holds(equation: Equation) -> bool:
    """Whether an equation between numbers is true, as nearly as it is written."""
    last = _last(equation)
    if equation.left is None or letters(equation.left) or not isinstance(last, Quantity) or letters(last.tree):
        return False
    try:
        return near(value(equation.left), value(last.tree), 0.01 if last.last_place else 1e-9)
    except UnknownValueError:
        return False


def _last(form: Form) -> Form:
    while isinstance(form, Equation):
        form = form.right
    return form


def _same_curve(gold: Equation, given: Equation) -> bool:
    differences: list[Tree] = []
    for each in (gold, given):
        left: Tree | None = each.left or (("name", each.label) if len(each.label) == 1 else None)
        if left is None or not isinstance(each.right, Quantity):
            return False
        differences.append(("-", left, each.right.tree))
    return letters(differences[0]) == letters(differences[1]) and proportional(differences[0], differences[1])


def _same_quantity(gold: Quantity, given: Quantity) -> bool:
    if not _same_unit(gold.unit, given.unit):
        return False
    if gold.percent and given.percent:
        return _same_number(gold, given)
    if gold.percent or given.percent:
        percent, other = (gold, given) if gold.percent else (given, gold)
        hundredth = Fraction(1, 100)
        place = percent.last_place and percent.last_place * hundredth
        fraction = Quantity(("*", percent.tree, ("number", hundredth)), last_place=place)
        number = exact(other.tree)
        as_percent = gold.percent or (number is not None and abs(number) >= 1)
        return _same_number(fraction, other) or (as_percent and _same_number(percent, other))
    return _same_number(gold, given)


def _same_number(gold: Quantity, given: Quantity) -> bool:
    if "base" in (gold.tree[0], given.tree[0]):  # who asks for digits wants them, not their value
        return gold.tree[0] == "base" and given.tree in (gold.tree, ("number", Fraction(gold.tree[1])))
    if equal(gold.tree, given.tree):
        return True
    places = [each.last_place for each in (gold, given) if each.last_place is not None]
    if not places:
        return False
    if letters(gold.tree) or letters(given.tree):
        return False
    try:
        one, other = value(gold.tree), value(given.tree)
    except UnknownValueError:
        return False
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        distance, size = abs(one - other), abs(one)
        return distance < max(places) and distance <= Fraction(1, 10**6) * size
    try:
        far = abs(complex(one) - complex(other))
        return far < float(max(places)) and far <= DECIMAL_TOLERANCE * abs(complex(one))
    except OverflowError:
        return False


def _same_unit(gold: str, given: str) -> bool:
    """A unit may be left out; two that are said must be the same, or share a word that is no measure."""
    if not gold or not given or gold == given:
        return True
    one, other = ({word.removesuffix("s") for word in each.split()} for each in (gold, given))
    measures = {each.removesuffix("s") for each in UNITS.values()}
    return one == other or (bool(one & other) and not (one | other) & measures)


def _same_inequality(gold: Inequality, given: Inequality) -> bool:
    ranges = [_range(each) for each in (gold, given)]
    if None not in ranges:
        return ranges[0] is not None and ranges[1] is not None and _same_limits(ranges[0], ranges[1])
    if len(gold.signs) != 1 or gold.signs != given.signs:
        return (
            len(gold.signs) == len(given.signs)
            and gold.signs == given.signs
            and all(map(equal, gold.trees, given.trees))
        )
    first, second = (("-", each.trees[0], each.trees[1]) for each in (gold, given))
    return proportional(first, second, positive=gold.signs[0] != "ne")


Limits = tuple[str, str, Tree, Tree]
"""The letter ("" where none is said), the brackets, and both ends."""
_INFINITY: Tree = ("name", "infty")
_MINUS_INFINITY: Tree = ("-", ("number", Fraction(0)), _INFINITY)


def _range(form: Form) -> Limits | None:
    """An interval, or an inequality of one letter between numbers, in one shape."""
    if isinstance(form, Group):
        if len(form.items) != 2 or form.kind not in ("()", "(]", "[)", "[]"):
            return None
        ends = [each.tree for each in form.items if isinstance(each, Quantity)]
        return ("", form.kind, ends[0], ends[1]) if len(ends) == 2 else None
    if not isinstance(form, Inequality) or "ne" in form.signs:
        return None
    trees, signs = form.trees, form.signs
    rising = len(trees) == 3 and trees[1][0] == "name" and set(signs) <= {"<", "le"}
    if rising and not letters(("+", trees[0], trees[2])):
        return (
            trees[1][1],
            ("(" if signs[0] == "<" else "[") + (")" if signs[1] == "<" else "]"),
            trees[0],
            trees[2],
        )
    if len(trees) != 2:
        return None
    if trees[0][0] == "name" and not letters(trees[1]):
        return (trees[0][1], "()" if signs[0] == "<" else "(]", _MINUS_INFINITY, trees[1])
    if trees[1][0] == "name" and not letters(trees[0]):
        return (trees[1][1], "()" if signs[0] == "<" else "[)", trees[0], _INFINITY)
    return None


def _same_limits(gold: Limits, given: Limits) -> bool:
    if gold[0] and given[0] and gold[0] != given[0]:
        return False
    return gold[1] == given[1] and equal(gold[2], given[2]) and equal(gold[3], given[3])


def _same_range(gold: Form, given: Form) -> bool:
    if isinstance(gold, Group) and gold.kind in ("union", "list"):
        return False
    if isinstance(given, Group) and given.kind in ("union", "list"):
        return False
    one, other = _range(gold), _range(given)
    return one is not None and other is not None and _same_limits(one, other)


def _same_matrix(matrix: Matrix, other: Form) -> bool:
    if isinstance(other, Group) and other.kind == "[]":
        rows = tuple(each.items for each in other.items if isinstance(each, Group) and each.kind == "[]")
        if len(rows) != len(other.items):
            return False
        other = Matrix(rows)
    if not isinstance(other, Matrix) or matrix.determinant != other.determinant:
        return False
    shapes = [[len(row) for row in each.rows] for each in (matrix, other)]
    return shapes[0] == shapes[1] and all(
        same(one, two)
        for row, others in zip(matrix.rows, other.rows, strict=True)
        for one, two in zip(row, others, strict=True)
    )


def _same_ratio(gold: Form, given: Form) -> bool:
    if isinstance(gold, Ratio) and isinstance(given, Ratio):
        if (gold.half and given.half and gold.half != given.half) or len(gold.parts) != len(given.parts):
            return False
        if gold.half or given.half or all(_is_clock(each) for each in (gold, given)):
            return [each.lstrip("0") for each in gold.digits] == [each.lstrip("0") for each in given.digits]
        first, *others = zip(gold.parts, given.parts, strict=True)
        return all(equal(("*", first[0], two), ("*", first[1], one)) for one, two in others)
    ratio, other = (gold, given) if isinstance(gold, Ratio) else (given, gold)
    if not isinstance(ratio, Ratio) or not isinstance(other, Quantity) or len(ratio.parts) != 2 or ratio.half:
        return False
    return not _is_clock(ratio) and other.tree[0] == "/" and equal(("/", *ratio.parts), other.tree)


def _is_clock(ratio: Ratio) -> bool:
    digits = ratio.digits
    return all(digits) and int(digits[0]) < 25 and all(len(each) == 2 and int(each) < 60 for each in digits[1:])


_UNORDERED = ("list", "set", "union")


def _same_group(gold: Form, given: Form) -> bool:
    if not isinstance(gold, Group) or not isinstance(given, Group):
        return _same_single(gold, given)
    kinds = {gold.kind, given.kind}
    if "union" in kinds or any(isinstance(each, Inequality) for group in (gold, given) for each in group.items):
        return _same_pieces(gold, given)
    if kinds <= {"list", "set"}:
        return _matched(_distinct(gold.items), _distinct(given.items))
    if len(kinds) == 1 or kinds == {"list", "()"}:
        items, others = _unlabelled(gold), _unlabelled(given)
        return len(items) == len(others) and all(map(same, items, others))
    return False


def _unlabelled(group: Group) -> Sequence[Form]:
    """The values of x = 1, y = 2, in this order of names."""
    labels = [each.label for each in group.items if isinstance(each, Equation)]
    if len(set(labels)) == len(group.items) and all(labels):
        ordered = sorted(group.items, key=lambda each: each.label if isinstance(each, Equation) else "")
        return [each.right for each in ordered if isinstance(each, Equation)]
    return group.items


def _same_single(gold: Form, given: Form) -> bool:
    """A set of one is its element; (x, y) = (1, 2) was taken apart before."""
    one, other = (
        each.items[0] if isinstance(each, Group) and each.kind == "set" and len(each.items) == 1 else each
        for each in (gold, given)
    )
    return (one is not gold or other is not given) and same(one, other)


def _same_pieces(gold: Group, given: Group) -> bool:
    """A union of ranges, written with ∪ or with "or"."""
    both: list[list[Limits]] = []
    for group in (gold, given):
        ranges = [_range(each.right if isinstance(each, Equation) else each) for each in group.items]
        if group.kind not in ("union", "list") or None in ranges:
            return group.kind == "union" == gold.kind == given.kind and _matched(list(gold.items), list(given.items))
        both.append([each for each in ranges if each is not None])
    return len(both[0]) == len(both[1]) and _pairs(both[0], both[1], _same_limits)


def _distinct(items: Sequence[Form]) -> list[Form]:
    kept: list[Form] = []
    for each in items:
        if len(kept) <= MOST_ITEMS and not any(same(other, each) for other in kept):
            kept.append(each)
    return kept


def _matched(gold: list[Form], given: list[Form]) -> bool:
    return len(gold) == len(given) <= MOST_ITEMS and _pairs(gold, given, same)


def _pairs(gold: Sequence[Any], given: Sequence[Any], alike: Any) -> bool:
    """Whether each of one side has a partner of its own on the other."""
    left = list(given)
    for each in gold:
        partner = next((at for at, other in enumerate(left) if alike(each, other)), None)
        if partner is None:
            return False
        del left[partner]
    return True
