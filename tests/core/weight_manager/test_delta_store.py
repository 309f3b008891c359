from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from astraflow.core.data import Manifest
from astraflow.core.weight_manager import delta_store
from astraflow.core.weight_manager.delta import EncodedDelta
from astraflow.core.weight_manager.delta_store import DeltaStore, MarkedFile, StoredDelta
from astraflow.core.weight_manager.digest import tensor_digest
from astraflow.core.weight_manager.segment import PAGE, read_mark
from astraflow.core.weight_manager.version_folder import VersionFolder


def version(number: int) -> Manifest:
    return Manifest(model_id="model0", version=number, tensors=(), digest=str(number))


def add(store: DeltaStore, number: int, length: int = 100) -> StoredDelta:
    return store.add(version(number - 1), version(number), EncodedDelta([bytes([number]) * length], 5, 0))


def test_a_delta_is_found_by_its_base_and_says_what_it_is() -> None:
    store = DeltaStore(3, 10**6)
    delta = add(store, 1)
    assert store.on(0) is delta is store.newest
    assert store.on(1) is None
    assert (delta.version, delta.length, delta.changed, delta.digest) == (1, 100, 5, tensor_digest(b"\1" * 100))
    assert delta.memory is not None
    assert delta.memory.read(100) == b"\1" * 100
    assert read_mark(delta.memory.fd, PAGE) == 1
    assert delta.disk is None


def test_the_oldest_go_by_count() -> None:
    store = DeltaStore(3, 10**6)
    for number in range(1, 6):
        add(store, number)
    assert [base for base in range(6) if store.on(base)] == [2, 3, 4]


def test_the_oldest_go_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_store, "SMALL", 0)
    store = DeltaStore(100, 10_000)  # 8% are 800 bytes
    for number in range(1, 5):
        add(store, number, 300)
    assert [base for base in range(5) if store.on(base)] == [2, 3]
    assert store.longest == 600
    add(store, 5, 600)
    assert [base for base in range(6) if store.on(base)] == [4]


def test_memory_is_given_back_when_nobody_holds_it() -> None:
    file = MarkedFile(1, [b"x"])
    fd = file.fd
    os.fstat(fd)
    del file
    gc.collect()
    with pytest.raises(OSError):
        os.fstat(fd)


def test_on_disk_only_what_is_kept_lies_there(tmp_path: Path) -> None:
    store = DeltaStore(2, 10**6, VersionFolder(tmp_path), in_memory=False)
    for number in range(1, 5):
        (tmp_path / f"v{number:08d}").mkdir()
        delta = add(store, number)
        assert delta.memory is None
    assert sorted(path.parent.name for path in tmp_path.rglob("delta.safetensors")) == ["v00000003", "v00000004"]
