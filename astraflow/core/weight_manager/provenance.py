"""Invariant 5 after the fact: does a run's directory prove where every sampled token came from?

Reads what trainer and RaaS noted (version_log), the trajectories that were kept and the checkpoints. Nothing here asks
a running process.
"""

from __future__ import annotations

import mmap
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from astraflow.core.data import TensorEntry
from astraflow.core.weight_manager.digest import tensor_digest, total_digest
from astraflow.core.weight_manager.version_log import Alarm, Catalogue, PublishedVersion, ServedVersion, read_logs
from astraflow.errors import DataError, boundary

_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
"""safetensors' names of wire dtypes."""

NAMED = 5
"""Tensors that a problem names; the others are counted."""


class _Sample(msgspec.Struct, frozen=True):
    """What is read of a kept trajectory."""

    model_id: str
    step: int
    sample_id: int
    outcome: str
    versions: list[int]
    mask: list[int | bool]


@dataclass
class ModelHistory:
    """The versions of one policy, as logged."""

    catalogues: dict[int, Catalogue] = field(default_factory=dict)
    """By version: the catalogue that it was published under."""
    published: list[PublishedVersion] = field(default_factory=list)
    served: dict[int, list[ServedVersion]] = field(default_factory=lambda: defaultdict(list))
    alarms: list[Alarm] = field(default_factory=list)

    def named_digests(self, version: PublishedVersion) -> dict[str, str]:
        """Digest of each tensor, under all of its names."""
        tensors = self.catalogues[version.version].tensors
        return {
            name: digest
            for (first, _, _, aliases), digest in zip(tensors, version.tensors, strict=True)
            for name in (first, *aliases)
        }


@dataclass
class Verification:
    """What `verify` looked at, and what is wrong."""

    versions: int = 0
    served: int = 0
    tokens: int = 0
    """Sampled tokens of kept trajectories."""
    quarantined: int = 0
    """Samples among them whose tokens do not resolve and which were therefore not trained."""
    checkpoints: dict[str, int | None] = field(default_factory=dict)
    """Name → the version that it is; None: none, or it cannot be told from its dtype."""
    problems: list[str] = field(default_factory=list)


def history(run: Path) -> dict[str, ModelHistory]:
    """Everything logged about a run's versions, by model. DataError: there is nothing, or a broken line."""
    models: dict[str, ModelHistory] = defaultdict(ModelHistory)
    newest: dict[str, Catalogue] = {}
    for line in read_logs(run):
        model = models[line.model_id]
        match line:
            case Catalogue():
                newest[line.model_id] = line
            case PublishedVersion():
                if line.model_id not in newest:
                    raise DataError(f"{run}: version {line.version} of {line.model_id} is logged without its tensors")
                model.catalogues[line.version] = newest[line.model_id]
                model.published.append(line)
            case ServedVersion():
                model.served[line.version].append(line)
            case Alarm():
                model.alarms.append(line)
    if not models:
        raise DataError(f"{run} has no log of weight versions (RUN/versions/*.jsonl)")
    return dict(models)


def verify(run: Path) -> Verification:
    """Check a whole run."""
    models = history(run)
    result = Verification()
    for model_id, model in models.items():
        result.versions += len(model.published)
        result.served += sum(map(len, model.served.values()))
        result.problems += [f"{model_id}: {problem}" for problem in _version_problems(model)]
    _check_tokens(run, models, result)
    for checkpoint in sorted(run.glob("checkpoints*/*")):
        if any(checkpoint.glob("*.safetensors")):
            _check_checkpoint(checkpoint, models, result)
        elif (checkpoint / "config.json").is_file():  # written last: its weights were there
            result.problems.append(f"checkpoint {_name(checkpoint)} holds no weights (*.safetensors)")
    return result


def changed_tensors(model: ModelHistory, version: PublishedVersion) -> list[str] | None:
    """Names of the tensors that differ from the version published before; None where there is none before."""
    place = model.published.index(version)
    if place == 0:
        return None
    before = model.named_digests(model.published[place - 1])
    return [name for name, digest in model.named_digests(version).items() if before.get(name) != digest]


def _version_problems(model: ModelHistory) -> Iterator[str]:
    digests: dict[int, str] = {}
    before: PublishedVersion | None = None
    for version in model.published:
        tensors = model.catalogues[version.version].tensors
        if before is not None and version.version <= before.version:
            yield f"version {version.version} was published after version {before.version}: numbers never repeat"
        if before is not None and version.digest == before.digest and not version.restored:
            yield f"the version moved from {before.version} to {version.version}, the digest did not"
        if len(tensors) != len(version.tensors) or _total(tensors, version.tensors) != version.digest:
            yield f"the digest of version {version.version} is not that of its tensors"
        digests[version.version] = version.digest
        before = version
    for number, served in model.served.items():
        for one in served:
            if one.digest != digests.get(number):
                published = digests.get(number, "never published")
                yield f"{one.raas} served version {number} with digest {one.digest}, published: {published}"
    for alarm in model.alarms:
        yield f"alarm of {alarm.raas} at version {alarm.version}: {alarm.reason}"


def _total(tensors: Iterable[tuple[str, tuple[int, ...], str, tuple[str, ...]]], digests: Iterable[str]) -> str:
    entries = [
        TensorEntry(name=name, shape=shape, dtype=dtype, offset=0, nbytes=0, digest="")
        for name, shape, dtype, _ in tensors
    ]
    return total_digest(entries, digests)


def _check_tokens(run: Path, models: Mapping[str, ModelHistory], result: Verification) -> None:
    """Every sampled token of a trained sample has to resolve to a version that was published and proven."""
    proven = {
        model_id: {version.version for version in model.published if model.served.get(version.version)}
        for model_id, model in models.items()
    }
    for path in sorted((run / "trajectories").glob("step_*.jsonl")):
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            try:
                sample = msgspec.json.decode(line, type=_Sample)
            except msgspec.MsgspecError as error:
                raise DataError(f"{path}, line {number}: {error}") from error
            sampled = {version for version, mask in zip(sample.versions, sample.mask, strict=True) if mask}
            result.tokens += sum(map(bool, sample.mask))
            unknown = sorted(sampled - proven.get(sample.model_id, set()))
            if unknown and sample.outcome != "trained":
                result.quarantined += 1
            elif unknown:
                result.problems.append(
                    f"{sample.model_id}: sample {sample.sample_id} of step {sample.step} was trained with tokens of "
                    f"version {unknown[0]}, which no engine has proven to hold"
                )


def _check_checkpoint(checkpoint: Path, models: Mapping[str, ModelHistory], result: Verification) -> None:
    name = _name(checkpoint)
    try:
        files = sorted(checkpoint.glob("*.safetensors"))
        saved = {tensor: digests for path in files for tensor, digests in _tensors_of(path)}
    except DataError as error:
        result.problems.append(f"checkpoint {name}: {error}")
        return
    lacking = min((_lacking(model, saved) for model in models.values() if model.published), key=len, default=[])
    if lacking:
        result.problems.append(f"checkpoint {name} lacks {len(lacking)} tensors: {', '.join(lacking[:NAMED])}")
    comparable = False
    for model in models.values():
        for version in reversed(model.published):
            named = model.named_digests(version)
            wire = {dtype for _, _, dtype, _ in model.catalogues[version.version].tensors}
            comparable |= all(wire & set(digests) for digests in saved.values())
            if saved and all(named.get(name) in digests.values() for name, digests in saved.items()):
                result.checkpoints[name] = version.version
                return
    result.checkpoints[name] = None
    if comparable:
        result.problems.append(f"checkpoint {name} is none of the published versions")


def _name(checkpoint: Path) -> str:
    folder = checkpoint.parent.name
    return checkpoint.name if folder == "checkpoints" else f"{folder}/{checkpoint.name}"


def _lacking(model: ModelHistory, saved: Container[str]) -> list[str]:
    """Names of a model's tensors that are not there under any of their names."""
    tensors = model.catalogues[model.published[-1].version].tensors
    return [name for name, _, _, aliases in tensors if not any(known in saved for known in (name, *aliases))]


def _tensors_of(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """(name, wire dtype → digest) of a safetensors file's tensors: as they lie there, and float32 also rounded.

    DataError where it is no such file.
    """
    with (
        boundary(DataError, f"{path} is no safetensors file"),
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        length = int.from_bytes(data[:8], "little")
        fields: dict[str, Any] = msgspec.json.decode(data[8 : 8 + length])
        fields.pop("__metadata__", None)
        with memoryview(data) as view:
            for name, tensor in fields.items():
                begin, end = (8 + length + offset for offset in tensor["data_offsets"])
                with view[begin:end] as part:
                    digests = {_DTYPES.get(tensor["dtype"], tensor["dtype"]): tensor_digest(part)}
                    if tensor["dtype"] == "F32":
                        digests["bfloat16"] = tensor_digest(_rounded(part).data)
                yield name, digests


def _rounded(data: memoryview) -> np.ndarray:
    """float32 bytes → bfloat16 bits, to the nearest, ties to even, as publishing rounds; a NaN stays some NaN."""
    bits = np.frombuffer(data, np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    return np.where(np.isnan(np.frombuffer(data, np.float32)), np.uint16(0x7FC0), rounded)
