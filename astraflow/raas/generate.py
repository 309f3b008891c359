"""POST /generate: token ids in, token ids, logprobs and versions out; what the gateway and other tools call."""

from __future__ import annotations

from astraflow.core.data import ModelRequest, ModelResponse
from astraflow.errors import CallerError, ConflictError, EngineError
from astraflow.raas.router import Router


async def generate(router: Router, request: ModelRequest) -> ModelResponse:
    """Answer one request. 409 before a verified version is served (LAW 22), 400 for what the engine cannot honour."""
    model_id = router.resolve(request.model_id)
    if model_id not in router.versions:
        raise ConflictError(f"{model_id} serves no verified version yet")
    try:
        router.engines[model_id].supports(request.gconfig)
    except EngineError as error:
        raise CallerError(str(error)) from error
    return await router.agenerate(request)
