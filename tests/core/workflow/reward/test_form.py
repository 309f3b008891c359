import pytest

from astraflow.core.workflow.reward.form import ends_in_answer_line, is_one_equation


@pytest.mark.parametrize(
    "text", ["#### 7", "2 + 5 is 7.\n#### 7", "so\n\n####  -1,234.5\n", "x\n####7", "x\n#### $7 \n"]
)
def test_the_last_line_is_the_answer(text: str) -> None:
    assert ends_in_answer_line("", text, [], []) == 1.0


@pytest.mark.parametrize(
    "text",
    ["", "7", "so #### 7", "#### 7\nmore", "#### seven", "####", "#### 7.", "#### 6\n#### 7", "##### 7", "#### 7 8"],
)
def test_anything_else_is_no_answer_line(text: str) -> None:
    assert ends_in_answer_line("", text, [], []) == 0.0


@pytest.mark.parametrize("text", ["17+28=45", "17 + 28 = 45.", " 3 - 5 = -2\n", "1+2+3=6", "7*8 = 54", "7/2=3.5"])
def test_one_equation_right_or_wrong(text: str) -> None:
    assert is_one_equation("", text, [], []) == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "45",
        "17+28",
        "=45",
        "The sum is 17+28=45",
        "17+28=45 and more",
        "1+1=2=2",
        "1+1=2\n1+1=2",
        "1 + x = 2",
        "1+1=2..",
    ],
)
def test_anything_else_is_no_equation(text: str) -> None:
    assert is_one_equation("", text, [], []) == 0.0
