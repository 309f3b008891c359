"""Weights: are those of the model's files finite and what its config.json says; their types in trainer, on the wire
and in the engine, where they are computed, and how they travel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from astraflow.core.model.config import ModelConfig
from astraflow.core.model.hf import INDEX, SINGLE, indexed_files, non_finite, read_tensors, torch_dtype
from astraflow.errors import AstraFlowError
from astraflow.launch.config import TRAINER
from astraflow.launch.doctor.finding import Finding, error, ok, unless, warning
from astraflow.launch.doctor.subject import Subject
from astraflow.launch.model_source import planned_model

CHECK = "weights"
MANTISSA_BITS = {"float32": 23, "float16": 10, "bfloat16": 7}


def check(subject: Subject) -> list[Finding]:
    experiment = subject.config.experiment
    wire = experiment.wire_dtype or experiment.dtype
    fine = f"trained in {experiment.dtype}, sampled in {wire}, sent by {experiment.weight_transfer_mode}"
    return unless([*_files(subject), *_types(subject), *_devices(subject), *_transfer(subject)], ok(CHECK, fine))


def _files(subject: Subject) -> Iterator[Finding]:
    """What is wrong with the files of a model that is here; all of them are read."""
    directory = planned_model(subject.config)
    if subject.model is None or subject.config.base_model is not None or not directory.is_dir():
        return
    key = "experiment.model_path"
    try:
        if (directory / SINGLE).is_file() and indexed_files(directory) not in ([], [SINGLE]):
            yield warning(
                CHECK,
                f"{directory} holds {SINGLE}, which is read, and {INDEX}, which names other files",
                "remove those of the older save: programs differ in which of them they read",
                key,
            )
        yield from _tensors(subject, directory, key)
    except AstraFlowError as failure:
        yield error(CHECK, str(failure), "copy the model's directory again", key)


def _tensors(subject: Subject, directory: Path, key: str) -> Iterator[Finding]:
    experiment = subject.config.experiment
    types, wrong = set(), []
    for name, tensor in read_tensors(directory):
        types.add(str(tensor.dtype).removeprefix("torch."))
        if not tensor.is_floating_point():
            continue
        trained = tensor.to(torch_dtype(experiment.dtype))
        text = non_finite(tensor, trained.dtype, trained) or non_finite(
            trained, torch_dtype(experiment.wire_dtype or experiment.dtype)
        )
        wrong += [f"{name}: {text}"] if text else []
    if wrong:
        more = f" (and {len(wrong) - 1} more tensors)" if len(wrong) > 1 else ""
        yield error(
            CHECK, f"{directory}: {wrong[0]}{more}", "take a model whose weights are finite, or a wider type", key
        )
    source = ModelConfig.read(directory).source
    said = source.get("dtype") or source.get("torch_dtype")
    if said is not None and types and said not in types:
        yield warning(
            CHECK,
            f"{directory}/config.json says {said}, and the weights are {', '.join(sorted(types))}",
            f"set dtype to {min(types)} there: programs that read it convert the weights to what it says",
            key,
        )


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
