from __future__ import annotations

from collections.abc import Iterator

import pytest

from astraflow.core.protocol.messages import RegisterReceiverRequest, TransferRequest
from astraflow.core.weight_manager import sender_state
from astraflow.core.weight_manager.digest import build_manifest
from astraflow.core.weight_manager.layout import buffer_length, lay_out
from astraflow.core.weight_manager.segment import DoubleBuffer
from astraflow.core.weight_manager.sender_state import SenderState
from astraflow.errors import CallerError, DeadlineError

LAYOUT = lay_out([("w", (3,), "float32")])
ME = "10.0.0.1:19090"


class Sender:
    """The state under test with a trainer's hand on its buffer."""

    def __init__(self) -> None:
        self.buffer = DoubleBuffer.create(buffer_length(LAYOUT))
        self.state = SenderState("model0", self.buffer, LAYOUT, ("tcp", "shm"))

    def publish(self, version: int) -> None:
        half = version % 2
        self.buffer.begin(half)
        self.buffer.half(half)[:4] = version.to_bytes(4, "little")
        self.buffer.finish(half, version)
        self.state.published(build_manifest("model0", version, LAYOUT, self.buffer.half(half)), half)

    def register(self, transport: str = "tcp") -> None:
        host, _, port = ME.partition(":")
        request = RegisterReceiverRequest(sglang_http_host=host, sglang_http_port=int(port), transport=transport)  # type: ignore[arg-type]
        reply = self.state.register(request, "127.0.0.1", 99)
        assert (reply.ok, reply.trainer_rpc_port, reply.trainer_buffer_length) == (True, 99, 12)
        assert reply.shm_name is not None


@pytest.fixture
def sender() -> Iterator[Sender]:
    sender = Sender()
    yield sender
    sender.buffer.close()


def ask(version: int | None = None, mode: str = "full") -> TransferRequest:
    return TransferRequest(instance_id=ME, version=version, mode=mode)  # type: ignore[arg-type]


def test_before_the_first_publish_every_answer_says_so(sender: Sender) -> None:
    sender.register()
    assert sender.state.version == -1
    assert sender.state.capabilities()["version"] == -1
    for question in (sender.state.buffer_info, sender.state.newest, lambda: sender.state.grant(ask())):
        with pytest.raises(DeadlineError, match="no version of model0 yet: waiting for the trainer's first publish"):
            question()


def test_a_receiver_that_is_not_known_is_told_so(sender: Sender) -> None:
    sender.publish(0)
    reply = sender.state.grant(ask())
    assert (reply.ok, reply.reason) == (False, "unknown_instance")


def test_receivers_of_ever_new_addresses_are_forgotten_and_told_to_register_again(sender: Sender) -> None:
    sender.register()
    sender.publish(0)
    for port in range(1, 5001):
        sender.state.register(RegisterReceiverRequest(sglang_http_host="h", sglang_http_port=port), "127.0.0.1", 99)
    assert sender.state.grant(ask()).reason == "unknown_instance"
    sender.register()
    assert sender.state.grant(ask()).ok


def test_a_grant_lends_the_version_until_it_is_overwritten(sender: Sender) -> None:
    sender.register()
    sender.publish(0)
    reply = sender.state.grant(ask(0))
    bulk = sender.state.bulk(bytes.fromhex(reply.ticket))
    assert bulk is not None
    assert (reply.ok, reply.version, reply.bytes, reply.offset) == (True, 0, 12, sender.buffer.offset(0))
    assert (bulk.offset, bulk.length, bulk.intact()) == (reply.offset, 12, True)
    sender.publish(1)
    assert bulk.intact()
    sender.buffer.begin(0)
    assert not bulk.intact()
    sender.publish(2)
    assert not bulk.intact()
    assert sender.state.bulk(bytes.fromhex(reply.ticket)) is None


def test_the_two_newest_versions_can_be_had_and_no_other(sender: Sender) -> None:
    sender.register()
    for version in range(4):
        sender.publish(version)
    assert sender.state.grant(ask()).version == 3
    assert sender.state.grant(ask(2)).version == 2
    for other in (1, 4):
        reply = sender.state.grant(ask(other))
        assert (reply.ok, reply.reason, reply.version) == (False, "version_gone", 3)


def test_a_version_being_overwritten_is_gone_at_once(sender: Sender) -> None:
    sender.register()
    sender.publish(0)
    sender.publish(1)
    sender.buffer.begin(0)
    assert sender.state.grant(ask(0)).reason == "version_gone"
    assert sender.state.grant(ask(1)).ok


def test_a_delta_falls_back_to_full(sender: Sender) -> None:
    sender.register()
    sender.publish(0)
    reply = sender.state.grant(ask(mode="delta"))
    assert (reply.ok, reply.fallback, reply.reason) == (False, "full", "delta_not_ready")


def test_manifests_stay_when_the_bytes_are_gone(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_state, "MANIFESTS_KEPT", 3)
    for version in range(5):
        sender.publish(version)
    assert sender.state.manifest(2).version == 2
    with pytest.raises(CallerError, match="no manifest of model0 version 1; the newest is 4"):
        sender.state.manifest(1)


def test_tickets_are_bounded(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_state, "TICKETS_KEPT", 3)
    sender.register()
    sender.publish(0)
    tickets = [bytes.fromhex(sender.state.grant(ask()).ticket) for _ in range(5)]
    assert [sender.state.bulk(ticket) is not None for ticket in tickets] == [False, False, True, True, True]


def test_documented_status_bodies(sender: Sender) -> None:
    sender.publish(0)
    assert sender.state.buffer_info() == {"single_buffer_length": 12, "tensors_meta": [["w", [[3], "float32"]]]}
    assert sender.state.capabilities() == {
        "strategies": ["full"],
        "version": 0,
        "delta_ready": False,
        "delta_base_version": None,
        "delta_sparsity": None,
        "delta_size_bytes": None,
        "transports": ["tcp", "shm"],
    }
