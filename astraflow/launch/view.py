"""The terminal view of a run: live with rich on a terminal, plain lines elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table

from astraflow.core.observability.sinks.jsonl import JsonlReader
from astraflow.core.protocol import DataflowClient
from astraflow.errors import WireError
from astraflow.launch.complaints import Complaints
from astraflow.launch.patience import Patience
from astraflow.launch.progress import Progress

REFRESH = 0.5
"""Seconds between two looks at the metrics and two redraws."""

STATUS_EVERY = 1.0
"""Seconds between two questions to Dataflow."""


class View(Protocol):
    """Shows messages at any time, and a run's progress while it lasts."""

    def say(self, text: str) -> None:
        """Show one line that stays."""

    def show(self, progress: Progress) -> None:
        """Show the run as it is now."""

    def close(self) -> None:
        """Leave the terminal as it was."""


def terminal_view(stream: TextIO = sys.stderr) -> View:
    """The view that fits `stream`."""
    return LiveView(Console(file=stream)) if stream.isatty() else PlainView(stream)


class PlainView:
    """One line a step and one an evaluation."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._step = 0
        self._evaluations = 0

    def say(self, text: str) -> None:
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def show(self, progress: Progress) -> None:
        if progress.step > self._step:
            self._step = progress.step
            self.say("  ".join(f"{name} {text}" for name, text in cells(progress).items() if text))
        for step, accuracy in progress.evaluations[self._evaluations :]:
            self.say(f"evaluation after step {step}: {accuracy}")
        self._evaluations = len(progress.evaluations)

    def close(self) -> None:
        pass


class LiveView:
    """A table that is redrawn in place, under the lines that stay."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._evaluations = 0
        self._live.start()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def show(self, progress: Progress) -> None:
        for step, accuracy in progress.evaluations[self._evaluations :]:
            self.say(f"evaluation after step {step}: {accuracy}")
        self._evaluations = len(progress.evaluations)
        table = Table(box=None, padding=(0, 2, 0, 0))
        shown = {**cells(progress), "now": progress.activity}
        for name in shown:
            table.add_column(name, justify="right", style="bold" if name == "reward" else "")
        table.add_row(*shown.values())
        self._live.update(table, refresh=True)

    def close(self) -> None:
        self._live.stop()


def cells(progress: Progress) -> dict[str, str]:
    """Column → text; empty where the value is not known yet."""
    return {
        "step": f"{progress.step}/{progress.total_steps}",
        "reward": _number(progress.reward, ".3f"),
        "accuracy": str(progress.evaluations[-1][1]) if progress.evaluations else "",
        "staleness": f"{progress.staleness:.0f}≤{progress.staleness_bound}" if progress.staleness is not None else "",
        "rollout tok/s": _number(progress.rollout_tokens_per_s, ",.0f"),
        "train tok/s": _number(progress.train_tokens_per_s, ",.0f"),
        "version": str(progress.version),
        "eta": _clock(progress.eta_s),
    }


class Watcher:
    """Keeps a view up to date: call `tick` often; it looks only every REFRESH seconds."""

    def __init__(
        self, view: View, progress: Progress, metrics: JsonlReader, status: StatusThread, complaints: Complaints
    ) -> None:
        """complaints: of Dataflow's log."""
        self._view = view
        self._progress = progress
        self._metrics = metrics
        self._status = status
        self._complaints = complaints
        self._patience = Patience()
        self._next = 0.0

    def tick(self) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + REFRESH
            self.look()

    def look(self) -> None:
        """Read what is new, show each step once, and say what Dataflow complains of and what takes long."""
        self._progress.take_status(self._status.latest)
        for record in self._metrics.read():
            self._progress.take(record)
            self._view.show(self._progress)
        self._view.show(self._progress)
        for text in self._patience.look(self._status.latest, self._progress.pace_s, time.time()):
            self._view.say(text)
        for text in self._complaints.read(time.monotonic()):
            self._view.say(f"dataflow: {text}")


class StatusThread:
    """Asks Dataflow for its status about once a second; `latest` is the newest answer, empty before the first."""

    def __init__(self, url: str, token: str) -> None:
        self.latest: Mapping[str, Any] = {}
        self._url, self._token = url, token
        self._asked: deque[Callable[[DataflowClient], Awaitable[None]]] = deque()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._poll()), name="status", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()

    def ask(self, call: Callable[[DataflowClient], Awaitable[None]]) -> None:
        """Have the thread call Dataflow, once, with its next question."""
        self._asked.append(call)

    async def _poll(self) -> None:
        client = DataflowClient(self._url, self._token, timeout=STATUS_EVERY)
        while not self._stop.is_set():
            with contextlib.suppress(WireError):  # the launcher watches the process and says how it ended
                while self._asked:
                    await self._asked.popleft()(client)
                self.latest = await client.status()
            await asyncio.sleep(STATUS_EVERY)
        await client.close()


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _clock(seconds: float | None) -> str:
    return "" if seconds is None else f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
