"""What a trainer and its sender agent say to each other, and the trainer's hold on the agent's life.

The agent's stdin carries orders and its stdout reports, each a u32 length and a msgpack record. The trainer alone
holds the other end of stdin: when the trainer goes, by whatever death, the agent reads the end of file and exits.

    trainer → agent   Settings, then Publish for each version
    agent → trainer   Listening once its ports are bound; Published or Superseded for each Publish, and after Published
                      DeltaMade where deltas are asked for; Failed as its last words where it cannot go on
"""

from __future__ import annotations

import contextlib
import os
import select
import struct
import subprocess
import sys
import time
from typing import BinaryIO, TypeVar

import msgspec

from astraflow.core.data import Canary, Manifest, TensorEntry, decode, encode
from astraflow.core.observability import log
from astraflow.errors import DeadlineError, WeightError

M = TypeVar("M", bound=msgspec.Struct)

_LENGTH = struct.Struct("<I")
EXIT_S = 5.0
"""Seconds the agent gets to exit by itself after its stdin was closed."""
_MODULE = "astraflow.core.weight_manager.sender_agent"


class Settings(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first order: what to serve, and where. Sent through the pipe so that the token is in no process list."""

    model_id: str
    host: str
    port: int
    """0: any free one."""
    token: str
    transports: tuple[str, ...]
    segment_fd: int
    """Descriptor of the double buffer, inherited under this number."""
    length: int
    """Bytes of one half."""
    layout: tuple[TensorEntry, ...]
    deltas_kept: int = 0
    """0: no deltas are made."""
    folder: str | None = None
    """Where versions are put for receivers that read a shared disk (transport disk)."""


class Publish(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A version lies whole in a half."""

    version: int
    half: int
    canaries: tuple[Canary, ...] = ()
    restored: bool = False


class Listening(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The ports are bound and served."""

    port: int
    bulk_port: int


class Published(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The version can be pulled."""

    manifest: Manifest
    digest_s: float
    """Seconds its digests took."""


class Superseded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The version was overwritten before its digests were done; it never existed for anybody."""

    version: int


class DeltaMade(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A version's delta can be pulled, or there is none."""

    version: int
    base: int | None
    """None: there is no delta, for `reason`."""
    reason: str = ""
    """no_base, too_long or overwritten"""
    digest: str = ""
    bytes: int = 0
    changed: int = 0
    seconds: float = 0.0
    """To compare, encode and store, beside the trainer."""


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The agent's last report: why it ends."""

    reason: str


Order = Settings | Publish
Said = Listening | Published | Superseded | DeltaMade
Report = Said | Failed


def pack(message: Order | Report) -> bytes:
    body = encode(message)
    return _LENGTH.pack(len(body)) + body


def read_order(stream: BinaryIO) -> Order | None:
    """Block for the trainer's next order; None when the trainer is gone, also in the middle of one."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    body = stream.read(length)
    return decode(body, Order) if len(body) == length else None  # type: ignore[arg-type]


class AgentProcess:
    """The trainer's handle on its sender agent."""

    def __init__(self, settings: Settings) -> None:
        self._name = f"weight sender agent of {settings.model_id}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[settings.segment_fd],
        )
        self._received = bytearray()
        self.send(settings)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, order: Order) -> None:
        """Give an order; WeightError where the agent is gone."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(pack(order))
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise WeightError(self._gone()) from error

    def receive(self, deadline: float, awaited: str) -> Said:
        """Return the agent's next report; DeadlineError once time.monotonic() > deadline, WeightError: it is gone."""
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        started = time.monotonic()
        while (report := self._next()) is None:
            ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise DeadlineError(
                    f"the {self._name} did not report {awaited} within {time.monotonic() - started:.1f} s"
                )
            part = os.read(fd, 1 << 20)
            if not part:
                raise WeightError(self._gone())
            self._received += part
        if isinstance(report, Failed):
            raise WeightError(self._gone(report.reason))
        return report

    def close(self) -> None:
        """End the agent: the end of its stdin is its order to exit; a stuck one is killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it may be gone already
            self._process.stdin.close()
        try:
            self._process.wait(EXIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _next(self) -> Report | None:
        if len(self._received) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(self._received)[0]
        if len(self._received) < end:
            return None
        body = bytes(self._received[_LENGTH.size : end])
        del self._received[:end]
        return decode(body, Report)  # type: ignore[arg-type]

    def _gone(self, reason: str = "") -> str:
        """Say how the agent ended, and why where it still said so."""
        assert self._process.stdout is not None
        code = self._process.wait(EXIT_S)
        while part := os.read(self._process.stdout.fileno(), 1 << 20):
            self._received += part
        while (report := self._next()) is not None:
            reason = report.reason if isinstance(report, Failed) else reason
        why = f": {reason}" if reason else ""
        # it writes where this process does
        return f"the {self._name} ended with exit code {code}{why}; log: {log.destination()}"
