"""What a formula is worth: a fraction, exactly, as long as it is rational; else a complex number of double precision.

Letters take values drawn from their names, so that two formulas are equal if they agree at several of these points.
"""

from __future__ import annotations

import cmath
import math
import random
import zlib
from collections.abc import Callable, Iterator
from fractions import Fraction
from math import isqrt
from typing import Any

from astraflow.core.text.math_expression import Tree

Number = Fraction | complex
MAX_DIGITS = 5000
"""Of an exact power or factorial: an answer must not cost memory."""
PRECISION = 1e-11
"""Relative; what is left of double precision after a few operations."""
ROUNDING = 1e-14
"""What a sum leaves of its terms where it should leave nothing."""
POINTS = 6
_CONSTANTS: dict[str, Number] = {"pi": complex(math.pi), "e": complex(math.e), "i": 1j, "infty": complex(math.inf)}


class UnknownValueError(ArithmeticError):
    """A formula has no value here: it is undefined, or too large."""


def value(tree: Tree, point: int = 0, logarithm: int = 10) -> Number:
    """The value at one of the points. UnknownValueError where there is none. logarithm: the base where none is said."""
    try:
        return _Evaluation(point, logarithm).value(tree)
    except (ZeroDivisionError, OverflowError, ValueError) as error:
        raise UnknownValueError(str(error)) from error


def exact(tree: Tree) -> Fraction | None:
    """The value of a formula without letters, where it is rational."""
    if letters(tree):
        return None
    try:
        found = value(tree)
    except UnknownValueError:
        return None
    return found if isinstance(found, Fraction) else None


def letters(tree: Tree) -> set[str]:
    """The names in a formula that are no constants."""
    return {name for kind, name in _leaves(tree) if kind == "name" and name not in _CONSTANTS}


def equal(one: Tree, other: Tree) -> bool:
    """Whether two formulas are worth the same wherever both are defined."""
    if one == other:
        return True
    return any(_agree(one, other, base) for base in ((10, 0) if _has_log(one) or _has_log(other) else (10,)))


def proportional(one: Tree, other: Tree, positive: bool = False) -> bool:
    """Whether one is a constant, not zero, times the other: the same equation, or with positive, inequality."""
    ratios: list[complex] = []
    for point in range(POINTS):
        try:
            above, below = complex(value(one, point)), complex(value(other, point))
            ratios.append(above / below)
        except (UnknownValueError, ZeroDivisionError, OverflowError):
            continue
    if len(ratios) < 3 or not ratios[0] or (positive and (ratios[0].real <= 0 or abs(ratios[0].imag) > PRECISION)):
        return False
    return all(near(ratio, ratios[0]) for ratio in ratios)


def near(one: Number, other: Number, within: float = PRECISION) -> bool:
    """Whether two numbers are equal; fractions exactly, all else within a relative precision."""
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one == other
    try:
        left, right = complex(one), complex(other)
    except OverflowError:
        return False
    if not (cmath.isfinite(left) and cmath.isfinite(right)):
        return left == right
    return abs(left - right) <= within * max(abs(left), abs(right))


def _agree(one: Tree, other: Tree, logarithm: int) -> bool:
    free = letters(one) | letters(other)
    agreed = 0
    for point in range(POINTS if free else 1):
        values: list[Number | None] = []
        for tree in (one, other):
            try:
                values.append(value(tree, point, logarithm))
            except UnknownValueError:
                values.append(None)
        first, second = values
        if first is None or second is None:
            continue
        if not near(first, second):
            return False
        agreed += 1
    return agreed >= (POINTS // 2 if free else 1)


def _leaves(tree: Tree) -> Iterator[tuple[Any, Any]]:
    if tree[0] in ("number", "name", "base"):
        yield tree[0], tree[1]
        return
    for part in tree[1:]:
        if isinstance(part, tuple):
            yield from _leaves(part)


def _has_log(tree: Tree) -> bool:
    return (tree[0] == "log" and tree[1] is None) or any(_has_log(each) for each in tree[1:] if isinstance(each, tuple))


class _Evaluation:
    """Values of formulas at one point."""

    def __init__(self, point: int, logarithm: int) -> None:
        self._point = point
        self._logarithm = logarithm

    def value(self, tree: Tree) -> Number:
        match tree:
            case ("number", Fraction() as number):
                return number
            case ("name", str(name)):
                return _CONSTANTS[name] if name in _CONSTANTS else self._letter(name)
            case ("base", str(digits), str(base)):
                return Fraction(int(digits, int(base)))
            case ("degrees", inner):
                return complex(self.value(inner)) * math.pi / 180
            case ("root", degree, radicand):
                return _root(self.value(degree), self.value(radicand))
            case ("!", inner):
                return _factorial(self.value(inner))
            case ("binom", above, below):
                return _binomial(self.value(above), self.value(below))
            case ("log", base, inner):
                return self._log(base, self.value(inner))
            case ("call", str(name), *arguments):
                return _call(name, [self.value(each) for each in arguments])
            case (str(sign), left, right) if sign in _OPERATORS:
                return _OPERATORS[sign](self.value(left), self.value(right))
        raise ValueError(f"no value for {tree[0]!r}")

    def _letter(self, name: str) -> Number:
        draw = random.Random(zlib.crc32(name.encode()) * POINTS + self._point)
        return Fraction(draw.randint(1, 9999) * draw.choice((1, -1)) if self._point else draw.randint(1, 9999), 1009)

    def _log(self, base: Tree | None, inner: Number) -> Number:
        if base is None and not self._logarithm:
            return cmath.log(complex(inner))
        below = Fraction(10) if base is None else self.value(base)
        if isinstance(inner, Fraction) and isinstance(below, Fraction) and inner > 0 and below > 1:
            power = round(math.log(inner) / math.log(below)) if inner.numerator < 10**300 > inner.denominator else 0
            if abs(power) < 1000 and below**power == inner:
                return Fraction(power)
        return cmath.log(complex(inner)) / cmath.log(complex(below))


def _exact(number: Number) -> bool:
    return isinstance(number, Fraction)


def _add(one: Number, other: Number) -> Number:
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one + other
    left, right = complex(one), complex(other)
    total = left + right
    lost = abs(total) < ROUNDING * max(abs(left), abs(right))  # √2 · √2 − 2 is nothing
    return complex(0) if lost else total


def _multiply(one: Number, other: Number) -> Number:
    return one * other if _exact(one) is _exact(other) else complex(one) * complex(other)


def _divide(one: Number, other: Number) -> Number:
    return one / other if _exact(one) is _exact(other) else complex(one) / complex(other)


def _subtract(one: Number, other: Number) -> Number:
    if other == complex(math.inf):  # a complex infinity times −1 has no number as its imaginary part
        return complex(-math.inf) if one == 0 else complex(math.nan)
    return _add(one, -other)


def _raise(base: Number, exponent: Number) -> Number:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction):
        if exponent.denominator == 1:
            digits = max(base.numerator.bit_length(), base.denominator.bit_length()) * abs(exponent.numerator) * 0.30103
            if digits <= MAX_DIGITS or abs(base) in (0, 1):
                return base ** int(exponent % 2 if abs(base) == 1 else exponent)
        elif base >= 0 and exponent.denominator < 100:
            root = _root(Fraction(exponent.denominator), base)
            return _raise(root, Fraction(exponent.numerator))
    found: Number = complex(base) ** complex(exponent)
    return found


_OPERATORS: dict[str, Callable[[Number, Number], Number]] = {
    "+": _add,
    "-": _subtract,
    "*": _multiply,
    "/": _divide,
    "^": _raise,
}


def _root(degree: Number, radicand: Number) -> Number:
    if not isinstance(degree, Fraction) or degree.denominator != 1 or not 0 < degree < 100:
        return _raise(radicand, _divide(Fraction(1), degree))
    if isinstance(radicand, Fraction):
        whole = _whole_root(abs(radicand), int(degree))
        odd = degree % 2 == 1
        if whole is not None and (radicand >= 0 or odd):
            return whole if radicand >= 0 else -whole
        if radicand < 0 and odd:
            return -complex(float(-radicand) ** (1 / int(degree)))
    found: Number = cmath.sqrt(complex(radicand)) if degree == 2 else complex(radicand) ** (1 / int(degree))
    return found


def _whole_root(radicand: Fraction, degree: int) -> Fraction | None:
    roots = [_integer_root(number, degree) for number in (radicand.numerator, radicand.denominator)]
    root = Fraction(roots[0], roots[1])
    return root if root**degree == radicand else None


def _integer_root(number: int, degree: int) -> int:
    if degree == 2:
        return isqrt(number)
    if number.bit_length() > 1000:
        return 1
    guess = round(number ** (1 / degree))
    return next((each for each in (guess, guess - 1, guess + 1) if each > 0 and each**degree == number), 1)


def _factorial(number: Number) -> Number:
    if isinstance(number, Fraction) and number.denominator == 1 and 0 <= number <= 1500:
        return Fraction(math.factorial(int(number)))
    if isinstance(number, Fraction) and number.denominator != 1 and abs(number) < 150:
        return complex(math.gamma(float(number) + 1))
    raise ValueError("a factorial that is not computed here")


def _binomial(above: Number, below: Number) -> Number:
    if isinstance(above, Fraction) and isinstance(below, Fraction) and above.denominator == below.denominator == 1:
        if below >= 0 and 0 <= above <= 5000:
            return Fraction(math.comb(int(above), int(below)))
    elif isinstance(above, Fraction) and isinstance(below, Fraction) and below.denominator == 1 and 0 <= below < 50:
        found = Fraction(1)
        for step in range(int(below)):
            found *= (above - step) / (step + 1)
        return found
    raise ValueError("a binomial that is not computed here")


def _call(name: str, arguments: list[Number]) -> Number:
    first = arguments[0]
    if name == "abs":
        return abs(first) if isinstance(first, Fraction) else complex(abs(first))
    if name in _WHOLE:
        if any(not isinstance(each, Fraction) or each.denominator != 1 for each in arguments):
            raise ValueError(f"{name} of other than whole numbers")
        return Fraction(_WHOLE[name](*(int(each.real) for each in arguments)))
    if name in ("floor", "ceil", "max", "min"):
        reals = [each if isinstance(each, Fraction) else _real(each) for each in arguments]
        if name in ("max", "min"):
            return Fraction(max(reals) if name == "max" else min(reals))
        return Fraction(math.floor(reals[0]) if name == "floor" else math.ceil(reals[0]))
    if name in _FUNCTIONS:
        found = _FUNCTIONS[name](complex(first))
        return complex(0) if abs(found) < ROUNDING < abs(complex(first)) / 100 else found
    raise ValueError(f"no function {name}")


def _real(number: complex) -> float:
    if abs(number.imag) > PRECISION * abs(number):
        raise ValueError("not a real number")
    return number.real


_WHOLE: dict[str, Callable[..., int]] = {"gcd": math.gcd, "lcm": math.lcm}
_FUNCTIONS: dict[str, Callable[[complex], complex]] = {
    **{name: getattr(cmath, name) for name in ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh")},
    "exp": cmath.exp,
    "ln": cmath.log,
    "lg": cmath.log10,
    "sec": lambda x: 1 / cmath.cos(x),
    "csc": lambda x: 1 / cmath.sin(x),
    "cot": lambda x: 1 / cmath.tan(x),
}
