"""One lock a model around each change of its trainer's state, and what the trainer waits for, which its successor ends.

A change and its durable record are one: who asks for the same again meanwhile, or for the next, waits for both. No lock
is held while somebody waits for other models, for an evaluation, for groups or for a pull; what waits so for a trainer
that is started again is ended, since its caller is gone.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from astraflow.errors import ConflictError


class TrainerGuards:
    """The locks, and the waits that end with a trainer."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._waits: dict[str, set[asyncio.Timeout]] = defaultdict(set)

    def lock(self, model_id: str) -> asyncio.Lock:
        """Around a change of a trainer's state and its record."""
        return self._locks[model_id]

    @asynccontextmanager
    async def waiting(self, model_id: str) -> AsyncIterator[None]:
        """Wait for others; ConflictError where the model's trainer is started again meanwhile."""
        waits = self._waits[model_id]
        try:
            async with asyncio.timeout(None) as limit:
                waits.add(limit)
                try:
                    yield
                finally:
                    waits.discard(limit)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise ConflictError(f"the trainer of {model_id} was started again") from error

    def supersede(self, model_id: str) -> None:
        """A model's trainer is started again: nobody waits for what the one before had asked."""
        now = asyncio.get_running_loop().time()
        waits, self._waits[model_id] = self._waits[model_id], set()
        for limit in waits:
            limit.reschedule(now)
