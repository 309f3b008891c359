"""Fixed ports are free. A port of 0 is chosen when it is bound, so nothing can go wrong with it."""

from __future__ import annotations

import socket

from astraflow.launch.doctor.finding import Finding, error, ok, unless
from astraflow.launch.doctor.subject import Subject

CHECK = "ports"


def check(subject: Subject) -> list[Finding]:
    config = subject.config
    wanted = {"dataflow": (config.dataflow.host, config.dataflow.port), "raas": (config.raas.host, config.raas.port)}
    fixed = {name: address for name, address in wanted.items() if address[1]}
    found = []
    if len(fixed) == 2 and config.dataflow.port == config.raas.port:
        found.append(
            error(
                CHECK, f"dataflow and raas both want port {config.raas.port}", "give them different ones", "raas.port"
            )
        )
    for name, (host, port) in fixed.items():
        if (problem := refused(host, port)) is not None:
            found.append(
                error(
                    CHECK,
                    f"{host}:{port} cannot be had: {problem}",
                    f"end what listens there, or set {name}.port=0 for any free port",
                    f"{name}.port",
                )
            )
    shown = ", ".join(f"{name} {host}:{port}" for name, (host, port) in fixed.items())
    return unless(found, ok(CHECK, f"free: {shown}" if shown else "any free ones (all are 0)"))


def refused(host: str, port: int) -> str | None:
    """Why a socket cannot be bound there, or None. Binds as the servers do, and lets go."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as problem:
            return problem.strerror or str(problem)
    return None
