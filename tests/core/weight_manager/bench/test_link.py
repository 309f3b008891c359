from __future__ import annotations

import socket
import time

import pytest

from astraflow.core.weight_manager.bench.link import SlowLink, TokenBucket


def test_a_bucket_lets_its_burst_pass_at_once_and_then_its_rate() -> None:
    bucket = TokenBucket(rate=1000.0, burst=100.0)
    before = time.monotonic()
    at_once = bucket.take(100)
    assert before <= at_once + 1e-6
    assert at_once <= time.monotonic() + 1e-6
    assert bucket.take(1000) == pytest.approx(at_once + 1.0)
    assert bucket.take(500) == pytest.approx(at_once + 1.5)


def test_bytes_cross_unchanged_and_late() -> None:
    link = SlowLink(rate=1e9, round_trip_s=0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        address = link.reach("127.0.0.1", server.getsockname()[1])
        assert link.reach("127.0.0.1", server.getsockname()[1]) == address
        with socket.create_connection(address, timeout=10) as near:
            far, _ = server.accept()
            with far:
                far.settimeout(10)
                started = time.monotonic()
                near.sendall(b"question")
                assert far.recv(8, socket.MSG_WAITALL) == b"question"
                far.sendall(b"answer")
                assert near.recv(6, socket.MSG_WAITALL) == b"answer"
                assert time.monotonic() - started >= 0.09
    link.close()
