"""What an id may be that comes from outside: a name of a run, a model, a RaaS, a task, a workflow or a request.

Ids stand in logs, metrics, paths, error texts and records of the ledger, so they are short and printable everywhere.
"""

from __future__ import annotations

import re

MAX_ID = 128

ID_PATTERN = rf"^[ -~]{{1,{MAX_ID}}}$(?!\n)"
"""1 to 128 printable ASCII characters; `$` alone lets a newline follow."""

EMPTY_OR_ID_PATTERN = rf"^[ -~]{{0,{MAX_ID}}}$(?!\n)"

EXPECTED = f"1 to {MAX_ID} printable ASCII characters"

_ROOM = 8
"""Characters that an id which was put together has left: a number at its end may grow."""


def why_no_id(text: str) -> str | None:
    """Say what makes a text no id, and what is expected; None where it is one."""
    if re.match(ID_PATTERN, text):
        return None
    odd = next((character for character in text if not " " <= character <= "~"), None)
    found = f"holds {odd!a}" if odd is not None else f"has {len(text)} characters"
    return f"{text[:40]!a}{'…' if len(text) > 40 else ''} {found}, expected {EXPECTED}"


def checked_id(text: str) -> str:
    """Return an id as it is; ValueError where it is none."""
    why = why_no_id(text)
    if why is not None:
        raise ValueError(why)
    return text


def id_with(front: str, end: str) -> str:
    """Return an id that ends so; its front is for people, and cut to what there is room for."""
    return f"{front[: MAX_ID - _ROOM - len(end)]}{end}"
