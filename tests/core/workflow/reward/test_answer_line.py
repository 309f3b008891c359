import pytest

from astraflow.core.workflow.reward.answer_line import ends_in_answer_line


@pytest.mark.parametrize(
    "text", ["#### 7", "2 + 5 is 7.\n#### 7", "so\n\n####  -1,234.5\n", "x\n####7", "x\n#### $7 \n"]
)
def test_the_last_line_is_the_answer(text: str) -> None:
    assert ends_in_answer_line("", text, [], []) == 1.0


@pytest.mark.parametrize(
    "text",
    ["", "7", "so #### 7", "#### 7\nmore", "#### seven", "####", "#### 7.", "#### 6\n#### 7", "##### 7", "#### 7 8"],
)
def test_anything_else_is_not(text: str) -> None:
    assert ends_in_answer_line("", text, [], []) == 0.0
