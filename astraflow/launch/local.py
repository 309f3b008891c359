"""Starts a run's processes on this machine, watches them, and stops them in order, whatever happens.

    start:  write settings → spawn with a lifeline → each binds, then announces → the next stage is given the URLs
    watch:  a process that ends before its time is started again where `recover` says so; else the others of its kind
            go on without it, those that joined from elsewhere counted; else it ends the run, with its name, how it
            ended and its last log lines
    stop:   last started first; SIGTERM, a grace, SIGKILL; then whatever those processes had started themselves; all
            stages share one deadline, so that what the later ones need is there when the first ones are slow

A launcher that is killed -9 closes the lifelines, and every process ends by itself (core.observability.lifeline).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from types import FrameType

from astraflow.core.config import write_settings
from astraflow.core.observability.lifeline import POLL, Child, await_announcement, spawn
from astraflow.core.observability.run_directory import Announcement, RunDirectory
from astraflow.errors import PeerError
from astraflow.launch.recovery import Restarts
from astraflow.launch.specs import ProcessSpec

START_TIMEOUT = 120.0
"""Seconds for a process to load and bind; the slowest part is importing torch on a busy machine."""

STOP_WITHIN = 6.0
"""Seconds that an ordered stop takes at most, all stages together: with the report it stays within ten."""

FINISH_WITHIN = 40.0
"""The same after a run that ended well."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Orders to stop; the last one is sent when the terminal is closed."""


class Interrupted(BaseException):
    """An order to stop reached the launcher. Not an Exception: nothing on its way may take it for a failure."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.exit_code = 128 + signum


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise Interrupted inside the block at the first order to stop; later ones wait for the stop that follows.

    A hangup that is ignored when the block begins stays so: under nohup a run outlives its terminal.
    """

    def interrupt(signum: int, frame: FrameType | None) -> None:
        for number in previous:
            signal.signal(number, signal.SIG_IGN)
        raise Interrupted(signum)

    previous = {number: signal.getsignal(number) for number in _SIGNALS}
    if previous[signal.SIGHUP] is signal.SIG_IGN:
        del previous[signal.SIGHUP]
    for number in previous:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class LocalProcesses:
    """The processes of one run, started in stages. Leaving the `with` block stops all of them."""

    def __init__(
        self,
        run_dir: RunDirectory,
        within: float = STOP_WITHIN,
        restarts: Restarts | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """restarts None: none is started again. say: told of what ends while others go on."""
        self._run_dir = run_dir
        self._within = within
        self._restarts = restarts or Restarts(0)
        self._say = say
        self._specs: dict[str, ProcessSpec] = {}
        self._stages: list[list[Child]] = []
        self._outlived: list[Child] = []
        """Ended; at first only processes that joined from elsewhere were there to go on."""

    def __enter__(self) -> LocalProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        except Interrupted:
            self.stop(within=0.0)
            raise

    def spawn(self, specs: Sequence[ProcessSpec]) -> None:
        """Write the settings of one stage and start its processes; do not wait for them."""
        stage: list[Child] = []
        self._stages.append(stage)
        stage += [self._start(spec) for spec in specs]

    def _start(self, spec: ProcessSpec) -> Child:
        self._specs[spec.name] = spec
        write_settings(spec.settings, spec.settings_path)
        return spawn(spec.argv, spec.log_path, spec.env, spec.name)

    def listening(self, names: Collection[str], timeout: float = START_TIMEOUT) -> dict[str, Announcement]:
        """Wait until each of the named processes listens; return name → announcement.

        PeerError with the last log lines where any process of the run ends meanwhile, but for one that was killed and
        is started again: who ends by itself so early would do so again.
        """
        deadline = time.monotonic() + timeout
        while True:
            children = self._children()
            awaited = [child for child in children if child.name in names]
            try:
                return await_announcement(self._run_dir, awaited, deadline - time.monotonic(), watched=children)
            except PeerError:
                ended = [child for child in children if (code := child.returncode) is not None and code >= 0]
                killed = [child for child in children if (code := child.returncode) is not None and code < 0]
                if ended or not all(self._start_again(child) for child in killed):
                    raise

    def watch(
        self,
        until: Collection[str],
        tick: Callable[[], None] = lambda: None,
        poll: float = POLL,
        joined: Callable[[str], Collection[str]] = lambda kind: (),
        gone: Callable[[str], None] = lambda name: None,
    ) -> None:
        """Return when all processes named in `until` have ended well; call `tick` between looks at them.

        `joined` tells who of a kind lives, whoever started it; `gone` is told the name of who others go on without.

        PeerError where one of them fails, or any other process ends before, and is not started again and has no other
        of its kind to go on; also, at the end, for each of `until` that others went on without.
        """
        waiting, lost = set(until), []
        while waiting:
            for child in self._children():
                code = child.returncode  # read once: a process may end between two looks
                if code == 0 and child.name in until:
                    waiting.discard(child.name)
                elif code is not None and not self._start_again(child):
                    if not self._go_on_without(child, joined):
                        raise self._blame()
                    gone(child.name)
                    if child.name in until:
                        waiting.discard(child.name)
                        lost.append(str(child.died()))
            for child in self._outlived:
                if not self._others(child, joined):
                    raise child.died()
            tick()
            time.sleep(poll)
        if lost:
            raise PeerError("\n".join(lost))

    def runs(self, name: str) -> bool:
        """Is a process of that name there, and has not ended?"""
        return any(child.name == name and child.returncode is None for child in self._children())

    def stop(self, within: float | None = None) -> None:
        """Stop stage by stage, last started first, then what they left running; all of it `within` seconds.

        Each stage has an equal share of the time that is left.
        """
        end = time.monotonic() + (self._within if within is None else within)
        own = {child.pid for child in self._children()}
        while self._stages:
            for child in self._stages[-1]:
                child.terminate()
            now = time.monotonic()
            deadline = now + (end - now) / (len(self._stages) + 1)
            for child in self._stages[-1]:
                child.join(deadline - time.monotonic())
            self._stages.pop()
        self._stop_strangers(own, end)

    def _start_again(self, child: Child) -> bool:
        """Put a new process in the place of one that ended, where `restarts` allows it."""
        assert child.returncode is not None
        spec = self._restarts.again(self._specs[child.name], child.returncode, child.ending, self._run_dir)
        if spec is None:
            return False
        child.join(0)  # what is left of its process group ends too
        for stage in self._stages:
            stage[:] = [self._start(spec) if other is child else other for other in stage]
        return True

    def _go_on_without(self, child: Child, joined: Callable[[str], Collection[str]]) -> bool:
        """Let go of a process that ended, where another of its kind lives."""
        others = self._others(child, joined)
        if not others:
            return False
        if not any(self.runs(name) for name in others):
            self._outlived.append(child)
        self._say(f"{child.name}: {child.ending}; {', '.join(others)} go{'es' if len(others) == 1 else ''} on")
        child.join(0)  # what is left of its process group ends too
        for stage in self._stages:
            stage[:] = [other for other in stage if other is not child]
        return True

    def _others(self, child: Child, joined: Callable[[str], Collection[str]]) -> list[str]:
        """Who else of its kind lives: ours, else those that joined from elsewhere."""
        kind = self._specs[child.name].kind
        if not kind:
            return []
        ours = [c.name for c in self._children() if self._specs[c.name].kind == kind and c.returncode is None]
        return ours or [name for name in joined(kind) if name not in self._specs]

    def _children(self) -> list[Child]:
        return [child for stage in self._stages for child in stage]

    def _blame(self) -> PeerError:
        """The error of the processes that failed, in start order: what others died of usually started first."""
        time.sleep(POLL)  # a process that died of another's death is seen with it, and named after it
        ended = [child for child in self._children() if child.returncode is not None]
        failed = [child for child in ended if child.returncode != 0] or ended
        return PeerError("\n".join(str(child.died()) for child in failed))

    def _stop_strangers(self, own: set[int], deadline: float) -> None:
        """Wait for announced processes that are not ours: a trainer's weight sender, a RaaS that joined.

        They watch their own parents, or that what we started has withdrawn.
        """
        names = sorted(path.stem for path in (self._run_dir.root / "endpoints").glob("*.json"))
        found = {name: announced for name in names if (announced := self._run_dir.endpoint(name)) is not None}
        strangers = [name for name, announced in found.items() if announced.pid not in own]
        for name in (*(name for name in found if name not in strangers), *strangers):
            while name in strangers and found[name].alive:
                if time.monotonic() > deadline:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(found[name].pid, signal.SIGKILL)
                    break
                time.sleep(POLL)
            self._run_dir.withdraw(name)
