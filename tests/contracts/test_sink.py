"""Every metric sink keeps this contract: with the real package where it is installed, and with a fake of its API.

A fake takes only what the real package takes (`test_a_fake_takes_no_more_than_the_real_package` compares the two where
the real one is installed), and refuses what that refuses.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from astraflow.core.observability.config import (
    PrometheusConfig,
    SwanLabConfig,
    TensorBoardConfig,
    TrackioConfig,
    WandbConfig,
)
from astraflow.core.observability.sinks.base import LoggedRun, MemorySink, Record, Sink
from astraflow.core.observability.sinks.console import ConsoleSink
from astraflow.core.observability.sinks.jsonl import JsonlSink
from astraflow.core.observability.sinks.prometheus import PrometheusSink
from astraflow.core.observability.stats_logger import OPTIONAL
from astraflow.registry import load_target


class FakeRun:
    """A run of a tracking service: numbers by step, until it is finished."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self.steps: dict[int, dict[str, float]] = {}
        self._open = True

    def log(self, data: dict[str, float], step: int) -> None:
        if not self._open:
            raise RuntimeError("the run is finished")
        if not isinstance(data, dict):
            raise TypeError(f"expected a dict, got {type(data).__name__}")
        self.steps[step] = data

    def finish(self) -> None:
        self._open = False


class FakeSwanLabRun(FakeRun):
    def log(self, data: dict[str, float], step: int) -> None:
        if not data:
            raise ValueError("Log data must be a dict that is not empty")
        super().log(data, step)


def wandb_init(
    *,
    mode: str,
    project: str,
    name: str,
    entity: str | None,
    group: str,
    tags: list[str],
    id: str,  # noqa: A002
    resume: str,
    dir: str,  # noqa: A002
    config: dict[str, Any],
    settings: Any,
) -> FakeRun:
    if set(id) & set("/\\#?%:"):
        raise ValueError(f"run id '{id}' has a character that is not allowed")
    return FakeRun(locals())


def wandb_settings(*, console: str, silent: bool) -> dict[str, Any]:
    return {"console": console, "silent": silent}


def swanlab_init(
    *, mode: str, project: str, name: str, group: str, tags: list[str], log_dir: str, config: dict[str, Any]
) -> FakeRun:
    if mode not in ("disabled", "online", "local", "offline"):
        raise ValueError(f"no mode {mode}")
    return FakeSwanLabRun(locals())


def trackio_init(
    *,
    project: str,
    name: str,
    group: str,
    config: dict[str, Any],
    resume: str,
    embed: bool,
    auto_log_gpu: bool,
    auto_log_cpu: bool,
    space_id: str | None = None,
) -> FakeRun:
    return FakeRun(locals())


FAKES: dict[str, dict[str, Any]] = {
    "wandb": {"init": wandb_init, "Settings": wandb_settings},
    "swanlab": {"init": swanlab_init},
    "trackio": {"init": trackio_init},
}
CONFIGS: dict[str, Callable[[Path], Any]] = {
    "prometheus": lambda folder: PrometheusConfig(enabled=True),
    "tensorboard": lambda folder: TensorBoardConfig(path=str(folder / "tensorboard")),
    "wandb": lambda folder: WandbConfig(mode="offline", tags=("a",)),
    "swanlab": lambda folder: SwanLabConfig(mode="offline"),
    "trackio": lambda folder: TrackioConfig(mode="local"),
}


def logged_run(folder: Path) -> LoggedRun:
    return LoggedRun(
        experiment_name="sums", trial_name="seed 1:a", model_id="model0", directory=folder, config={"experiment": {}}
    )


def faked(monkeypatch: pytest.MonkeyPatch, name: str) -> type:
    """The sink's class over the fake package; both are forgotten with the test."""
    module = ModuleType(name)
    vars(module).update(FAKES[name])
    monkeypatch.setitem(sys.modules, name, module)
    file = OPTIONAL[name].partition(":")[0]
    monkeypatch.setitem(sys.modules, file, ModuleType(file))  # so that its real entry comes back
    del sys.modules[file]
    made: type = getattr(importlib.import_module(file), OPTIONAL[name].partition(":")[2])
    return made


def real(name: str) -> type:
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    made: type = load_target(OPTIONAL[name])
    return made


@pytest.fixture(
    params=[
        "memory", "jsonl", "console", "prometheus", "real tensorboard",
        *(f"{kind} {name}" for name in FAKES for kind in ("real", "fake")),
    ]
)  # fmt: skip
def sink(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sink]:
    kind, _, name = request.param.rpartition(" ")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.chdir(tmp_path)
    plain: dict[str, Callable[[], Sink]] = {
        "memory": MemorySink,
        "jsonl": lambda: JsonlSink(tmp_path / "metrics.jsonl"),
        "console": ConsoleSink,
        "prometheus": lambda: PrometheusSink(CONFIGS["prometheus"](tmp_path), logged_run(tmp_path)),
    }
    if name in plain:
        made = plain[name]()
    else:
        make = real(name) if kind == "real" else faked(monkeypatch, name)
        made = make(CONFIGS[name](tmp_path), logged_run(tmp_path))
    yield made
    made.close()


def test_it_takes_records_in_order_and_odd_values(sink: Sink) -> None:
    for step, stats in enumerate(({}, {"a/b@k": 1.0}, {"x": float("inf"), "y": float("nan"), "z": -0.0})):
        sink.write(Record(step=step, time=0.0, stats=stats))
    sink.close()


def test_it_can_be_closed_twice(sink: Sink) -> None:
    sink.close()
    sink.close()


def test_writing_to_a_closed_sink_is_an_error(sink: Sink) -> None:
    sink.close()
    with pytest.raises(ValueError, match="closed"):
        sink.write(Record(step=1, time=0.0, stats={}))


@pytest.mark.parametrize("name", FAKES)
def test_a_fake_takes_no_more_than_the_real_package(name: str) -> None:
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    package = importlib.import_module(name)
    known = set(inspect.signature(package.init).parameters)
    assert set(inspect.signature(FAKES[name]["init"]).parameters) <= known


@pytest.mark.parametrize(
    ("name", "config", "expected"),
    [
        (
            "wandb",
            WandbConfig(mode="offline", tags=("a", "b")),
            {
                "project": "sums", "name": "seed 1:a-model0", "group": "sums_seed 1:a", "tags": ["a", "b"],
                "id": "sums_seed-1-a_model0_train", "mode": "offline", "entity": None,
            },
        ),
        (
            "wandb",
            WandbConfig(mode="online", project="p", name="n", group="g", entity="team", id_suffix=None),
            {"project": "p", "name": "n", "group": "g", "entity": "team", "id": "sums_seed-1-a_model0"},
        ),
        ("swanlab", SwanLabConfig(mode="cloud", tags=("a",)), {"mode": "online", "project": "sums", "tags": ["a"]}),
        ("swanlab", SwanLabConfig(mode="local", logdir="/x"), {"mode": "local", "log_dir": "/x"}),
        ("trackio", TrackioConfig(mode="local"), {"space_id": None, "project": "sums", "group": "sums_seed 1:a"}),
        ("trackio", TrackioConfig(mode="online"), {"space_id": "sums-trackio"}),
        ("trackio", TrackioConfig(mode="online", space_id="me/x", name="n"), {"space_id": "me/x", "name": "n"}),
    ],
)  # fmt: skip
def test_the_keys_reach_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, config: Any, expected: dict[str, Any]
) -> None:
    sink = faked(monkeypatch, name)(config, logged_run(tmp_path))
    run: FakeRun = sink._run
    assert {key: run.settings[key] for key in expected} == expected
    assert run.settings["config"] == {"experiment": {}}
    sink.write(Record(step=4, time=0.0, stats={"ppo/loss": 0.5}))
    assert run.steps == {4: {"ppo/loss": 0.5}}
    sink.close()
