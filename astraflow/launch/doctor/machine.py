"""What this machine has: a plain record, so that checks can be tried on machines that are not here."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from astraflow.launch.doctor.finding import Finding, error, ok

GIB = 2**30
_CGROUP = Path("/sys/fs/cgroup")
_PACKAGES = ("torch", "tokenizers", "safetensors")


@dataclass(frozen=True)
class Machine:
    """Cores and bytes that this process may use."""

    cores: int
    memory: int
    """Bytes in all, a container's limit counted."""
    memory_available: int
    """Bytes that are free or could be freed now."""
    shares_memory: bool
    """Processes can open each other's anonymous memory (through /proc)."""
    gpus: int

    @classmethod
    def here(cls) -> Machine:
        """Look at this machine. Linux and macOS."""
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        limit = min(total, _limit("memory.max") or total)
        available = min(_meminfo("MemAvailable") or total, limit - (_limit("memory.current") or 0) or limit)
        return cls(
            cores=_cores(),
            memory=limit,
            memory_available=available,
            shares_memory=Path("/proc/self/fd").is_dir(),
            gpus=len(list(Path("/proc/driver/nvidia/gpus").glob("*"))),
        )


def check(machine: Machine) -> list[Finding]:
    """The machine in one line, and whether what every run needs is installed."""
    missing = [name for name in _PACKAGES if _version(name) is None]
    if missing:
        return [error("machine", f"not installed: {', '.join(missing)}", "install astraflow with its requirements")]
    gpus = f", {machine.gpus} GPU" if machine.gpus else ""
    return [
        ok(
            "machine",
            f"{machine.cores} cores, {machine.memory / GIB:.1f} GiB of memory ({machine.memory_available / GIB:.1f} "
            f"available){gpus}, {platform.system()}, Python {platform.python_version()}, torch {_version('torch')}",
        )
    ]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cores() -> int:
    """Cores of this process: affinity, and a container's share of time."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    try:
        quota, _, period = (_CGROUP / "cpu.max").read_text("ascii").partition(" ")
    except OSError:
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def _limit(name: str) -> int | None:
    """A figure of this process's container; None where there is none."""
    try:
        text = (_CGROUP / name).read_text("ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _meminfo(name: str) -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), None)
