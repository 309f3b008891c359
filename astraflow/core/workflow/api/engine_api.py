"""What a workflow sees of inference: one seam, whatever generates behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import msgspec
import numpy as np

from astraflow.core.data import ModelRequest, ModelResponse, StopReason


class InferenceEngine(Protocol):
    """The engine that a workflow is given."""

    async def agenerate(self, request: ModelRequest) -> ModelResponse:
        """Sample one continuation of `request.input_ids`; EngineError where the engine cannot."""
        ...

    def get_version(self) -> int:
        """The weight version that serves now. Tokens carry their own; a generation may see several."""
        ...

    def managed_session(self) -> AbstractAsyncContextManager[InferenceEngine]:
        """An engine whose requests stay together (one affinity) and end with the `async with` block."""
        ...

    def __getitem__(self, model_id: str) -> InferenceEngine:
        """The same engine, speaking for one of several models."""
        ...


Script = Callable[[ModelRequest], Sequence[int]]
"""The token ids that answer a request."""


class ScriptedInference:
    """An InferenceEngine that answers from a script: for testing workflows without a model.

    Logprobs are -0.5, versions are `version` as it stands at the call, the stop reason is LENGTH where the script's
    answer is cut at max_new_tokens.
    """

    def __init__(self, script: Script, version: int = 0) -> None:
        self.script = script
        self.version = version
        self.requests: list[ModelRequest] = []
        self._model_id: str | None = None

    async def agenerate(self, request: ModelRequest) -> ModelResponse:
        if self._model_id is not None:
            request = msgspec.structs.replace(request, model_id=self._model_id)
        self.requests.append(request)
        answer = np.asarray(self.script(request), np.int32)
        ids = answer[: request.gconfig.max_new_tokens]
        return ModelResponse(
            input_tokens=request.input_ids,
            output_tokens=ids,
            output_logprobs=np.full(len(ids), -0.5, np.float32),
            output_versions=np.full(len(ids), self.version, np.int32),
            stop_reason=StopReason.STOP if len(ids) == len(answer) else StopReason.LENGTH,
        )

    def get_version(self) -> int:
        return self.version

    @asynccontextmanager
    async def managed_session(self) -> AsyncIterator[InferenceEngine]:
        yield self

    def __getitem__(self, model_id: str) -> InferenceEngine:
        view = ScriptedInference(self.script, self.version)
        view.requests, view._model_id = self.requests, model_id
        return view
