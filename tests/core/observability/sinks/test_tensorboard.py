from pathlib import Path

import pytest

pytest.importorskip("tensorboard")

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from astraflow.core.observability.config import TensorBoardConfig
from astraflow.core.observability.sinks.base import LoggedRun, Record
from astraflow.core.observability.sinks.tensorboard import TensorBoardSink


def test_each_statistic_is_a_scalar_of_its_step(tmp_path: Path) -> None:
    run = LoggedRun(experiment_name="e", trial_name="t", model_id="model0", directory=tmp_path)
    sink = TensorBoardSink(TensorBoardConfig(path=str(tmp_path / "events")), run)
    sink.write(Record(step=3, time=12.5, stats={"ppo/loss": 0.25, "eval/x/avg@k": 50.0}))
    (path,) = (tmp_path / "events" / "e_t" / "model0").iterdir()
    events = [event for event in EventFileLoader(str(path)).Load() if event.step]
    sink.close()
    found = {value.tag: value.tensor.float_val[0] for event in events for value in event.summary.value}
    assert found == {"ppo/loss": 0.25, "eval/x/avg@k": 50.0}
    assert {(event.step, event.wall_time) for event in events} == {(3, 12.5)}
