"""Every error of AstraFlow, drawn once.

    AstraFlowError
    ├── ConfigError          what the user wrote: file, key, what was expected
    │   └── UnknownNameError     a name that no registry knows; lists the known ones
    ├── DataError            a record, row or file that breaks its own rules
    ├── WorkflowError        an episode failed; the sample ends, the run goes on
    │   └── RewardError          the reward function crashed
    ├── EngineError          an inference engine refused or failed a generation
    ├── WeightError          a weight version is not what its manifest says
    ├── WireError            a request or reply between programs
    │   ├── CallerError          4xx: the caller's fault
    │   ├── ConflictError        409: against what is registered
    │   ├── PeerError            5xx, a broken reply or no reply: the peer's fault
    │   └── DeadlineError        503: a wait ended; says for whom, on what, since when
    └── InvariantError       a bug of ours: the process stops

A failed rollout is data with a reason, never an exception that ends the run; a broken invariant always stops it.
Foreign exceptions are attributed once, where they enter, with `boundary`.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches

TRACEBACK_FRAMES = 4
"""Innermost frames that a failure keeps."""
TRACEBACK_CHARACTERS = 4000
"""Of an exception's own text that a failure keeps."""


class AstraFlowError(Exception):
    """Root of the tree. `kind` travels on the wire and names the class in documented error bodies."""

    status = 500

    @property
    def kind(self) -> str:
        return type(self).__name__


class ConfigError(AstraFlowError):
    """A configuration is wrong. The message names the file or override, the key and what was expected."""

    status = 400


class UnknownNameError(ConfigError):
    """A name is not known; `known` lists those that are, the nearest first."""

    def __init__(self, what: str, name: str, known: list[str]) -> None:
        self.known = sorted(known)
        super().__init__(f"unknown {what} '{name}'{suggestion(name, self.known)}; known: {', '.join(self.known)}")


class DataError(AstraFlowError):
    """A record, dataset row or file breaks its own rules (lengths, types, ranges)."""

    status = 400


class WorkflowError(AstraFlowError):
    """An episode could not be finished."""


class RewardError(WorkflowError):
    """A reward function raised."""


class EngineError(AstraFlowError):
    """An inference engine refused a request or failed while generating."""


class WeightError(AstraFlowError):
    """Weights are not what their manifest says, or a delta does not fit its base."""


class WireError(AstraFlowError):
    """Base of everything that goes wrong between programs."""


class CallerError(WireError):
    """The request is wrong (4xx)."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class ConflictError(CallerError):
    """The request contradicts what is registered (409); nothing was changed."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 409)


class PeerError(WireError):
    """The peer failed, broke the protocol or could not be reached."""

    status = 502


class DeadlineError(WireError):
    """A wait reached its deadline. The message says who waited, on what, and for how long."""

    status = 503


class InvariantError(AstraFlowError):
    """A guarantee of AstraFlow is broken: a bug. The process must stop."""


def suggestion(name: str, known: list[str]) -> str:
    """Return ", did you mean 'x'?" for the nearest known name, or an empty string."""
    near = get_close_matches(name, known, n=1, cutoff=0.6)
    return f", did you mean '{near[0]}'?" if near else ""


@contextmanager
def boundary(error: type[AstraFlowError], where: str) -> Iterator[None]:
    """Attribute a foreign exception once: anything that is not ours leaves as `error("where: Type: text")`."""
    try:
        yield
    except AstraFlowError:
        raise
    except Exception as foreign:
        raise error(f"{where}: {type(foreign).__name__}: {foreign}") from foreign


def is_foreign(error: BaseException) -> bool:
    """At the border of foreign code in an event loop: is the failure that code's own, data where LAW 27 says so?

    Not so, and to be raised on: a bug of ours, Ctrl-C, and a cancellation that somebody asked of the running task. A
    CancelledError that nobody asked for (code that awaits a task which it has cancelled) and SystemExit are foreign.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and not task.cancelling()
    return isinstance(error, Exception | SystemExit) and not isinstance(error, InvariantError)


def is_utf8(text: str) -> bool:
    """Whether a text from outside can be written as UTF-8: no half emoji, no byte of a path in another encoding."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def brief_traceback(error: BaseException) -> str:
    """The exception and its innermost frames, the exception first so that a cut text still names it.

    The text is the foreign code's: it may have no end, half an emoji in it, or a __str__ that raises.
    """
    text = str(traceback.TracebackException.from_exception(error))
    frames = traceback.format_tb(error.__traceback__)[-TRACEBACK_FRAMES:]
    return printable("".join([f"{type(error).__name__}: {text[:TRACEBACK_CHARACTERS]}\n", *frames]).rstrip())


def printable(text: str) -> str:
    """The text as UTF-8 can carry it: a lone surrogate becomes its escape."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
