"""A program of one's own scores a skill; what it does wrong is said in one line."""

import sys

import pytest

from astraflow.errors import ConfigError, WorkflowError
from astraflow.evolution.traces.scoring import command_score


def program(code: str) -> str:
    return f"{sys.executable} -c '{code}' {{skill_file}}"


def test_the_program_sees_the_skill_and_its_last_line_counts() -> None:
    code = 'import sys, json; n = len(open(sys.argv[1]).read()); print("log"); print(json.dumps({"a": n / 10, "b": 0}))'
    assert command_score(program(code))("four") == {"a": 0.4, "b": 0.0}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import sys; sys.exit(3)", "exit code 3"),
        ("print(1)", "no JSON object"),
        ("pass", "no JSON object"),
        ('print("{}")', "at least one"),
        ('import json; print(json.dumps({"a": 2}))', "between 0 and 1"),
    ],
)
def test_a_wrong_program_is_named(code: str, message: str) -> None:
    with pytest.raises(WorkflowError, match=message):
        command_score(program(code))("text")


def test_a_command_must_take_the_skill_and_exist() -> None:
    with pytest.raises(ConfigError, match="skill_file"):
        command_score("true")
    with pytest.raises(WorkflowError, match="No such file"):
        command_score("/no/such/program {skill_file}")("text")
