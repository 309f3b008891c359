"""The ledger on disk: commits are whole, payloads come back bit for bit, and what nobody needs goes."""

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from astraflow.core.data import Group, Value, encode
from astraflow.core.protocol import messages as m
from astraflow.dataflow.curriculum import Curriculum
from astraflow.dataflow.ledger import Issue, Lease, Ledger
from astraflow.dataflow.policies import Policies
from astraflow.dataflow.records import Announced, Item, Kept, Released, Snapshot, SnapshotTaken, TrainerReady, Var
from astraflow.dataflow.scripted import manifest, trajectory
from astraflow.dataflow.store import LedgerStore, read_log
from astraflow.errors import DataError


def group(group_id: int, tokens: int = 5) -> Group:
    task = m.Task(task_id=f"t#{group_id}.1", group_id=group_id, data={})
    return Group(
        group_id=group_id,
        task_id="t",
        prompt_id=1,
        model_id="model0",
        trajectories=(trajectory(task, 0, Value(0.5), [1] * tokens),),
    )


RECORDS: list[Item] = [
    TrainerReady(m.ReadyRequest(train_batch_size=4, sender_endpoint="h:1", model_id="model0", manifest=manifest(0))),
    Announced("model0", 0, 0, "digest"),
    Issue(3, 1),
    Lease((1,), "raas#1", 2.5),
]


def test_records_come_back_in_order(tmp_path: Path) -> None:
    store = LedgerStore(tmp_path)
    store.commit(RECORDS[:2])
    store.commit(RECORDS[2:])
    store.close()
    again = LedgerStore(tmp_path)
    assert again.load().records == RECORDS
    assert list(read_log(tmp_path)) == RECORDS  # also while it is open
    again.close()


def test_a_snapshot_stands_for_all_before_it_and_the_log_keeps_all(tmp_path: Path) -> None:
    store, ledger, policies = LedgerStore(tmp_path), Ledger(), Policies({"model0": 2})
    ledger.handle(Issue(3, 1))
    snapshot = Snapshot(ledger.snapshot(), policies.snapshot(), Curriculum({"a": 4}, 1).snapshot())
    store.commit([RECORDS[2], SnapshotTaken(encode(snapshot)), RECORDS[3]])
    loaded = store.load()
    assert loaded.records == [RECORDS[3]]
    assert loaded.snapshot is not None
    restored = Ledger.restored(loaded.snapshot.ledger)
    restored.validate()
    assert restored.queued(5) == [1]
    assert list(read_log(tmp_path)) == RECORDS[2:]
    store.close()


def test_payloads_come_back_bit_for_bit_and_go_when_released(tmp_path: Path) -> None:
    store = LedgerStore(tmp_path)
    store.commit([Kept(group(1)), Kept(group(2, 7))])
    store.close()
    store = LedgerStore(tmp_path)
    found = store.read(2)
    assert found is not None
    assert encode(found) == encode(group(2, 7))
    assert np.array_equal(found.trajectories[0].arrays.versions, group(2, 7).trajectories[0].arrays.versions)
    store.commit([Kept(group(3)), Released((1,))])
    assert (store.kept, store.read(1)) == ({2, 3}, None)
    store.commit([Released((2,))])
    assert len(list((tmp_path / "segments").iterdir())) == 1  # the first file is gone
    store.close()


def test_a_commit_that_fails_leaves_nothing(tmp_path: Path) -> None:
    store = LedgerStore(tmp_path)
    store.commit([Issue(1)])
    with pytest.raises(sqlite3.Error):
        store.commit([Issue(2), Var("v", object())])  # type: ignore[arg-type]
    store.close()
    again = LedgerStore(tmp_path)
    assert again.load().records == [Issue(1)]
    assert again.var("v") is None
    again.close()


def test_damage_is_noticed(tmp_path: Path) -> None:
    store = LedgerStore(tmp_path)
    store.commit([Kept(group(1))])
    [segment] = (tmp_path / "segments").iterdir()
    payload = bytearray(segment.read_bytes())
    payload[len(payload) // 2] ^= 1
    segment.write_bytes(payload)
    with pytest.raises(DataError, match="damaged"):
        store.read(1)
    segment.unlink()
    with pytest.raises(DataError, match="missing"):
        store.read(1)
    store.close()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "ledger.db").write_bytes(b"not a database" * 100)
    with pytest.raises(DataError, match="cannot be read"):
        LedgerStore(tmp_path / "other")
    with pytest.raises(DataError, match="holds no ledger"):
        list(read_log(tmp_path / "nowhere"))


def test_a_killed_writer_leaves_only_whole_commits(tmp_path: Path) -> None:
    store = LedgerStore(tmp_path)
    store.commit([Issue(1)])
    # as a killed process leaves it: a transaction that was begun, and payload bytes that nothing refers to
    connection = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    connection.execute("BEGIN")
    connection.execute("INSERT INTO log VALUES (2, x'00')")
    connection.close()
    (tmp_path / "segments" / "00000009").write_bytes(b"torn")
    store.close()
    again = LedgerStore(tmp_path)
    assert again.load().records == [Issue(1)]
    assert list((tmp_path / "segments").iterdir()) == []
    again.commit([Kept(group(1))])
    assert again.read(1) is not None
    again.close()
