"""LAW 22. Generating is impossible between "weights dropped" and "version acknowledged"."""

from __future__ import annotations

import asyncio
import threading

import numpy as np

from astraflow.core.data import GenerationHyperparameters, ModelRequest
from astraflow.core.model import new_model
from astraflow.raas.engines.base import Weights
from astraflow.raas.engines.embedded.engine import EmbeddedEngine


def test_no_token_is_sampled_while_the_weights_are_gone() -> None:
    async def main() -> None:
        engine = EmbeddedEngine("m", new_model("tiny-0.2m"), max_running_requests=4)
        config = GenerationHyperparameters(max_new_tokens=300, ignore_eos=True)

        def ask(rid: str, length: int) -> asyncio.Task[object]:
            request = ModelRequest(rid=rid, input_ids=np.array([3, 9]), gconfig=config.new(max_new_tokens=length))
            return asyncio.create_task(engine.agenerate(request))

        flight = ask("long", 300)
        await ask("short", 2)
        dropped, restore = threading.Event(), threading.Event()
        counts: list[int] = []

        def swap(weights: Weights) -> None:
            kept = {name: tensor.clone() for name, tensor in weights.items()}
            for tensor in weights.values():
                tensor.fill_(float("nan"))
            counts.append(engine.load().tokens_generated)
            dropped.set()
            restore.wait(30)
            counts.append(engine.load().tokens_generated)
            for name, tensor in weights.items():
                tensor.copy_(kept[name])

        update = asyncio.create_task(engine.update(1, swap))
        await asyncio.to_thread(dropped.wait, 30)
        late = ask("late", 3)  # arrives while the weights are gone
        assert engine.get_version() == 0
        restore.set()
        await update
        assert counts[0] == counts[1]
        assert (await late).output_versions.tolist() == [1, 1, 1]  # type: ignore[attr-defined]
        assert np.isfinite((await flight).output_logprobs).all()  # type: ignore[attr-defined]
        await engine.close()

    asyncio.run(main())
