"""From text to value."""

from fractions import Fraction
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.core.text.math_answer import final_answer, last_boxed, number_in, said


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}} and \boxed{3", ""),
        (r"\boxed{}", ""),
        ("The answer is 42. Next.", "42"),
        ("answer: 7\nmore", "7"),
        ("steps\n#### 18", "18"),
        ("just 5", "just 5"),
        ("answer is 1, final answer is 2", "2"),
    ],
)
def test_where_the_answer_stands(text: str, answer: str) -> None:
    assert final_answer(text) == answer


def test_boxes_balance_their_braces() -> None:
    assert last_boxed(r"\boxed{\sqrt{\frac{a}{b}}}") == r"\sqrt{\frac{a}{b}}"
    assert last_boxed("none") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("½", "1/2"),
        ("2½", "5/2"),
        ("1 1/2", "3/2"),
        (r"1\frac{1}{2}", "3/2"),
        (r"\dfrac{3}{4}", "3/4"),
        (r"\frac12", "1/2"),
        (r"-\frac{3}{4}", "-3/4"),
        ("1,000", "1000"),
        ("1{,}000", "1000"),
        ("10 000", "10000"),
        ("1×10^3", "1000"),
        ("10³", "1000"),
        (r"10^{-2}", "1/100"),
        ("√4", "2"),
        (r"\sqrt{16}", "4"),
        ("sqrt(9/4)", "3/2"),
        ("x = -3", "-3"),
        ("42 cm", "42"),
        (r"42 \text{ km}", "42"),
        ("1.5 m/s", "3/2"),
        ("5 m^2", "5"),
        (r"50\%", "50"),
        (r"90^\circ", "90"),
        ("$5", "5"),
        (".5", "1/2"),
        ("7.", "7"),
        ("2(3+4)", "14"),
        ("−4", "-4"),
        ("１２", "12"),
        ("6*7 = 42", "42"),
        ("1.5e3", "1500"),
    ],
)
def test_one_number_in_its_many_forms(text: str, value: str) -> None:
    assert number_in(text) == Fraction(value)


@pytest.mark.parametrize(
    "text", ["", "x+1", "√2", "1/0", "(1,2)", "2^9999999", "9^9^9^9", "((((", "1,2", r"\pi", "3xy"]
)
def test_what_is_no_rational_number_has_no_value(text: str) -> None:
    assert number_in(text) is None


@pytest.mark.parametrize(
    ("sentence", "number"),
    [
        ("3+4 = 7 apples, so 12/3.", "12/3"),
        ("so she has 42 apples left.", "42"),
        ("therefore it is $2\\pi$.", "2\\pi"),
        ("3*4 = 12\nso the price is $12.", "12"),
        ("nothing", None),
        ("then x > 5", None),
        ("that makes 5!", None),
        ("it is 3 + 4", None),
    ],
)
def test_what_a_sentence_says(sentence: str, number: str | None) -> None:
    assert said(sentence) == number


@given(st.text(max_size=80))
def test_no_text_breaks_it(text: str) -> None:
    plain = final_answer(text)
    number_in(plain)
    said(plain)


@given(st.fractions(max_denominator=1000))
def test_fractions_are_read_exactly(value: Fraction) -> None:
    sign = "-" if value < 0 else ""
    latex = rf"{sign}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"
    assert number_in(str(value)) == number_in(latex) == value


@given(st.integers(-(10**12), 10**12))
def test_integers_are_read_with_thousands_separators(value: int) -> None:
    assert number_in(f"{value:,}") == value


@pytest.mark.parametrize("text", ["9" * 50_000, "9" * 50_000 + "½", "9" * 5000 + " 1/2"])
def test_a_long_run_of_digits_costs_no_time_and_no_error(text: str) -> None:
    began = perf_counter()
    assert number_in(text) is None
    assert said(text) is None
    assert perf_counter() - began < 2  # it was 20 s: the length squared
