"""One model call: what is asked of an engine and what comes back."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from numbers import Integral, Real
from typing import Any, Self

import msgspec
import numpy as np

from astraflow.core.data.ids import Id
from astraflow.errors import DataError

MOST_TOKENS = 2**31 - 1
"""Largest count of tokens, and token id: positions and ids are int32 from end to end."""
MOST_SAMPLES = 2**16
"""Largest group: one that is larger would fill the memory with records of its samples alone."""
MOST_STOPS = 64
"""Most stop strings, and the most UTF-8 bytes of each is LONGEST_STOP: their text is read at every token."""
LONGEST_STOP = 1024
MOST_STOP_IDS = 1024
TEMPERATURES = (1e-6, 1e6)
"""Beyond these, logits divided by it leave float32."""
SEEDS = (-(2**63), 2**64 - 1)
"""What a 64-bit generator takes."""


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
    """End tokens are forbidden, and stop strings end nothing, before this many."""
    max_tokens: int | None = None
    """Bound on prompt + sampled tokens; None: the engine's context length."""
    greedy: bool = False
    """Take the most likely token; the logprob is then that of temperature 1."""
    temperature: float = 1.0
    """Logits are divided by it; from 1e-6 to 1e6 (use `greedy` for 0)."""
    top_p: float = 1.0
    """Nucleus mass kept, in (0, 1]."""
    top_k: int = 0
    """Most likely tokens kept; 0 keeps all."""
    stop: tuple[str, ...] = ()
    """Strings that end a generation (kept in the output); at most 64, of at most 1,024 UTF-8 bytes each."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end a generation besides the model's own end tokens."""
    ignore_eos: bool = False
    """Go on past end tokens."""
    skip_special_tokens: bool = True
    """Leave special tokens out of decoded text (ids always keep them)."""
    frequency_penalty: float = 0.0
    """Subtracted from a logit per earlier occurrence of its token in the output."""
    seed: int | None = None
    """Makes one request reproducible, a 64-bit number; None: the engine's own stream."""

    def check(self) -> Self:
        """Return self, or raise DataError naming the field that has a wrong type or is out of range."""
        for field, (rule, expected) in _RULES.items():
            value = getattr(self, field)
            if not rule(value):
                raise DataError(f"gconfig.{field} = {_shown(value)} is out of range, expected {expected}")
        if self.min_new_tokens > self.max_new_tokens:
            raise DataError(
                f"gconfig.min_new_tokens = {self.min_new_tokens} is out of range, "
                f"expected at most max_new_tokens = {self.max_new_tokens}"
            )
        return self

    def new(self, **changes: Any) -> GenerationHyperparameters:
        """Return a checked copy with some fields changed."""
        return msgspec.structs.replace(self, **changes).check()


_Rule = tuple[Callable[[Any], bool], str]
"""Whether a value may be used; what is expected."""


def _integer(low: int, high: int) -> _Rule:
    """A whole number within bounds, these included."""

    def holds(value: Any) -> bool:
        return isinstance(value, Integral) and not isinstance(value, bool) and low <= int(value) <= high

    return holds, f"a whole number from {low} to {high}"


def _number(low: float, high: float) -> _Rule:
    """A number within bounds, these included; what is not finite lies within none."""

    def holds(value: Any) -> bool:
        real = isinstance(value, Real) and not isinstance(value, bool)
        return real and low <= value <= high

    return holds, f"a number from {low:g} to {high:g}"


def _unless_none(rule: _Rule) -> _Rule:
    holds, expected = rule
    return lambda value: value is None or holds(value), f"{expected}, or nothing"


def _each(most: int, rule: _Rule) -> _Rule:
    holds, expected = rule
    return (
        lambda values: isinstance(values, list | tuple) and len(values) <= most and all(map(holds, values)),
        f"a list of at most {most}, each {expected}",
    )


def _stop_string(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        return 0 < len(value.encode()) <= LONGEST_STOP
    except UnicodeEncodeError:  # a lone surrogate: no decoded text contains it
        return False


def _shown(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > 256:  # Python refuses to write very long numbers
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


_BOOL: _Rule = (lambda value: isinstance(value, bool), "true or false")
_RULES: dict[str, _Rule] = {
    "n_samples": _integer(1, MOST_SAMPLES),
    "max_new_tokens": _integer(1, MOST_TOKENS),
    "min_new_tokens": _integer(0, MOST_TOKENS),
    "max_tokens": _unless_none(_integer(1, MOST_TOKENS)),
    "greedy": _BOOL,
    "temperature": _number(*TEMPERATURES),
    "top_p": (lambda value: _number(0, 1)[0](value) and value > 0, "a number above 0, at most 1"),
    "top_k": _integer(0, MOST_TOKENS),
    "stop": _each(MOST_STOPS, (_stop_string, f"a text of 1 to {LONGEST_STOP} UTF-8 bytes")),
    "stop_token_ids": _each(MOST_STOP_IDS, _integer(0, MOST_TOKENS)),
    "ignore_eos": _BOOL,
    "skip_special_tokens": _BOOL,
    "frequency_penalty": _number(-2, 2),
    "seed": _unless_none(_integer(*SEEDS)),
}
"""Every field has a rule, whoever made the record: one that slips through fails where it is used, beside others."""


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
    sampled: int = 0
    """How many of the last input_ids are the beginning of the answer, sampled before it was cut: they count for
    penalties and stop strings."""

    def check(self) -> Self:
        """Return self, or raise DataError naming the field that is out of range."""
        ids = self.input_ids
        if not isinstance(ids, np.ndarray) or ids.ndim != 1 or ids.size == 0 or ids.dtype.kind not in "iu":
            raise DataError(f"request {_shown(self.rid)}: input_ids must be a non-empty integer vector")
        if not isinstance(self.rid, str) or not self.rid:
            raise DataError(f"a request's rid = {_shown(self.rid)}, expected a text that is not empty")
        holds, expected = _integer(0, ids.size - 1)
        if not holds(self.sampled):
            raise DataError(f"request {_shown(self.rid)}: sampled = {_shown(self.sampled)}, expected {expected}")
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
