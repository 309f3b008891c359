"""Where events, traces, reports and rounds lie; the index is derived from them and can be rebuilt at any time.

{rllm,traj,meta}/raw/<sid>/events.jsonl
{rllm,traj,meta}/trajectories/<sid>/trajectories.jsonl
{rllm,traj,meta}/reports/<name>.{md,json}
index.jsonl                                   one line a session
rounds/round_<n>/{status.json, heartbeat.json}
patches/<skill>/<id>.json                     how a patch came to its status
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from astraflow.errors import DataError, suggestion
from astraflow.evolution.traces.capture import ROOT_VARIABLE, folder_name
from astraflow.evolution.traces.files import read_lines, write_lines, write_whole
from astraflow.evolution.traces.payload import LAYERS
from astraflow.evolution.traces.trace import AgentTrace, Event


class IndexLine(msgspec.Struct, frozen=True, kw_only=True):
    """A session in index.jsonl."""

    session_id: str
    """The name of its folder."""
    layers: list[str]
    events: int
    tool_calls: int
    traces: int
    outcomes: dict[str, int]
    rounds: list[int]
    first: str
    last: str


class TraceStore:
    """Reads and writes one output folder."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    @property
    def index_path(self) -> Path:
        return self.root / "index.jsonl"

    @property
    def rounds(self) -> Path:
        return self.root / "rounds"

    def events_path(self, layer: str, session: str) -> Path:
        return self.root / layer / "raw" / session / "events.jsonl"

    def traces_path(self, layer: str, session: str) -> Path:
        return self.root / layer / "trajectories" / session / "trajectories.jsonl"

    def report_path(self, layer: str, name: str) -> Path:
        return self.root / layer / "reports" / f"{name}.md"

    def sessions(self) -> list[str]:
        """Every session that has events, by folder name."""
        found: set[str] = set()
        for layer in LAYERS:
            raw = self.root / layer / "raw"
            found.update(entry.name for entry in raw.iterdir() if entry.is_dir()) if raw.is_dir() else None
        return sorted(found)

    def check_session(self, session: str) -> str:
        """Return the folder of a session given by folder or id; DataError where it has no events."""
        known = self.sessions()
        for name in (session, folder_name(session)):
            if name in known:
                return name
        raise DataError(f"no session '{session}' in {self.root}{suggestion(session, known)}")

    def events(self, session: str) -> list[Event]:
        """A session's events over all layers, in order of work."""
        found = [event for layer in LAYERS for event in read_lines(self.events_path(layer, session), Event)]
        return sorted(found, key=lambda event: event.sequence)

    def traces(self, layer: str | None = None, session: str | None = None) -> list[AgentTrace]:
        """The traces of a layer or of all, of a session or of all."""
        sessions = [session] if session else self.sessions()
        layers = [layer] if layer else LAYERS
        return [
            trace
            for name in sessions
            for place in layers
            for trace in read_lines(self.traces_path(place, name), AgentTrace)
        ]

    def replace_traces(self, session: str, traces: Iterable[AgentTrace]) -> None:
        """Put these traces in the place of all that the session had before."""
        by_layer: dict[str, list[AgentTrace]] = {layer: [] for layer in LAYERS}
        for trace in traces:
            by_layer[trace.layer].append(trace)
        for layer, members in by_layer.items():
            path = self.traces_path(layer, session)
            if members:
                write_lines(path, members)
            elif path.exists():
                path.unlink()

    def index(self) -> list[IndexLine]:
        return read_lines(self.index_path, IndexLine)

    def rebuild_index(self) -> list[IndexLine]:
        """Derive index.jsonl from the sessions' files."""
        with self.locked("index"):
            lines = [line for session in self.sessions() if (line := self._index_line(session))]
            write_lines(self.index_path, lines)
        return lines

    def write_report(self, layer: str, name: str, text: str, content: msgspec.Struct) -> Path:
        """Write a report for people and, beside it, the same as JSON."""
        path = self.report_path(layer, folder_name(name))
        write_whole(path.with_suffix(".json"), msgspec.json.format(msgspec.json.encode(content)) + b"\n")
        write_whole(path, text.encode())
        return path

    @contextmanager
    def locked(self, what: str) -> Iterator[None]:
        """Keep other processes from the same work while the block runs."""
        folder = self.root / "state"
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / f"{what}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _index_line(self, session: str) -> IndexLine | None:
        events = self.events(session)
        if not events:
            return None
        traces = self.traces(session=session)
        times = sorted(event.timestamp for event in events)
        return IndexLine(
            session_id=session,
            layers=[layer for layer in LAYERS if any(event.layer == layer for event in events)],
            events=len(events),
            tool_calls=sum(event.type == "tool_call" for event in events),
            traces=len(traces),
            outcomes=dict(sorted(Counter(trace.outcome.value for trace in traces).items())),
            rounds=sorted({event.round for event in events if event.round is not None}),
            first=times[0],
            last=times[-1],
        )


def default_root() -> Path:
    """Where hooks write: the environment's folder, else traj_opt/output of the working directory."""
    return Path(os.environ.get(ROOT_VARIABLE) or Path("traj_opt") / "output")
