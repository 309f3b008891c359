"""Spans become bars of a Gantt chart, and shares of each program's time: work, waits and idle bubbles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MOST_BARS = 4000
"""Bars that a page draws; of a longer run the newest."""


class Kind(StrEnum):
    """What a span says about its program."""

    WORK = "work"
    WAIT = "wait"
    """The program waited for another one."""
    BESIDE = "beside"
    """Goes on beside the program's work."""
    IDLE = "idle"
    """No span covers the time: nothing to do."""


KINDS: Mapping[str, Kind] = {
    "train": Kind.WORK,
    "publish": Kind.WORK,
    "save": Kind.WORK,
    "generate": Kind.WORK,
    "evaluate": Kind.WORK,
    "swap": Kind.BESIDE,
    "pull": Kind.BESIDE,
    "wait_batch": Kind.WAIT,
    "notify": Kind.WAIT,
    "eval": Kind.WAIT,
    "collect": Kind.WAIT,
    "hold": Kind.WAIT,
}
IDLE = "idle"


@dataclass(frozen=True)
class Bar:
    """One span in the chart."""

    row: str
    name: str
    kind: Kind
    start: float
    """Seconds after the first span of the run."""
    seconds: float
    detail: str
    """The span's other attributes, as "version 3, groups 12"."""


@dataclass(frozen=True)
class Share:
    """How much of the run a program spent on one activity."""

    process: str
    name: str
    kind: Kind
    seconds: float
    count: int
    """Spans; idle: gaps."""
    share: float
    """Of the run's length, 0 to 1."""


@dataclass(frozen=True)
class Timeline:
    """A run's spans, ready to draw."""

    rows: tuple[str, ...]
    """From top to bottom."""
    bars: tuple[Bar, ...]
    shares: tuple[Share, ...]
    seconds: float
    left_out: int = 0
    """Bars of the run's beginning that are not drawn."""


def timeline(spans: Sequence[Mapping[str, Any]]) -> Timeline:
    """Order spans into rows: a program, and under it what goes on beside its work."""
    if not spans:
        return Timeline((), (), (), 0.0)
    zero = min(span["start"] for span in spans)
    end = max(span["start"] + span["seconds"] for span in spans) - zero
    bars = sorted((_bar(span, zero) for span in spans), key=lambda bar: bar.start)
    idle = [gap for process in _processes(spans) for gap in _idle(process, bars, end)]
    bars = sorted([*bars, *idle], key=lambda bar: bar.start)
    left_out = max(0, len(bars) - MOST_BARS)
    processes = _processes(spans)
    rows = tuple(row for process in processes for row in _rows(process, bars))
    return Timeline(rows, tuple(bars[left_out:]), _shares(bars, processes, end), end, left_out)


def _bar(span: Mapping[str, Any], zero: float) -> Bar:
    name, process = str(span["name"]), str(span["process"])
    kind = KINDS.get(name, Kind.WORK)
    known = ("name", "process", "start", "seconds")
    detail = ", ".join(f"{key} {value}" for key, value in span.items() if key not in known)
    row = f"{process} · {name}" if kind is Kind.BESIDE else process
    return Bar(row, name, kind, span["start"] - zero, span["seconds"], detail)


def _processes(spans: Sequence[Mapping[str, Any]]) -> list[str]:
    """Trainers first, then dataflow, then RaaS: the way that versions go."""
    order = {"train_worker": 0, "dataflow": 1, "raas": 2}
    names = {str(span["process"]) for span in spans}
    return sorted(names, key=lambda name: (order.get(name.split("-")[0], 3), name))


def _rows(process: str, bars: Sequence[Bar]) -> list[str]:
    beside = {bar.row for bar in bars if bar.row.startswith(f"{process} · ")}
    return [process, *sorted(beside)]


def _idle(process: str, bars: Sequence[Bar], end: float) -> list[Bar]:
    """What no span of a RaaS covers, from its first span on; the other programs' spans leave no such gap."""
    own = [bar for bar in bars if bar.row == process]
    if not process.startswith("raas") or not own:
        return []
    gaps: list[Bar] = []
    covered = own[0].start
    for bar in [*own, Bar(process, IDLE, Kind.IDLE, end, 0.0, "")]:
        if bar.start > covered:
            gaps.append(Bar(process, IDLE, Kind.IDLE, covered, bar.start - covered, "no group runs"))
        covered = max(covered, bar.start + bar.seconds)
    return gaps


def _shares(bars: Sequence[Bar], processes: Sequence[str], end: float) -> tuple[Share, ...]:
    found: dict[tuple[str, str], list[Bar]] = defaultdict(list)
    for bar in bars:
        found[bar.row.split(" · ")[0], bar.name].append(bar)
    shares = [
        Share(process, name, same[0].kind, total, len(same), total / end if end else 0.0)
        for (process, name), same in found.items()
        for total in [sum(bar.seconds for bar in same)]
    ]
    return tuple(sorted(shares, key=lambda share: (processes.index(share.process), -share.seconds)))
