"""POST /generate."""

import numpy as np
import pytest

from astraflow.core.data import GenerationHyperparameters, ModelRequest
from astraflow.errors import CallerError, ConflictError


def request(**changes) -> ModelRequest:
    return ModelRequest(rid="r", input_ids=np.array([20, 21], np.int32), **changes)


def test_token_ids_in_token_ids_and_versions_out(raas) -> None:
    async def body(h) -> None:
        await h.publish(3)
        response = await h.client.generate(request())
        assert response.output_versions.tolist() == [3, 3, 3]
        assert response.stop_reason == "stop"

    raas(body)


def test_before_a_verified_version_it_is_a_conflict(raas) -> None:
    async def body(h) -> None:
        with pytest.raises(ConflictError, match="model0 serves no verified version"):
            await h.client.generate(request())

    raas(body)


def test_what_the_engine_cannot_honour_is_the_callers_error(raas) -> None:
    async def body(h) -> None:
        await h.publish(0)
        with pytest.raises(CallerError, match=r"gconfig\.top_k"):
            await h.client.generate(request(gconfig=GenerationHyperparameters(top_k=3)))
        with pytest.raises(CallerError, match="known: model0"):
            await h.client.generate(request(model_id="model9"))

    raas(body, unsupported=("top_k",))
