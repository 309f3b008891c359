"""Group commit: what was appended in one piece of code becomes durable together, beside the event loop.

    writer    consumes what was appended since its last commit; waits for `appended`; its thread is the store's only one
    durable   waits for `committed`; unblocked by the commit that holds all that was appended before the call

Whatever leaves this process as a promise waits for `durable` first: a batch, an acknowledgement to a RaaS or a trainer,
an order for work. So a process that is killed has promised nothing that its successor does not know.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from astraflow.core.data import Group
from astraflow.dataflow.records import Item
from astraflow.dataflow.store import LedgerStore
from astraflow.dataflow.waiting import Pulse
from astraflow.errors import AstraFlowError, DataError, DeadlineError, boundary

log = logging.getLogger(__name__)


class Journal(Protocol):
    """Where books are written down."""

    def append(self, *items: Item) -> None:
        """Note something; durable with the next commit."""

    async def durable(self) -> None:
        """Return when all that was appended before is durable."""

    async def read(self, group_ids: Iterable[int]) -> dict[int, Group]:
        """Those of these groups that were kept."""


class Volatile:
    """Nothing outlives the process."""

    def append(self, *items: Item) -> None:
        pass

    async def durable(self) -> None:
        pass

    async def read(self, group_ids: Iterable[int]) -> dict[int, Group]:
        return {}


class Durable:
    """A store, written by a thread of its own."""

    def __init__(self, store: LedgerStore) -> None:
        self._store = store
        self._items: list[Item] = []
        self._appended = 0
        self._committed = 0
        self._wanted = asyncio.Event()
        self._news = Pulse()
        self._thread = ThreadPoolExecutor(1, "ledger")
        self._failure: AstraFlowError | None = None

    def append(self, *items: Item) -> None:
        self._items += items
        self._appended += len(items)
        self._wanted.set()

    async def durable(self) -> None:
        mine = self._appended
        while self._committed < mine:
            if self._failure is not None:
                raise self._failure
            await self._news.wait()

    async def read(self, group_ids: Iterable[int]) -> dict[int, Group]:
        await self.durable()
        wanted = list(group_ids)
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._read, wanted)

    async def run(self) -> None:
        """Commit until cancelled. DataError where the disk refuses: the service must stop."""
        try:
            while True:
                await self._wanted.wait()
                await self._commit()
        except AstraFlowError as error:
            self._failure = error
            self._news.set()
            raise

    async def close(self) -> None:
        """Commit what is left and close the store. Call it after `run` has ended."""
        while self._failure is None:
            await self._commit()
            if not self._items:
                self._failure = DeadlineError("Dataflow is stopping")
        # who has written something since is not answered as if it were kept
        self._news.set()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._store.close)
        self._thread.shutdown()

    async def _commit(self) -> None:
        self._wanted.clear()
        items, self._items = self._items, []
        writing = asyncio.get_running_loop().run_in_executor(self._thread, self._store.commit, items)
        # counted also where the writer is cancelled meanwhile: who waits for these items must hear of them
        writing.add_done_callback(lambda done: self._written(len(items), done))
        with boundary(DataError, "the ledger cannot be written"):
            # shielded: a cancelled writer must not leave a commit behind that `close` does not know of
            await asyncio.shield(writing)

    def _written(self, items: int, writing: asyncio.Future[None]) -> None:
        if not writing.cancelled() and writing.exception() is None:
            self._committed += items
            self._news.set()

    def _read(self, group_ids: list[int]) -> dict[int, Group]:
        found = {}
        for group_id in group_ids:
            try:
                group = self._store.read(group_id)
            except DataError as error:
                log.error("group %d is lost: %s", group_id, error)
                continue
            if group is not None:
                found[group_id] = group
        return found
