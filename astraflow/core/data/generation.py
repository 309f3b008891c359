"""One model call: what is asked of an engine and what comes back."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Self

import msgspec
import numpy as np

from astraflow.core.data.ids import Id
from astraflow.errors import DataError


class StopReason(StrEnum):
    """Why a generation ended, as the engine saw it (never inferred from widths). Metrics say `stop/<reason>`."""

    STOP = "stop"
    """An end token or a stop string."""
    LENGTH = "length"
    """The token budget was used up."""
    TOOL_CALLS = "tool_calls"
    """The text asks for tools."""
    ABORT = "abort"
    """Cut from outside (cancelled, engine stopped)."""


class GenerationHyperparameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How to sample. A field an engine cannot honour is an error at registration, never dropped."""

    n_samples: int = 1
    """Episodes per prompt occurrence (the group size)."""
    max_new_tokens: int = 1024
    """Most tokens to sample in one call."""
    min_new_tokens: int = 0
    """End tokens are forbidden before this many."""
    max_tokens: int | None = None
    """Bound on prompt + sampled tokens; None: the engine's context length."""
    greedy: bool = False
    """Take the most likely token; the logprob is then that of temperature 1."""
    temperature: float = 1.0
    """Logits are divided by it; > 0 (use `greedy` for 0)."""
    top_p: float = 1.0
    """Nucleus mass kept, in (0, 1]."""
    top_k: int = 0
    """Most likely tokens kept; 0 keeps all."""
    stop: tuple[str, ...] = ()
    """Strings that end a generation (kept in the output)."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end a generation besides the model's own end tokens."""
    ignore_eos: bool = False
    """Go on past end tokens."""
    skip_special_tokens: bool = True
    """Leave special tokens out of decoded text (ids always keep them)."""
    frequency_penalty: float = 0.0
    """Subtracted from a logit per earlier occurrence of its token in the output."""
    seed: int | None = None
    """Makes one request reproducible; None: the engine's own stream."""

    def check(self) -> Self:
        """Return self, or raise DataError naming the field that is out of range."""
        rules = {
            "n_samples": self.n_samples >= 1,
            "max_new_tokens": self.max_new_tokens >= 1,
            "min_new_tokens": 0 <= self.min_new_tokens <= self.max_new_tokens,
            "max_tokens": self.max_tokens is None or self.max_tokens >= 1,
            "temperature": self.temperature > 0,
            "top_p": 0 < self.top_p <= 1,
            "top_k": self.top_k >= 0,
            "frequency_penalty": -2 <= self.frequency_penalty <= 2,
        }
        for field, holds in rules.items():
            if not holds:
                raise DataError(f"gconfig.{field} = {getattr(self, field)} is out of range")
        return self

    def new(self, **changes: Any) -> GenerationHyperparameters:
        """Return a checked copy with some fields changed."""
        return msgspec.structs.replace(self, **changes).check()


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One generation to make."""

    rid: Id
    """Unique id; the same rid twice is one request."""
    input_ids: np.ndarray
    """int32 [P], the exact context."""
    gconfig: GenerationHyperparameters = GenerationHyperparameters()
    """How to sample; n_samples is not looked at here."""
    model_id: Id = "default"
    """The policy that answers."""
    metadata: dict[str, Any] = {}
    """Carried along for logs; never changes the result."""
    affinity: Id | None = None
    """Requests of one affinity share a prefix (a group, a session): route them together."""

    def check(self) -> Self:
        if self.input_ids.ndim != 1 or self.input_ids.size == 0 or self.input_ids.dtype.kind not in "iu":
            raise DataError(f"request {self.rid}: input_ids must be a non-empty integer vector")
        self.gconfig.check()
        return self


class ModelResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What was sampled. The three output arrays have one length."""

    input_tokens: np.ndarray
    """int32 [P], the context as given."""
    output_tokens: np.ndarray
    """int32 [T], the sampled ids, the end token included."""
    output_logprobs: np.ndarray
    """float32 [T], of the distribution that was sampled from (after temperature, top-p, top-k)."""
    output_versions: np.ndarray
    """int32 [T], the weight version that sampled each token, stamped by the engine."""
    stop_reason: StopReason
    latency: float = 0.0
    """Seconds from submission to the last token."""
    ttft: float = 0.0
    """Seconds to the first token."""
    itl: tuple[float, ...] = ()
    """Seconds between tokens where the engine measures them; empty otherwise."""

    def check(self) -> Self:
        lengths = {self.output_tokens.shape, self.output_logprobs.shape, self.output_versions.shape}
        if len(lengths) != 1 or self.output_tokens.ndim != 1:
            raise DataError(f"a response's tokens, logprobs and versions have shapes {sorted(lengths)}")
        return self
