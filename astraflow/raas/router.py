"""From a model's name to its engine, and the gate in front of it.

LAW 22: nothing is generated for a model before a verified version is served; a request waits at the gate, with a
deadline. Afterwards the engine itself keeps generation and swaps apart. Workflows see the router as their
InferenceEngine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from uuid import uuid4

import msgspec

from astraflow.core.data import ModelRequest, ModelResponse, StopReason
from astraflow.core.protocol.messages import VersionState
from astraflow.errors import CallerError, DeadlineError, EngineError
from astraflow.raas.engines.base import Engine, Listener, Output
from astraflow.raas.partial import continuation, joined

GATE_DEADLINE = 300.0
"""Seconds a request waits for a first version, or for a resume."""
DEFAULT = "default"
"""What a request says that does not care: the only model, or the first."""


@dataclass(eq=False)
class _Flight:
    """One call that an engine answers; several may be of one rid."""

    rid: str
    preempted: bool = False
    """Aborted by a pause: it goes on, from the tokens it has, when the gate is open again."""


@dataclass
class _Gate:
    engine: Engine
    verified: VersionState | None = None
    paused: bool = False
    open: asyncio.Event = field(default_factory=asyncio.Event)
    in_flight: set[_Flight] = field(default_factory=set)
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def settle(self) -> None:
        if self.verified is not None and not self.paused:
            self.open.set()
        else:
            self.open.clear()


class Router:
    """All engines of a RaaS as one InferenceEngine; `router["model0"]` speaks for one of them."""

    def __init__(self, engines: Iterable[Engine]) -> None:
        self._gates = {engine.model_id: _Gate(engine) for engine in engines}
        self.model_ids = list(self._gates)
        self.default_model = self.model_ids[0]

    @property
    def engines(self) -> Mapping[str, Engine]:
        return {model_id: gate.engine for model_id, gate in self._gates.items()}

    @property
    def versions(self) -> dict[str, VersionState]:
        """What is served, by model; a model without a verified version is not in it."""
        return {model_id: gate.verified for model_id, gate in self._gates.items() if gate.verified is not None}

    @property
    def ready(self) -> bool:
        """Whether every model may generate now."""
        return all(gate.open.is_set() for gate in self._gates.values())

    def resolve(self, model_id: str) -> str:
        """The served model that a name means; CallerError for one that is not served."""
        if model_id in self._gates:
            return model_id
        if model_id == DEFAULT:
            return self.default_model
        raise CallerError(f"model '{model_id}' is not served here; known: {', '.join(self.model_ids)}", 404)

    def serves(self, model_id: str, version: VersionState) -> None:
        """An engine proved a version: open its gate."""
        gate = self._gates[model_id]
        gate.verified = version
        gate.settle()

    async def pause(self, model_id: str, mode: str) -> None:
        """Let no new generation begin. keep: those in flight go on; wait: return when they ended; abort: the engine
        lets go of them, and after `resume` they go on from the tokens they have, on the weights that are served then.

        DeadlineError where they have not ended in time; the gate stays shut then.
        """
        gate = self._gates[self.resolve(model_id)]
        gate.paused = True
        gate.settle()
        if mode == "abort":
            for flight in gate.in_flight:
                flight.preempted = True
            await gate.engine.abort({flight.rid for flight in gate.in_flight})
        if mode != "keep" and gate.in_flight:
            gate.idle.clear()
            await self._drained(model_id, gate)

    def resume(self, model_id: str) -> None:
        gate = self._gates[self.resolve(model_id)]
        gate.paused = False
        gate.settle()

    async def agenerate(self, request: ModelRequest, listener: Listener | None = None) -> ModelResponse:
        """Generate with the engine of `request.model_id`; EngineError where its gate stays shut past the deadline."""
        model_id = self.resolve(request.model_id)
        gate = self._gates[model_id]
        if not gate.open.is_set():
            await self._pass(model_id, gate)
        if request.model_id != model_id:
            request = msgspec.structs.replace(request, model_id=model_id)
        part, preempted = await self._part(gate, request, listener)
        parts = [part]
        while preempted:
            if not gate.open.is_set():
                await self._pass(model_id, gate)
            rest = continuation(request, parts)
            before = len(rest.input_ids) - len(request.input_ids)
            part, preempted = await self._part(gate, rest, listener and partial(_after, before, listener))
            parts.append(part)
        return joined(request, parts)

    async def _part(self, gate: _Gate, request: ModelRequest, listener: Listener | None) -> tuple[ModelResponse, bool]:
        """Return the engine's answer, and whether a pause has cut it."""
        flight = _Flight(request.rid)
        gate.in_flight.add(flight)
        try:
            response = await gate.engine.agenerate(request, listener)
        finally:
            gate.in_flight.discard(flight)
            if not gate.in_flight:
                gate.idle.set()
        return response, flight.preempted and response.stop_reason is StopReason.ABORT

    def get_version(self) -> int:
        return self.version_of(self.default_model)

    def version_of(self, model_id: str) -> int:
        return self._gates[self.resolve(model_id)].engine.get_version()

    async def abort(self, model_id: str, rids: Iterable[str]) -> None:
        """End generations for good."""
        gate, ended = self._gates[self.resolve(model_id)], set(rids)
        for flight in gate.in_flight:
            flight.preempted = flight.preempted and flight.rid not in ended
        await gate.engine.abort(ended)

    @asynccontextmanager
    async def managed_session(self) -> AsyncIterator[Session]:
        async with Session(self, self.default_model).managed_session() as session:
            yield session

    def __getitem__(self, model_id: str) -> Session:
        return Session(self, self.resolve(model_id))

    async def _drained(self, model_id: str, gate: _Gate) -> None:
        try:
            async with asyncio.timeout(GATE_DEADLINE):
                await gate.idle.wait()
        except TimeoutError as error:
            count = len(gate.in_flight)
            raise DeadlineError(
                f"a pause of {model_id} waited {GATE_DEADLINE:g} s for {count} generations in flight"
            ) from error

    async def _pass(self, model_id: str, gate: _Gate) -> None:
        try:
            async with asyncio.timeout(GATE_DEADLINE):
                await gate.open.wait()
        except TimeoutError as error:
            why = "is paused" if gate.paused else "has no verified version"
            raise EngineError(f"{model_id} {why}: a generation waited {GATE_DEADLINE:g} s") from error


def _after(before: int, listener: Listener, start: int, output: Output) -> None:
    """Tell a listener of tokens that follow `before` others."""
    listener(before + start, output)


class Session:
    """An engine view for one model, and within `managed_session` for one episode or group.

    Requests of a session share its affinity, and LAW 7: none outlives it, so that no orphan completion is left behind.
    """

    def __init__(self, router: Router, model_id: str, affinity: str | None = None) -> None:
        self._router = router
        self._model_id = model_id
        self._affinity = affinity
        self._in_flight: dict[str, str] = {}
        """rid → model_id."""

    async def agenerate(self, request: ModelRequest) -> ModelResponse:
        model_id = self._model_id if request.model_id == DEFAULT else request.model_id
        if model_id != request.model_id or (request.affinity is None and self._affinity is not None):
            affinity = request.affinity or self._affinity
            request = msgspec.structs.replace(request, model_id=model_id, affinity=affinity)
        self._in_flight[request.rid] = model_id
        try:
            return await self._router.agenerate(request)
        finally:
            self._in_flight.pop(request.rid, None)

    def get_version(self) -> int:
        return self._router.version_of(self._model_id)

    @asynccontextmanager
    async def managed_session(self) -> AsyncIterator[Session]:
        session = Session(self._router, self._model_id, uuid4().hex)
        try:
            yield session
        finally:
            for rid, model_id in list(session._in_flight.items()):
                await self._router.abort(model_id, [rid])

    def __getitem__(self, model_id: str) -> Session:
        view = Session(self._router, self._router.resolve(model_id), self._affinity)
        view._in_flight = self._in_flight  # ends with the session that it was taken from
        return view
