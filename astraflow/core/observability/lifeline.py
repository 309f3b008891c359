"""Children die with their parent (LAW 33): nothing outlives a run, however its parent ends.

The parent holds the write end of each child's stdin pipe and never writes to it. The kernel closes it when the parent
ends, killed -9 included, and the child's watcher thread reads end-of-file. A parent must not fork without exec
meanwhile: a fork would keep the write end open.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from astraflow.core.observability.run_directory import Announcement, RunDirectory
from astraflow.errors import DeadlineError, PeerError

VARIABLE = "ASTRAFLOW_LIFELINE"
"""Set in the environment of a child whose stdin is a lifeline."""

GRACE = 5.0
"""Seconds between the polite SIGTERM and the hard exit of an orphan."""

TAIL_WIDTH = 600
"""Characters of a log line that are shown when a process has died: the whole line is in its log."""

POLL = 0.02
"""Seconds between two looks at a child that has not announced itself."""


def watch_parent(grace: float = GRACE) -> None:
    """End this process when its parent is gone: SIGTERM to itself, a hard exit `grace` seconds later.

    Does nothing in a process that a person started by hand, whose stdin is a terminal or /dev/null.
    """
    if os.environ.get(VARIABLE) != "stdin":
        return
    threading.Thread(target=_until_orphaned, args=(grace,), name="lifeline", daemon=True).start()


def _until_orphaned(grace: float) -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace)
    os._exit(70)


class Child:
    """A process that was started with a lifeline, in a process group of its own (Ctrl-C reaches the parent only)."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log_path: Path) -> None:
        self.name = name
        self.log_path = log_path
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for a signal; None while the process lives."""
        return self._process.poll()

    @property
    def ending(self) -> str:
        """How the process ended, in words."""
        code = self.returncode
        if code is None:
            return "still running"
        if code >= 0:
            return f"exit code {code}"
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
        return f"killed by signal {-code}"

    def tail(self, lines: int = 20) -> list[str]:
        """The last lines of its log."""
        with contextlib.suppress(FileNotFoundError):
            return self.log_path.read_text("utf-8", errors="replace").splitlines()[-lines:]
        return []

    def terminate(self) -> None:
        """Ask the process to stop."""
        if self.returncode is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End what is left of its process group at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def stop(self, grace: float = GRACE) -> None:
        """SIGTERM, `grace` seconds for an ordered stop, then SIGKILL to all of its group; returns when it is gone."""
        self.terminate()
        self.join(grace)

    def join(self, grace: float) -> None:
        """Wait up to `grace` seconds for the process to end by itself, then kill its group."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(grace, 0))
        self.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process to end by itself; DeadlineError after `timeout` seconds."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise DeadlineError(f"{self.name} (pid {self.pid}) did not end within {timeout} s") from error

    def died(self) -> PeerError:
        """The error that says how it ended, with its last log lines."""
        said = "".join(f"\n  {shortened(line)}" for line in self.tail())
        return PeerError(f"{self.name} (pid {self.pid}) ended: {self.ending}; log: {self.log_path}{said}")


def shortened(line: str, width: int = TAIL_WIDTH) -> str:
    """A long line without its middle: the cause of an error stands at its beginning or at its end."""
    if len(line) <= width:
        return line
    head = width // 2
    return f"{line[:head]} … {line[head + 3 - width :]}"


def spawn(args: Sequence[str], log_path: Path, env: Mapping[str, str] | None = None, name: str | None = None) -> Child:
    """Start a child process with a lifeline; stdout and stderr go to the end of `log_path`.

    `env` is added to this process's environment. PeerError where the program cannot be started.
    """
    name = name or log_path.stem
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("ab") as log:
        try:
            process = subprocess.Popen(
                list(args),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {}), VARIABLE: "stdin"},
                start_new_session=True,
            )
        except OSError as error:
            raise PeerError(f"cannot start {name} ({args[0]}): {error.strerror}") from error
    return Child(name, process, log_path)


def await_announcement(
    run_dir: RunDirectory,
    children: Sequence[Child],
    timeout: float,
    poll: float = POLL,
    watched: Sequence[Child] = (),
) -> dict[str, Announcement]:
    """Wait until each child has announced itself under its name; all of them at once.

    PeerError with its last log lines as soon as one of them, or of `watched`, ends; DeadlineError naming those that are
    silent after `timeout` seconds.
    """
    found: dict[str, Announcement] = {}
    deadline = time.monotonic() + timeout
    while True:
        for child in children:
            if child.name not in found and (announced := run_dir.endpoint(child.name, child.pid)) is not None:
                found[child.name] = announced
        for child in (*watched, *children):
            if child.returncode is not None:
                raise child.died()
        silent = [child.name for child in children if child.name not in found]
        if not silent:
            return found
        if time.monotonic() > deadline:
            raise DeadlineError(
                f"waited {timeout:.0f} s for {', '.join(silent)} to listen; logs: {run_dir.root / 'logs'}"
            )
        time.sleep(poll)
