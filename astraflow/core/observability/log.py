"""Logging: one line a record on stderr, which the launcher keeps per process."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import sys

FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"

_HEAD = re.compile(r"\S+ \S+ [A-Z]+ +\S+: ")
"""What FORMAT puts before the message."""


class LineFormatter(logging.Formatter):
    """Joins what spans lines (tracebacks, quoted output), so that a log can be searched by line."""

    def format(self, record: logging.LogRecord) -> str:
        return " | ".join(line for line in super().format(record).splitlines() if line.strip())


def destination() -> str:
    """Where this process's log goes: the file that is its stderr, else "stderr"."""
    with contextlib.suppress(OSError):
        path = os.readlink("/proc/self/fd/2")
        if os.path.isfile(path):
            return path
    return "stderr"


def message(line: str) -> str:
    """The message of a line that was written by FORMAT; any other line as it is."""
    return line[match.end() :] if (match := _HEAD.match(line)) else line


def open_closed_streams() -> None:
    """Give a process that was started without standard streams (`2>&-`) ones that lead nowhere.

    The next file to be opened would get their number otherwise, and what is printed there end up in it. What standard
    output cannot encode is written out as an escape, as standard error does.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115 - until the process ends
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def configure(level: str = "INFO") -> None:
    """Send records of `level` and above to stderr; chatty libraries from WARNING only."""
    open_closed_streams()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for library in ("httpx", "httpcore", "uvicorn", "asyncio", "matplotlib"):
        logging.getLogger(library).setLevel(logging.WARNING)
