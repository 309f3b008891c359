"""From an announced version to a served one, over the wire."""

import asyncio

import pytest

from astraflow.core.protocol import messages as m
from astraflow.core.weight_manager.version_log import Alarm, ServedVersion, read_logs
from astraflow.errors import CallerError, ConflictError, PeerError


def test_a_version_is_pulled_applied_and_reported(raas) -> None:
    async def body(h) -> None:
        result = await h.publish(0)
        assert (result.ok, result.pulled, result.version) == (True, True, 0)
        assert result.pull_result == {"mode": "full", "bytes": 4}
        assert set(result.timing) == {"pull_s", "verify_s", "pause_s", "load_s", "resume_s"}
        status = await h.client.status()
        assert status.status == "ready"
        assert status.versions["model0"] == m.VersionState(number=0, digest="digest-0", verified=True)
        assert h.engine.get_version() == 0
        assert h.weights.payloads[0].released

    raas(body)


def test_the_same_version_twice_is_pulled_once(raas) -> None:
    async def body(h) -> None:
        await h.publish(5)
        again = await h.publish(5)
        assert (again.ok, again.pulled, again.reason) == (True, False, "version=5 <= local=5")
        older = await h.publish(4)
        assert (older.ok, older.pulled, older.version) == (False, False, 5)
        assert h.weights.pulls == [5]

    raas(body)


def test_the_same_number_with_another_digest_is_a_conflict(raas) -> None:
    async def body(h) -> None:
        await h.publish(5)
        with pytest.raises(ConflictError, match="digest-5"):
            await h.publish(5, "other")
        assert "version 5 has digest" in (await h.client.status()).message
        assert h.service.updaters["model0"].state.alarms == 1

    raas(body)


def test_without_an_endpoint_nothing_is_pulled(raas) -> None:
    async def body(h) -> None:
        result = await h.client.notify_version(m.RaaSNotifyVersionRequest(model_id="model0", version=1))
        assert (result.ok, result.pulled, result.reason) == (False, False, "no sender_endpoint")

    raas(body)


def test_a_manifest_of_something_else_is_the_callers_error(raas) -> None:
    async def body(h) -> None:
        with pytest.raises(CallerError, match="not served"):
            await h.client.notify_version(m.RaaSNotifyVersionRequest(model_id="other", version=1))
        with pytest.raises(CallerError, match="the manifest is of version 8"):
            await h.publish(8, announced=7)
        assert h.weights.pulls == []

    raas(body)


def test_the_newest_wins_while_one_is_being_pulled(raas) -> None:
    async def body(h) -> None:
        await h.publish(0)
        h.weights.arrive.clear()
        h.weights.pulling.clear()
        first = asyncio.create_task(h.publish(1))
        await h.weights.pulling.wait()
        h.weights.pulling.clear()
        second = asyncio.create_task(h.publish(2))
        await h.weights.pulling.wait()
        superseded = await first
        assert (superseded.ok, superseded.pulled) == (True, False)
        assert superseded.reason == "version=1 was superseded by version=2"
        joined = asyncio.create_task(h.publish(2))
        await asyncio.sleep(0)
        h.weights.arrive.set()
        assert (await second).version == 2
        assert (await joined).version == 2
        assert h.weights.pulls == [0, 1, 2]
        assert h.engine.get_version() == 2

    raas(body)


def test_a_version_that_cannot_be_proven_is_not_served(raas) -> None:
    async def body(h) -> None:
        await h.publish(0)
        h.weights.broken = True
        with pytest.raises(PeerError, match="rolled back"):
            await h.publish(1)
        status = await h.client.status()
        assert status.versions["model0"].number == 0
        assert "rolled back" in status.message
        h.weights.broken = False
        assert (await h.publish(1)).pulled, "and it can be tried again"
        assert (await h.client.status()).message == ""

    raas(body)


def test_a_sender_that_cannot_be_reached_is_an_answer_and_no_failure_of_the_service(raas) -> None:
    async def body(h) -> None:
        await h.publish(0)
        h.weights.away = True
        result = await h.publish(1)
        assert (result.ok, result.pulled, result.version) == (False, False, 0)
        assert "the sender at" in result.reason
        assert "cannot be reached: http://127.0.0.1:1/register_sglang_instance: ConnectError" in result.reason
        assert "cannot be reached" in (await h.client.status()).message
        h.weights.away = False
        assert (await h.publish(1)).pulled, "and it can be tried again"

    raas(body)


def test_what_came_instead_of_a_version_that_is_gone_is_what_is_reported(raas) -> None:
    async def body(h) -> None:
        h.weights.newest = 3
        result = await h.publish(1)
        assert (result.version, result.pulled) == (3, True)
        assert (await h.client.status()).versions["model0"].digest == "digest-3"
        assert (await h.publish(3)).reason == "version=3 <= local=3"

    raas(body)


def test_a_delta_that_the_engine_does_not_take_is_followed_by_the_full_version(raas) -> None:
    async def body(h) -> None:
        await h.publish(0)
        h.weights.broken_delta = True
        result = await h.publish(1)
        assert (result.ok, result.version, result.pull_result["mode"]) == (True, 1, "full")
        assert h.weights.pulls == [0, 1, 1]
        assert all(payload.released for payload in h.weights.payloads)
        assert (await h.client.status()).message == ""

    raas(body)


def test_what_was_served_and_every_alarm_is_noted_in_the_run(raas, tmp_path) -> None:
    async def body(h) -> None:
        await h.publish(0)
        with pytest.raises(ConflictError):
            await h.publish(0, "other")
        await h.publish(1, "digest-0")
        assert h.service.updaters["model0"].state.alarms == 2
        lines = list(read_logs(tmp_path))
        served = [(line.version, line.mode) for line in lines if isinstance(line, ServedVersion)]
        assert served == [(0, "full"), (1, "full")]
        alarms = [line.reason for line in lines if isinstance(line, Alarm)]
        assert alarms == [
            "version 0 has digest digest-0 here, not other",
            "the version moved from 0 to 1, the digest did not",
        ]

    raas(body)
