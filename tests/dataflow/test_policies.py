"""Registration and announcement of versions: retries are fine, contradictions change nothing."""

import pytest

from astraflow.core.protocol.messages import NotifyVersionRequest, ReadyRequest
from astraflow.dataflow.policies import MOST_SKIPPED, Policies
from astraflow.dataflow.scripted import manifest
from astraflow.errors import AstraFlowError, CallerError, ConflictError

READY = ReadyRequest(train_batch_size=8, sender_endpoint="h:1", model_id="model0", manifest=manifest(0))


def announcement(version: int, step: int, digest: str | None = None) -> NotifyVersionRequest:
    return NotifyVersionRequest(
        version=version, step=step, model_id="model0", manifest=manifest(version, digest=digest)
    )


def ready() -> Policies:
    policies = Policies({"model0": 4})
    assert policies.make_ready(READY) == 1
    return policies


def changed(**fields: object) -> ReadyRequest:
    base = {name: getattr(READY, name) for name in READY.__struct_fields__}
    return ReadyRequest(**{**base, **fields})


@pytest.mark.parametrize(
    ("request_", "kind", "message"),
    [
        (changed(model_id="other"), ConflictError, "unknown model_id 'other'; known: model0"),
        (changed(train_batch_size=6), CallerError, "not a multiple of n_samples 4"),
        (changed(train_batch_size=0), CallerError, "not a multiple"),
        (changed(manifest=None), CallerError, "manifest of version 0"),
        (changed(recovered_step=3), CallerError, "no manifest"),
        (changed(recovered_step=-1, manifest=None), CallerError, "negative"),
        (changed(manifest=manifest(1)), CallerError, "expected 0 of 'model0'"),
        (changed(manifest=manifest(0, "model1")), CallerError, "of 'model1'"),
    ],
)
def test_a_wrong_ready_registers_nothing(request_: ReadyRequest, kind: type[AstraFlowError], message: str) -> None:
    policies = Policies({"model0": 4})
    with pytest.raises(kind, match=message):
        policies.make_ready(request_)
    assert policies.all[0].ready is None
    with pytest.raises(ConflictError, match="no trainer of 'model0'"):
        policies.trained("model0")


def test_ready_again_is_a_retry_and_another_trainer_a_conflict() -> None:
    policies = ready()
    assert policies.make_ready(READY) == 1
    with pytest.raises(ConflictError, match="another trainer"):
        policies.make_ready(changed(train_batch_size=16))
    assert policies.get("model0").batch_groups == 2


def test_a_recovered_trainer_continues_the_numbers() -> None:
    policies = Policies({"model0": 4})
    assert policies.make_ready(changed(manifest=None, recovered_step=7, recovered_version=9)) == 10
    assert policies.get("model0").step == 7
    with pytest.raises(ConflictError, match="does not follow step 7"):
        policies.announce(announcement(10, 0), served=False)
    published = policies.announce(announcement(10, 7), served=False)
    assert published is not None
    assert (published.version, published.step) == (10, 7)


def test_versions_follow_each_other() -> None:
    policies = ready()
    assert policies.unannounced() == ["model0"]
    assert policies.unannounced({"model0"}) == []
    first = policies.announce(NotifyVersionRequest(version=0, step=0, model_id="model0"), served=False)
    assert first is not None
    assert first.manifest == READY.manifest
    assert policies.unannounced() == []
    assert policies.announce(announcement(0, 0), served=False) is None
    assert policies.announce(announcement(1, 1), served=True) is not None
    assert policies.announce(announcement(4, 1), served=True) is not None
    assert policies.get("model0").steps.step_of(4) == 1


@pytest.mark.parametrize(
    ("version", "step", "digest", "served", "message"),
    [
        (0, 0, None, True, "goes back: 1 is current"),
        (1, 1, "else", True, "another step or digest"),
        (1, 2, None, True, "another step or digest"),
        (2, 3, None, True, "step 3 of 'model0' does not follow step 1"),
        (2, 0, None, True, "does not follow step 1"),
        (2, 2, None, False, "trained on no batch"),
    ],
)
def test_a_contradiction_changes_nothing(version: int, step: int, digest: str, served: bool, message: str) -> None:
    policies = ready()
    policies.announce(announcement(0, 0), served=False)
    policies.announce(announcement(1, 1), served=True)
    with pytest.raises(ConflictError, match=message):
        policies.announce(announcement(version, step, digest), served=served)
    assert (policies.get("model0").version, policies.get("model0").step) == (1, 1)


def test_a_number_that_is_too_far_changes_nothing() -> None:
    policies = ready()
    policies.announce(announcement(0, 0), served=False)
    far = "version 1764500000 of 'model0' is too far from the highest number so far, 0: at most 65536 can follow it"
    with pytest.raises(CallerError, match=far):
        policies.announce(announcement(1764500000, 1), served=True)
    with pytest.raises(CallerError, match=far):
        policies.make_ready(changed(manifest=None, recovered_step=0, recovered_version=1764500000))
    assert (policies.get("model0").version, policies.get("model0").highest, policies.get("model0").ready) == (
        0,
        0,
        READY,
    )
    assert policies.announce(announcement(MOST_SKIPPED, 1), served=True) is not None
    assert policies.get("model0").steps.newest == MOST_SKIPPED


def test_a_version_needs_its_own_manifest() -> None:
    policies = ready()
    policies.announce(announcement(0, 0), served=False)
    with pytest.raises(CallerError, match="has no manifest"):
        policies.announce(NotifyVersionRequest(version=1, step=1, model_id="model0"), served=True)
    with pytest.raises(CallerError, match="the manifest is of version 2"):
        policies.announce(NotifyVersionRequest(version=1, step=1, model_id="model0", manifest=manifest(2)), served=True)
    assert policies.get("model0").version == 0
