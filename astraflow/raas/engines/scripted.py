"""An engine that answers from a script: the fake beside the protocol. Deterministic, without latency, torch-free."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from astraflow.core.data import GenerationHyperparameters, ModelRequest, ModelResponse, StopReason
from astraflow.core.protocol.messages import EngineLoad
from astraflow.errors import EngineError
from astraflow.raas.engines.base import Listener, Output, Weights

T = TypeVar("T")

Script = Callable[[ModelRequest], Sequence[int]] | Mapping[tuple[int, ...], Sequence[int]]
"""Request → the ids to answer with, or prompt ids → those. What the script gives after an end token is not sampled."""


@dataclass(eq=False)
class _Flight:
    """A request in flight and who waits for it."""

    request: ModelRequest
    waiters: int = 0
    listeners: list[Listener] = field(default_factory=list)
    aborted: bool = False
    """It ends at its next token; another call for its rid is a request of its own."""


class ScriptedEngine:
    """Answers one token per turn of the event loop, so that updates and aborts fall between tokens as in a real engine.

    Every token's logprob is `logprob`. `weights` is what `update` hands to `apply` (numpy arrays, or nothing).
    """

    def __init__(
        self,
        model_id: str,
        script: Script,
        *,
        eos_token_ids: Collection[int] = (),
        version: int = 0,
        logprob: float = -0.5,
        weights: Weights | None = None,
        unsupported: Collection[str] = (),
    ) -> None:
        self.model_id = model_id
        self._script = script
        self._eos = frozenset(eos_token_ids)
        self._version = version
        self._logprob = logprob
        self._weights: Weights = weights if weights is not None else {}
        self._unsupported = frozenset(unsupported)
        self._tasks: dict[_Flight, asyncio.Task[ModelResponse]] = {}
        self._tokens = 0
        self._closed = False

    def supports(self, gconfig: GenerationHyperparameters) -> None:
        """Refuse the fields that the constructor lists in `unsupported` when they differ from their default."""
        default = GenerationHyperparameters()
        for name in sorted(self._unsupported):
            if getattr(gconfig, name) != getattr(default, name):
                raise EngineError(f"the scripted engine of {self.model_id} cannot honour gconfig.{name}")

    def get_version(self) -> int:
        return self._version

    def load(self) -> EngineLoad:
        return EngineLoad(running=len(self._tasks), queued=0, tokens_generated=self._tokens)

    async def agenerate(self, request: ModelRequest, listener: Listener | None = None) -> ModelResponse:
        self._check_open()
        request.check()
        self.supports(request.gconfig)
        flight = next((one for one in self._tasks if one.request.rid == request.rid and not one.aborted), None)
        if flight is None:
            flight = _Flight(request)
            self._tasks[flight] = asyncio.create_task(self._answer(flight))
        if listener is not None:
            flight.listeners.append(listener)
        flight.waiters += 1
        try:
            return await asyncio.shield(self._tasks[flight])
        finally:
            flight.waiters -= 1
            flight.aborted = flight.aborted or not flight.waiters

    async def update(self, version: int, apply: Callable[[Weights], T]) -> T:
        self._check_open()
        result = apply(self._weights)
        self._version = version
        return result

    async def abort(self, rids: Collection[str]) -> None:
        for flight in self._tasks:
            flight.aborted = flight.aborted or flight.request.rid in rids

    async def close(self) -> None:
        self._closed = True
        for flight in self._tasks:
            flight.aborted = True
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _answer(self, flight: _Flight) -> ModelResponse:
        try:
            return await self._play(flight)
        finally:
            del self._tasks[flight]

    async def _play(self, flight: _Flight) -> ModelResponse:
        request, config = flight.request, flight.request.gconfig
        planned = self._look_up(request)
        budget = config.max_new_tokens
        if config.max_tokens is not None:
            budget = max(0, min(budget, config.max_tokens - len(request.input_ids)))
        ends = set(config.stop_token_ids) | (set() if config.ignore_eos else self._eos)
        tokens: list[int] = []
        versions: list[int] = []
        reason = StopReason.LENGTH
        for token in planned[:budget]:
            await asyncio.sleep(0)
            if flight.aborted:
                reason = StopReason.ABORT
                break
            tokens.append(token)
            versions.append(self._version)
            self._tokens += 1
            for listener in flight.listeners:
                listener(len(tokens) - 1, self._output(tokens[-1:], versions[-1:]))
            if token in ends and len(tokens) > config.min_new_tokens:
                reason = StopReason.STOP
                break
        else:
            if len(planned) < budget:
                raise EngineError(f"the script for {request.rid} ends after {len(planned)} tokens without an end token")
        output = self._output(tokens, versions)
        return ModelResponse(
            input_tokens=request.input_ids.astype(np.int32),
            output_tokens=output.tokens,
            output_logprobs=output.logprobs,
            output_versions=output.versions,
            stop_reason=reason,
        ).check()

    def _output(self, tokens: Sequence[int], versions: Sequence[int]) -> Output:
        logprobs = np.full(len(tokens), self._logprob, np.float32)
        return Output(np.array(tokens, np.int32), logprobs, np.array(versions, np.int32))

    def _look_up(self, request: ModelRequest) -> list[int]:
        if isinstance(self._script, Mapping):
            prompt = tuple(int(i) for i in request.input_ids)
            if prompt not in self._script:
                raise EngineError(f"the script of {self.model_id} has no answer for prompt {prompt}")
            return [int(i) for i in self._script[prompt]]
        return [int(i) for i in self._script(request)]

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError(f"the engine of {self.model_id} is closed")
