"""A generation that was preempted goes on from the tokens it has, on the weights that are served then.

Each token keeps the version that sampled it and its logprob under that version; the joined answer is what one call
would have given, but for the weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from astraflow.core.data import ModelRequest, ModelResponse


def continuation(request: ModelRequest, parts: Sequence[ModelResponse]) -> ModelRequest:
    """What is left to ask for after these parts of its answer; `sampled` says where the answer began."""
    have = sum(len(part.output_tokens) for part in parts)
    if have == 0:
        return request
    gconfig = request.gconfig
    ids = np.concatenate([request.input_ids, *(part.output_tokens for part in parts)]).astype(np.int32)
    rest = msgspec.structs.replace(
        gconfig,
        max_new_tokens=gconfig.max_new_tokens - have,
        min_new_tokens=max(0, gconfig.min_new_tokens - have),
        # the same seed would draw the same numbers again; the sum stays a 64-bit number
        seed=None if gconfig.seed is None else (gconfig.seed + have) % 2**64,
    )
    return msgspec.structs.replace(request, input_ids=ids, gconfig=rest, sampled=request.sampled + have)


def joined(request: ModelRequest, parts: Sequence[ModelResponse]) -> ModelResponse:
    """The whole answer; it ended as its last part did."""
    if len(parts) == 1:
        return parts[0]
    return ModelResponse(
        input_tokens=request.input_ids.astype(np.int32),
        output_tokens=np.concatenate([part.output_tokens for part in parts]),
        output_logprobs=np.concatenate([part.output_logprobs for part in parts]),
        output_versions=np.concatenate([part.output_versions for part in parts]),
        stop_reason=parts[-1].stop_reason,
        latency=sum(part.latency for part in parts),
        ttft=parts[0].ttft,
        itl=tuple(gap for part in parts for gap in part.itl),
    )
