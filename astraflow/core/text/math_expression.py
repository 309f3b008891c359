"""A formula, read to its end by recursive descent, as a tree of tuples: ("number", 3), ("name", "x"), ("+", a, b), …

Reading stops with UnreadableError at whatever it does not know: a formula of which a part was skipped is another
formula.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from astraflow.core.text.math_tokens import FUNCTIONS, Token, UnreadableError
from astraflow.core.text.math_units import UNIT_LETTERS, UNITS

Tree = tuple[Any, ...]
MAX_DEPTH = 40
MAX_OPERATIONS = 120
"""A tree is evaluated by recursion, and a sum of so many terms is as deep."""
END = Token("end", "")
_ONE_ARGUMENT = {each for each in FUNCTIONS if each not in ("gcd", "lcm", "max", "min", "binom", "sqrt")}
_CLOSING = {"(": ")", "{": "}", "[": "]", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}
_GREEK = {
    *("alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "theta", "lambda", "mu", "nu", "rho", "sigma", "tau"),
    *("phi", "varphi", "psi", "omega", "Delta", "Omega", "Gamma", "Sigma", "Phi", "xi", "eta", "zeta", "kappa", "ell"),
}


class Cursor:
    """A place in a list of tokens."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.at = 0
        self.depth = 0
        self.bars = 0
        self._operations = 0

    def peek(self, ahead: int = 0) -> Token:
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else END

    def next(self) -> Token:
        token = self.peek()
        self.at += 1
        self.count()
        return token

    def take(self, *texts: str) -> str | None:
        """The next token's text where it is a mark or name of these."""
        token = self.peek()
        if token.text in texts and token.kind in ("mark", "name"):
            self.at += 1
            self.count()
            return token.text
        return None

    def count(self) -> None:
        """Count a token that was read. UnreadableError where a formula is longer than any answer."""
        self._operations += 1
        if self._operations > 2 * MAX_OPERATIONS:
            raise UnreadableError("a formula of too many parts")

    def expect(self, text: str) -> None:
        if self.take(text) is None:
            raise UnreadableError(f"{self.peek().text!r} where {text!r} was expected")


def formula(cursor: Cursor) -> Tree:
    """A sum."""
    cursor.depth += 1
    if cursor.depth > MAX_DEPTH:
        raise UnreadableError("nested too deeply")
    tree = _product(cursor)
    while sign := cursor.take("+", "-", "pm", "mp"):
        tree = (sign, tree, _product(cursor))
    cursor.depth -= 1
    return tree


def _product(cursor: Cursor) -> Tree:
    tree = _signed(cursor)
    while True:
        if sign := cursor.take("*", "/"):
            tree = (sign, tree, _signed(cursor))
        elif tree[0] != "degrees" and _starts_a_factor(cursor):
            tree = ("*", tree, _power(cursor))
        else:
            return tree


def _signed(cursor: Cursor) -> Tree:
    signs = []
    while sign := cursor.take("+", "-", "pm", "mp"):
        signs.append(sign)
    tree = _power(cursor)
    for sign in reversed(signs):
        tree = tree if sign == "+" else ("-", ("number", Fraction(0)), tree) if sign == "-" else (sign, None, tree)
    return tree


def _starts_a_factor(cursor: Cursor) -> bool:
    """Whether what follows is multiplied without a sign: 2x, 2(3+4), but neither "3 4" nor a unit."""
    token = cursor.peek()
    if token.kind == "name":
        return token.text not in _CLOSING.values() and not is_unit_letter(cursor)
    if token.kind == "word":
        return is_letters(cursor)
    return token.kind == "mark" and (token.text in ("(", "{") or (token.text == "|" and not cursor.bars))


def is_letters(cursor: Cursor) -> bool:
    """Whether a word is names side by side, such as xy."""
    token = cursor.peek()
    return token.kind == "word" and len(token.text) <= 3 and token.text.islower() and not UNITS.get(token.text)


def is_unit_letter(cursor: Cursor) -> bool:
    """Whether a name is a unit: "5 m", not "5m" and not "5 x"."""
    token, before = cursor.peek(), cursor.peek(-1) if cursor.at else END
    follows = cursor.peek(1)
    ends = follows.kind in ("end", "word") or follows.text in (",", ";", "/", "^", ")", "]", "unset")
    return token.spaced and before.kind == "number" and token.text in UNIT_LETTERS and ends


def _power(cursor: Cursor) -> Tree:
    tree = _postfixed(cursor, _atom(cursor))
    if cursor.peek().text == "^" and cursor.peek().kind == "mark":
        if _degrees(cursor):
            return ("degrees", tree)
        cursor.next()
        return _postfixed(cursor, ("^", tree, _exponent(cursor)))
    return tree


def _postfixed(cursor: Cursor, tree: Tree) -> Tree:
    while True:
        if cursor.peek().text == "!" and cursor.peek().kind == "mark":
            cursor.next()
            tree = ("!", tree)
        elif cursor.take(r"\degree"):
            tree = ("degrees", tree)
        else:
            return tree


def _degrees(cursor: Cursor) -> bool:
    """Take ^\\circ or ^{\\circ}."""
    if cursor.peek(1).text == r"\degree":
        cursor.at += 2
        return True
    if cursor.peek(1).text == "{" and cursor.peek(2).text == r"\degree" and cursor.peek(3).text == "}":
        cursor.at += 4
        return True
    return False


def _exponent(cursor: Cursor) -> Tree:
    signs = 0
    while sign := cursor.take("+", "-"):
        signs += sign == "-"
    if cursor.peek().text == r"\prime" or cursor.peek().text == "'":
        raise UnreadableError("a derivative")
    tree = _atom(cursor)
    if cursor.peek().text == "^" and cursor.peek().kind == "mark":  # 2^3^2 is 2^(3^2)
        cursor.next()
        tree = ("^", tree, _exponent(cursor))
    return ("-", ("number", Fraction(0)), tree) if signs % 2 else tree


def _atom(cursor: Cursor) -> Tree:
    token = cursor.next()
    if token.kind == "number":
        return _number(cursor, token)
    if token.kind == "word":
        cursor.at -= 1
        if is_letters(cursor):
            cursor.tokens[cursor.at : cursor.at + 1] = [Token("name", letter) for letter in token.text]
            return _atom(cursor)
    elif token.text in ("(", "{", r"\lfloor", r"\lceil") and token.kind in ("mark", "name"):
        return _bracketed(cursor, token.text)
    elif token.text == "[" and token.kind == "mark":
        return _bracketed(cursor, "[")
    elif token.text == "|" and token.kind == "mark":
        return _absolute(cursor)
    elif token.kind == "name":
        return _named(cursor, token)
    raise UnreadableError(f"{token.text!r} is no part of a formula here")


def _number(cursor: Cursor, token: Token) -> Tree:
    if len(token.text) > 400:
        raise UnreadableError("a number of more than 400 digits")
    value = Fraction(token.text.rstrip(".") if token.text.endswith(".") else token.text)
    if cursor.peek().text == "_" and cursor.peek().kind == "mark":
        cursor.next()
        return ("base", token.text, _subscript(cursor))
    if cursor.peek().text == r"\overline" and "." in token.text:
        return _repeating(cursor, token.text)
    if token.text.isdigit() and (part := _fraction_part(cursor)) is not None:
        return ("number", value + part)
    if cursor.peek().kind == "number":
        raise UnreadableError("two numbers side by side")
    return ("number", value)


def _repeating(cursor: Cursor, before: str) -> Tree:
    """A decimal with a period: 0.1\\overline{6}."""
    cursor.next()
    braced = cursor.take("{")
    digits = cursor.next().text
    if braced:
        cursor.expect("}")
    if not digits.isdigit():
        raise UnreadableError("a period that is no digits")
    step = Fraction(1, 10 ** len(before.partition(".")[2]))
    start = Fraction(before.rstrip(".")) if before != "." else Fraction(0)
    return ("number", start + step * Fraction(int(digits), 10 ** len(digits) - 1))


def _fraction_part(cursor: Cursor) -> Fraction | None:
    """What makes a mixed number: 1 1/2, 1\\frac{1}{2}."""
    following = [cursor.peek(ahead).text for ahead in range(7)]
    if following[0] == r"\frac":
        plain = "".join(following)
        inner = following[2:3] + following[5:6] if plain.count("{") == 2 and following[1] == "{" else []
        if len(inner) == 2 and all(each.isdigit() for each in inner) and following[3:5] == ["}", "{"]:
            if following[6] != "}" or not int(inner[1]):
                return None
            cursor.at += 7
            return Fraction(int(inner[0]), int(inner[1]))
        if following[1].isdigit() and len(following[1]) == 2 and int(following[1][1]):
            cursor.at += 2
            return Fraction(int(following[1][0]), int(following[1][1]))
        return None
    above, sign, below = following[:3]
    if above.isdigit() and sign == "/" and below.isdigit() and cursor.peek().spaced and int(above) < int(below):
        cursor.at += 3
        return Fraction(int(above), int(below))
    return None


def _bracketed(cursor: Cursor, opening: str) -> Tree:
    bars, cursor.bars = cursor.bars, 0
    tree = formula(cursor)
    if opening == "{" and cursor.take(r"\choose"):
        tree = ("binom", tree, formula(cursor))
    cursor.expect(_CLOSING[opening])
    cursor.bars = bars
    if opening in (r"\lfloor", r"\lceil"):
        return ("call", "floor" if opening == r"\lfloor" else "ceil", tree)
    return tree


def _absolute(cursor: Cursor) -> Tree:
    cursor.bars += 1
    tree = formula(cursor)
    cursor.bars -= 1
    cursor.expect("|")
    return ("call", "abs", tree)


def _named(cursor: Cursor, token: Token) -> Tree:
    name = token.text.removeprefix("\\")
    if name in ("frac", "binom") and cursor.peek().text != "(":
        above = argument(cursor)
        return ("/" if name == "frac" else "binom", above, argument(cursor))
    if name in ("sqrt", "root", "cbrt"):
        return _root(cursor, name)
    if name == "boxed":
        return argument(cursor)
    if name in _ONE_ARGUMENT:
        return _call(cursor, name)
    if name in ("gcd", "lcm", "max", "min", "binom") or (name == "C" and _is_pair(cursor)):
        arguments = _arguments(cursor)
        if name in ("C", "binom"):
            if len(arguments) != 2:
                raise UnreadableError("a binomial of other than two numbers")
            return ("binom", *arguments)
        return ("call", name, *arguments)
    if len(token.text) > 1 and name not in _GREEK and name not in ("pi", "infty"):
        raise UnreadableError(f"{token.text!r} is not known")
    if cursor.peek().text == "_" and cursor.peek().kind == "mark":
        cursor.next()
        name += "_" + _subscript(cursor)
    return ("name", name)


def argument(cursor: Cursor) -> Tree:
    """What a command applies to: {…}, or one digit or name."""
    if cursor.take("{"):
        return _bracketed(cursor, "{")
    token = cursor.peek()
    if token.kind == "number" and len(token.text) > 1 and token.text.isdigit():
        cursor.tokens[cursor.at : cursor.at + 1] = [Token("number", token.text[0]), Token("number", token.text[1:])]
        cursor.next()
        return ("number", Fraction(token.text[0]))
    if token.kind == "number":
        cursor.next()
        return ("number", Fraction(token.text))
    return _atom(cursor)


def _root(cursor: Cursor, name: str) -> Tree:
    degree: Tree = ("number", Fraction(3 if name == "cbrt" else 2))
    if name == "sqrt" and cursor.take("["):
        degree = formula(cursor)
        cursor.expect("]")
    if name == "sqrt" and cursor.peek().text != "{":
        token = cursor.peek()
        if token.kind == "number" and len(token.text) > 1:
            raise UnreadableError("a root of a number without brackets")
    radicand = argument(cursor) if name == "sqrt" else _atom(cursor)
    return ("root", degree, radicand)


def _call(cursor: Cursor, name: str) -> Tree:
    base: Tree | None = None
    power: Tree | None = None
    while cursor.peek().text in ("_", "^") and cursor.peek().kind == "mark":
        if cursor.next().text == "_":
            base = argument(cursor)
        else:
            power = _exponent(cursor)
    if cursor.peek().text in ("(", "{", "|"):
        inner = _atom(cursor)
        inner = ("^", inner, _after_caret(cursor)) if cursor.peek().text == "^" else inner
        if cursor.peek().text == "!":
            raise UnreadableError("a factorial after a function")
    else:
        inner = _signed(cursor)
        while cursor.peek().kind == "name" and cursor.peek().text.removeprefix("\\") not in FUNCTIONS:
            if not _starts_a_factor(cursor):
                break
            inner = ("*", inner, _power(cursor))
    minus_one = ("-", ("number", Fraction(0)), ("number", Fraction(1)))
    if power == minus_one and name in ("sin", "cos", "tan"):
        return ("call", "a" + name, inner)
    if base is not None and name != "log":
        raise UnreadableError(f"{name} of a base")
    tree: Tree = ("log", base, inner) if name == "log" else ("call", name, inner)
    return tree if power is None else ("^", tree, power)


def _after_caret(cursor: Cursor) -> Tree:
    cursor.next()
    return _exponent(cursor)


def _is_pair(cursor: Cursor) -> bool:
    """Whether "(a, b)" follows, as in C(5, 2)."""
    return cursor.peek().text == "(" and cursor.peek(2).text == "," and cursor.peek(4).text == ")"


def _arguments(cursor: Cursor) -> list[Tree]:
    cursor.expect("(")
    found = [formula(cursor)]
    while cursor.take(","):
        found.append(formula(cursor))
    cursor.expect(")")
    return found


def _subscript(cursor: Cursor) -> str:
    token = cursor.next()
    if token.text != "{":
        return token.text
    parts = []
    while (token := cursor.next()).text != "}":
        if token.kind == "end" or token.text in ("{", "^"):
            raise UnreadableError("a subscript that is none")
        parts.append(token.text)
    return "".join(parts)
