"""An event loop in virtual time.

Whatever is ready runs first, in asyncio's own order; then time jumps to the next timer. Nothing waits for the machine,
threads run inline, and a world that is built of the same choices runs the same way to the last callback.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

from astraflow.errors import InvariantError

T = TypeVar("T")

TICK_S = 1e-6


class VirtualLoop(asyncio.BaseEventLoop):
    """`look` is called whenever nothing is ready, just before time passes."""

    def __init__(self, look: Callable[[], None] = lambda: None, commit_s: Callable[[], float] = lambda: 0.0) -> None:
        """commit_s: how long what is handed to a thread takes; at its end it is done, all at once."""
        super().__init__()
        self.look = look
        self._commit_s = commit_s
        self._now = 0.0
        self._busy_until = 0.0
        self._selector = self

    def time(self) -> float:
        """Seconds since the world began."""
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        """In place of waiting for sockets: let time pass."""
        if timeout is None:
            raise InvariantError("nothing can happen any more in this world, and somebody waits")
        if timeout > 0:
            self.look()
            # what `look` found may have made something ready
            if not self._ready:  # type: ignore[attr-defined]
                self._now = max(self._now, self._scheduled[0].when())  # type: ignore[attr-defined]
        return []

    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Run it in this thread, `commit_s` seconds later and after what was handed over before."""
        future: asyncio.Future[T] = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:  # it belongs to whoever awaits the future
                future.set_exception(error)

        seconds = self._commit_s()
        if not seconds and self._now >= self._busy_until:
            run()
        else:
            # one after the other, as in one thread; timers of one moment have no order
            self._busy_until = max(self._now + seconds, self._busy_until + TICK_S)
            self.call_at(self._busy_until, run)
        return future

    def _process_events(self, events: list[Any]) -> None:
        """There are no sockets."""

    def _write_to_self(self) -> None:
        """Nothing comes from another thread."""


def run(main: Coroutine[Any, Any, T], loop: VirtualLoop) -> T:
    """Run `main` to its end in virtual time; what it leaves behind is cancelled."""
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.look = lambda: None
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        asyncio.set_event_loop(None)
        loop.close()
