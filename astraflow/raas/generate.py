"""POST /generate: token ids in, token ids, logprobs and versions out; what the gateway and other tools call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from astraflow.core.data import ModelResponse
from astraflow.core.protocol import messages as m
from astraflow.errors import CallerError, ConflictError, EngineError
from astraflow.raas.engines.base import Output
from astraflow.raas.router import Router


async def generate(router: Router, request: m.GenerateRequest) -> ModelResponse | AsyncIterator[m.GeneratedPart]:
    """Answer one request. 409 before a verified version is served (LAW 22), 400 for what the engine cannot honour."""
    model_id = router.resolve(request.model_id)
    if model_id not in router.versions:
        raise ConflictError(f"{model_id} serves no verified version yet")
    try:
        router.engines[model_id].supports(request.check().gconfig)
    except EngineError as error:
        raise CallerError(str(error)) from error
    return _parts(router, request) if request.stream else await router.agenerate(request)


async def _parts(router: Router, request: m.GenerateRequest) -> AsyncIterator[m.GeneratedPart]:
    """Tokens as they are sampled. Whoever stops listening ends the generation, unless others wait for the same rid."""
    news: asyncio.Queue[tuple[int, Output] | None] = asyncio.Queue()
    generation = asyncio.create_task(router.agenerate(request, lambda *heard: news.put_nowait(heard)))
    generation.add_done_callback(lambda _: news.put_nowait(None))
    have = 0
    try:
        while (heard := await news.get()) is not None:
            start, output = heard
            if start > have:
                continue  # another's request, joined under way: the answer has what came before
            fresh = output.since(have - start)
            have += len(fresh.tokens)
            yield _part(fresh)
        response = await generation
        whole = Output(response.output_tokens, response.output_logprobs, response.output_versions)
        yield _part(whole.since(have), response)
    finally:
        generation.cancel()
        await asyncio.gather(generation, return_exceptions=True)


def _part(output: Output, response: ModelResponse | None = None) -> m.GeneratedPart:
    return m.GeneratedPart(
        output_tokens=output.tokens,
        output_logprobs=output.logprobs,
        output_versions=output.versions,
        stop_reason=response.stop_reason if response else None,
    )
