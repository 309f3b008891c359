"""The model that a run starts from, made by supervised fine-tuning once per configuration and code version.

<cache>/base/<hash of configuration and code>/      a Hugging Face directory
<cache>/base/.<hash>.<pid>/                         one that is being made; renamed when it is complete
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from astraflow.core.observability.log import message
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.errors import DataError
from astraflow.launch.config import RunConfig
from astraflow.launch.local import LocalProcesses
from astraflow.launch.specs import sft_spec
from astraflow.train_worker.config import SFTConfig

CACHE_VARIABLE = "ASTRAFLOW_CACHE"
"""Where set, the cache directory instead of ~/.cache/astraflow."""

_CODE = ("core/data", "core/dataset", "core/model", "core/text", "train_worker")
"""What decides the weights that come out, under the package."""


def ensure_base_model(config: RunConfig, run_dir: RunDirectory, progress: Callable[[str], None]) -> Path | None:
    """Return the base model's directory, making it first where the cache lacks it; None without a base_model section.

    `progress` gets each new line of the process's log. PeerError with its last lines where it fails.
    """
    if config.base_model is None:
        return None
    path = cache_path(config.base_model)
    if path.is_dir():
        progress(f"base model from cache: {path}")
        return path
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    spec = sft_spec(config, run_dir, draft)
    path.parent.mkdir(parents=True, exist_ok=True)
    progress(f"making the base model ({config.base_model.preset}, {config.base_model.total_train_steps} steps)")
    try:
        with LocalProcesses(run_dir) as processes:
            processes.spawn([spec])
            processes.watch([spec.name], LogLines(spec.log_path, progress))
        _keep(draft, path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return path


def cache_path(config: SFTConfig) -> Path:
    """Where the model of this configuration, made by this code, is cached."""
    default = Path("~/.cache/astraflow").expanduser()
    root = Path(os.environ.get(CACHE_VARIABLE) or default).expanduser().absolute()
    return root / "base" / fingerprint(config)


def fingerprint(config: SFTConfig, package: Path = Path(__file__).parents[1]) -> str:
    """Hash of the configuration and of the sources that make a model of it, 16 hexadecimal digits."""
    digest = hashlib.sha256(config.model_dump_json().encode())
    for folder in _CODE:
        for source in sorted((package / folder).rglob("*.py")):
            digest.update(f"\n{source.relative_to(package)}\n".encode())
            digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


class LogLines:
    """Hands on the message of each line that is added to a log, when called."""

    def __init__(self, path: Path, show: Callable[[str], None]) -> None:
        self._path = path
        self._show = show
        self._offset = 0

    def __call__(self) -> None:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        for line in complete.decode("utf-8", errors="replace").splitlines():
            self._show(message(line))


def _keep(draft: Path, path: Path) -> None:
    if not (draft / "config.json").is_file():
        raise DataError(f"the base model process ended well but left no Hugging Face directory in {draft}")
    try:
        draft.rename(path)
    except OSError as error:
        if not path.is_dir():  # another run was first: its model is the same
            raise DataError(f"cannot keep the base model as {path}: {error.strerror}") from error
