"""A simulated run is summed up; its durations can be measured ones."""

import logging
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from astraflow.dataflow.simulation.mishaps import MISHAPS
from astraflow.dataflow.simulation.report import SimulationReport, described, measured, simulate
from astraflow.dataflow.simulation.scenario import LogNormal, Measured, Mishaps, Scenario
from astraflow.errors import ConfigError, DataError

QUIET = Scenario(raas=10, concurrency=4, batch_groups=8, n_samples=4, steps=12, latency=LogNormal(mean_s=4.0))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def report() -> SimulationReport:
    return simulate(QUIET, 1)


def test_a_quiet_run_trains_what_it_is_asked_to(report: SimulationReport) -> None:
    assert report.trained_groups == 12 * 8
    assert report.violations == 0
    assert report.staleness_max <= QUIET.max_staleness
    assert sum(report.staleness.values()) == pytest.approx(1.0, abs=0.001)
    assert 0 < report.raas_busy_share < 1
    assert report.lost_leases == report.orphans == 0


def test_the_same_seed_gives_the_same_run_and_another_another(report: SimulationReport) -> None:
    def without_wall(r: SimulationReport) -> SimulationReport:
        return msgspec.structs.replace(r, wall_s=0.0)

    assert without_wall(simulate(QUIET, 1)) == without_wall(report)
    assert simulate(QUIET, 2).virtual_s != report.virtual_s


def test_slow_services_contribute_less_and_block_nobody(report: SimulationReport) -> None:
    slow = simulate(msgspec.structs.replace(QUIET, slow_share=0.5, slow_factor=4.0), 1)
    assert slow.violations == 0
    assert slow.trained_groups == report.trained_groups
    assert slow.episodes_per_s < report.episodes_per_s


def test_mishaps_are_counted(report: SimulationReport) -> None:
    rough = simulate(msgspec.structs.replace(QUIET, mishaps=Mishaps(every_s=2.0, none=0, silence_raas=0)), 1)
    assert rough.violations == 0
    assert sum(rough.mishaps.values()) == 6
    assert "mishaps: " in "\n".join(described(rough))
    assert "mishaps: none" in "\n".join(described(report))


def test_measured_durations(tmp_path: Path) -> None:
    file = tmp_path / "seconds.txt"
    file.write_text("1.5\n2\n")
    assert measured(file) == Measured((1.5, 2.0))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "timeperf/group_s": 3.0}\n{"step": 2}\n')
    assert measured(tmp_path) == Measured((3.0,))
    durations = msgspec.structs.replace(QUIET, latency=Measured((2.0,)), steps=2)
    assert simulate(durations, 1).violations == 0


@pytest.mark.parametrize("text", ["", "fast", "-1"])
def test_durations_that_are_none_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "seconds.txt"
    file.write_text(text)
    with pytest.raises(DataError, match=r"seconds\.txt"):
        measured(file)


@pytest.mark.parametrize("line", ["[1, 2]", '{"timeperf/group_s": "fast"}', "\xff"])
def test_broken_metrics_are_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(f"{line}\n")
    with pytest.raises(DataError, match=r"metrics\.jsonl"):
        measured(tmp_path)


def test_one_mishap_alone_may_be_chosen() -> None:
    alone = Mishaps(every_s=2.0).only(["twin_raas"])
    assert alone.kinds() == ["none", "twin_raas"]
    report = simulate(msgspec.structs.replace(QUIET, mishaps=alone), 1)
    assert set(report.mishaps) == {"twin_raas"}
    assert report.violations == 0
    with pytest.raises(ConfigError, match=r"called storm; there are kill_raas, .*bad_request"):
        alone.only(["storm"])


def test_each_mishap_is_described() -> None:
    assert list(MISHAPS) == Mishaps.names()
    assert all(mishap.__doc__ for mishap in MISHAPS.values())


@pytest.mark.parametrize("field", ["raas", "policies", "rows"])
def test_a_scenario_without_a_world_is_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        simulate(msgspec.structs.replace(QUIET, **{field: 0}), 1)
