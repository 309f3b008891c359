"""LAW 31: a reward has a hard deadline that starts when it runs, kills what overruns it, and yields Invalid(timeout).

Worker processes compute rewards in the order they are given. Per worker, the parent knows the call at the head of the
line and since when it runs (the reply of the one before it), so one timer per worker guards all calls, and a kill takes
exactly the guilty one: those behind it go to a fresh worker. Requests travel many per message, so that a cheap reward
costs its caller tens of microseconds.

    run() ──► queue ──► _dispatch (once per loop turn) ──► worker socket ──► process
                           ▲                                                   │
    caller ◄── future ◄── _received / _lost (replies, or the process's end) ◄──┘
"""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import subprocess
import sys
import weakref
from collections import deque
from time import monotonic

import msgspec

from astraflow.core.data import Invalid, Reward
from astraflow.core.workflow.reward.messages import Call, Load, Run, frame, take_frames
from astraflow.core.workflow.reward.shipping import Shipment

WINDOW = 8
"""Calls given to a worker ahead of their turn: enough to hide the way there, few enough to share among workers."""
START_DEADLINE = 60.0
"""Seconds for a worker to start, and for a reward's module to be imported; none of it counts for the reward."""
_DECODER = msgspec.msgpack.Decoder(Reward)


class _Pending:
    """A request in a worker's line."""

    __slots__ = ("call", "future", "shipment", "timeout")

    def __init__(
        self, timeout: float, future: asyncio.Future[Reward] | None, shipment: Shipment | None, call: Call | None
    ) -> None:
        self.timeout = timeout
        self.future = future
        self.shipment = shipment
        self.call = call

    @property
    def wanted(self) -> bool:
        """Whether somebody still waits for it."""
        return self.future is not None and not self.future.done()

    def resolve(self, reward: Reward) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(reward)


class _Process:
    """A worker process and its socket; ends both when told to, or when the pool is forgotten."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "astraflow.core.workflow.reward.worker", str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
            )
        ours.setblocking(False)
        self.socket = ours

    def end(self) -> int:
        """Kill, reap and close; returns the exit status (a process that had ended by itself keeps its own)."""
        self.popen.kill()
        self.socket.close()
        return self.popen.wait()


class _Worker:
    """The parent's side of one process: a line of requests, bytes on their way, one timer."""

    def __init__(self, pool: RewardPool, loop: asyncio.AbstractEventLoop, process: _Process) -> None:
        self.pool = pool
        self.loop = loop
        self.process = process
        self.line: deque[_Pending] = deque([_Pending(START_DEADLINE, None, None, None)])
        self.loaded: dict[Shipment, int] = {}
        self.closed = False
        self._head_since = monotonic()
        self._unsent = bytearray()
        self._unread = bytearray()
        self._timer = loop.call_later(START_DEADLINE, self._check_deadline)
        self._guarded_until = self._head_since + START_DEADLINE
        loop.add_reader(process.socket, self._readable)

    def send(self, pending: list[_Pending]) -> None:
        requests: list[Load | Run] = []
        if not self.line:
            self._head_since = monotonic()
        for item in pending:
            assert item.shipment is not None
            assert item.call is not None
            key = self.loaded.get(item.shipment)
            if key is None:
                key = self.loaded[item.shipment] = len(self.loaded)
                requests.append(Load(key, item.shipment))
                self.line.append(_Pending(START_DEADLINE, None, item.shipment, None))
            requests.append(Run(key, item.call))
            self.line.append(item)
        self._unsent += frame(pickle.dumps(requests, pickle.HIGHEST_PROTOCOL))
        self._writable()
        self._guard()

    def close(self) -> int:
        self.closed = True
        self._timer.cancel()
        self.loop.remove_reader(self.process.socket)
        self.loop.remove_writer(self.process.socket)
        return self.process.end()

    def _writable(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self.process.socket.send(self._unsent)]
            self.loop.remove_writer(self.process.socket)
        except BlockingIOError:
            self.loop.add_writer(self.process.socket, self._writable)
        except OSError:
            self._unsent.clear()  # it ended; the reader sees that too

    def _readable(self) -> None:
        try:
            data = self.process.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.pool._lost(self, "")
            return
        self._unread += data
        for reply in take_frames(self._unread):
            self.line.popleft().resolve(_DECODER.decode(reply))
        self._head_since = monotonic()
        self._guard()
        self.pool._dispatch()

    def _guard(self) -> None:
        """Have the timer fire no later than the head's deadline; a timer that fires early only looks again."""
        if self.line and self._head_since + self.line[0].timeout < self._guarded_until:
            self._arm(self.line[0].timeout)

    def _arm(self, seconds: float) -> None:
        self._timer.cancel()
        self._guarded_until = monotonic() + seconds
        self._timer = self.loop.call_later(seconds, self._check_deadline)

    def _check_deadline(self) -> None:
        if not self.line:
            self._guarded_until = float("inf")  # idle: the next head arms it
            return
        if self._left() <= 0:
            self._readable()  # this loop may have been busy, and the reply lie there
        if self.closed or not self.line:
            return
        if self._left() > 0:
            self._arm(self._left())
        else:
            self.pool._lost(self, "timeout")

    def _left(self) -> float:
        """Seconds that the head may still run."""
        return self._head_since + self.line[0].timeout - monotonic()


class RewardPool:
    """At most `max_workers` processes, started when first needed. Bound to the event loop that runs it."""

    def __init__(self, max_workers: int | None = None) -> None:
        self.max_workers = max_workers if max_workers is not None else max(1, (os.cpu_count() or 2) // 2)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue: deque[_Pending] = deque()
        self._workers: list[_Worker] = []
        self._processes: list[_Process] = []
        self._due = False
        self._broken: dict[Shipment, Invalid] = {}
        # whatever becomes of pool and loop, its processes end with it
        self._finalizer = weakref.finalize(self, _end_all, self._processes)

    async def run(self, shipment: Shipment, call: Call, timeout: float) -> Reward:
        """Compute one reward; `timeout` seconds from when it starts to run."""
        if shipment in self._broken:
            return self._broken[shipment]
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._abandon()
            self._loop = loop
        future: asyncio.Future[Reward] = loop.create_future()
        self._queue.append(_Pending(timeout, future, shipment, call))
        if not self._due:  # everything asked for in this turn of the loop leaves in one message
            self._due = True
            loop.call_soon(self._dispatch)
        return await future

    def close(self) -> None:
        """End the workers; rewards still wanted are cancelled."""
        waiting = [*self._queue, *(item for worker in self._workers for item in worker.line)]
        self._queue.clear()
        while self._workers:
            self._retire(self._workers[-1])
        for item in waiting:
            if item.future is not None:
                item.future.cancel()

    def _dispatch(self) -> None:
        self._due = False
        while self._queue:
            worker = min(self._workers, key=lambda each: len(each.line), default=None)
            if worker is None or (worker.line and len(self._workers) < self.max_workers):
                worker = self._start()
            room = WINDOW - len(worker.line)
            if room <= 0:
                return
            share = max(1, min(room, len(self._queue) // self.max_workers))
            taken = [self._queue.popleft() for _ in range(share)]
            for item in taken:
                if item.shipment in self._broken:  # since it was asked for
                    item.resolve(self._broken[item.shipment])
            wanted = [item for item in taken if item.wanted]
            if wanted:
                worker.send(wanted)

    def _start(self) -> _Worker:
        assert self._loop is not None
        process = _Process()
        self._processes.append(process)
        worker = _Worker(self, self._loop, process)
        self._workers.append(worker)
        return worker

    def _lost(self, worker: _Worker, why: str) -> None:
        """A worker ended or must end: its head is to blame, the rest is run again."""
        status = self._retire(worker)
        how = why or f"the reward worker ended with status {status} (negative: a signal)"
        if worker.line:
            head = worker.line.popleft()
            if head.future is None:  # starting or importing: whoever waits for that gets the answer
                self._unloadable(worker, head.shipment, how)
            else:
                head.resolve(Invalid("timeout") if why else Invalid("crash", how))
        self._queue.extendleft(item for item in reversed(worker.line) if item.wanted)
        self._dispatch()

    def _unloadable(self, worker: _Worker, shipment: Shipment | None, how: str) -> None:
        what = "a worker" if shipment is None else shipment.label
        invalid = Invalid("crash", f"{what} could not be loaded: {how}")
        if shipment is not None:
            self._broken[shipment] = invalid  # once is enough: no process per call
        for item in worker.line:
            if shipment in (None, item.shipment):
                item.resolve(invalid)

    def _retire(self, worker: _Worker) -> int:
        self._workers.remove(worker)
        self._processes.remove(worker.process)
        return worker.close()

    def _abandon(self) -> None:
        """Another loop runs us now: what belonged to the former one can no longer be awaited."""
        self._workers.clear()
        self._queue.clear()
        self._due = False
        _end_all(self._processes)


def _end_all(processes: list[_Process]) -> None:
    while processes:
        processes.pop().end()
