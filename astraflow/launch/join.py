"""One more RaaS for a run that goes on, started by hand, with limits and engine of its own.

It is a child of this process and ends with it, with the run, and when Dataflow has drained it. What an episode is and
how it samples is the run's; what a RaaS decides for itself is OWN.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from astraflow.core.config import read_settings, write_settings
from astraflow.core.observability.lifeline import Child, await_announcement, spawn
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.errors import ConfigError
from astraflow.launch.check import load_config
from astraflow.launch.local import START_TIMEOUT, interruptible
from astraflow.launch.specs import ModelPaths, ProcessSpec, launched, raas_spec
from astraflow.raas.config import RaaSSettings

OWN = ("rollout.*", "raas.threads", "raas.host", "raas.port", "raas.delta_full_sync_interval")
OWN_OF_A_MODEL = ("raas.models.<model_id>.backend", "raas.models.<model_id>.embedded.*")
"""Keys that one RaaS may have otherwise than the run's own; `*` is any key, a <name> any name."""

_LAUNCHED = re.compile(r"raas-\d+")
_LOOK_S = 0.2
"""Seconds between two looks at the run."""


def join(run: Path, name: str, overrides: Sequence[str], say: Callable[[str], None]) -> None:
    """Start a RaaS called `name` beside those of the run in `run`; return when it has left or the run has ended.

    ConfigError where no run goes on there, the name is taken or an override is not its own to decide; PeerError with
    its last log lines where it fails; Interrupted on an order to stop.
    """
    run_dir = RunDirectory(run, create=False)
    with interruptible():
        spec, dataflow_url = joining_spec(run_dir, name, overrides)
        write_settings(spec.settings, spec.settings_path)
        child = spawn(spec.argv, spec.log_path, spec.env, spec.name)
        try:
            url = await_announcement(run_dir, [child], START_TIMEOUT)[name].url
            say(f"{name} at {url} joins the run of {dataflow_url}; log: {spec.log_path}")
            while child.returncode is None and run_dir.endpoint("dataflow") is not None and run_dir.held:
                time.sleep(_LOOK_S)
            say(f"{name}: {_left(child)}")
        finally:
            child.stop()
            run_dir.withdraw(name)


def joining_spec(run_dir: RunDirectory, name: str, overrides: Sequence[str]) -> tuple[ProcessSpec, str]:
    """The process to start, and Dataflow's address."""
    dataflow = run_dir.endpoint("dataflow")
    if not run_dir.held or dataflow is None:
        raise ConfigError(f"{run_dir.root}: no run goes on there; `astraflow run` says its run directory")
    if _LAUNCHED.fullmatch(name):
        raise ConfigError(f"'{name}': the launcher names its own RaaS so; take another name")
    if run_dir.endpoint(name) is not None:
        raise ConfigError(f"'{name}': a process of that name is or was in the run; take another name")
    for override in overrides:
        _check_own(override.partition("=")[0].removeprefix("+"))
    # of one RaaS: how many others there are says nothing about it
    config = load_config([run_dir.config], [*overrides, "raas.instances=1", "raas.scaling=null"])
    first = read_settings(RaaSSettings, run_dir.settings(launched(0)))
    paths = ModelPaths(next(iter(first.model_paths.values())), first.tokenizer_path)
    return raas_spec(config, run_dir, paths, dataflow.url, name), dataflow.url


def _check_own(key: str) -> None:
    known = (*OWN, *OWN_OF_A_MODEL)
    if not any(re.fullmatch(_pattern(pattern), key) for pattern in known):
        raise ConfigError(f"{key}: a RaaS that joins takes this from the run; its own are {', '.join(known)}")


def _pattern(path: str) -> str:
    parts = [".+" if part == "*" else r"[^.]+" if part.startswith("<") else re.escape(part) for part in path.split(".")]
    return r"\.".join(parts)


def _left(child: Child) -> str:
    """Why it is over; PeerError where the process failed."""
    if child.returncode is None:
        return "the run has ended"
    if child.returncode != 0:
        raise child.died()
    return "it has left"
