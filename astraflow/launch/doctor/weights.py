"""Types of the weights in trainer, on the wire and in the engine, where they are computed, and how they travel."""

from __future__ import annotations

from collections.abc import Iterator

from astraflow.launch.config import TRAINER
from astraflow.launch.doctor.finding import Finding, error, ok, unless, warning
from astraflow.launch.doctor.subject import Subject

CHECK = "weights"
MANTISSA_BITS = {"float32": 23, "float16": 10, "bfloat16": 7}


def check(subject: Subject) -> list[Finding]:
    experiment = subject.config.experiment
    wire = experiment.wire_dtype or experiment.dtype
    fine = f"trained in {experiment.dtype}, sampled in {wire}, sent by {experiment.weight_transfer_mode}"
    return unless([*_types(subject), *_devices(subject), *_transfer(subject)], ok(CHECK, fine))


def _types(subject: Subject) -> Iterator[Finding]:
    experiment = subject.config.experiment
    wire = experiment.wire_dtype or experiment.dtype
    if MANTISSA_BITS[wire] > MANTISSA_BITS[experiment.dtype]:
        yield warning(
            CHECK,
            f"{wire} carries weights that are {experiment.dtype}: more bytes, nothing more in them",
            f"set experiment.wire_dtype={experiment.dtype}, or leave it out",
            "experiment.wire_dtype",
        )
    if experiment.dtype == "float16":
        yield warning(
            CHECK,
            "training computes in float16, whose range gradients leave (there is no loss scaling)",
            "set experiment.dtype=bfloat16",
            "experiment.dtype",
        )
    for model_id, trainer in subject.config.trainers.items():
        if wire != experiment.dtype and trainer.actor.loss == "ppo":
            yield warning(
                CHECK,
                f"the engine samples with {wire} weights and the trainer has {experiment.dtype} ones: ratios are not 1 "
                "for an unchanged policy, and loss: ppo takes the difference for learning",
                f"set {TRAINER}{model_id}.actor.loss=decoupled",
                f"{TRAINER}{model_id}.actor.loss",
            )


def _devices(subject: Subject) -> Iterator[Finding]:
    if subject.machine.gpus:
        return
    config = subject.config
    wanted = {
        f"{TRAINER}{model_id}.engine.device": trainer.engine.device for model_id, trainer in config.trainers.items()
    }
    wanted |= {
        f"raas.models.{model_id}.embedded.device": m.embedded.device for model_id, m in config.raas.models.items()
    }
    for key, device in wanted.items():
        if device == "cuda":
            yield error(CHECK, "cuda is asked for, and this machine has no NVIDIA GPU", f"set {key}=cpu", key)


def _transfer(subject: Subject) -> Iterator[Finding]:
    key = "experiment.weight_transfer_mode"
    if subject.config.experiment.weight_transfer_mode == "shm" and not subject.machine.shares_memory:
        yield error(CHECK, "shm needs a system with /proc; this one has none", f"set {key}=tcp", key)
