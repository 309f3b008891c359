"""What travels between a RewardPool and its workers: pickled lists of Load and Run one way, msgpack Rewards back.

A frame is HEADER and that many bytes. Every request has exactly one reply, in order; before the first, a worker says by
one more reply that it is alive.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import msgspec

from astraflow.core.workflow.reward.shipping import Shipment

HEADER = struct.Struct("<I")
"""Bytes in the frame that follows."""


class Call(msgspec.Struct, frozen=True):
    """The arguments of one call."""

    prompt: str
    completions: str
    prompt_ids: list[int]
    completion_ids: list[int]
    row: dict[str, Any]


class Load(msgspec.Struct, frozen=True):
    """Make a function available under a number."""

    key: int
    shipment: Shipment


class Run(msgspec.Struct, frozen=True):
    """Call a function that was loaded."""

    key: int
    call: Call


def take_frames(buffer: bytearray) -> Iterator[bytearray]:
    """Remove the complete frames from the front of a buffer."""
    while len(buffer) >= HEADER.size and len(buffer) >= (end := HEADER.size + HEADER.unpack_from(buffer)[0]):
        frame = buffer[HEADER.size : end]
        del buffer[:end]
        yield frame


def frame(body: bytes) -> bytes:
    return HEADER.pack(len(body)) + body
