"""What a RaaS asks of an inference engine, whatever generates behind it.

Laws that every engine keeps (tests/contracts/test_engine.py runs on all of them):
- each token carries the version that sampled it, stamped inside the engine (23);
- logprobs are of the distribution that was sampled from (15);
- the stop reason comes from the full set of end tokens (5);
- nothing is generated between "weights dropped" and "version acknowledged" (22), nothing cached crosses a version (21).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np

from astraflow.core.data import GenerationHyperparameters, ModelRequest, ModelResponse
from astraflow.core.protocol.messages import EngineLoad

T = TypeVar("T")

Weights = Mapping[str, Any]
"""Hugging Face name → the engine's live tensor, tied ones once; whoever is handed it writes in place."""


class Output(NamedTuple):
    """Sampled tokens with what belongs to each."""

    tokens: np.ndarray
    """int32 [T]"""
    logprobs: np.ndarray
    """float32 [T]"""
    versions: np.ndarray
    """int32 [T]"""

    def since(self, count: int) -> Output:
        """What follows the first `count` tokens."""
        return Output(self.tokens[count:], self.logprobs[count:], self.versions[count:])


Listener = Callable[[int, Output], None]
"""Hears (how many tokens came before, tokens) of a request while it is answered, in the event loop. An engine calls it
as often as it likes, perhaps never: what a listener lacks in the end is in the answer."""


class EngineFacts(Protocol):
    """What an engine answers at once, from any thread."""

    model_id: str

    def supports(self, gconfig: GenerationHyperparameters) -> None:
        """Raise EngineError naming the first field that cannot be honoured; asked at registration and per request."""

    def get_version(self) -> int:
        """Return the weight version that samples now."""

    def load(self) -> EngineLoad:
        """Return how busy the engine is."""


@runtime_checkable
class Scorer(Protocol):
    """An engine that can score given tokens; asked for canaries within every swap (LAW 18)."""

    def score(self, sequences: Sequence[Sequence[int]], temperature: float) -> list[np.ndarray]:
        """float32 [length − 1] per sequence: logprobs of all tokens but the first, of softmax(logits / temperature).

        Called by what `update` runs, where it runs: so a version is proven before a token is sampled under it.
        """


class Engine(EngineFacts, Protocol):
    """Generates tokens under versioned weights. All coroutines belong to one event loop."""

    async def agenerate(self, request: ModelRequest, listener: Listener | None = None) -> ModelResponse:
        """Generate. The same rid in flight twice is one request; a cancelled wait aborts it, unless another waits too.
        A call for a rid that was aborted is a request of its own. What `request.sampled` names counts for penalties
        and stop strings.

        Raises EngineError for a request that cannot be served; an aborted one returns what it had, stop reason abort.
        """

    async def update(self, version: int, apply: Callable[[Weights], T]) -> T:
        """Run `apply` on the live weights between two decode steps, then serve under `version`; return its result.
        It installs, proves, and undoes what it wrote where the proof fails.

        What is in flight goes on with its KV cache; its later tokens carry the new version. Where `apply` raises, the
        exception is passed on and the version stays: `apply` has to have undone what it wrote.
        """

    async def abort(self, rids: Collection[str]) -> None:
        """End requests with stop reason abort; unknown ones are passed over."""

    async def close(self) -> None:
        """Abort everything and stop; afterwards agenerate and update raise EngineError."""
