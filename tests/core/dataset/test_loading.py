"""Datasets by function: which arguments it gets, and what its rows must have."""

import datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.core.data.codec import decode, encode
from astraflow.core.dataset.loading import check_row, load_rows, shared_rows
from astraflow.core.text.tiny import tiny_tokenizer
from astraflow.errors import AstraFlowError, ConfigError, DataError

HERE = "astraflow_test_rows"


def example_rows(n: int) -> list[dict[str, Any]]:
    return [
        {"messages": [{"role": "user", "content": f"{i}+1"}], "answer": str(i + 1), "task_id": f"task-{i}"}
        for i in range(n)
    ]


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions below as an importable module."""
    import sys
    import types

    functions = types.ModuleType(HERE)
    for function in (everything, bare, keywords, empty, broken, crashing):
        setattr(functions, function.__name__, function)
    monkeypatch.setitem(sys.modules, HERE, functions)


def everything(split: str, seed: int, tokenizer: Any, max_length: int | None, size: int) -> list[dict[str, Any]]:
    return [{**row, "got": [split, seed, tokenizer is not None, max_length]} for row in example_rows(size)]


def bare() -> list[dict[str, Any]]:
    return example_rows(12)


def keywords(**given: Any) -> list[dict[str, Any]]:
    return [{**row, "given": given} for row in example_rows(1)]


def empty() -> list[dict[str, Any]]:
    return []


def broken() -> list[dict[str, Any]]:
    return [*example_rows(2), {"messages": [], "task_id": "x"}]


def crashing() -> list[dict[str, Any]]:
    raise KeyError("path")


def load(function: str, tokenizer: Any = None, max_length: int | None = None, **keys: Any) -> list[dict[str, Any]]:
    name = f"{HERE}:{function}"
    return load_rows(name, keys, split="train", seed=7, tokenizer=tokenizer, max_length=max_length)


def test_a_function_gets_what_it_names() -> None:
    assert load("everything", size=2)[1]["got"] == ["train", 7, False, None]
    assert load("everything", size=2, split="test", seed=1, max_length=9)[0]["got"] == ["test", 1, False, 9]
    assert len(load("bare")) == 12
    assert load("keywords", split="a", color="red")[0]["given"] == {"split": "a", "color": "red"}


def test_long_prompts_are_left_out_where_the_function_does_not_do_it() -> None:
    tokenizer = tiny_tokenizer()
    lengths = [len(tokenizer.encode_chat(row["messages"])) for row in example_rows(12)]
    assert len(load("bare", tokenizer, max_length=min(lengths))) == lengths.count(min(lengths)) == 10
    with pytest.raises(DataError, match="every prompt has more than 1 tokens"):
        load("bare", tokenizer, max_length=1)


@pytest.mark.parametrize(
    ("function", "keys", "kind", "message"),
    [
        ("everything", {"sise": 2}, ConfigError, "takes no 'sise', did you mean 'size'"),
        ("bare", {"path": "x"}, ConfigError, "takes no 'path'"),
        ("missing", {}, ConfigError, "has no 'missing'"),
        ("empty", {}, DataError, "has no rows"),
        ("broken", {}, DataError, "row 2 has no column 'answer'; it has: messages, task_id"),
        ("crashing", {}, DataError, "KeyError: 'path'"),
    ],
)
def test_what_is_wrong_is_named(function: str, keys: dict[str, Any], kind: type[AstraFlowError], message: str) -> None:
    with pytest.raises(kind, match=message):
        load(function, **keys)


GOOD = example_rows(1)[0]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([], "is a list, expected a dict"),
        ({**GOOD, "messages": "hi"}, "column 'messages' is a str, expected list"),
        ({**GOOD, "messages": [{"role": "user"}]}, "column 'messages' holds"),
        ({**GOOD, "task_id": 3}, "column 'task_id' is a int, expected str"),
        ({**GOOD, "image": object()}, "is not JSON"),
    ],
)
def test_rows_are_checked(row: Any, message: str) -> None:
    check_row(GOOD, "row 0")
    with pytest.raises(DataError, match=message):
        check_row(row, "row 0")


CANNOT_TRAVEL: dict[str, Any] = {
    "an integer of 2^64": 2**64,
    "an integer below -2^63": -(2**63) - 1,
    "not a number": float("nan"),
    "infinity": float("-inf"),
    "a tuple": (1, 2),
    "a date": datetime.date(2026, 1, 1),
    "a set": {1},
    "half a character": "\ud83d",
    "a number as a key": {1: "a"},
    "half a character as a key": {"\ud83d": 1},
    "a number of numpy": np.float64(1.5),
    "an array": np.zeros(2),
}


@pytest.mark.parametrize("value", CANNOT_TRAVEL.values(), ids=CANNOT_TRAVEL.keys())
@pytest.mark.parametrize("inside", [False, True])
def test_a_row_that_would_not_arrive_as_it_is_is_refused_at_load(value: Any, inside: bool) -> None:
    row = {**GOOD, "answer": {"steps": ["a", value]} if inside else value}
    column = r"answer\.steps\.1" if inside else "answer"
    with pytest.raises(DataError, match=rf"row 3 is not JSON: (a key of )?column '{column}"):
        check_row(row, "row 3")


def test_what_is_nested_without_end_is_refused() -> None:
    nested: list[Any] = []
    for _ in range(5000):
        nested = [nested]
    with pytest.raises(DataError, match="row 3"):
        check_row({**GOOD, "answer": nested}, "row 3")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(json_values)
def test_a_row_that_is_let_in_arrives_as_it_is(value: Any) -> None:
    row = {**GOOD, "answer": value}
    check_row(row, "row 0")
    assert decode(encode(row), dict) == row


@pytest.mark.parametrize("content", [None, 5, {"text": "a"}, True])
def test_a_message_without_content_is_refused(content: Any) -> None:
    with pytest.raises(DataError, match="row 3: a message's content is"):
        check_row({**GOOD, "messages": [{"role": "user", "content": content}]}, "row 3")


def test_an_assistant_that_calls_tools_may_have_no_content() -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": {}}}
    asks = {"role": "assistant", "content": None, "tool_calls": [call]}
    check_row({**GOOD, "messages": [*GOOD["messages"], asks]}, "row 0")


def test_messages_are_empty_only_where_a_task_server_says_them() -> None:
    check_row({**GOOD, "messages": [], "index": 3}, "row 0")
    with pytest.raises(DataError, match="row 3: column 'messages' is empty"):
        check_row({**GOOD, "messages": []}, "row 3")


@pytest.mark.parametrize("messages", [[], [{"role": "user", "content": None}]])
def test_no_model_is_asked_with_nothing(messages: list[dict[str, Any]]) -> None:
    with pytest.raises(DataError, match=r"no messages|null content"):
        tiny_tokenizer().encode_chat(messages)


@pytest.mark.parametrize("column", ["prompt", "completions", "prompt_ids", "completion_ids"])
def test_a_column_that_would_collide_with_a_rewards_argument_is_refused(column: str) -> None:
    with pytest.raises(DataError, match=f"row 3: column '{column}' has the name of a reward function's argument"):
        check_row({**example_rows(1)[0], column: "x"}, "row 3")


def test_rows_that_are_trained_on_and_scored_are_counted() -> None:
    trained, other = example_rows(4), [{**row, "task_id": f"other-{i}"} for i, row in enumerate(example_rows(2))]
    assert shared_rows(trained, example_rows(6)) == 4
    assert shared_rows(trained, other) == 2, "by their messages"
    shots = [{**row, "messages": [{"role": "user", "content": "shot"}, *row["messages"]]} for row in example_rows(3)]
    assert shared_rows(trained, shots) == 3, "by task_id and last message"
    asked = [{**row, "messages": [{"role": "user", "content": "else"}]} for row in example_rows(3)]
    assert shared_rows(trained, asked) == 0, "a task_id alone says little"
