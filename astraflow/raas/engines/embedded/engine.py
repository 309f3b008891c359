"""The embedded engine: continuous batching in a thread of its own, an asyncio face in front.

    agenerate, abort, update, close      consume: calls        produce: commands
        │  inbox (unbounded; the caller awaits its own answer)
    engine thread                        consumes: commands    produces: tokens, answers
        │  one call_soon_threadsafe per step
    event loop                           resolves the callers' futures

The thread waits only for the inbox, and only while nothing runs. Commands are carried out between two decode steps: so
an update never meets a half-computed token, and no token is sampled between its first write and its proof (law 22).

A request that cannot be placed ends alone: what is wrong with one is never its neighbours' end.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Collection
from collections.abc import Sequence as List
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import torch

from astraflow.core.data import GenerationHyperparameters, ModelRequest, ModelResponse, StopReason
from astraflow.core.model import Decoder, load_model, named_weights, return_large_blocks
from astraflow.core.protocol.messages import EngineLoad
from astraflow.core.text import Tokenizer, load_tokenizer
from astraflow.errors import AstraFlowError, EngineError, boundary
from astraflow.raas.engines.base import Listener, Output, Weights
from astraflow.raas.engines.embedded.limits import check_ends, positions_within
from astraflow.raas.engines.embedded.runner import Runner
from astraflow.raas.engines.embedded.scheduler import Plan, Scheduler, Sequence
from astraflow.raas.engines.embedded.scoring import score
from astraflow.raas.engines.embedded.stopping import TextStops
from astraflow.raas.engines.embedded.tickets import Answer, Tickets, settle

T = TypeVar("T")
CLOSE_TIMEOUT_S = 30.0
"""Longest wait for the thread to end: it finishes the step, or the update, that it is in."""
KV_CACHE_BYTES = 4 * 2**30
"""Default bound on keys and values."""


class EmbeddedEngine:
    """Serves one decoder in this process. Implements `Engine`."""

    def __init__(
        self,
        model_id: str,
        decoder: Decoder,
        *,
        eos_token_ids: Collection[int] = (),
        tokenizer: Tokenizer | None = None,
        max_running_requests: int = 64,
        context_length: int | None = None,
        kv_cache_bytes: int = KV_CACHE_BYTES,
        version: int = 0,
        seed: int = 0,
        threads: int = 1,
    ) -> None:
        """`eos_token_ids` are added to those of the configuration and the tokenizer; stop strings need the tokenizer.

        The decoder belongs to the engine from now on. `threads` are torch's, for the whole process. ConfigError for end
        tokens outside the vocabulary, and where one sequence of `context_length` does not fit in `kv_cache_bytes`.
        """
        longest = decoder.config.max_position_embeddings
        self.model_id = model_id
        self.context_length = min(context_length or longest, longest)
        own = tokenizer.eos_token_ids if tokenizer is not None else ()
        self._eos = frozenset({*eos_token_ids, *decoder.config.eos_token_ids, *own})
        self._vocab_size = decoder.config.vocab_size
        check_ends(model_id, self._eos, self._vocab_size)
        positions = positions_within(model_id, decoder, self.context_length, kv_cache_bytes)
        self._tokenizer = tokenizer
        self._version = version
        self._tokens_generated = 0
        self._scheduler = Scheduler(max_running_requests, positions)
        self._runner = Runner(decoder, max_running_requests, self.context_length, seed, positions)
        self._weights: Weights = dict(named_weights(decoder))
        self._stops = TextStops(tokenizer)
        self._heard: dict[Sequence, int] = {}
        """Requests with listeners, and how many tokens these have heard of."""
        self._tickets = Tickets()
        self._updates: set[asyncio.Future[Any]] = set()
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = self._stopping = False
        self._thread = threading.Thread(target=self._run, args=(threads,), name=f"engine-{model_id}", daemon=True)
        self._thread.start()

    @classmethod
    def open(
        cls,
        model_id: str,
        model_path: str | Path,
        *,
        tokenizer_path: str | Path | None = None,
        dtype: str | None = None,
        device: str = "cpu",
        **options: Any,
    ) -> Self:
        """Load a Hugging Face directory, with the tokenizer beside it by default; `options` are the constructor's."""
        decoder, _ = load_model(model_path, dtype)
        return_large_blocks(decoder)
        return cls(model_id, decoder.to(device), tokenizer=load_tokenizer(tokenizer_path or model_path), **options)

    def supports(self, gconfig: GenerationHyperparameters) -> None:
        """Everything is honoured; stop strings need a tokenizer, token ids have to be in the vocabulary."""
        if gconfig.stop and self._tokenizer is None:
            raise EngineError(f"the engine of {self.model_id} has no tokenizer: it cannot honour gconfig.stop")
        if any(not 0 <= token < self._vocab_size for token in gconfig.stop_token_ids):
            raise EngineError(f"gconfig.stop_token_ids = {gconfig.stop_token_ids} lie outside the vocabulary")

    def get_version(self) -> int:
        return self._version

    def load(self) -> EngineLoad:
        running = self._scheduler.running
        return EngineLoad(
            running=running,
            queued=max(0, len(self._tickets) - running),
            tokens_generated=self._tokens_generated,
        )

    async def agenerate(self, request: ModelRequest, listener: Listener | None = None) -> ModelResponse:
        self._check_open()
        sequence = self._tickets.joinable(request.rid)
        if sequence is None:
            sequence = self._sequence(request)
            if sequence.budget < 1:
                return _response(sequence, _NOTHING, StopReason.LENGTH, time.perf_counter())
            self._tickets.open(sequence, self._running_loop().create_future())
            self._inbox.put(partial(self._scheduler.submit, sequence))
        ticket = self._tickets.of(sequence)
        if listener is not None:
            ticket.listeners.append(listener)
            self._inbox.put(partial(self._hear, sequence))
        ticket.waiters += 1
        try:
            return await asyncio.shield(ticket.future)
        finally:
            ticket.waiters -= 1
            if not ticket.waiters and not ticket.future.done():
                self._let_go([sequence])

    async def update(self, version: int, apply: Callable[[Weights], T]) -> T:
        def swap() -> T:
            result = apply(self._weights)
            self._scheduler.forget_prefixes()
            self._version = version
            return result

        return await self._between_steps(swap)

    def score(self, sequences: List[List[int]], temperature: float) -> list[np.ndarray]:
        if threading.current_thread() is not self._thread:
            raise EngineError(f"the engine of {self.model_id} scores within an update only")
        return score(self._runner.decoder, sequences, temperature)

    async def _between_steps(self, work: Callable[[], T]) -> T:
        """Run `work` on the engine's thread between two decode steps and return its result."""
        self._check_open()
        done: asyncio.Future[T] = self._running_loop().create_future()

        def command() -> None:
            try:
                result = work()
            except Exception as error:  # a task border: it is the caller's, who awaits it
                self._tell(settle, done, error)
                return
            self._tell(settle, done, result)

        self._updates.add(done)
        self._inbox.put(command)
        try:
            return await done
        finally:
            self._updates.discard(done)

    async def abort(self, rids: Collection[str]) -> None:
        self._let_go([one for rid in rids if (one := self._tickets.joinable(rid)) is not None])

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._inbox.put(self._stop)
        await asyncio.to_thread(self._thread.join, CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            raise EngineError(f"the engine of {self.model_id} did not stop within {CLOSE_TIMEOUT_S:.0f} s")

    # ---- in the engine's thread ----

    def _run(self, threads: int) -> None:
        torch.set_num_threads(threads)
        try:
            while not self._stopping:
                try:
                    if self._obey():
                        self._step()
                except Exception as error:  # a task border: a failed step ends its requests, not the engine
                    self._fail(error)
        finally:
            # whatever ended the thread, nobody is left waiting for it
            self._closed = True
            self._tell(self._give_up)

    def _step(self) -> None:
        """One turn of continuous batching."""
        scheduler, runner = self._scheduler, self._runner
        plan = scheduler.admit()
        placed = self._placed(plan)
        runner.move(scheduler.compact())
        running = scheduler.running
        if not running:
            return
        ended = runner.step(running, self._version)
        scheduler.keep_prefixes(*runner.cache_shape)
        self._tokens_generated += running
        now = time.perf_counter()
        for sequence in placed:
            sequence.first_token = now
        self._stops.watch(placed)
        self._tell_listeners()
        stopped = self._stops.stopped(scheduler.rows, runner.peek)
        answers = self._end([row for row in ended if row not in stopped], now)
        self._deliver(answers + self._end(stopped, now, StopReason.STOP))

    def _placed(self, plan: Plan) -> List[Sequence]:
        """Carry out a plan; return whose rows may decode now: none of the plan's, where it fails."""
        if not plan.placed:
            return ()
        rows = [sequence.row for sequence in plan.placed]
        try:
            with boundary(EngineError, f"{self.model_id} cannot place {len(rows)} requests"):
                self._runner.place(plan)
        except EngineError as error:
            self._scheduler.finish(rows)
            self._scheduler.forget_prefixes()  # those of the rows that were written, and of a cache that was cut
            self._runner.clear(rows)
            self._deliver([(sequence, error) for sequence in plan.placed])
            return ()
        self._scheduler.keep_prefixes(*self._runner.cache_shape)
        return plan.placed

    def _obey(self) -> bool:
        """Carry out commands, waiting for one while nothing runs; whether there is something to decode."""
        while not self._stopping:
            try:
                command = self._inbox.get(block=self._scheduler.idle)
            except queue.Empty:
                return True
            command()
        return False

    def _end(self, rows: list[int], now: float, reason: StopReason | None = None) -> list[Answer]:
        """Free rows; return the answers of their sequences. `reason` None: what the last token says."""
        sequences = self._scheduler.finish(rows)
        answers: list[Answer] = []
        for sequence, output in zip(sequences, self._runner.take(sequences), strict=True):
            answer: ModelResponse | Exception
            if np.isnan(output.logprobs).any():
                self._runner.clear([sequence.row])
                self._scheduler.forget_prefixes()
                answer = EngineError(f"{self.model_id} gives logits that are no numbers under version {self._version}")
            else:
                answer = _response(sequence, output, reason or _reason(sequence, output), now)
            answers.append((sequence, answer))
        return answers

    def _hear(self, sequence: Sequence) -> None:
        if self._scheduler.has(sequence):
            self._heard.setdefault(sequence, 0)

    def _tell_listeners(self) -> None:
        """Pass on what was sampled since the last step."""
        if not self._heard:
            return
        rows = [one for one in self._scheduler.rows if one is not None and one in self._heard]
        news = []
        for one, output in zip(rows, self._runner.peek([one.row for one in rows]), strict=True):
            before = self._heard[one]
            self._heard[one] = len(output.tokens)
            news.append((one, before, output.since(before)))
        self._tell(self._tickets.relay, news)

    def _abort(self, sequences: Collection[Sequence]) -> None:
        waiting, rows = self._scheduler.withdraw(sequences)
        now = time.perf_counter()
        never_ran = [(one, _response(one, _NOTHING, StopReason.ABORT, now)) for one in waiting]
        self._deliver(never_ran + self._end(rows, now, StopReason.ABORT))
        self._runner.move(self._scheduler.compact())

    def _fail(self, error: Exception) -> None:
        failure = error if isinstance(error, AstraFlowError) else None
        failure = failure or EngineError(f"decode step of {self.model_id}: {type(error).__name__}: {error}")
        ended = self._scheduler.finish([one.row for one in self._scheduler.rows if one is not None])
        self._scheduler.forget_prefixes()
        self._runner.reset()
        self._deliver([(sequence, failure) for sequence in ended])

    def _stop(self) -> None:
        self._abort({one for one in (*self._scheduler.waiting, *self._scheduler.rows) if one is not None})
        self._stopping = True

    def _deliver(self, answers: list[Answer]) -> None:
        for sequence, _ in answers:
            self._heard.pop(sequence, None)
        if answers:
            self._tell(self._tickets.resolve, answers)

    def _tell(self, callback: Callable[..., None], *args: Any) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(callback, *args)

    # ---- in the event loop ----

    def _let_go(self, sequences: List[Sequence]) -> None:
        """End these; from now on another call for their rids is a request of its own."""
        self._tickets.seal(sequences)
        if sequences and not self._closed:
            self._inbox.put(partial(self._abort, frozenset(sequences)))

    def _give_up(self) -> None:
        gone = EngineError(f"the engine of {self.model_id} has stopped")
        self._tickets.give_up(gone)
        for future in self._updates:
            settle(future, gone)

    def _sequence(self, request: ModelRequest) -> Sequence:
        config = request.check().gconfig
        self.supports(config)
        prompt = len(request.input_ids)
        if prompt >= self.context_length:
            raise EngineError(f"a prompt of {prompt} tokens leaves no room in a context of {self.context_length}")
        if request.input_ids.min() < 0 or request.input_ids.max() >= self._vocab_size:
            raise EngineError(f"request {request.rid} has ids outside the vocabulary of {self._vocab_size}")
        room = min(self.context_length, config.max_tokens or self.context_length) - prompt
        ends = {*config.stop_token_ids, *(() if config.ignore_eos else self._eos)}
        if config.min_new_tokens and len(ends) >= self._vocab_size:
            raise EngineError(f"request {request.rid}: gconfig.min_new_tokens forbids every token, all end it")
        return Sequence(request, min(config.max_new_tokens, room), frozenset(ends), time.perf_counter())

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise EngineError(f"the engine of {self.model_id} belongs to another event loop")
        return loop

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError(f"the engine of {self.model_id} is closed")


_NOTHING = Output(np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.int32))


def _response(sequence: Sequence, output: Output, reason: StopReason, now: float) -> ModelResponse:
    return ModelResponse(
        input_tokens=sequence.request.input_ids.astype(np.int32),
        output_tokens=output.tokens,
        output_logprobs=output.logprobs,
        output_versions=output.versions,
        stop_reason=reason,
        latency=now - sequence.submitted,
        ttft=max(0.0, sequence.first_token - sequence.submitted),
    ).check()


def _reason(sequence: Sequence, output: Output) -> StopReason:
    return StopReason.STOP if int(output.tokens[-1]) in sequence.ends else StopReason.LENGTH
