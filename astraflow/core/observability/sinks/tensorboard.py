"""TensorBoard event files, written without TensorFlow or torch."""

from __future__ import annotations

from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from astraflow.core.observability.config import TensorBoardConfig
from astraflow.core.observability.sinks.base import LoggedRun, Record


class TensorBoardSink:
    """One scalar a statistic, under <path>/<experiment>_<trial>/<model_id>."""

    def __init__(self, config: TensorBoardConfig, run: LoggedRun) -> None:
        folder = Path(config.path or "").expanduser() / run.group / run.model_id
        folder.mkdir(parents=True, exist_ok=True)
        self._writer: EventFileWriter | None = EventFileWriter(str(folder))

    def write(self, record: Record) -> None:
        if self._writer is None:
            raise ValueError("the sink is closed")
        values = [Summary.Value(tag=name, simple_value=value) for name, value in record.stats.items()]
        self._writer.add_event(Event(wall_time=record.time, step=record.step, summary=Summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None
