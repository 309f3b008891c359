"""A process that computes rewards, started by `RewardPool` as `python -m astraflow.core.workflow.reward.worker FD`.

Consumes frames of pickled requests from its parent's socket, produces one msgpack Reward a request, in order. It holds
no deadline itself: the parent kills it. It ends when the parent does: the socket closes, and the kernel's parent-death
signal covers a worker that is stuck in C code at that moment.
"""

from __future__ import annotations

import ctypes
import io
import os
import pickle
import signal
import socket
import sys
import threading
from queue import SimpleQueue
from typing import Any

import msgspec

from astraflow.core.data import Invalid, Reward, Value
from astraflow.core.workflow.reward.messages import Call, Load, frame, take_frames
from astraflow.core.workflow.reward.outcome import crash, evaluate
from astraflow.core.workflow.reward.shipping import RewardFunction, unship

_PR_SET_PDEATHSIG = 1
"""From <linux/prctl.h>."""
LOADED = Value(0.0)
"""The reply to what gives no reward."""


MOST_PRINTED = 2**16
"""Characters that a worker's rewards may write to each of its outputs: these are the service's log."""


class Bounded(io.TextIOWrapper):
    """An output that takes MOST_PRINTED characters, says so, and drops the rest."""

    _left = MOST_PRINTED

    def write(self, text: str) -> int:
        if self._left > 0:
            super().write(text[: self._left])
            self._left -= len(text)
            if self._left <= 0:
                super().write("\n… what this reward worker prints from here on is left out\n")
            self.flush()
        return len(text)


def main(descriptor: int, parent: int) -> None:
    _die_with(parent)
    channel = socket.socket(fileno=descriptor)
    inbox: SimpleQueue[Any] = SimpleQueue()
    # reading goes on while a reward computes, so that the parent never blocks on a full socket
    threading.Thread(target=_receive, args=(channel, inbox), daemon=True).start()
    functions: dict[int, RewardFunction | Invalid] = {}
    encoder = msgspec.msgpack.Encoder()
    channel.sendall(frame(encoder.encode(LOADED)))  # alive
    while True:
        request = inbox.get()
        reply = _load(functions, request) if isinstance(request, Load) else _run(functions[request.key], request.call)
        channel.sendall(frame(encoder.encode(reply)))


def _load(functions: dict[int, RewardFunction | Invalid], request: Load) -> Reward:
    try:
        functions[request.key] = unship(request.shipment)
    except (Exception, SystemExit) as error:  # an import may raise anything: each call of this function answers with it
        functions[request.key] = crash(error)
    return LOADED


def _run(function: RewardFunction | Invalid, call: Call) -> Reward:
    return function if isinstance(function, Invalid) else evaluate(function, call)


def _receive(channel: socket.socket, inbox: SimpleQueue[Any]) -> None:
    buffer = bytearray()
    while data := channel.recv(1 << 16):
        buffer += data
        for requests in take_frames(buffer):
            for request in pickle.loads(requests):
                inbox.put(request)
    os._exit(0)  # the parent is gone


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(0)


if __name__ == "__main__":
    # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout, sys.stderr = (Bounded(each.buffer, each.encoding, each.errors) for each in (sys.stdout, sys.stderr))
    main(int(sys.argv[1]), int(sys.argv[2]))
