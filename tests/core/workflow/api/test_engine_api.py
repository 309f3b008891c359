import asyncio

import numpy as np

from astraflow.core.data import GenerationHyperparameters, ModelRequest
from astraflow.core.workflow.api.engine_api import ScriptedInference


def test_the_scripted_engine_answers_cuts_and_speaks_for_several_models() -> None:
    async def body() -> None:
        engine = ScriptedInference(lambda request: [1, 2, 3], version=4)
        request = ModelRequest(rid="r", input_ids=np.array([9]), gconfig=GenerationHyperparameters(max_new_tokens=2))
        async with engine.managed_session() as session:
            response = await session["model1"].agenerate(request)
        assert response.output_tokens.tolist() == [1, 2]
        assert response.output_versions.tolist() == [4, 4]
        assert response.stop_reason == "length"
        assert engine.requests[0].model_id == "model1"
        assert engine["model1"].get_version() == 4

    asyncio.run(body())
