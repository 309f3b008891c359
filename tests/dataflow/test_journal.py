"""Group commit: a promise waits for the commit that holds what it rests on."""

import asyncio
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from astraflow.dataflow.journal import Durable
from astraflow.dataflow.ledger import Issue
from astraflow.dataflow.records import Item
from astraflow.dataflow.store import LedgerStore
from astraflow.errors import DataError


class SlowStore(LedgerStore):
    """Commits only when it is let; may fail."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.go = threading.Event()
        self.began = threading.Event()
        self.commits: list[int] = []
        self.error: OSError | None = None

    def commit(self, items: Iterable[Item]) -> None:
        self.began.set()
        assert self.go.wait(10)
        if self.error is not None:
            raise self.error
        items = list(items)
        self.commits.append(len(items))
        super().commit(items)


def test_what_comes_while_a_commit_runs_shares_the_next(tmp_path: Path) -> None:
    async def main() -> None:
        store = SlowStore(tmp_path)
        journal = Durable(store)
        writer = asyncio.create_task(journal.run())
        journal.append(Issue(0))
        first = asyncio.create_task(journal.durable())
        await asyncio.to_thread(store.began.wait)
        for prompt in range(1, 6):
            journal.append(Issue(prompt))
        second = asyncio.create_task(journal.durable())
        await asyncio.sleep(0)
        assert not first.done()
        assert not second.done()
        store.go.set()
        await asyncio.gather(first, second)
        assert store.commits == [1, 5]
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)
        journal.append(Issue(6))
        await journal.close()  # the last one is not lost

    asyncio.run(main())
    again = LedgerStore(tmp_path)
    assert again.load().records == [Issue(prompt) for prompt in range(7)]
    again.close()


def test_a_disk_that_refuses_stops_who_waits_and_the_service(tmp_path: Path) -> None:
    async def main() -> None:
        store = SlowStore(tmp_path)
        store.error = OSError("no space left on device")
        store.go.set()
        journal = Durable(store)
        writer = asyncio.create_task(journal.run())
        journal.append(Issue(0))
        with pytest.raises(DataError, match="no space left"):
            await journal.durable()
        with pytest.raises(DataError, match="no space left"):
            await writer
        with pytest.raises(DataError, match="no space left"):
            journal.append(Issue(1))
            await journal.durable()
        await journal.close()

    asyncio.run(main())


def test_a_writer_that_is_stopped_in_a_commit_leaves_nobody_waiting(tmp_path: Path) -> None:
    async def main() -> None:
        store = SlowStore(tmp_path)
        journal = Durable(store)
        writer = asyncio.create_task(journal.run())
        journal.append(Issue(0))
        promise = asyncio.create_task(journal.durable())
        await asyncio.to_thread(store.began.wait)
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)
        assert not promise.done()
        store.go.set()
        await journal.close()
        await asyncio.wait_for(promise, 60)

    asyncio.run(main())
