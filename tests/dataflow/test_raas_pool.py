"""Who serves, who has room, who is gone."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.core.protocol.messages import RegisterRaaSRequest
from astraflow.dataflow.policies import Published
from astraflow.dataflow.raas_pool import FAILURES, Health, PoolRules, RaaSPool
from astraflow.dataflow.scripted import manifest
from astraflow.errors import CallerError, InvariantError


def request(uid: str = "r", port: int = 1, **capabilities: Any) -> RegisterRaaSRequest:
    return RegisterRaaSRequest(uid=uid, raas_url=f"http://h:{port}", capabilities=capabilities)


def published(version: int, model_id: str = "model0") -> Published:
    return Published(model_id, version, version, "h:1", manifest(version, model_id))


def pool_of(*uids: str, concurrency: int = 4, version: int | None = 0) -> RaaSPool:
    pool = RaaSPool(["model0"])
    pool.versions.publish(published(0))
    for uid in uids:
        key = pool.register(request(uid, max_concurrency=concurrency), 0.0).instance.key
        pool.prepared(key, 0.0)
        if version is not None:
            assert pool.proved(key, "model0", version, f"model0@{version}")
    return pool


@pytest.mark.parametrize(
    ("capabilities", "message"),
    [
        ({"max_concurrency": 0}, "max_concurrency must be a positive integer, got 0"),
        ({"max_concurrency": "many"}, "got 'many'"),
        ({"models": ["other"]}, "lack one of model0"),
        ({"models": 3}, "models must be a list of names, got 3"),
        ({"models": "model0"}, "models must be a list of names"),
        ({"models": ["model0", {"x": 1}]}, "models must be a list of names"),
        ({"max_concurrency": True}, "got True"),
    ],
)
def test_wrong_capabilities_register_nothing(capabilities: dict[str, Any], message: str) -> None:
    pool = RaaSPool(["model0"])
    with pytest.raises(CallerError, match=message):
        pool.register(request(**capabilities), 0.0)
    assert pool.all == []


@pytest.mark.parametrize(
    ("uid", "url"),
    [
        ("", "http://h"),
        *(("r", url) for url in ("", "ftp://h", "http://", "http://[::1", "http://h:x", "http://h:65536")),
        *(("r", url) for url in ("http://h\n", "http://xn--a", "http://a..b", "http://" + 64 * "a")),
    ],
)
def test_wrong_addresses_register_nothing(uid: str, url: str) -> None:
    pool = RaaSPool(["model0"])
    with pytest.raises(CallerError, match="is not an http address" if uid else "uid is empty"):
        pool.register(RegisterRaaSRequest(uid=uid, raas_url=url), 0.0)
    assert pool.all == []


def test_the_same_registration_again_is_a_heartbeat() -> None:
    pool = pool_of("r")
    again = pool.register(request("r", max_concurrency=6), 9.0)
    assert (again.new, again.replaced, again.instance.last_seen, again.instance.max_concurrency) == (False, None, 9, 6)


@pytest.mark.parametrize("second", [request("r", 2), request("r", 1, incarnation="2")])
def test_a_process_that_was_started_anew_replaces_its_uid(second: RegisterRaaSRequest) -> None:
    pool = pool_of("r")
    registration = pool.register(second, 1.0)
    assert registration.new
    assert registration.replaced is not None
    assert registration.replaced.key == "r#1"
    assert registration.instance.key == "r#2"
    assert registration.instance.verified == {}
    assert len(pool.all) == 1
    pool.validate()


def test_work_goes_only_to_a_healthy_instance_with_a_proved_version() -> None:
    pool = pool_of("r", version=None)
    assert pool.serving == []
    assert pool.target("r#1") == published(0)
    assert not pool.proved("r#1", "model0", 0, "something else")
    assert pool.serving == []
    assert not pool.proved("r#1", "model0", 9, "model0@9")
    assert pool.proved("r#1", "model0", 0, "model0@0")
    assert [i.uid for i in pool.serving] == ["r"]
    assert pool.target("r#1") is None
    # a proof that fails takes an earlier one away
    pool.proved("r#1", "model0", 0, "corrupted")
    assert pool.serving == []


def test_a_lagging_instance_keeps_its_proof_while_it_pulls() -> None:
    pool = pool_of("r")
    pool.versions.publish(published(1))
    assert pool.target("r#1") == published(1)
    assert pool.serving[0].verified["model0"].version == 0


def test_while_pinned_instances_pull_no_newer_version() -> None:
    pool = pool_of("old", version=None)
    pool.versions.pin([published(0)])
    pool.versions.publish(published(1))
    assert pool.target("old#1") == published(0)
    pool.proved("old#1", "model0", 0, "model0@0")
    assert pool.target("old#1") is None
    pool.versions.unpin()
    assert pool.target("old#1") == published(1)


def test_every_model_must_be_proved() -> None:
    pool = RaaSPool(["a", "b"])
    pool.versions.publish(published(0, "a"))
    pool.versions.publish(published(2, "b"))
    key = pool.register(request("r"), 0.0).instance.key
    pool.prepared(key, 0.0)
    pool.proved(key, "a", 0, "a@0")
    assert pool.serving == []
    assert pool.target(key) == published(2, "b")
    pool.proved(key, "b", 2, "b@2")
    assert len(pool.serving) == 1


def test_suspect_then_dead_then_back() -> None:
    pool = pool_of("r")
    pool.take("r#1", 2)
    assert not pool.failed("r#1", "refused")
    assert pool.get("r#1").health is Health.SUSPECT
    assert pool.serving == []
    pool.heard("r#1", 1.0)
    assert pool.serving[0].failure_count == 0
    assert [pool.failed("r#1", "gone") for _ in range(FAILURES)] == [False] * (FAILURES - 1) + [True]
    assert not pool.failed("r#1", "gone")
    assert pool.live == []
    pool.heard("r#1", 2.0)
    assert pool.get("r#1").health is Health.DEAD
    pool.release("r#1", 2)
    pool.validate()
    registration = pool.register(request("r"), 3.0)
    assert (registration.new, registration.replaced, registration.instance.key) == (True, None, "r#2")
    assert len(pool.all) == 1


def test_silence_is_suspicious_and_death_only_without_an_answer() -> None:
    pool = pool_of("a", "b", "c")
    pool.heard("c#3", 10.0)
    assert pool.missed(15.0) == []
    assert pool.missed(16.0) == ["a#1", "b#2"]
    assert pool.missed(17.0) == []  # they are asked once
    assert [i.key for i in pool.serving] == ["c#3"]
    assert "no sign of life for 16 s" in pool.get("a#1").reason
    pool.heard("a#1", 18.0)
    assert (pool.unanswered("a#1"), pool.unanswered("b#2"), pool.unanswered("b#2")) == (False, True, False)
    assert [i.key for i in pool.serving] == ["a#1", "c#3"]
    assert pool.get("b#2").health is Health.DEAD


def test_how_long_silence_may_last_is_configured() -> None:
    pool = RaaSPool(["model0"], rules=PoolRules(heartbeat_s=0.5, missed_heartbeats=2))
    pool.register(request("r"), 0.0)
    assert (pool.missed(1.0), pool.missed(1.1)) == ([], ["r#1"])


def failing(pool: RaaSPool, key: str, now: float = 0.0) -> list[bool]:
    return [pool.group_failed(key, "engine: no memory", now) for _ in range(3)]


def test_one_that_fails_again_and_again_is_in_quarantine_for_a_while() -> None:
    pool = pool_of("bad", "good")
    assert failing(pool, "bad#1") == [False, False, True]
    bad = pool.get("bad#1")
    assert bad is not None
    assert bad.health is Health.QUARANTINED
    assert bad.reason == "3 failures in a row, no work for 60 s: engine: no memory"
    assert [i.key for i in pool.serving] == ["good#2"]
    assert (pool.pardon(59.0), pool.pardon(60.0)) == ([], ["bad#1"])
    # on probation: the first failure is one too many, and the term is longer
    assert pool.group_failed("bad#1", "again", 61.0)
    assert (pool.pardon(180.0), pool.pardon(181.0)) == ([], ["bad#1"])
    pool.group_succeeded("bad#1", 1.0, 182.0)
    assert not pool.group_failed("bad#1", "once", 183.0)


def test_a_success_in_between_is_forgiving() -> None:
    pool = pool_of("a", "b")
    for _ in range(5):
        assert not pool.group_failed("a#1", "engine", 0.0)
        assert not pool.group_failed("a#1", "engine", 0.0)
        pool.group_succeeded("a#1", 1.0, 0.0)
    assert len(pool.serving) == 2


def test_the_last_one_is_never_in_quarantine() -> None:
    pool = pool_of("a", "b")
    assert failing(pool, "a#1")[-1]
    assert not any(failing(pool, "b#2"))
    pool.failed("b#2", "x")
    assert pool.pardon(1.0) == ["a#1"]  # nobody else can work
    assert [i.key for i in pool.serving] == ["a#1"]


def test_a_process_that_takes_a_bad_name_stays_in_quarantine() -> None:
    pool = pool_of("bad", "good")
    failing(pool, "bad#1")
    key = pool.register(request("bad", incarnation="another"), 5.0).instance.key
    pool.prepared(key, 5.0)
    assert pool.get(key).health is Health.QUARANTINED


def test_one_that_dies_again_and_again_comes_back_into_quarantine() -> None:
    pool = pool_of("bad", "good")
    key = "bad#1"
    for life in range(3):
        for _ in range(3):
            pool.failed(key, "broken pipe")
        key = pool.register(request("bad", incarnation=str(life)), 5.0).instance.key
        pool.prepared(key, 5.0)
    bad = pool.get(key)
    assert bad is not None
    assert bad.health is Health.QUARANTINED
    assert bad.reason == "3 failures in a row, no work for 60 s: it died: broken pipe"


def test_the_only_one_that_dies_again_and_again_works_on() -> None:
    pool = pool_of("bad")
    key = "bad#1"
    for life in range(4):
        for _ in range(3):
            pool.failed(key, "broken pipe")
        key = pool.register(request("bad", incarnation=str(life)), 5.0).instance.key
        pool.prepared(key, 5.0)
        assert pool.get(key).health is Health.HEALTHY


def test_one_that_refuses_work_gets_none_until_a_sign_of_life() -> None:
    pool = pool_of("r")
    for alive in (lambda: pool.heard("r#1", 1.0), lambda: pool.register(request("r", max_concurrency=4), 1.0)):
        pool.refused("r#1", "full")
        assert pool.serving == []
        alive()
        assert len(pool.serving) == 1


def test_a_heartbeat_does_not_clear_a_failed_call() -> None:
    pool = pool_of("r")
    pool.failed("r#1", "refused connection")
    pool.register(request("r", max_concurrency=4), 1.0)
    assert pool.serving == []


def test_draining_gets_no_work_and_no_versions() -> None:
    pool = pool_of("r")
    pool.drain("r", 0.0)
    pool.versions.publish(published(1))
    assert (pool.serving, pool.target("r#1")) == ([], None)
    assert pool.drain("unknown", 0.0) is None


def test_giving_back_twice_is_a_bug() -> None:
    pool = pool_of("r")
    pool.take("r#1", 1)
    pool.release("r#1", 1)
    pool.validate()
    pool.release("r#1", 1)
    with pytest.raises(InvariantError, match="r#1"):
        pool.validate()


@given(seed=st.integers(0, 2**32))
def test_random_lives_keep_the_pool_consistent(seed: int) -> None:
    chance = random.Random(seed)
    pool = RaaSPool(["model0"])
    version = -1
    for now in range(150):
        keys = [i.key for i in pool.all] or ["none"]
        key = chance.choice(keys)
        match chance.randrange(9):
            case 0:
                pool.register(request(chance.choice("abc"), chance.choice([1, 2]), max_concurrency=3), now)
            case 1:
                version += 1
                pool.versions.publish(published(version))
            case 2:
                number = chance.randint(0, max(version, 0))
                pool.proved(key, "model0", number, chance.choice([f"model0@{number}", "wrong"]))
            case 3:
                pool.failed(key, "x")
            case 4:
                pool.heard(key, now)
            case 5:
                pool.missed(now)
            case 6:
                pool.drain(chance.choice("abc"), now)
            case 7:
                pool.prepared(key, now)
            case _:
                for instance in pool.serving:
                    assert (
                        instance.verified["model0"].manifest.digest == f"model0@{instance.verified['model0'].version}"
                    )
                    pool.take(instance.key, instance.available)
        pool.validate()
        assert all(i.available <= i.max_concurrency for i in pool.all)
