"""A recorded run's decisions are made again to the last bit, whatever befell it; a changed log is noticed."""

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from astraflow.core.config import write_settings
from astraflow.core.data.trajectory import Episode, GroupResult
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.text.tiny import tiny_tokenizer
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.curriculum import DatasetCursor
from astraflow.dataflow.data_serving import DataServing
from astraflow.dataflow.ledger import Curate, DropReason, Issue, Serve
from astraflow.dataflow.records import Arrived, Batched, Came
from astraflow.dataflow.scripted import Rehearsal, ScriptedRaaS, example_rows
from astraflow.dataflow.simulation.choices import ByChance
from astraflow.dataflow.simulation.explorer import SMALL
from astraflow.dataflow.simulation.replay import Replayed, replay, replay_run
from astraflow.dataflow.simulation.settings import settings_of
from astraflow.dataflow.simulation.world import World
from astraflow.dataflow.store import LedgerStore
from astraflow.errors import ConfigError, DataError


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def recorded(seed: int, policies: int = 1, **more: object) -> World:
    """A world in which everything goes wrong that can."""
    scenario = msgspec.structs.replace(SMALL, policies=policies, replayable=True, **more)
    world = World(scenario, ByChance(seed), seed)
    world.run()
    assert world.violations == []
    return world


def replayed(world: World) -> Replayed:
    return replay(world.log, world.disk.arrivals, settings_of(world.scenario), example_rows(world.scenario.rows))


@pytest.mark.parametrize("seed", range(8))
def test_every_batch_is_derived_again_whatever_befell_the_run(seed: int) -> None:
    world = recorded(seed, policies=1 + seed % 3)
    again = replayed(world)
    assert again.difference is None
    assert again.followed == again.records == len(world.log)
    assert again.batches == [record for record in world.log if isinstance(record, Batched)]
    assert len(again.batches) >= 4


@pytest.mark.parametrize("seed", range(4))
def test_what_curators_and_replays_chose_is_derived_again(seed: int) -> None:
    world = recorded(seed, policies=1 + seed % 2, curated=True, order="edf", replay_ratio=0.5, steps=6)
    again = replayed(world)
    assert again.difference is None
    assert again.followed == len(world.log)
    assert any(isinstance(record, Serve) and record.replayed for record in world.log)


def test_a_batch_with_other_groups_is_named() -> None:
    world = recorded(1)
    at = [i for i, record in enumerate(world.log) if isinstance(record, Serve)][2]
    served = world.log[at]
    assert isinstance(served, Serve)
    world.log[at] = msgspec.structs.replace(served, group_ids=served.group_ids[::-1])
    again = replayed(world)
    assert again.difference is not None
    assert f"record {at + 1} " in again.difference
    assert "batch 3: recorded Serve(" in again.difference
    assert len(again.batches) == 2


def test_a_batch_with_another_bit_is_named() -> None:
    world = recorded(2)
    trained = next(record for record in world.log if isinstance(record, Serve)).group_ids[0]
    at, came = next((i, came) for i, came in enumerate(world.disk.arrivals) if came.group_id == trained)
    assert came.result is not None
    episodes = [_doubled(e) if isinstance(e, Episode) else e for e in came.result.episodes]
    world.disk.arrivals[at] = Came(trained, GroupResult(group_id=trained, episodes=tuple(episodes)))
    assert "recorded Batched(" in str(replayed(world).difference)


def _doubled(episode: Episode) -> Episode:
    """With other logprobs."""
    change = msgspec.structs.replace
    return Episode(
        tuple(
            change(t, turns=tuple(change(turn, logprobs=2 * turn.logprobs) for turn in t.turns))
            for t in episode.trajectories
        )
    )


def test_another_decision_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    world = recorded(3)
    at = next(i for i, record in enumerate(world.log) if isinstance(record, Curate) and record.drop is None)
    kept = world.log[at]
    assert isinstance(kept, Curate)
    world.log[at] = msgspec.structs.replace(kept, drop=DropReason.ZERO_ADVANTAGE)
    assert "derived Curate(" in str(replayed(world).difference)
    # code that has changed since: another order of rows
    world = recorded(3)
    monkeypatch.setattr(DatasetCursor, "next", lambda self: (0, 0))
    assert "recorded Issue(" in str(replayed(world).difference)


def test_a_decision_that_the_code_makes_no_more_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    world = recorded(4)
    monkeypatch.setattr(DataServing, "acknowledge", lambda self, model_id, step: self._served.clear())
    assert "recorded Acknowledge(" in str(replayed(world).difference)


def test_a_run_that_was_not_recorded_for_it_is_refused() -> None:
    world = recorded(0)
    world.log = [record for record in world.log if not isinstance(record, Arrived)]
    with pytest.raises(DataError, match="replayable: true"):
        replayed(world)


def run_on_disk(directory: Path) -> None:
    """A short run with a ledger on disk, and its settings as the launcher writes them."""
    run_dir = RunDirectory(directory)
    tiny_tokenizer().save(directory / "tokenizer")
    settings = DataflowSettings.model_validate(
        {
            "experiment": {"experiment_name": "t", "trial_name": "t", "fileroot": str(directory)},
            "dataflow": {
                "rollout_dataset": {"dataset_fn": "astraflow.dataflow.scripted:example_rows", "n": 20},
                "ledger": {"replayable": True},
            },
            "gconfigs": {"model0": {"n_samples": 2}},
            "tokenizer_path": str(directory / "tokenizer"),
            "run_dir": str(directory),
        }
    )
    write_settings(settings, run_dir.settings("dataflow"))

    async def train() -> None:
        rehearsal = Rehearsal(settings, rows=example_rows(20), store=LedgerStore(run_dir.ledger))
        async with rehearsal.running():
            raas = ScriptedRaaS("a", Rehearsal.TOKEN, lambda task, version: [float(task.group_id % 3 > 0), 0.0])
            await rehearsal.join(raas)
            trainer = rehearsal.trainer(batch_size=4)
            await trainer.begin()
            for _ in range(5):
                await trainer.train()

    asyncio.run(train())


def test_a_run_directory_is_replayed_and_what_is_missing_named(tmp_path: Path) -> None:
    run_on_disk(tmp_path)
    again = replay_run(tmp_path)
    assert again.difference is None
    assert len(again.batches) == 5
    assert any(isinstance(record, Issue) for record in LedgerStore(tmp_path / "ledger").load().records)
    RunDirectory(tmp_path).settings("dataflow").unlink()
    with pytest.raises(DataError, match="holds no settings of Dataflow"):
        replay_run(tmp_path)
    with pytest.raises(ConfigError, match="is not a run directory"):
        replay_run(tmp_path / "nothing")


def test_the_command_prints_each_batch_and_fails_on_a_difference(tmp_path: Path) -> None:
    run_on_disk(tmp_path)
    command = [sys.executable, "-m", "astraflow.cli.main", "replay", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("model0 after version") == 5
    settings = tmp_path / "settings" / "dataflow.json"
    settings.write_text(settings.read_text().replace('"seed":1', '"seed":2').replace('"seed": 1', '"seed": 2'))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "difference at record " in done.stderr
    assert "recorded Issue(" in done.stderr
