"""What tells two lists of rows apart."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

import msgspec

from astraflow.core.data.trajectory import Row


def rows_digest(rows: Iterable[Row]) -> str:
    """Return the BLAKE2b-128 of rows in their order, as canonical JSON: a column's place in its row does not count.

    A value that JSON lacks counts by its type only: no address in memory gets into it.
    """
    encoder = msgspec.json.Encoder(enc_hook=_named, order="deterministic")
    digest = hashlib.blake2b(digest_size=16)
    for row in rows:
        try:
            text = encoder.encode(row)
        except (TypeError, ValueError, OverflowError):
            # what the faster encoder cannot write, as integers beyond 64 bits and half characters
            text = json.dumps(row, sort_keys=True, separators=(",", ":"), default=_named).encode("ascii")
        digest.update(text + b"\n")
    return digest.hexdigest()


def _named(value: object) -> str:
    return type(value).__name__
