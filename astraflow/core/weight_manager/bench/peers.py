"""The yardsticks: what memory and loopback give to the simplest program.

    python -m astraflow.core.weight_manager.bench.peers PATH LENGTH STREAMS

serves a file once: it prints its port, accepts STREAMS connections and sends each its part with sendfile.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import numpy as np

from astraflow.core.weight_manager.transports.tcp import split

REPEATS = 5


def best(measure: Callable[[], float], repeats: int = REPEATS) -> float:
    """The shortest of several measured times: what else runs on the machine only ever adds."""
    return min(measure() for _ in range(repeats))


def memcpy_s(nbytes: int) -> float:
    """Seconds to copy `nbytes` in memory, pages touched before."""
    source, target = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)

    def once() -> float:
        started = time.perf_counter()
        np.copyto(target, source)
        return time.perf_counter() - started

    return best(once)


def plain_transfer_s(path: str, offset: int, length: int, into: memoryview, streams: int) -> float:
    """Seconds from connecting until all bytes are there, from a plain sendfile process over loopback."""
    ranges = split(length, streams)
    sender = subprocess.Popen(
        [sys.executable, "-m", __name__, path, str(offset), str(length), str(streams)],
        stdout=subprocess.PIPE,
    )
    assert sender.stdout is not None
    try:
        port = int(sender.stdout.readline())
        started = time.perf_counter()
        threads = [threading.Thread(target=_receive, args=(port, into[a:b], a)) for a, b in ranges]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - started
    finally:
        sender.wait()
        sender.stdout.close()


def _receive(port: int, into: memoryview, offset: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(offset.to_bytes(8, "little"))
        done = 0
        while done < len(into) and (count := connection.recv_into(into[done:])):
            done += count


def _serve(path: str, offset: int, length: int, streams: int) -> None:
    ranges = dict(split(length, streams))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        os.write(1, f"{listener.getsockname()[1]}\n".encode())
        threads = []
        for _ in ranges:
            connection, _ = listener.accept()
            threads.append(threading.Thread(target=_send, args=(connection, path, offset, ranges)))
            threads[-1].start()
        for thread in threads:
            thread.join()


def _send(connection: socket.socket, path: str, offset: int, ranges: dict[int, int]) -> None:
    with connection, open(path, "rb") as file:
        start = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "little")
        connection.sendfile(file, offset + start, ranges[start] - start)


if __name__ == "__main__":
    _serve(sys.argv[1], *map(int, sys.argv[2:]))
