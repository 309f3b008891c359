"""Dataset rows by function: loaded, checked, and cut to length.

A dataset function is called with those of (split, seed, tokenizer, max_length and the YAML's own keys) that it names; a
key of the YAML that it does not take is an error (invariant 7).
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from astraflow.core.config.ids import why_no_id
from astraflow.core.data.trajectory import Row
from astraflow.core.dataset.registry import DATASET_REGISTRY
from astraflow.core.text.tokenizer import Tokenizer
from astraflow.errors import ConfigError, DataError, boundary, suggestion

log = logging.getLogger(__name__)

APART = "give evaluation a split, a file or a seed of its own, or set hold_out where the dataset has it"
"""What to do where a row is both trained on and scored."""

COLUMNS = {"messages": list, "answer": object, "task_id": str}
MAX_DEPTH = 64
"""Of a row's nesting; readers of what travels have a bound too."""
REWARD_ARGUMENTS = ("prompt", "completions", "prompt_ids", "completion_ids")
"""What a reward function is given besides the row; a column of such a name would collide with it."""


def load_rows(
    name: str,
    keywords: Mapping[str, Any],
    *,
    split: str,
    seed: int,
    tokenizer: Tokenizer | None,
    max_length: int | None = None,
) -> list[Row]:
    """Return the checked rows of the dataset `name`: a registered name or "module:function".

    keywords: the YAML's own; split, seed: used where they give none. Rows whose prompt has more than `max_length`
    tokens are left out. ConfigError for a key that the function does not take; DataError naming the row and column that
    is missing or is not JSON.
    """
    function = DATASET_REGISTRY.resolve(name)
    offered = {"split": split, "seed": seed, "tokenizer": tokenizer, "max_length": max_length}
    arguments = _arguments(function, name, keywords, offered)
    with boundary(DataError, f"dataset {name}"):
        rows = list(function(**arguments))
    if not rows:
        raise DataError(f"dataset {name} has no rows")
    for index, row in enumerate(rows):
        check_row(row, f"dataset {name}: row {index}")
    if max_length is not None and tokenizer is not None and "max_length" not in arguments:
        return _short(rows, max_length, tokenizer, name)
    return rows


def shared_rows(trained: Iterable[Row], scored: Iterable[Row]) -> int:
    """How many of `scored` are also trained on: with the same messages, or with the same task_id and last message.

    The second finds a row that is shown with other examples before it.
    """

    def keys(row: Row) -> tuple[bytes, bytes]:
        messages = row["messages"]
        return msgspec.json.encode(messages), msgspec.json.encode([row["task_id"], messages[-1:]])

    known = {key for row in trained for key in keys(row)}
    return sum(not known.isdisjoint(keys(row)) for row in scored)


def check_row(row: Any, where: str) -> None:
    """Raise DataError unless a row has messages, answer and task_id, and arrives at a RaaS as it is here.

    Messages may be empty only beside an `index`: a task server says then what the model is told.
    """
    if not isinstance(row, dict):
        raise DataError(f"{where} is a {type(row).__name__}, expected a dict")
    for column, kind in COLUMNS.items():
        if column not in row:
            raise DataError(f"{where} has no column '{column}'; it has: {', '.join(map(str, row))}")
        if not isinstance(row[column], kind):
            raise DataError(f"{where}: column '{column}' is a {type(row[column]).__name__}, expected {kind.__name__}")
    if (why := why_no_id(row["task_id"])) is not None:
        raise DataError(f"{where}: column 'task_id' {why}")
    for column in REWARD_ARGUMENTS:
        if column in row:
            raise DataError(f"{where}: column '{column}' has the name of a reward function's argument; rename it")
    if not row["messages"] and "index" not in row:
        raise DataError(f"{where}: column 'messages' is empty, expected at least one message (or a column 'index')")
    for message in row["messages"]:
        _check_message(message, where)
    if (changed := _changed_in_transit(row, "")) is not None:
        raise DataError(f"{where} is not JSON: {changed}")


def _check_message(message: Any, where: str) -> None:
    if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
        raise DataError(f"{where}: column 'messages' holds {message!r}, expected {{role, content}}")
    content = message["content"]
    if not isinstance(content, str | list) and not (content is None and message.get("tool_calls")):
        kind = "null" if content is None else f"a {type(content).__name__}"
        raise DataError(
            f"{where}: a message's content is {kind}, expected text, a list of parts, or null beside tool_calls"
        )


def _changed_in_transit(value: Any, path: str, depth: int = 0) -> str | None:
    """What of a row would be refused by the wire or arrive as something else; None for nothing."""
    here = f"column '{path}'" if path else "the row"
    if depth > MAX_DEPTH:
        return f"{here} is nested more than {MAX_DEPTH} deep"
    if isinstance(value, dict) and type(value) is dict:
        for key, item in value.items():
            if not isinstance(key, str):
                return f"{here} has the key {key!r:.60}, expected text"
            inner = f"{path}.{key}" if path else key
            found = _changed_text(key, f"a key of {here}") or _changed_in_transit(item, inner, depth + 1)
            if found is not None:
                return found
        return None
    if isinstance(value, list) and type(value) is list:
        numbered = (_changed_in_transit(item, f"{path}.{n}", depth + 1) for n, item in enumerate(value))
        return next((found for found in numbered if found is not None), None)
    return _changed_scalar(value, here)


def _changed_scalar(value: Any, here: str) -> str | None:
    if value is None or type(value) in (bool, bytes):
        return None
    if type(value) is str:
        return _changed_text(value, here)
    if type(value) is int:
        fits = -(2**63) <= value < 2**64
        return None if fits else f"{here} is an integer beyond 64 bits; write it as text"
    if type(value) is float:
        return None if math.isfinite(value) else f"{here} is {value}, expected a finite number, null or text"
    return f"{here} is a {type(value).__name__}, expected null, true, false, a number, text, a list or a dict"


def _changed_text(text: str, here: str) -> str | None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"{here} holds {text[error.start]!r} at character {error.start}, which is half a character"
    return None


def _arguments(
    function: Callable[..., Any], name: str, keywords: Mapping[str, Any], offered: Mapping[str, Any]
) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    unknown = sorted(keywords.keys() - parameters.keys())
    if unknown and not takes_any:
        raise ConfigError(
            f"{name} takes no '{unknown[0]}'{suggestion(unknown[0], list(parameters))}; "
            f"it takes: {', '.join(parameters)}"
        )
    return {**{key: value for key, value in offered.items() if key in parameters}, **keywords}


def _short(rows: Sequence[Row], max_length: int, tokenizer: Tokenizer, name: str) -> list[Row]:
    kept = [row for row in rows if len(tokenizer.encode_chat(row["messages"])) <= max_length]
    log.info(
        "dataset %s: %d of %d rows have a prompt over %d tokens", name, len(rows) - len(kept), len(rows), max_length
    )
    if not kept:
        raise DataError(f"dataset {name}: every prompt has more than {max_length} tokens")
    return kept
