"""What a run left, and whether that shows a success. Used to freeze a run as a task package."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow.evolution.skillbank.packages.freezing import files_below, refuse_link, sha256
from astraflow.evolution.skillbank.packages.registry import read_json
from astraflow.evolution.skillbank.problem import Code, Problem, SkillBankError

PARTS = {
    "config": ("config.json", "config.yaml"),
    "log": ("training_log.txt", "logs"),
    "trajectories": ("trajectories",),
    "eval": ("eval_metrics.json", "summary.json"),
    "metrics": ("metrics.jsonl", "perf_stats.json"),
}
"""Part → the names that it goes by, in a run of rllm_train or of `astraflow run`. Nothing else is copied: not the
run's token, not its sockets, not its weights."""
REQUIRED = ("config", "log", "trajectories", "eval")
WEIGHTS = "final_model"
"""Too large to copy: named, with the digest of each file."""
FAILURES = ("failed", "error", "aborted", "cancelled", "interrupted")


@dataclass(frozen=True)
class RunEvidence:
    """A run directory, read."""

    folder: Path
    files: Mapping[str, Path]
    """`run/<name>` → file."""
    config: Mapping[str, Any]
    weights: Mapping[str, str]
    """File of the final model → SHA-256."""
    shortcomings: tuple[Problem, ...]
    """Why this run is no success; empty if it is one."""

    @property
    def outcome(self) -> str:
        """`success`, or `incomplete`."""
        return "incomplete" if self.shortcomings else "success"


def read_run(folder: Path) -> RunEvidence:
    """Read a run directory. SkillBankError if it is not there or holds a file that cannot be read."""
    if not folder.is_dir():
        raise SkillBankError(Problem(Code.MISSING_FILE, "no such run directory", file=folder))
    files: dict[str, Path] = {}
    for names in PARTS.values():
        for name in names:
            path = folder / name
            refuse_link(path)
            if path.is_dir():
                files |= files_below(path, f"run/{name}/")
            elif path.is_file():
                files[f"run/{name}"] = path
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    weights = {name: sha256(file) for name, file in files_below((folder / WEIGHTS).resolve()).items()}
    return RunEvidence(folder, files, config, weights, tuple(_shortcomings(folder, files)))


def _shortcomings(folder: Path, files: Mapping[str, Path]) -> Iterator[Problem]:
    for part in REQUIRED:
        found = [
            file
            for name in PARTS[part]
            for place, file in files.items()
            if place == f"run/{name}" or place.startswith(f"run/{name}/")
        ]
        if not any(file.stat().st_size for file in found):
            message = f"run has no {part} ({' or '.join(PARTS[part])})"
            yield Problem(Code.MISSING_EVIDENCE, message, (part,), folder)
    numbers = 0
    for name in PARTS["eval"]:
        if f"run/{name}" in files:
            values = read_json(files[f"run/{name}"])
            numbers += sum(1 for value in _leaves(values) if isinstance(value, (int, float)) and math.isfinite(value))
            status = str(values.get("status", "")).lower()
            if status in FAILURES:
                yield Problem(Code.MISSING_EVIDENCE, f"run says status '{status}'", ("eval",), files[f"run/{name}"])
    if not numbers:
        yield Problem(Code.MISSING_EVIDENCE, "run has no finite evaluation result", ("eval",), folder)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value
