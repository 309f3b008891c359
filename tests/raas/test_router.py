"""Names to engines, gates, sessions."""

import asyncio

import numpy as np
import pytest

from astraflow.core.data import GenerationHyperparameters, ModelRequest
from astraflow.core.protocol.messages import VersionState
from astraflow.errors import CallerError, DeadlineError, EngineError
from astraflow.raas import router as router_module
from astraflow.raas.engines.scripted import ScriptedEngine
from astraflow.raas.router import Router

VERSION = VersionState(number=0, digest="d", verified=True)


def engine(model_id: str, token: int) -> ScriptedEngine:
    return ScriptedEngine(model_id, lambda request: [token] * 64)


def opened(*engines: ScriptedEngine) -> Router:
    router = Router(engines)
    for each in engines:
        router.serves(each.model_id, VERSION)
    return router


def request(rid: str = "r", model_id: str = "default", tokens: int = 2) -> ModelRequest:
    gconfig = GenerationHyperparameters(max_new_tokens=tokens)
    return ModelRequest(rid=rid, input_ids=np.array([1, 2]), model_id=model_id, gconfig=gconfig)


def test_each_model_has_its_engine_and_the_default_is_the_first() -> None:
    async def body() -> None:
        router = opened(engine("model0", 10), engine("model1", 11))
        assert (await router.agenerate(request())).output_tokens.tolist() == [10, 10]
        assert (await router["model1"].agenerate(request())).output_tokens.tolist() == [11, 11]
        assert (await router.agenerate(request(model_id="model1"))).output_tokens.tolist() == [11, 11]
        assert router["model1"].get_version() == 0
        with pytest.raises(CallerError, match="known: model0, model1"):
            await router.agenerate(request(model_id="model2"))

    asyncio.run(body())


def test_a_shut_gate_has_a_deadline_that_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        router = Router([engine("model0", 10)])
        with pytest.raises(EngineError, match="model0 has no verified version"):
            await router.agenerate(request())
        router.serves("model0", VERSION)
        await router.pause("model0", "keep")
        assert not router.ready
        with pytest.raises(EngineError, match="model0 is paused"):
            await router.agenerate(request())
        router.resume("model0")
        assert (await router.agenerate(request())).output_tokens.size == 2

    monkeypatch.setattr(router_module, "GATE_DEADLINE", 0.01)
    asyncio.run(body())


def test_a_pause_awaits_what_is_in_flight() -> None:
    async def body() -> None:
        router = opened(engine("model0", 10))
        running = asyncio.create_task(router.agenerate(request(tokens=50)))
        await asyncio.sleep(0)
        await router.pause("model0", "wait")
        assert (await running).stop_reason == "length"

    asyncio.run(body())


def test_what_a_pause_aborts_goes_on_from_its_tokens_on_the_newest_weights() -> None:
    asked: list[ModelRequest] = []

    def script(request: ModelRequest) -> list[int]:
        asked.append(request)
        return list(range(100 + len(request.input_ids), 200))

    async def body() -> None:
        served = ScriptedEngine("model0", script)
        router = opened(served)
        gconfig = GenerationHyperparameters(max_new_tokens=20, min_new_tokens=15, seed=7)
        first = ModelRequest(rid="r", input_ids=np.array([1, 2]), gconfig=gconfig)
        running = asyncio.create_task(router.agenerate(first))
        for version in (1, 2):
            for _ in range(8):
                await asyncio.sleep(0)
            await router.pause("model0", "abort")
            assert served.load().running == 0
            assert not running.done()
            await served.update(version, lambda weights: None)
            router.resume("model0")
        response = await running
        assert response.output_tokens.tolist() == list(range(102, 122))  # nothing is sampled twice, nothing is missing
        versions = response.output_versions.tolist()
        assert versions == sorted(versions)
        assert set(versions) == {0, 1, 2}
        assert response.check().stop_reason == "length"
        assert response.input_tokens.tolist() == [1, 2]
        have = [len(request.input_ids) - 2 for request in asked]
        assert [request.gconfig.max_new_tokens for request in asked] == [20 - n for n in have]
        assert [request.gconfig.min_new_tokens for request in asked] == [max(0, 15 - n) for n in have]
        assert len({request.gconfig.seed for request in asked}) == 3

    asyncio.run(body())


def test_all_who_wait_for_a_rid_get_the_whole_answer_of_a_preempted_generation() -> None:
    def script(asked: ModelRequest) -> list[int]:
        return list(range(100 + len(asked.input_ids), 200))

    async def body() -> None:
        router = opened(ScriptedEngine("model0", script))
        first, second = (asyncio.create_task(router.agenerate(request(tokens=20))) for _ in range(2))
        for _ in range(5):
            await asyncio.sleep(0)
        await router.pause("model0", "abort")
        router.resume("model0")
        for answer in await asyncio.gather(first, second):
            assert (answer.output_tokens.tolist(), answer.stop_reason) == (list(range(102, 122)), "length")

    asyncio.run(body())


def test_a_pause_awaits_a_generation_that_one_of_two_has_stopped_waiting_for() -> None:
    async def body() -> None:
        router = opened(engine("model0", 10))
        lost, kept = (asyncio.create_task(router.agenerate(request(tokens=50))) for _ in range(2))
        for _ in range(5):
            await asyncio.sleep(0)
        lost.cancel()
        await asyncio.gather(lost, return_exceptions=True)
        await router.pause("model0", "wait")
        assert router.engines["model0"].load().running == 0
        assert (await kept).stop_reason == "length"

    asyncio.run(body())


def test_what_is_ended_for_good_while_paused_does_not_go_on() -> None:
    async def body() -> None:
        router = opened(engine("model0", 10))
        running = asyncio.create_task(router.agenerate(request(tokens=50)))
        await asyncio.sleep(0)
        await router.pause("model0", "abort")
        running.cancel()
        router.resume("model0")
        await asyncio.gather(running, return_exceptions=True)
        assert router.engines["model0"].load().running == 0
        again = asyncio.create_task(router.agenerate(request(tokens=50)))
        await asyncio.sleep(0)
        await router.abort("model0", ["r"])
        assert (await again).stop_reason == "abort"

    asyncio.run(body())


def test_requests_of_a_session_share_an_affinity_and_end_with_it() -> None:
    seen: list[str | None] = []

    def script(asked: ModelRequest) -> list[int]:
        seen.append(asked.affinity)
        return [7] * 1000

    async def body() -> None:
        router = opened(ScriptedEngine("model0", script))
        async with router.managed_session() as session:
            await session.agenerate(request("a"))
            await session["model0"].agenerate(request("b"))
            orphan = asyncio.create_task(session.agenerate(request("c", tokens=1000)))
            await asyncio.sleep(0)
        assert (await orphan).stop_reason == "abort"
        assert len(set(seen)) == 1
        assert seen[0] is not None

    asyncio.run(body())


def test_a_pause_that_waits_too_long_says_for_what(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        hold = asyncio.Event()
        slow = engine("model0", 10)
        router = opened(slow)

        async def never(*asked: object) -> None:
            await hold.wait()

        monkeypatch.setattr(slow, "agenerate", never)
        running = asyncio.create_task(router.agenerate(request()))
        await asyncio.sleep(0)
        with pytest.raises(DeadlineError, match=r"waited 0\.01 s for 1 generations in flight"):
            await router.pause("model0", "wait")
        running.cancel()

    monkeypatch.setattr(router_module, "GATE_DEADLINE", 0.01)
    asyncio.run(body())
