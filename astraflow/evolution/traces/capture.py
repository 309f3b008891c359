"""One hook call becomes one appended line. Standard library only: it runs after every tool call of a coding agent.

Invariant: a hook exits 0 within a second, prints nothing and writes only under its root, whatever bytes come in. So a
session id names a folder only where it is a plain word (otherwise its digest does), and the one place where every
exception ends is `run`.

Eight writers may meet on one session. They queue on its state file, which also holds the next sequence number and the
skill that is open in each conversation; the state is saved before the line, so that a writer that dies in between
leaves a gap, never a number twice. A line that a dying writer or a full disk left torn is cut off by the next one.

    state/<sid>.json                 lock, next sequence, open skills
    <layer>/raw/<sid>/events.jsonl   the events
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import sys
from contextlib import contextmanager, suppress

from astraflow.core.observability.lines import FLAGS, append_lines
from astraflow.evolution.traces.payload import LAYERS, STOPS, TYPES, adapt, layer_of, opened_skill
from astraflow.evolution.traces.redaction import sha256

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

DEADLINE = 0.9
"""Seconds after which a hook gives up, for example on a standard input that nobody closes."""
MAX_PAYLOAD = 32 * 2**20
ROOT_VARIABLE = "TRAJ_OPT_OUTPUT"
ROUND_VARIABLE = "TRAJ_OPT_ROUND"

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_ROUND = re.compile(r"round_(\d{1,9})")


def folder_name(session_id: str) -> str:
    """The folder of a session: its id where that is a plain word, else a digest of it."""
    if _WORD.fullmatch(session_id):
        return session_id
    return "s-" + sha256(session_id)[:24]


def post_tool(root: str) -> None:
    """Take PostToolUse, PostToolUseFailure, UserPromptExpansion and SessionStart from standard input."""
    run(root, frozenset(TYPES) - STOPS, "PostToolUse")


def on_stop(root: str) -> None:
    """Take Stop, SubagentStop and SessionEnd; with `--subagent` a Stop is that of a sub-agent."""
    subagent = "--subagent" in sys.argv[1:]
    run(root, STOPS, "SubagentStop" if subagent else "Stop", {"Stop": "SubagentStop"} if subagent else {})


def run(root: str, takes: frozenset[str], default: str, renamed: dict[str, str] | None = None) -> None:
    """Read one payload, record it and end the process, silently and with code 0: an agent must not notice its hooks.

    `os._exit` leaves out the interpreter's clean-up: it takes 5 ms, and turns a closed standard output into a failure.
    """
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, DEADLINE)
    with suppress(Exception):
        record(sys.stdin.buffer.read(MAX_PAYLOAD), os.environ.get(ROOT_VARIABLE) or root, takes, default, renamed)
    os._exit(0)


def record(
    data: bytes, root: str, takes: frozenset[str], default: str, renamed: dict[str, str] | None = None
) -> dict[str, Any] | None:
    """Append the event of one payload to its session and return it; None where it is none of `takes`.

    OSError, ValueError and RecursionError say why it could not be read or written.
    """
    payload = loads(data)
    if not isinstance(payload, dict):
        return None
    name = payload.get("hook_event_name") or default
    name = (renamed or {}).get(name, name) if isinstance(name, str) else ""
    event = adapt(payload, name) if name in takes else None
    if event is not None:
        append(root, event)
    return event


def loads(data: bytes) -> Any:
    """Read what an agent wrote: bytes that are not UTF-8, an output that was cut in a character, cost no event."""
    return json.loads(data.decode(json.detect_encoding(data), "replace"))


def append(root: str, event: dict[str, Any], round_number: int | None = None) -> None:
    """Give an event its sequence, skill, layer and round (the one under way if None), and append it to its session."""
    session = folder_name(event["session_id"])
    with _session(root, session) as descriptor:
        sequence, skills = _read_state(descriptor) or _recovered(root, session)
        skill = advance(skills, event)
        event.update(sequence=sequence, skill=skill, layer=layer_of(skill))
        event["round"] = _round(root) if round_number is None else round_number
        _write_state(descriptor, sequence + 1, skills)
        _append_line(os.path.join(root, event["layer"], "raw", session), json.dumps(event, allow_nan=False))


def advance(skills: dict[str, str], event: dict[str, Any]) -> str | None:
    """Return the skill that an event belongs to, and update which one is open in each conversation.

    A sub-agent works under the skill of the session's own conversation unless it opens one itself.
    """
    conversation, kind = event["conversation_id"], event["type"]
    opened = opened_skill(kind, event["tool_name"], event["tool_input"], event["success"])
    if opened:
        skills[conversation] = opened
    skill = skills.get(conversation) or skills.get(event["session_id"])
    if kind in ("turn_end", "conversation_end"):
        skills.pop(conversation, None)
    elif kind == "session_end":
        skills.clear()
    return skill


@contextmanager
def _session(root: str, session: str) -> Iterator[int]:
    """Hold a session's lock; yields the descriptor of its state file."""
    os.makedirs(os.path.join(root, "state"), exist_ok=True)
    path = os.path.join(root, "state", f"{session}.json")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _read_state(descriptor: int) -> tuple[int, dict[str, str]] | None:
    """The next sequence and the open skills; None for a new or damaged state file."""
    try:
        state = json.loads(os.pread(descriptor, 2**20, 0).partition(b"\n")[0])
        sequence, skills = state["sequence"], state["skills"]
    except (ValueError, KeyError, TypeError):
        return None
    return (sequence, skills) if isinstance(sequence, int) and isinstance(skills, dict) else None


def _write_state(descriptor: int, sequence: int, skills: dict[str, str]) -> None:
    """Write the state as the file's first line; what a longer one left behind it does not count.

    Not truncated before it is written: file systems take a file that was for one that is replaced, and write it to the
    disk when it is closed, which takes milliseconds in which all other writers wait.
    """
    os.pwrite(descriptor, json.dumps({"sequence": sequence, "skills": skills}).encode() + b"\n", 0)


def _recovered(root: str, session: str) -> tuple[int, dict[str, str]]:
    """The state as the session's own events tell it."""
    events: list[dict[str, Any]] = []
    for layer in LAYERS:
        path = os.path.join(root, layer, "raw", session, "events.jsonl")
        if not os.path.exists(path):
            continue
        with open(path, "rb") as file:
            for line in file:
                with suppress(ValueError):
                    event = json.loads(line)
                    if isinstance(event, dict) and isinstance(event.get("sequence"), int):
                        events.append(event)
    skills: dict[str, str] = {}
    for event in sorted(events, key=lambda event: event["sequence"]):
        with suppress(KeyError):
            advance(skills, event)
    return max((event["sequence"] for event in events), default=-1) + 1, skills


def _append_line(folder: str, line: str) -> None:
    os.makedirs(folder, exist_ok=True)
    descriptor = os.open(os.path.join(folder, "events.jsonl"), FLAGS | os.O_NOFOLLOW, 0o600)
    try:
        append_lines(descriptor, line.encode() + b"\n")
    finally:
        os.close(descriptor)


def _round(root: str) -> int | None:
    """The round under way: named by the environment, else the highest one that has begun."""
    named = os.environ.get(ROUND_VARIABLE, "")
    if named.isascii() and named.isdigit():
        return int(named[:9])
    try:
        names = os.listdir(os.path.join(root, "rounds"))
    except OSError:
        return None
    return max((int(match.group(1)) for match in map(_ROUND.fullmatch, names) if match), default=None)
