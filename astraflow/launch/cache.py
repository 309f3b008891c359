"""What runs make once and keep in the user's cache: base models, converted models.

<cache>/<kind>/<name>/            complete
<cache>/<kind>/.<name>.<pid>/     one that is being made; renamed when it is complete
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from astraflow.core.observability.log import message
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.errors import ConfigError, DataError
from astraflow.launch.local import LocalProcesses
from astraflow.launch.specs import ProcessSpec

CACHE_VARIABLE = "ASTRAFLOW_CACHE"
"""Where set, the cache directory instead of ~/.cache/astraflow."""


def cache_root() -> Path:
    """The cache directory."""
    default = Path("~/.cache/astraflow").expanduser()
    return Path(os.environ.get(CACHE_VARIABLE) or default).expanduser().absolute()


def make_model(
    path: Path, spec_of: Callable[[Path], ProcessSpec], run_dir: RunDirectory, progress: Callable[[str], None]
) -> None:
    """Have a process make the Hugging Face directory `path`; `spec_of` is told where it writes.

    `progress` gets each new line of the process's log. PeerError with its last lines where it fails, DataError where it
    leaves no model, ConfigError where the cache cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    spec = spec_of(draft)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cache {path.parent}: {error.strerror}; {CACHE_VARIABLE} names another one") from error
    try:
        with LocalProcesses(run_dir) as processes:
            processes.spawn([spec])
            processes.watch([spec.name], LogLines(spec.log_path, progress))
        _keep(draft, path, spec.name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


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


def _keep(draft: Path, path: Path, name: str) -> None:
    if not (draft / "config.json").is_file():
        raise DataError(f"the {name} process ended well but left no Hugging Face directory in {draft}")
    try:
        draft.rename(path)
    except OSError as error:
        if not path.is_dir():  # another run was first: its model is the same
            raise DataError(f"cannot keep the model as {path}: {error.strerror}") from error
