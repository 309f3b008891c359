"""Threads against cores.

Two busy processes with two threads each on two cores are several times slower than with one each: a thread that waits
at an OpenMP barrier for one that does not run burns the core that the other needs (10-30× per barrier).
"""

from __future__ import annotations

from astraflow.launch.config import TRAINER
from astraflow.launch.doctor.finding import Finding, error, ok, unless, warning
from astraflow.launch.doctor.subject import Subject

CHECK = "threads"


def check(subject: Subject) -> list[Finding]:
    """The computing processes that run at the same time share the machine's cores."""
    config, cores = subject.config, subject.machine.cores
    per_process = {"raas.threads": config.raas.threads}
    per_process |= {f"{TRAINER}{model_id}.threads": trainer.threads for model_id, trainer in config.trainers.items()}
    together = {**per_process, "raas.threads": config.raas.instances * config.raas.threads}
    total = sum(together.values())
    shown = " + ".join(f"{count} ({key})" for key, count in together.items())
    found = []
    if total > cores and max(per_process.values()) > 1:
        most = max(per_process, key=lambda key: per_process[key])
        found.append(
            error(
                CHECK,
                f"{total} torch threads on {cores} cores: {shown}; threads without a core make every step several "
                "times slower",
                f"set {most}={max(1, per_process[most] - (total - cores))}, so that all threads together are at most "
                f"{cores}",
                most,
            )
        )
    elif total > cores:
        found.append(
            warning(
                CHECK,
                f"{total} computing processes share {cores} cores: rollouts and training slow each other down",
                "fewer raas.instances, or a machine with more cores",
            )
        )
    base = config.base_model
    if base is not None and base.threads > cores:
        found.append(
            error(
                CHECK,
                f"{base.threads} torch threads on {cores} cores",
                f"set base_model.threads={cores}; 1 is nearly as fast for the presets",
                "base_model.threads",
            )
        )
    return unless(found, ok(CHECK, f"{total} torch threads on {cores} cores"))
