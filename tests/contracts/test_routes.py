"""Every route over real sockets: bad input is the documented error, the service lives on, and nothing is registered; a
program describes its routes and answers as it says.

Services: a Dataflow that nobody has called yet, one whose trainer stands at version 1, a RaaS that serves version 3, a
weight sender agent that has version 0.
"""

from __future__ import annotations

import asyncio
import math
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
import torch

from astraflow.core.config import ExperimentConfig
from astraflow.core.data import GenerationHyperparameters, Manifest, Value, encode
from astraflow.core.protocol import Server
from astraflow.core.protocol import messages as m
from astraflow.core.protocol.http import BODY_LIMIT, SCHEMA_HEADER
from astraflow.core.protocol.openapi import MSGPACK
from astraflow.core.text.tiny import tiny_tokenizer
from astraflow.core.weight_manager import WeightManager
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.scripted import Rehearsal, ScriptedRaaS, manifest, trajectory
from astraflow.raas.app import make_service, raas_app
from astraflow.raas.config import RaaSConfig, RaaSModelConfig, RaaSSettings, RolloutConfig
from astraflow.raas.engines.scripted import ScriptedEngine

TOKEN = Rehearsal.TOKEN
HEADERS = {"Authorization": f"Bearer {TOKEN}", SCHEMA_HEADER: "1", "Content-Type": MSGPACK}
N = 4
READY = {"train_batch_size": 8, "sender_endpoint": "127.0.0.1:1", "model_id": "model0"}
RAAS = {"uid": "r", "raas_url": "http://127.0.0.1:1"}
TASK = {"task_id": "1", "group_id": 1, "data": {"messages": [{"role": "user", "content": "1"}], "answer": "2"}}
IDS = np.array([3, 4], np.int32)


@dataclass(frozen=True)
class Case:
    service: str
    route: str
    body: dict[str, Any]
    status: int
    words: str
    """What the error says."""

    def __str__(self) -> str:
        return f"{self.service}:{self.route}:{self.words[:30]}"


def ready(**changes: Any) -> dict[str, Any]:
    return {**READY, "manifest": manifest(0), **changes}


def version(number: int, step: int, **changes: Any) -> dict[str, Any]:
    return {"version": number, "step": step, "model_id": "model0", "manifest": manifest(number), **changes}


def raas(**capabilities: Any) -> dict[str, Any]:
    return {**RAAS, "capabilities": {"models": ["model0"], **capabilities}}


def workflow(**changes: Any) -> dict[str, Any]:
    return {"workflow_id": "w", "workflow_cls": "rlvr", "reward_fn": "answer_line", **changes}


def announced(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "model_id": "model0",
        "version": number,
        "sender_endpoint": "127.0.0.1:1",
        "manifest": manifest(number),
        **changes,
    }


def receiver(**changes: Any) -> dict[str, Any]:
    return {"sglang_http_host": "127.0.0.1", "sglang_http_port": 1, **changes}


TENSOR = {"name": "w", "shape": [2], "dtype": "float32", "offset": 0, "nbytes": 8, "digest": ""}
SHORT = {"model_id": "model0", "version": 0, "digest": "", "tensors": [{**TENSOR, "nbytes": 7}]}

CASES = [
    # ---- Dataflow, before anybody called it
    Case("fresh", "POST /ready", ready(model_id="model9"), 409, "unknown model_id 'model9'; known: model0"),
    Case("fresh", "POST /ready", ready(train_batch_size=6), 400, "not a multiple of n_samples 4"),
    Case("fresh", "POST /ready", ready(train_batch_size=0), 400, "train_batch_size 0"),
    Case("fresh", "POST /ready", ready(train_batch_size="8"), 400, "$.train_batch_size"),
    Case("fresh", "POST /ready", READY, 400, "gives the manifest of version 0"),
    Case("fresh", "POST /ready", ready(recovered_step=3), 400, "a recovered one a step and no manifest"),
    Case("fresh", "POST /ready", {**READY, "recovered_step": -1}, 400, "cannot be negative"),
    Case("fresh", "POST /ready", ready(manifest=manifest(1)), 400, "expected 0 of 'model0'"),
    Case("fresh", "POST /ready", ready(manifest=manifest(0, "model9")), 400, "expected 0 of 'model0'"),
    Case("fresh", "POST /ready", ready(manifest=SHORT), 400, "expected 8"),
    Case("fresh", "POST /ready", ready(manifest={}), 400, "$.manifest"),
    Case("fresh", "POST /ready", {"train_batch_size": 8}, 400, "sender_endpoint"),
    Case("fresh", "GET /batch", {"model_id": "model9"}, 409, "unknown model_id 'model9'"),
    Case("fresh", "GET /batch", {"model_id": "model0"}, 409, "no trainer of 'model0' has called /ready"),
    Case("fresh", "POST /notify_version", version(0, 0, model_id="model9"), 409, "unknown model_id 'model9'"),
    Case("fresh", "POST /notify_version", version(0, 0), 409, "no trainer of 'model0' has called /ready"),
    Case("fresh", "POST /save_buffer", {"model_id": "model9"}, 409, "unknown model_id 'model9'"),
    Case("fresh", "POST /register_raas", {}, 400, "Request body must contain 'uid' and 'raas_url'"),
    Case("fresh", "POST /register_raas", {"uid": "r"}, 400, "Request body must contain 'uid' and 'raas_url'"),
    Case("fresh", "POST /register_raas", {**raas(), "uid": ""}, 400, "uid is empty"),
    Case("fresh", "POST /register_raas", {**raas(), "raas_url": "127.0.0.1:1"}, 400, "not an http address"),
    Case("fresh", "POST /register_raas", raas(max_concurrency=0), 400, "must be a positive integer, got 0"),
    Case("fresh", "POST /register_raas", raas(max_concurrency="9"), 400, "must be a positive integer, got '9'"),
    Case("fresh", "POST /register_raas", raas(models=["model9"]), 400, "lack one of model0"),
    Case("fresh", "POST /register_raas", raas(models=[[]]), 400, "capabilities.models"),
    Case("fresh", "POST /register_raas", raas(models=["model0", {"x": 1}]), 400, "models must be a list of names"),
    Case("fresh", "POST /register_raas", raas(max_concurrency=True), 400, "must be a positive integer, got True"),
    *(
        Case(
            "fresh", "POST /register_raas", {**raas(), "raas_url": url}, 400, f"raas_url '{url}' is not an http address"
        )
        for url in ("http://", "http://[::1", "http://h:99999999", "http:///path")
    ),
    Case("fresh", "POST /deregister_raas", {}, 400, "uid"),
    Case("fresh", "POST /deregister_trainer", {"model_id": "model9"}, 409, "unknown model_id 'model9'"),
    Case("fresh", "POST /deregister_trainer", {"model_id": "model0"}, 409, "no trainer of 'model0' has called /ready"),
    # ---- Dataflow, whose trainer stands at version 1
    Case("begun", "POST /ready", ready(train_batch_size=12), 409, "another trainer of 'model0' is registered"),
    Case("begun", "POST /ready", ready(sender_endpoint="127.0.0.1:9"), 409, "another trainer of 'model0'"),
    Case("begun", "GET /batch", {"model_id": "model0", "version": 0}, 409, "goes back: 1 is current"),
    Case("begun", "GET /batch", {"model_id": "model0", "version": -7}, 409, "goes back: 1 is current"),
    Case("begun", "GET /batch", {"model_id": "model0", "version": "x"}, 400, "$.version"),
    Case("begun", "GET /batch", {"model_id": "model0", "version": 1, "timeout": -1}, 400, "timeout must be 0 to"),
    Case("begun", "GET /batch", {"model_id": "model0", "version": 1, "timeout": math.nan}, 400, "timeout must be 0"),
    Case("begun", "GET /batch", {"model_id": "model0", "version": 1, "timeout": math.inf}, 400, "timeout must be 0"),
    Case("begun", "GET /batch", {"model": "model0"}, 400, "unknown field `model`"),
    Case("begun", "POST /notify_version", version(0, 0), 409, "version 0 of 'model0' goes back: 1 is current"),
    Case("begun", "POST /notify_version", version(-1, 0), 409, "version -1 of 'model0' goes back"),
    Case("begun", "POST /notify_version", version(1, 1, manifest=manifest(1, digest="other")), 409, "another step or"),
    Case("begun", "POST /notify_version", version(1, 2), 409, "was announced with another step or digest"),
    Case("begun", "POST /notify_version", version(2, 3), 409, "step 3 of 'model0' does not follow step 1"),
    Case("begun", "POST /notify_version", version(2, 2), 409, "was trained on no batch: none is served"),
    Case("begun", "POST /notify_version", version(1764500000, 2), 400, "highest number so far, 1: at most 65537 can"),
    Case("begun", "POST /notify_version", version(2, 1, manifest=None), 400, "has no manifest"),
    Case("begun", "POST /notify_version", version(2, 1, manifest=manifest(3)), 400, "expected 2 of 'model0'"),
    # ---- RaaS, which serves version 3
    Case("raas", "POST /register_workflow", workflow(workflow_cls="rlvrr"), 400, "did you mean 'rlvr'"),
    Case("raas", "POST /register_workflow", workflow(reward_fn="is_wrong"), 400, "known: "),
    Case("raas", "POST /register_workflow", workflow(gconfig_overrides={"n_sample": 2}), 400, "n_sample"),
    Case("raas", "POST /register_workflow", workflow(gconfig_overrides={"n_samples": 0}), 400, "gconfig.n_samples"),
    Case("raas", "POST /register_workflow", workflow(workflow_kwargs={"odd": 1}), 400, "odd"),
    Case("raas", "POST /register_workflow", workflow(group_policy={"odd": 1}), 400, "odd"),
    Case("raas", "POST /submit", {"tasks": [TASK], "workflow_id": "other"}, 404, "other"),
    Case("raas", "POST /submit", {"tasks": [TASK], "version": 2}, 409, "version 2 was asked for, 3 is served"),
    Case("raas", "POST /submit", {"tasks": [{**TASK, "n_samples": 0}]}, 400, "n_samples"),
    Case("raas", "POST /submit", {"tasks": [{**TASK, "data": []}]}, 400, "$.tasks[0].data"),
    Case("raas", "POST /submit", {"tasks": [TASK], "lane": "fast"}, 400, "$.lane"),
    Case("raas", "POST /eval_submit", {"tasks": [TASK], "workflow_id": "other"}, 404, "other"),
    Case("raas", "POST /pull", {"max_items": 0}, 400, "max_items"),
    Case("raas", "POST /pull", {"timeout": math.nan}, 400, "timeout"),
    Case("raas", "POST /pull", {"timeout": -1.0}, 400, "timeout"),
    Case("raas", "POST /eval_pull", {"ack": 5}, 400, "$.ack"),
    Case("raas", "POST /cancel", {"task_ids": "all"}, 400, "$.task_ids"),
    Case("raas", "POST /generate", {"rid": "a", "input_ids": IDS, "model_id": "model9"}, 404, "model9"),
    Case("raas", "POST /generate", {"rid": "a", "input_ids": IDS[:0]}, 400, "non-empty integer vector"),
    Case("raas", "POST /generate", {"rid": "a", "input_ids": IDS[None]}, 400, "non-empty integer vector"),
    Case("raas", "POST /generate", {"rid": "a", "input_ids": IDS.astype(np.float32)}, 400, "integer vector"),
    Case("raas", "POST /generate", {"rid": "a", "input_ids": [3, 4]}, 400, "$.input_ids"),
    Case("raas", "POST /generate", {"rid": "a", "input_ids": IDS, "gconfig": {"temperature": 0}}, 400, "temperature"),
    Case("raas", "POST /notify_version", announced(4, model_id="model9"), 404, "model 'model9' is not served here"),
    Case("raas", "POST /notify_version", announced(3, manifest=manifest(3, digest="x")), 409, "has digest"),
    Case("raas", "POST /notify_version", announced(4, manifest=manifest(5)), 400, "announced was 4"),
    Case("raas", "POST /pause", {"model_id": "model9"}, 404, "model9"),
    Case("raas", "POST /pause", {"model_id": "model0", "mode": "hard"}, 400, "$.mode"),
    Case("raas", "POST /resume", {"model_id": "model9"}, 404, "model9"),
    Case("raas", "POST /reset_training_engine", {"timeout": math.nan}, 400, "timeout"),
    Case("raas", "POST /reset_training_engine", {"timeout": -1.0}, 400, "timeout"),
    # ---- sender agent, which has version 0
    Case("sender", "GET /manifest/7", {}, 404, "no manifest of model0 version 7; the newest is 0"),
    Case("sender", "GET /manifest/x", {}, 400, "$.version"),
    Case("sender", "POST /register_sglang_instance", receiver(transport="disk"), 400, "served: tcp, shm"),
    Case("sender", "POST /register_sglang_instance", receiver(transport="post"), 400, "$.transport"),
    Case("sender", "POST /register_sglang_instance", {}, 400, "sglang_http_host"),
    Case("sender", "POST /request_transfer", {"instance_id": "a:1", "mode": "some"}, 400, "$.mode"),
    Case("sender", "POST /request_transfer", {"have_version": 1}, 400, "instance_id"),
]

DATAFLOW_POSTS = (
    *("/ready", "/notify_version", "/save_buffer", "/register_raas", "/deregister_raas", "/deregister_trainer"),
    "/shutdown",
)
POSTS = {
    "fresh": DATAFLOW_POSTS,
    "begun": DATAFLOW_POSTS,
    "raas": (
        *("/register_workflow", "/submit", "/pull", "/cancel", "/generate", "/notify_version", "/pause", "/resume"),
        *("/reset_training_engine", "/eval_start", "/eval_submit", "/eval_pull", "/eval_end", "/shutdown"),
    ),
    "sender": ("/register_sglang_instance", "/request_transfer"),
}
GETS = {
    "fresh": ("/status", "/raas_pool", "/metrics", "/batch", "/openapi.json"),
    "begun": ("/status", "/raas_pool", "/metrics", "/batch", "/openapi.json"),
    "raas": ("/status", "/availability", "/openapi.json"),
    "sender": ("/get_version", "/get_buffer_info", "/get_capabilities", "/manifest/0", "/openapi.json"),
}


class Payload:
    """Weights that always fit: the scripted engine has none."""

    mode, bytes = "full", 0

    def __init__(self, wanted: Manifest) -> None:
        self.manifest = wanted
        self.timing: dict[str, float] = {}

    def apply(self, weights: Any) -> None: ...

    def rollback(self) -> None: ...

    def release(self) -> None: ...


class Source:
    async def pull(self, endpoint: str, manifest: Manifest) -> Payload:
        return Payload(manifest)

    async def close(self) -> None: ...


@dataclass
class Services:
    """All of them, on a loop in a thread of its own."""

    urls: dict[str, str] = field(default_factory=dict)
    begun: Rehearsal | None = None
    http: httpx.Client = field(default_factory=lambda: httpx.Client(verify=False, trust_env=False, timeout=30))
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    up: threading.Event = field(default_factory=threading.Event)

    async def run(self, path: Path, sender: str) -> None:
        self.urls["sender"] = f"http://{sender}"
        fresh, self.begun = Rehearsal(settings(path / "fresh")), Rehearsal(settings(path / "begun"))
        service = rollouts(path)
        async with fresh.running(), self.begun.running():
            await self.begin(self.begun)
            servers = {
                "fresh": Server(fresh.app),
                "begun": Server(self.begun.app),
                "raas": Server(raas_app(service, TOKEN)),
            }
            serving = [asyncio.create_task(server.serve()) for server in servers.values()]
            self.urls |= {name: server.url for name, server in servers.items()}
            await service.notify_version(msgspec.convert(announced(3), m.RaaSNotifyVersionRequest))
            await service.register_workflow(m.RegisterWorkflowRequest(**workflow(workflow_id="default")))
            self.up.set()
            await self.stop.wait()
            for server in servers.values():
                server.stop()
            await asyncio.gather(*serving)
        await service.close()

    async def begin(self, rehearsal: Rehearsal) -> None:
        held = ScriptedRaaS("held", TOKEN, lambda task, version: [0.0, 1.0, 0.0, 1.0], hold=True)
        await rehearsal.join(held)
        trainer = rehearsal.trainer(batch_size=8)
        await trainer.begin()
        step = asyncio.create_task(trainer.train())
        while not step.done():
            await asyncio.sleep(0.01)
            if not step.done():
                await held.finish(list(held.running)[:2])


def settings(path: Path) -> DataflowSettings:
    return DataflowSettings.model_validate(
        {
            "experiment": {"experiment_name": "t", "trial_name": "t", "fileroot": str(path)},
            "dataflow": {"rollout_dataset": {"dataset_fn": "a.b:c"}},
            "gconfigs": {"model0": {"n_samples": N}},
            "tokenizer_path": "none",
            "run_dir": str(path),
        }
    )


def rollouts(path: Path) -> Any:
    tiny_tokenizer().save(path / "tokenizer")
    given = RaaSSettings(
        experiment=ExperimentConfig(experiment_name="e", trial_name="t", fileroot=str(path)),
        raas=RaaSConfig(models={"model0": RaaSModelConfig(backend="scripted", gconfig=GenerationHyperparameters())}),
        rollout=RolloutConfig(max_concurrent_rollouts=4, reward_workers=0),
        model_paths={"model0": str(path)},
        tokenizer_path=str(path / "tokenizer"),
        dataflow_urls=[],
        uid="raas-0",
        run_dir=str(path),
    )
    return make_service(given, [ScriptedEngine("model0", {}, version=-1)], TOKEN, Source)


@pytest.fixture(scope="module", name="services")
def _services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    path = tmp_path_factory.mktemp("services")
    with WeightManager("model0", TOKEN) as manager:
        params = {"w": torch.ones(2, 3)}
        manager.initialize(params)
        manager.offload(params, 0)
        manager.manifest(0)
        services = Services()
        loop = asyncio.new_event_loop()
        running = asyncio.run_coroutine_threadsafe(services.run(path, manager.get_sender_endpoint()), loop)
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            while not services.up.wait(0.05):
                if running.done():
                    running.result()
            yield services
        finally:
            services.http.close()
            loop.call_soon_threadsafe(services.stop.set)
            running.result(30)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


def state(services: Services, name: str) -> dict[str, Any]:
    """What a service says of itself that only a valid request changes."""
    url = services.urls[name]
    if name == "sender":
        return services.http.get(f"{url}/get_capabilities", headers=HEADERS).raise_for_status().json()
    said = services.http.get(f"{url}/status", headers=HEADERS).raise_for_status().json()
    if name == "raas":
        return {name: said[name] for name in ("status", "models", "versions", "inflight")}
    return {"agents": said["agents"], "size": said["raas_pool"]["size"], "error": said["error"]}


def ask(services: Services, name: str, route: str, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
    """Status and error body of a request that closes its connection, as simple clients do."""
    method, path = route.split()
    url = services.urls[name] + path
    given = {**HEADERS, "Connection": "close", **headers}
    if method == "GET":
        reply = services.http.get(url, params=body, headers=given)
    else:
        content = body if isinstance(body, bytes) else encode(body)
        reply = services.http.post(url, content=content, headers=given)
    packed = reply.headers["content-type"] == MSGPACK
    return reply.status_code, msgspec.msgpack.decode(reply.content) if packed else reply.json()


def is_error(said: dict[str, Any]) -> bool:
    return set(said) == {"ok", "error", "kind", "detail"} and said["ok"] is False


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_wrong_message(services: Services, case: Case) -> None:
    before = state(services, case.service)
    status, said = ask(services, case.service, case.route, case.body)
    assert (status, is_error(said)) == (case.status, True), said
    assert case.words in said["error"]
    assert state(services, case.service) == before


def test_a_version_that_goes_back_is_refused_by_a_raas(services: Services) -> None:
    status, said = ask(services, "raas", "POST /notify_version", announced(2))
    assert (status, said["ok"]) == (200, True)
    assert (said["result"]["ok"], said["result"]["version"], said["result"]["pulled"]) == (False, 3, False)
    assert said["result"]["reason"] == "version=2 <= local=3"


def test_a_receiver_that_the_sender_does_not_know_is_told_so(services: Services) -> None:
    status, said = ask(services, "sender", "POST /request_transfer", {"instance_id": "a:1"})
    assert (status, said["ok"], said["reason"]) == (200, False, "unknown_instance")


def nan_reward(task: m.Task) -> list[Any]:
    return [math.nan, 1.0, 0.0, 1.0]


def unequal_lengths(task: m.Task) -> list[Any]:
    right = trajectory(task, 0, Value(1.0), [1, 1])
    (turn,) = right.turns
    wrong = msgspec.structs.replace(turn, logprobs=turn.logprobs[:-1])
    return [(msgspec.structs.replace(right, turns=(wrong,)),), 1.0, 0.0, 1.0]


@pytest.mark.parametrize("outcomes", [nan_reward, unequal_lengths])
def test_a_wrong_result_is_dropped_with_its_reason(
    outcomes: Callable[[m.Task], list[Any]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first result of a RaaS is broken, the others are not: the batch is made of those."""
    broken: list[int] = []

    def script(task: m.Task, version: int) -> list[Any]:
        if broken:
            return [0.0, 1.0, 0.0, 1.0]
        broken.append(task.group_id)
        return outcomes(task)

    async def body() -> None:
        rehearsal = Rehearsal(settings(tmp_path))
        async with rehearsal.running():
            await rehearsal.join(ScriptedRaaS("r", TOKEN, script))
            trainer = rehearsal.trainer(batch_size=2 * N)
            await trainer.begin()
            batch = (await trainer.train()).batch
            assert not set(broken) & set(batch.group_id.tolist())
            counters = rehearsal.service.books.ledger.counters
            assert counters.dropped == {"invalid": 1}
            rehearsal.service.books.ledger.validate()

    asyncio.run(asyncio.wait_for(body(), 30))
    assert "dropped as invalid" in caplog.text


@pytest.mark.parametrize(("name", "path"), [(name, path) for name, paths in POSTS.items() for path in paths])
def test_a_wrong_body(services: Services, name: str, path: str) -> None:
    before = state(services, name)
    route = f"POST {path}"
    for body, headers, expected, words in (
        (b"\x80", {"Authorization": "Bearer guess"}, 401, "bearer token"),
        (b"\x80", {"Authorization": ""}, 401, "bearer token"),
        (b"\x80", {SCHEMA_HEADER: "2"}, 400, f"{SCHEMA_HEADER} must be 1"),
        (b"\x80", {SCHEMA_HEADER: ""}, 400, f"{SCHEMA_HEADER} must be 1"),
        (b"", {}, 400, "the body is empty"),
        (b"\xc1 is no msgpack", {}, 400, path),
        (b"\x91" * 5000, {}, 400, path),
        (encode([1, 2]), {}, 400, path),
        (encode({"odd": 1}), {}, 400, ""),
        (b"{}", {}, 400, path),
    ):
        status, said = ask(services, name, route, body, **headers)
        assert (status, is_error(said)) == (expected, True), (body[:20], headers, said)
        assert words in said["error"]
    assert state(services, name) == before


@pytest.mark.parametrize(("name", "path"), [(name, paths[0]) for name, paths in POSTS.items()])
def test_a_body_over_the_limit(services: Services, name: str, path: str) -> None:
    before = state(services, name)
    status, said = ask(services, name, f"POST {path}", b"x" * (BODY_LIMIT + 2**20))
    assert (status, is_error(said)) == (413, True)
    assert f"at most {BODY_LIMIT} are taken" in said["error"]
    assert state(services, name) == before


@pytest.mark.parametrize(("name", "path"), [(name, path) for name, paths in GETS.items() for path in paths])
def test_who_only_looks_needs_the_token_too(services: Services, name: str, path: str) -> None:
    status, said = ask(services, name, f"GET {path}", {}, Authorization="Bearer guess")
    assert (status, is_error(said)) == (401, True)


@pytest.mark.parametrize("name", POSTS)
def test_routes_that_do_not_exist(services: Services, name: str) -> None:
    for route, expected in (("GET /", 404), ("POST /nope", 404), ("POST /status", (404, 405)), ("GET /docs", 404)):
        status, said = ask(services, name, route, {})
        assert status in np.atleast_1d(expected)
        assert is_error(said)


JSON = {
    "fresh": {"/status": m.DataflowStatus, "/raas_pool": m.PoolStatus},
    "begun": {"/status": m.DataflowStatus, "/raas_pool": m.PoolStatus},
    "raas": {"/status": m.RaaSStatus, "/availability": m.Availability},
    "sender": {
        "/get_version": m.SenderVersion,
        "/get_buffer_info": m.BufferInfo,
        "/get_capabilities": m.SenderCapabilities,
    },
}


@pytest.mark.parametrize("name", POSTS)
def test_each_route_is_described_and_answers_as_described(services: Services, name: str) -> None:
    said = services.http.get(services.urls[name] + "/openapi.json", headers=HEADERS).raise_for_status().json()
    described = {(method, path) for path, methods in said["paths"].items() for method in methods}
    gets = {re.sub(r"/\d+$", "/{version}", path) for path in GETS[name]} - {"/openapi.json"}
    assert described == {("post", path) for path in POSTS[name]} | {("get", path) for path in gets}
    for path, kind in JSON[name].items():
        shown = said["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]
        assert shown["schema"] == {"$ref": f"#/components/schemas/{kind.__name__}"}
        msgspec.convert(shown["example"], kind, strict=True)
        reply = services.http.get(services.urls[name] + path, headers=HEADERS).raise_for_status()
        msgspec.json.decode(reply.content, type=kind)
        assert set(said["components"]["schemas"][kind.__name__].get("required", [])) <= reply.json().keys()
    untyped = [path for path, methods in said["paths"].items() for route in methods.values() if {} in schemas(route)]
    assert untyped == []


def schemas(route: dict[str, Any]) -> list[dict[str, Any]]:
    """Those of a route's body and reply, out of its envelope."""
    bodies = [route["responses"]["200"], route.get("requestBody", {"content": {}})]
    found = [content["schema"] for body in bodies for content in body["content"].values()]
    return [schema["properties"]["result"] if "properties" in schema else schema for schema in found]
