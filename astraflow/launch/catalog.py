"""Names that only heavy modules know (reasoning-gym's datasets, model presets), read from their sources."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from astraflow.launch.signatures import Signature, signature_of
from astraflow.registry import find_module

_NAME = re.compile(r"""^DATASET_NAME\s*=\s*["'](\w+)["']""", re.MULTILINE)
_REGISTRATION = re.compile(
    r"""^register_dataset\(\s*(?:["'](\w+)["']|DATASET_NAME)\s*,\s*\w+\s*,\s*(\w+)""", re.MULTILINE
)


@cache
def reasoning_gym_datasets() -> dict[str, str]:
    """Return dataset name → "module:Class" of its settings; empty where the package is not installed."""
    spec = find_module("reasoning_gym")
    if spec is None or spec.origin is None:
        return {}
    root = Path(spec.origin).parent
    found: dict[str, str] = {}
    for source in root.rglob("*.py"):
        text = source.read_text("utf-8", errors="replace")
        constant = _NAME.search(text)
        module = ".".join(("reasoning_gym", *source.relative_to(root).with_suffix("").parts))
        for name, settings in _REGISTRATION.findall(text):
            if name or constant:
                found[name or constant[1]] = f"{module}:{settings}"  # type: ignore[index]
    return found


def reasoning_gym_settings(name: str) -> Signature | None:
    """Return what the dataset `name` takes; None where its source does not tell."""
    return signature_of(reasoning_gym_datasets()[name])


@cache
def presets() -> list[str]:
    """Names of the model presets."""
    spec = find_module("astraflow.core.model.presets")
    if spec is None or spec.origin is None:
        return []
    for node in ast.parse(Path(spec.origin).read_text("utf-8")).body:
        match node:
            case ast.AnnAssign(target=ast.Name(id="PRESETS"), value=ast.Dict(keys=keys)):
                return [str(key.value) for key in keys if isinstance(key, ast.Constant)]
    return []
