"""A wrong answer never scores 1, and a right one does however it is written: pairs that were decided by hand."""

from collections.abc import Iterator
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.core.data import Value

pytest.importorskip("math_verify")
from math_verify import parse, verify

from astraflow.core.workflow.reward.math_verify import math_verify_reward

PAIRS = Path(__file__).parent / "math_pairs.txt"


def reward(completion: str, answer: str) -> float:
    found = math_verify_reward("", completion, [], [], answer=answer)
    assert isinstance(found, Value)
    return found.value


def pairs() -> Iterator[tuple[str, str, float]]:
    for line in PAIRS.read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            pair, _, right = line.rpartition(" | ")
            gold, _, answer = pair.partition(" | ")
            yield gold, answer, float(right)


@pytest.mark.parametrize(("gold", "answer", "right"), list(pairs()))
def test_an_answer_is_read_to_its_end(gold: str, answer: str, right: float) -> None:
    assert reward(rf"so \boxed{{{answer}}}", gold) == right


def test_a_gold_answer_is_equal_to_itself() -> None:
    golds = {gold for gold, _, _ in pairs()}
    assert [gold for gold in sorted(golds) if reward(rf"\boxed{{{gold}}}", gold) != 1] == []


@pytest.mark.parametrize(
    ("completion", "gold", "right"),
    [
        (r"\boxed{5} or rather \boxed{7", "5", 0),
        (r"\boxed{5} or rather \boxed{", "5", 0),
        (r"\boxed{5", "5", 0),
        (r"\boxed{\boxed{5}}", "5", 1),
        ("So she has 5 apples left.", "5", 1),
        ("The final answer is that she has 5 apples.", "5", 1),
        ("Then x > 5", "5", 0),
        ("therefore $2\\pi$.", "2\\pi", 1),
        ("The answer is **5**.", "5", 1),
        ("The answer is 5!", "5", 0),
        ("The answer is 5 or 6.", "5", 0),
    ],
)
def test_where_the_answer_is_looked_for(completion: str, gold: str, right: float) -> None:
    assert reward(completion, gold) == right


DEGENERATE = [
    *(r"\boxed{", "(", "[", "{", r"\frac{", "sqrt(", r"\left(", "|", "-", "answer ", "answer: ", "1,", "111,", "2^"),
    *(
        "5 abc ",
        "5 ",
        "⁰",
        "½",
        "√",
        r"\text{",
        r"\begin{pmatrix}",
        "=",
        "<",
        "&",
        "\\\\",
        "9",
        "1+",
        "x(",
        "!",
        "#### ",
    ),
]


@pytest.mark.parametrize("piece", DEGENERATE)
@pytest.mark.parametrize("form", ["{}5", r"\boxed{{{}5}}", r"the answer is {}5", "{}"])
def test_degenerate_text_is_wrong_and_not_slow(piece: str, form: str) -> None:
    began = process_time()
    assert reward(form.format(piece * (40_000 // len(piece))), "7") == 0
    assert process_time() - began < 1


PIECES = [
    *("(", ")", "{", "}", "[", "]", r"\frac", r"\sqrt", "5", "x", "1,000", "|", "^", "_", "-", "+", r"\text{cm}", "&"),
    *(r"\\", "!", "½", "√", "=", "<", ",", "word", r"\{", r"\}", "%", r"\log", r"\pm", ".", ":", r"\infty", r"\cup"),
    *("e", "i", "1e400"),
]


@given(st.lists(st.sampled_from(PIECES), max_size=9).map("".join), st.sampled_from(["5", "x>5", "(1,2)", r"3\pi"]))
def test_no_answer_breaks_it(text: str, gold: str) -> None:
    assert reward(rf"\boxed{{{text}}}", gold) in (0, 1)


@pytest.mark.parametrize("answer", ["0<1e400", "x<1e400", "1000! < 5", "10^{10^{10}}", "9^{9^{9^9}}", "1/0", "0^{-1}"])
def test_numbers_beyond_computing_are_wrong(answer: str) -> None:
    assert reward(rf"\boxed{{{answer}}}", "x>5") == 0


@pytest.mark.nightly
def test_it_errs_less_than_the_computer_algebra_system_alone() -> None:
    """The pairs are no easier than they should be: math-verify alone gets both kinds wrong."""
    wrong = {0.0: 0, 1.0: 0}
    for gold, answer, right in pairs():
        both = [parse(f"${each}$", parsing_timeout=None) for each in (gold, rf"\boxed{{{answer}}}")]
        wrong[right] += verify(both[0], both[1], timeout_seconds=None) != bool(right)
    assert wrong[0.0] > 3
    assert wrong[1.0] > 16
