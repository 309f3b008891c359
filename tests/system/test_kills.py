"""LAW 26 with real processes: dataflow, RaaS and trainer are killed -9 at random moments, again and again, and started
again by the launcher. In the lineage that survives every occurrence is trained once or dropped with a reason; where
curators choose the prompts and a part of each batch is replayed, that is as chosen, and what is replayed is meant.

ASTRAFLOW_KILLS sets how many kills (30; 300 in the nightly run), half of them in each of the two runs.
"""

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from astraflow.core.config import Section
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.text.tiny import tiny_tokenizer
from astraflow.dataflow.audit import audit
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.curriculum import Curriculum, make_curriculum
from astraflow.dataflow.ledger import Acknowledge, Event, Finish, Issue, Ledger, Rewind, Serve
from astraflow.dataflow.store import read_log
from astraflow.launch.local import LocalProcesses
from astraflow.launch.recovery import Restarts
from astraflow.launch.specs import ProcessSpec

PEERS = Path(__file__).parent / "peers"
KILLS = int(os.environ.get("ASTRAFLOW_KILLS", "30"))
N_SAMPLES, GROUPS, ROWS, SEED = 2, 4, 97, 5
VICTIMS = ("dataflow", "raas-0", "raas-1", "train_worker-model0")


PLAIN: dict[str, Any] = {}
CURATED: dict[str, Any] = {
    "buffer": {
        "order": "edf",
        "replay": {"ratio": 0.25},
        "filter_function": ["filter_invalid", "filter_stale", "filter_duplicate", "filter_zero_adv"],
    },
    "curriculum": {"greso": {}, "solved": {"after": 2, "passes": 1}, "difficulty": {}},
}


class PeerSettings(Section):
    uid: str = ""
    dataflow_url: str
    run_dir: str
    state: str = ""
    enough: str = ""
    batch_size: str = str(N_SAMPLES * GROUPS)
    keep_every: str = "3"


def spec(run_dir: RunDirectory, name: str, module: str, settings: Any) -> ProcessSpec:
    return ProcessSpec(name, module, settings, run_dir.settings(name), run_dir.log(name))


def settings_of(run_dir: RunDirectory, tokenizer: Path, more: dict[str, Any]) -> DataflowSettings:
    return DataflowSettings.model_validate(
        {
            "experiment": {"experiment_name": "t", "trial_name": "t", "fileroot": str(run_dir.root), "seed": SEED},
            "dataflow": {"rollout_dataset": {"dataset_fn": "crash_rows:rows", "size": ROWS}, **more},
            "gconfigs": {"model0": {"n_samples": N_SAMPLES}},
            "tokenizer_path": str(tokenizer),
            "run_dir": str(run_dir.root),
        }
    )


class Killer:
    """Kills one process after another, whenever it is called late enough."""

    def __init__(self, run_dir: RunDirectory, kills: int, enough: Path) -> None:
        self.kills: Counter[str] = Counter()
        self._run_dir = run_dir
        self._left = kills
        self._enough = enough
        self._chance = random.Random(SEED)
        self._next = time.monotonic() + 3.0

    def __call__(self) -> None:
        if time.monotonic() < self._next:
            return
        if not self._left:
            self._enough.touch()
            return
        victim = self._chance.choice(VICTIMS)
        announced = self._run_dir.endpoint(victim)
        if announced is None:
            return
        try:
            os.kill(announced.pid, signal.SIGKILL)
        except ProcessLookupError:
            return  # on its way back already
        self.kills[victim] += 1
        self._left -= 1
        self._next = time.monotonic() + self._chance.uniform(0.0, 2.0)


def learnt_by_the_log(directory: Path) -> dict[int, tuple[list[int], list[int]]]:
    """step → groups that it trained for the first time, and again, as the ledger's events have it."""
    steps: dict[int, tuple[list[int], list[int]]] = {}
    served: tuple[list[int], list[int]] = ([], [])
    for record in read_log(directory):
        if isinstance(record, Serve):
            served = list(record.group_ids), list(record.replayed)
        elif isinstance(record, Acknowledge):
            steps[record.step] = served
        elif isinstance(record, Rewind):
            steps = {step: groups for step, groups in steps.items() if step <= record.step}
    return steps


def check_what_was_asked_for(directory: Path, curriculum: Curriculum) -> None:
    """It is what a curriculum that never died asks for, given the results that count."""
    ledger = Ledger()
    for record in read_log(directory):
        if isinstance(record, Issue):
            assert (record.prompt_id, record.epoch) == curriculum.next()
        if isinstance(record, Event):
            entry = ledger.get(record.group_id) if isinstance(record, Finish) else None
            if ledger.handle(record) and isinstance(record, Finish) and entry is not None:
                curriculum.visited(entry.prompt_id, entry.epoch, record.visit)


@pytest.mark.system
@pytest.mark.parametrize("more", [PLAIN, CURATED], ids=["plain", "curated"])
def test_random_kills_lose_nothing_and_train_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PEERS))
    run_dir = RunDirectory(tmp_path / "run")
    tokenizer, state, enough = tmp_path / "tokenizer", tmp_path / "state.json", tmp_path / "enough"
    tiny_tokenizer().save(tokenizer)
    kills = (KILLS + 1) // 2
    killer = Killer(run_dir, kills, enough)
    settings = settings_of(run_dir, tokenizer, more)
    with LocalProcesses(run_dir, restarts=Restarts(kills)) as processes:
        processes.spawn([spec(run_dir, "dataflow", "astraflow.dataflow.app", settings)])
        url = processes.listening(["dataflow"])["dataflow"].url
        raas = [PeerSettings(uid=f"raas-{n}", dataflow_url=url, run_dir=str(run_dir.root)) for n in range(2)]
        processes.spawn([spec(run_dir, peer.uid, "crash_raas", peer) for peer in raas])
        trainer = PeerSettings(dataflow_url=url, run_dir=str(run_dir.root), state=str(state), enough=str(enough))
        processes.spawn([spec(run_dir, "train_worker-model0", "crash_trainer", trainer)])
        processes.watch(["train_worker-model0"], killer)

    assert killer.kills.total() == kills
    model = msgspec.json.decode(state.read_bytes())
    learnt = {int(step): groups for step, groups in model["learnt"].items()}
    logged = learnt_by_the_log(run_dir.ledger)
    assert sorted(learnt) == list(range(1, model["step"] + 1))
    assert learnt == {step: sorted((*new, *again)) for step, (new, again) in logged.items()}
    trained = [group_id for new, _ in logged.values() for group_id in new]
    replayed = [group_id for _, again in logged.values() for group_id in again]
    assert len(trained) == len(set(trained))
    assert len(trained) + len(replayed) == GROUPS * model["step"]
    assert bool(replayed) == (more is CURATED)
    assert set(replayed) <= set(trained)

    report = audit(run_dir.ledger)
    assert report.conserved, report.problems
    assert (report.trained, report.replayed) == (len(trained), len(replayed))
    assert set(report.dropped) <= {"zero_advantage", "rejected", "invalid", "failed", "stale", "duplicate"}
    check_what_was_asked_for(run_dir.ledger, make_curriculum(settings.dataflow, {"rollout_dataset": ROWS}, SEED))
