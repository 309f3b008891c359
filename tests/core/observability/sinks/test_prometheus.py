from pathlib import Path

from astraflow.core.observability.config import PrometheusConfig
from astraflow.core.observability.sinks.base import LoggedRun, Record
from astraflow.core.observability.sinks.prometheus import PrometheusSink


def test_the_file_holds_the_newest_step(tmp_path: Path) -> None:
    run = LoggedRun(experiment_name="e", trial_name="t", model_id="model0", directory=tmp_path)
    sink = PrometheusSink(PrometheusConfig(enabled=True), run)
    sink.write(Record(step=1, time=0.0, stats={"old": 1.0}))
    sink.write(Record(step=2, time=0.0, stats={"ppo/loss": 0.5}))
    labels = '{experiment="e",trial="t",model_id="model0"}'
    assert (
        tmp_path / "metrics-model0.prom"
    ).read_text() == f"astraflow_ppo_loss{labels} 0.5\nastraflow_step{labels} 2\n"
    assert [path.name for path in tmp_path.iterdir()] == ["metrics-model0.prom"]


def test_it_can_be_written_anywhere(tmp_path: Path) -> None:
    run = LoggedRun(experiment_name="e", trial_name="t", model_id="model0", directory=tmp_path)
    path = tmp_path / "collector" / "astraflow.prom"
    PrometheusSink(PrometheusConfig(enabled=True, path=str(path)), run).write(Record(step=1, time=0.0, stats={}))
    assert path.is_file()
