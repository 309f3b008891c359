"""WeightManager: the trainer's side of weight transfer.

A trainer publishes by copying its parameters, rounded to the wire dtype, into the inactive half of a double buffer,
and is free again. The sender agent digests that half and serves it. Publishing waits for no receiver: whoever still
reads the half that is overwritten is cut off and restarts on the newest version.

    manager = WeightManager("model0", token, wire_dtype="bfloat16")
    manager.initialize(dict(named_weights(decoder)), aliases=tied_aliases(config))
    manager.offload(named_params, version=0)
    manifest = manager.manifest(0)            # the version exists from here on
    ready(sender_endpoint=manager.get_sender_endpoint(), manifest=manifest)
    …
    manager.shutdown()

With strategy "delta" the agent also makes the delta from the version before, beside the trainer; `wait_delta_ready`
is for those who want to know, nobody has to call it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from astraflow.core.data import Canary, Manifest
from astraflow.core.weight_manager.agent_pipe import (
    AgentProcess,
    DeltaMade,
    Listening,
    Publish,
    Published,
    Said,
    Settings,
)
from astraflow.core.weight_manager.layout import buffer_length
from astraflow.core.weight_manager.policy import Strategy
from astraflow.core.weight_manager.segment import HALVES, DoubleBuffer, path_of
from astraflow.core.weight_manager.tensors import NamedTensors, WireBuffer, describe
from astraflow.core.weight_manager.version_log import VersionLog
from astraflow.errors import WeightError

TIMEOUT_S = 120.0
"""Seconds to wait for the agent: to start, to digest a version."""
MANIFESTS_KEPT = 256
DELTAS_KEPT = 8
"""Deltas that a late receiver can chain; their size is bounded as well (delta_store)."""


class Ranks(Protocol):
    """The ranks of a sharded trainer; tensors.TorchRanks for torch.distributed. Collectives: all ranks call them."""

    def share(self, text: str) -> str:
        """Rank 0's text, on every rank."""
        ...

    def agree(self, mine: bool) -> bool:
        """Whether all ranks say yes; nobody goes on before everybody has answered."""
        ...


class WeightManager:
    """Publishes the versions of one model. Used from one thread."""

    def __init__(
        self,
        model_id: str,
        token: str,
        *,
        transports: tuple[str, ...] = ("tcp", "shm"),
        wire_dtype: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        strategy: Strategy = "full",
        folder: Path | None = None,
        log: VersionLog | None = None,
    ) -> None:
        """`wire_dtype` None: each tensor travels in its own dtype. `port` 0: any free one, see get_sender_endpoint.

        `folder` is where transport disk puts its versions; the manager owns it. `log` notes every version.
        """
        if ("disk" in transports) != (folder is not None):
            raise WeightError(f"transport disk needs a folder, others take none; given: {transports}, {folder}")
        self._ranks: Ranks | None = None
        self._shared = True
        self._strategy = strategy
        self._folder = folder
        self._log = log
        self.model_id = model_id
        self._token = token
        self._transports = transports
        self._wire_dtype = wire_dtype
        self._host = host
        self._port = port
        self._buffer: DoubleBuffer | None = None
        self._agent: AgentProcess | None = None
        self._halves: list[WireBuffer] = []
        self._active = HALVES - 1
        self._newest = -1
        self._listening: Listening | None = None
        self._published: dict[int, Published | None] = {}
        self._deltas: dict[int, DeltaMade] = {}

    def initialize(
        self,
        named_params: NamedTensors,
        aliases: Mapping[str, tuple[str, ...]] | None = None,
        ranks: Ranks | None = None,
        rank: int = 0,
    ) -> None:
        """Lay out the parameters, allocate both halves and start the agent (which is not waited for).

        Tied parameters are recognised by their storage, or named: `aliases` maps a parameter to its other names.
        With `ranks` every rank of a sharded trainer calls this. Rank 0 owns buffer and agent; ranks on its host write
        their shards beside it, and if there is one on another host, everything is gathered.
        """
        if self._buffer is not None:
            raise WeightError(f"weights of {self.model_id} are initialised already")
        params = dict(named_params)
        layout = describe(params, self._wire_dtype, aliases)
        if not layout:
            raise WeightError(f"{self.model_id} has no parameters to publish")
        self._ranks = ranks
        length = buffer_length(layout)
        self._buffer = DoubleBuffer.create(length) if rank == 0 else None
        if ranks is not None:
            path = ranks.share("" if self._buffer is None else f"{socket.gethostname()}:{path_of(self._buffer.fd)}")
            if rank != 0:
                self._buffer = _join(path, length)
            self._shared = ranks.agree(self._buffer is not None)
            if self._buffer is None:  # written by nobody: this rank only takes part in gathering
                self._buffer = DoubleBuffer.create(length)
        assert self._buffer is not None
        self._halves = [WireBuffer(layout, self._buffer.half(half)) for half in range(HALVES)]
        if any(param.is_cuda for param in params.values()):
            for half in self._halves:
                half.pin()
        if rank != 0:
            return
        settings = Settings(
            model_id=self.model_id,
            host=self._host,
            port=self._port,
            token=self._token,
            transports=self._transports,
            segment_fd=self._buffer.fd,
            length=self._buffer.length,
            layout=layout,
            deltas_kept=DELTAS_KEPT if self._strategy == "delta" else 0,
            folder=None if self._folder is None else str(self._folder),
        )
        self._agent = AgentProcess(settings)

    def offload(
        self,
        named_params: NamedTensors,
        version: int,
        rank: int = 0,
        world_size: int = 1,
        canaries: tuple[Canary, ...] = (),
        restored: bool = False,
    ) -> dict[str, float]:
        """Publish `version`; returns when the parameters are copied, so training may go on overwriting them.

        Of several ranks that were initialised together, each writes its shards; without that, rank 0 publishes
        parameters that were gathered to it and the others return at once.
        `canaries` and `restored` go into the manifest as they are.
        Returns {copy_s, bytes}. WeightError: the number is not higher than the last one, or a tensor does not fit or
        holds NaN or infinity: then nothing is published, and nobody else gets the blame.
        """
        if not 0 <= rank < world_size:
            raise WeightError(f"rank {rank} is not one of {world_size}")
        if rank != 0 and self._ranks is None:
            return {"copy_s": 0.0, "bytes": 0.0}
        if version <= self._newest:
            raise WeightError(
                f"version {version} of {self.model_id} cannot follow {self._newest}: numbers never repeat"
            )
        started = time.perf_counter()
        half = (self._active + 1) % HALVES
        buffer = self._opened()
        if rank == 0:
            buffer.begin(half)
        # nobody writes into a half before its readers are cut off, and it is not whole before all have written
        self._together(True)
        try:
            self._halves[half].write(dict(named_params), rank, self._shared, finite=True)
        except WeightError:
            self._together(False)
            raise
        if not self._together(True):
            raise WeightError(f"version {version} of {self.model_id} was not written by every rank")
        self._active, self._newest = half, version
        if rank != 0:
            return {"copy_s": time.perf_counter() - started, "bytes": float(buffer.length)}
        buffer, agent = self._started()
        buffer.finish(half, version)
        agent.send(Publish(version=version, half=half, canaries=canaries, restored=restored))
        return {"copy_s": time.perf_counter() - started, "bytes": float(buffer.length)}

    def manifest(self, version: int, timeout: float = TIMEOUT_S) -> Manifest:
        """What `version` is; waits for the agent's digests, after which it can be pulled.

        WeightError: it was never published, or overwritten by two later ones before it was digested.
        """
        return self._report_of(version, timeout).manifest

    def wait_delta_ready(self, timeout: float = TIMEOUT_S) -> bool:
        """Wait until the newest version's delta can be pulled; False where there is none (see delta_report).

        DeadlineError: it is still being made.
        """
        if self._strategy != "delta":
            return False
        deadline = time.monotonic() + timeout
        newest = self._newest
        self._report_of(newest, timeout)
        while newest not in self._deltas:
            self._note(self._started()[1].receive(deadline, f"the delta to version {newest}"))
        return self._deltas[newest].base is not None

    def delta_report(self, version: int) -> DeltaMade | None:
        """What became of a version's delta, once the agent has said so."""
        return self._deltas.get(version)

    def digest_s(self, version: int, timeout: float = TIMEOUT_S) -> float:
        """Seconds the agent took for a version's digests, beside the trainer."""
        return self._report_of(version, timeout).digest_s

    def get_sender_endpoint(self, timeout: float = TIMEOUT_S) -> str:
        """ "host:port" of the agent's control routes, bound and served."""
        deadline = time.monotonic() + timeout
        while self._listening is None:
            self._note(self._started()[1].receive(deadline, "that it listens"))
        return f"{self._host}:{self._listening.port}"

    @property
    def agent_pid(self) -> int:
        """The agent's process id."""
        return self._started()[1].pid

    def shutdown(self) -> None:
        """End the agent and free the memory; again is fine."""
        if self._agent is not None:
            self._agent.close()
        for half in self._halves:
            half.unpin()
        self._halves = []
        if self._buffer is not None:
            self._buffer.close()
        self._agent = self._buffer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _started(self) -> tuple[DoubleBuffer, AgentProcess]:
        if self._buffer is None or self._agent is None:
            raise WeightError(f"weights of {self.model_id} are not initialised")
        return self._buffer, self._agent

    def _opened(self) -> DoubleBuffer:
        if self._buffer is None:
            raise WeightError(f"weights of {self.model_id} are not initialised")
        return self._buffer

    def _together(self, mine: bool) -> bool:
        return mine if self._ranks is None else self._ranks.agree(mine)

    def _report_of(self, version: int, timeout: float) -> Published:
        deadline = time.monotonic() + timeout
        if version > self._newest:
            raise WeightError(f"version {version} of {self.model_id} is not published; the newest is {self._newest}")
        while version not in self._published and version > max(self._published, default=-1):
            self._note(self._started()[1].receive(deadline, f"version {version}"))
        report = self._published.get(version)
        if report is None:
            raise WeightError(f"version {version} of {self.model_id} was never published, or overwritten too early")
        return report

    def _note(self, report: Said) -> None:
        """File a report of the agent; they come in order of publication."""
        if isinstance(report, Listening):
            self._listening = report
            return
        if isinstance(report, DeltaMade):
            self._deltas[report.version] = report
            for number in list(self._deltas)[:-MANIFESTS_KEPT]:
                del self._deltas[number]
            return
        version = report.manifest.version if isinstance(report, Published) else report.version
        if self._log is not None and isinstance(report, Published):
            self._log.published(report.manifest)
        self._published[version] = report if isinstance(report, Published) else None
        for number in list(self._published)[:-MANIFESTS_KEPT]:
            del self._published[number]


def _join(place: str, length: int) -> DoubleBuffer | None:
    """Map rank 0's buffer for writing; None where it is on another host."""
    host, _, path = place.partition(":")
    if host != socket.gethostname():
        return None
    try:
        return DoubleBuffer.join(os.open(path, os.O_RDWR | os.O_CLOEXEC), length)
    except OSError:
        return None  # another container of the same name: its processes are not ours
