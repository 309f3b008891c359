"""The service over the wire: wrong requests change nothing, status tells what goes on."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from astraflow.core.data import decode, encode
from astraflow.core.protocol import in_process
from astraflow.core.protocol import messages as m
from astraflow.core.protocol.http import BODY_LIMIT, SCHEMA_HEADER
from astraflow.core.protocol.openapi import MSGPACK
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.eval_log import EvalLog
from astraflow.dataflow.scripted import Rehearsal, ScriptedRaaS, ScriptedTrainer, example_rows, manifest
from astraflow.errors import ConflictError, DeadlineError, PeerError

MakeSettings = Callable[..., DataflowSettings]
HEADERS = {"Authorization": f"Bearer {Rehearsal.TOKEN}", SCHEMA_HEADER: "1", "Content-Type": MSGPACK}
EVALS = {
    "eval_workflows": {"w": {"gconfig_overrides": {"n_samples": 2}}},
    "eval_datasets": {"held_out": {"dataset_fn": "a.b:c", "eval_workflow": "w"}},
}


def right(task: m.Task, version: int) -> list[float]:
    return [float(i % 2 == 0) for i in range(task.n_samples or 2)]


def raas(uid: str, **options: Any) -> ScriptedRaaS:
    return ScriptedRaaS(uid, Rehearsal.TOKEN, right, **options)


def run(settings: DataflowSettings, test: Callable[[Rehearsal], Awaitable[None]], **options: Any) -> None:
    async def body() -> None:
        async with Rehearsal(settings, **options).running() as rehearsal:
            await test(rehearsal)
            rehearsal.service.books.ledger.validate()

    asyncio.run(asyncio.wait_for(body(), 60))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


@pytest.mark.parametrize("path", ["/ready", "/notify_version", "/register_raas", "/deregister_raas"])
@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"", {}, 400),
        (encode({}), {}, 400),
        (b"\xc1garbage", {}, 400),
        (encode({"uid": 3}), {}, 400),
        (encode({"surprise": 1}), {}, 400),
        (b"{}", {"Content-Type": "application/json"}, 400),
        (b"\x80", {SCHEMA_HEADER: "99"}, 400),
        (b"\x80", {"Authorization": "Bearer wrong"}, 401),
        (b"\x80", {"Authorization": ""}, 401),
        (bytes(BODY_LIMIT + 1), {}, 413),
    ],
)
def test_bad_bodies_are_the_callers_fault_and_register_nothing(
    make_settings: MakeSettings, path: str, content: bytes, headers: dict[str, str], status: int
) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        transport = in_process(rehearsal.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            reply = await client.post(path, content=content, headers={**HEADERS, **headers})
            assert reply.status_code == status
            body = decode(reply.content, m.ErrorBody)
            assert not body.ok
            assert body.error
            assert body.kind == "CallerError"
            if path == "/register_raas" and content == encode({}) and not headers:
                assert body.error == "Request body must contain 'uid' and 'raas_url'"
            alive = await client.get("/status", headers=HEADERS)
            assert alive.json()["agents"]["model0"]["trainer_ready"] is False
            assert alive.json()["raas_pool"]["size"] == 0

    run(make_settings(), test)


@pytest.mark.parametrize("path", ["/status", "/raas_pool", "/metrics", "/batch"])
def test_every_get_route_wants_the_token(make_settings: MakeSettings, path: str) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        async with httpx.AsyncClient(transport=in_process(rehearsal.app), base_url="http://x") as client:
            reply = await client.get(path)
            assert reply.status_code == 401
            content = reply.content
            error = decode(content, m.ErrorBody) if path == "/batch" else msgspec.json.decode(content, type=m.ErrorBody)
            assert "token" in error.error

    run(make_settings(), test)


def test_an_unknown_route_and_a_wrong_query(make_settings: MakeSettings) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        async with httpx.AsyncClient(transport=in_process(rehearsal.app), base_url="http://x") as client:
            assert (await client.get("/nothing", headers=HEADERS)).status_code == 404
            assert (await client.get("/batch", params={"version": "x"}, headers=HEADERS)).status_code == 400
            assert (await client.get("/batch", params={"surprise": "x"}, headers=HEADERS)).status_code == 400

    run(make_settings(), test)


def test_an_unknown_model_and_a_second_trainer_conflict(make_settings: MakeSettings) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        with pytest.raises(ConflictError, match="unknown model_id 'model7'; known: model0"):
            await rehearsal.trainer(4, "model7").begin()
        with pytest.raises(ConflictError, match="no trainer of 'model0' has called /ready"):
            await rehearsal.client.batch("model0", 0, 1)
        trainer = rehearsal.trainer(4)
        await trainer.begin()
        with pytest.raises(ConflictError, match="another trainer"):
            await rehearsal.trainer(8).begin()
        assert (await rehearsal.client.ready(_ready(4))).next_version == 1
        assert rehearsal.service.books.admissions["model0"].batch == 2

    run(make_settings(), test)


def _ready(size: int) -> m.ReadyRequest:
    return m.ReadyRequest(train_batch_size=size, sender_endpoint="127.0.0.1:1", model_id="model0", manifest=manifest(0))


def test_versions_that_go_back_or_jump_conflict(make_settings: MakeSettings) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        await rehearsal.join(raas("r"))
        trainer = rehearsal.trainer(4)
        await trainer.begin()
        await trainer.train()
        await trainer.announce()  # a retry
        for version, step in ((0, 0), (3, 3), (2, 2)):
            trainer.version, trainer.step = version, step
            with pytest.raises(ConflictError):
                await trainer.announce()
        status = await rehearsal.client.status()
        assert status["agents"]["model0"]["version"] == 1
        assert status["live"]["trained"] == 2

    run(make_settings(), test)


def test_a_recovered_trainer_starts_at_its_step_without_a_burst(make_settings: MakeSettings) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        peer = raas("r", max_concurrency=1000, hold=True)
        await rehearsal.join(peer)
        request = m.ReadyRequest(
            train_batch_size=4, sender_endpoint="h:1", model_id="model0", recovered_version=9, recovered_step=7
        )
        assert (await rehearsal.client.ready(request)).next_version == 10
        trainer = ScriptedTrainer(rehearsal.client, batch_size=4)
        trainer.version, trainer.step = 10, 7
        await trainer.announce()
        await until(lambda: bool(peer.running))
        assert len(peer.running) == 6
        await peer.finish()
        assert (await trainer.batch()).buffer_stats["buffer/staleness_max"] == 0

    run(make_settings(), test)


@pytest.mark.parametrize("mode", ["exclusive", "concurrent"])
def test_an_evaluation_is_pinned_and_answers_with_its_results(make_settings: MakeSettings, mode: str) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        peers = [raas("a"), raas("b")]
        for peer in peers:
            await rehearsal.join(peer)
        trainer = rehearsal.trainer(4)
        first = await trainer.begin(run_eval=True)
        assert first.eval_results is not None
        scores = first.eval_results.datasets["held_out"]
        assert (scores.avg_at_k, scores.pass_at_k, scores.greedy, scores.k) == (50.0, 100.0, 100.0, 2)
        assert (scores.total, scores.sample_count, scores.invalid) == (7, 14, 0)
        if mode == "exclusive":
            assert {lane for peer in peers for lane, _, _ in peer.submitted} == {"eval"}
        await trainer.train()
        second = await trainer.train(run_eval=True)
        assert second.batch.lengths.size == 4
        for peer in peers:
            versions = [version for lane, _, version in peer.submitted if lane == "eval"]
            assert set(versions) <= {0, 2}
        status = await rehearsal.client.status()
        assert status["eval_running"] is False
        assert status["live"]["eval"]["version"] == 2
        assert status["live"]["eval"]["datasets"]["held_out"]["greedy"] == 100.0

    settings = make_settings(eval={"mode": mode}, **EVALS)
    run(settings, test, eval_rows={"held_out": example_rows(7)})


def test_a_repeated_evaluation_request_gets_the_same_results(make_settings: MakeSettings) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        peer = raas("a")
        await rehearsal.join(peer)
        trainer = rehearsal.trainer(4)
        first = await trainer.begin(run_eval=True)
        sent = len(peer.submitted)
        again = await trainer.announce(run_eval=True)
        assert again.eval_results == first.eval_results
        assert [lane for lane, _, _ in peer.submitted[sent:]].count("eval") == 0

    run(make_settings(**EVALS), test, eval_rows={"held_out": example_rows(3)})


def test_an_evaluation_that_misses_its_deadline_says_what_is_lacking(make_settings: MakeSettings) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        peer = raas("a", hold=True)
        await rehearsal.join(peer)
        trainer = rehearsal.trainer(4)
        with pytest.raises(DeadlineError, match=r"6 of 6 evaluation tasks; working on them: a#1 \(6\)"):
            await trainer.begin(run_eval=True)
        # what the deadline cut is cancelled, and rollouts go on
        await until(lambda: {r.lane for r, _ in peer.running.values()} == {"train"})
        await peer.finish()
        assert (await trainer.batch()).batch.lengths.size == 4

    run(make_settings(eval={"timeout_s": 1.0}, **EVALS), test, eval_rows={"held_out": example_rows(3)})


def test_an_evaluation_goes_on_when_a_raas_dies(make_settings: MakeSettings) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        dying, healthy = raas("dying", hold=True), raas("healthy")
        await rehearsal.join(dying)
        evaluating = asyncio.create_task(rehearsal.trainer(4).begin(run_eval=True))
        await until(lambda: len(dying.running) == 6)
        await rehearsal.client.deregister_raas("dying", drain=False)
        await rehearsal.join(healthy)
        results = (await evaluating).eval_results
        assert results is not None
        assert results.datasets["held_out"].sample_count == 6

    run(make_settings(**EVALS), test, eval_rows={"held_out": example_rows(3)})


def _lanes(peer: ScriptedRaaS, version: int) -> set[str]:
    return {lane for lane, _, served in peer.submitted if served == version}


def test_a_concurrent_round_is_held_by_a_share_of_the_pool_while_training_goes_on(make_settings: MakeSettings) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        peers = [raas(name) for name in "abc"]
        for peer in peers:
            await rehearsal.join(peer)
        trainer = rehearsal.trainer(4)
        await trainer.begin()
        await trainer.train()
        for peer in peers:
            peer.hold("eval")
        round_ = asyncio.create_task(trainer.announce(run_eval=True))
        await until(lambda: any(r.lane == "eval" for peer in peers for r, _ in peer.running.values()))
        holders = [peer for peer in peers if any(r.lane == "eval" for r, _ in peer.running.values())]
        assert len(holders) == 1  # a third of the places is the share
        beside = rehearsal.trainer(4)
        beside.version, beside.step = trainer.version, trainer.step
        for _ in range(5):  # more steps than the bound: the others follow, the holder waits for its round
            await beside.train()
        assert rehearsal.service.evaluation.running
        assert holders[0].version == 1
        others = [peer for peer in peers if peer is not holders[0]]
        await until(lambda: all(peer.version == 6 for peer in others))
        in_flight = set(holders[0].running)
        await holders[0].finish(sorted(in_flight))
        while not round_.done():
            await holders[0].finish()
            await asyncio.sleep(0)
        results = (await round_).eval_results
        assert results is not None
        assert results.version == 1
        assert results.datasets["held_out"].sample_count == 2 * 20
        assert _lanes(others[0], 6) | _lanes(others[1], 6) == {"train"}
        await until(lambda: holders[0].version == 6)
        assert rehearsal.service.books.ledger.counters.lost_leases == 0

    settings = make_settings(eval={"mode": "concurrent", "share": 0.34}, **EVALS)
    run(settings, test, eval_rows={"held_out": example_rows(20)})


def test_where_the_holder_of_a_round_is_in_quarantine_another_that_can_goes_on(make_settings: MakeSettings) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        first, pool = raas("a", hold=True, max_concurrency=9), rehearsal.service.pool
        await rehearsal.join(first)
        evaluating = asyncio.create_task(rehearsal.trainer(4).begin(run_eval=True))
        await until(lambda: any(r.lane == "eval" for r, _ in first.running.values()))
        await rehearsal.join(raas("b"))
        await until(lambda: len(pool.serving) == 2)
        (key,) = [instance.key for instance in pool.live if instance.uid == "a"]
        while not pool.group_failed(key, "no result", 0.0):
            pass
        rehearsal.service.evaluation.lost(key)
        results = (await evaluating).eval_results
        assert results is not None
        assert results.datasets["held_out"].sample_count == 6

    run(make_settings(eval={"mode": "concurrent"}, **EVALS), test, eval_rows={"held_out": example_rows(3)})


def test_where_the_holder_of_a_round_dies_another_that_can_goes_on(make_settings: MakeSettings) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        first = raas("a", hold=True, max_concurrency=9)
        await rehearsal.join(first)
        evaluating = asyncio.create_task(rehearsal.trainer(4).begin(run_eval=True))
        await until(lambda: any(r.lane == "eval" for r, _ in first.running.values()))
        assert sum(r.lane == "eval" for r, _ in first.running.values()) == 4  # half of its places: it is alone
        await rehearsal.join(raas("b"))
        await rehearsal.client.deregister_raas("a", drain=False)
        results = (await evaluating).eval_results
        assert results is not None
        assert results.datasets["held_out"].sample_count == 6

    run(make_settings(eval={"mode": "concurrent"}, **EVALS), test, eval_rows={"held_out": example_rows(3)})


def test_samples_of_the_first_rows_are_kept(make_settings: MakeSettings, tmp_path: Path) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        await rehearsal.join(raas("a"))
        await rehearsal.trainer(4).begin(run_eval=True)
        lines = [json.loads(line) for line in (tmp_path / "version_000000.jsonl").read_text().splitlines()]
        assert [(x["row"], x["greedy"], x["sample"], x["reward"]) for x in lines] == [
            (row, greedy, sample, 1.0 - sample)
            for row in range(2)
            for greedy, samples in ((False, 2), (True, 1))
            for sample in range(samples)
        ]
        assert {x["dataset"] for x in lines} == {"held_out"}
        assert lines[0]["trajectories"][0] == {
            "model_id": "model0", "agent": "", "stop": "stop", "tokens": 3, "text": "5 tokens",
        }  # fmt: skip

    log = EvalLog(tmp_path, 2, lambda ids: f"{len(ids)} tokens")
    run(make_settings(**EVALS), test, eval_rows={"held_out": example_rows(3)}, eval_log=log)


def test_without_evaluation_datasets_there_are_no_results(make_settings: MakeSettings) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        assert (await rehearsal.trainer(4).begin(run_eval=True)).eval_results is None

    run(make_settings(), test)


def test_stopping_answers_who_waits(make_settings: MakeSettings) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        trainer = rehearsal.trainer(4)
        await trainer.begin()
        asking = asyncio.create_task(trainer.batch())
        await until(lambda: bool(rehearsal.service.waits.describe()))
        await rehearsal.client.shutdown()
        assert (await rehearsal.client.status())["status"] == "draining"
        await rehearsal.service.stop()
        with pytest.raises(DeadlineError, match="Dataflow is stopping"):
            await asking

    run(make_settings(), test)


def test_a_broken_record_drops_its_group_only(make_settings: MakeSettings, caplog: pytest.LogCaptureFixture) -> None:
    def nan_first(task: m.Task, version: int) -> list[float]:
        return [float("nan") if task.group_id == 1 else 1.0, 0.0]

    async def test(rehearsal: Rehearsal) -> None:
        await rehearsal.join(ScriptedRaaS("r", Rehearsal.TOKEN, nan_first))
        trainer = rehearsal.trainer(4)
        await trainer.begin()
        stats = (await trainer.train()).buffer_stats
        assert stats["dropped/invalid"] == 1

    run(make_settings(), test)
    assert "reward is nan, expected a number within ± 1e+15; dropped as invalid" in caplog.text


def test_two_policies_step_together(make_settings: MakeSettings) -> None:
    """A workflow with two policies: each trains on its own groups, and their announcements leave together."""

    async def test(rehearsal: Rehearsal) -> None:
        await rehearsal.join(raas("r", models=("a", "b")))
        trainers = [rehearsal.trainer(4, model) for model in ("a", "b")]
        for trainer in trainers:
            await trainer._client.ready(
                m.ReadyRequest(
                    train_batch_size=4,
                    sender_endpoint="h:1",
                    model_id=trainer._model_id,
                    manifest=manifest(0, trainer._model_id),
                )
            )
        await asyncio.gather(*(trainer.announce() for trainer in trainers))
        assert (await rehearsal.client.status())["agents"].keys() == {"a", "b"}
        # the scripted RaaS answers for the first policy only: the other's trainer is told what it lacks
        assert (await trainers[0].batch()).batch.lengths.size == 4
        with pytest.raises(DeadlineError, match=r"trainer of b at version 0 .* 2 more groups"):
            await trainers[1].batch(0.01)

    run(make_settings(models=("a", "b")), test)


def test_a_dead_peer_does_not_end_the_service(make_settings: MakeSettings) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        peer = raas("r")
        peer.dead = True
        await rehearsal.join(peer)
        rehearsal.service.pool.failed("r#1", "x")
        assert (await rehearsal.client.status())["error"] is None
        with pytest.raises(PeerError):
            await rehearsal._connect(peer.url).cancel([])

    run(make_settings(), test)


@pytest.mark.parametrize(("outcome", "reason"), [([1.0, 1.0], "zero_advantage"), (None, "rejected")])
def test_whoever_waits_for_a_batch_is_told_what_was_dropped(
    make_settings: MakeSettings, outcome: list[float] | None, reason: str
) -> None:
    """Rewards that are always equal, a workflow that always rejects: a visible outcome, not a silent wait."""

    async def test(rehearsal: Rehearsal) -> None:
        peer = ScriptedRaaS("a", Rehearsal.TOKEN, lambda task, version: outcome)
        await rehearsal.join(peer)
        trainer = rehearsal.trainer(4)
        await trainer.begin()
        waiting = asyncio.create_task(trainer.batch())
        await until(lambda: len(peer.submitted) > 20)
        (wait,) = rehearsal.service.status()["waiting"]
        assert re.search(
            rf"2 more groups \(0 of 2 ready\); RaaS: a healthy.*; dropped since the last batch: \d+ {reason}",
            wait["on"],
        )
        with pytest.raises(DeadlineError, match=rf"dropped since the last batch: \d+ {reason}"):
            await trainer.batch(0.01)
        waiting.cancel()

    run(make_settings(), test)


def test_dynamic_sampling_ends_the_run_where_its_end_is_configured(make_settings: MakeSettings) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        await rehearsal.join(ScriptedRaaS("a", Rehearsal.TOKEN, lambda task, version: [1.0, 1.0]))
        trainer = rehearsal.trainer(4)
        await trainer.begin()
        with pytest.raises(PeerError, match=r"no batch for model0 \(buffer.max_refill\): .* zero_advantage"):
            await trainer.batch()
        assert rehearsal.service.stopping.is_set()

    run(make_settings(buffer={"max_refill": 30}), test)


def test_a_batch_that_never_fits_the_buffer_is_refused_at_once(make_settings: MakeSettings) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        with pytest.raises(ConflictError, match=r"a batch of 4 groups never fills: dataflow.buffer.max_groups is 3"):
            await rehearsal.trainer(8).begin()
        assert rehearsal.service.policies.get("model0").ready is None
        await rehearsal.trainer(6).begin()

    run(make_settings(buffer={"max_groups": 3}), test)
