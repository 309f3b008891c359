"""Going on after a death, as `recover` configures it: a process is started again in place, a run in its directory.

In place: whoever is started again finds what it needs in the run directory (Dataflow its ledger, a trainer its state)
or is told by others (a RaaS its version). Dataflow comes back at its address, since the others know no other.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from astraflow.core.config import load_tree
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.dataflow.config import DataflowSettings
from astraflow.errors import ConfigError
from astraflow.launch.config import TRAINER, RunConfig
from astraflow.launch.specs import ProcessSpec
from astraflow.train_worker.config import RecoverConfig

MISCONFIGURED = 2
"""Exit code of a process whose settings are wrong: it would end the same way again."""


def recover_config(config: RunConfig) -> RecoverConfig:
    """How the run recovers. ConfigError where its trainers do not agree, or Dataflow lets go too soon."""
    found = {trainer.recover.model_dump_json(): trainer.recover for trainer in config.trainers.values()}
    if len(found) > 1:
        raise ConfigError(
            f"the trainers of a run recover alike; they have: {', '.join(found)}; set trainer_base.recover"
        )
    recover, kept = next(iter(found.values())), config.dataflow.ledger.keep_steps
    longest = max(trainer.total_train_steps for trainer in config.trainers.values())
    # back from just before a state is kept to the older one of the two that there are
    if recover.enabled and kept < min(2 * recover.freq_steps, longest):
        raise ConfigError(
            f"dataflow.ledger.keep_steps is {kept}: a trainer that keeps a state every {recover.freq_steps} steps "
            f"(recover.freq_steps) may go back {2 * recover.freq_steps}; set it to that or more"
        )
    return recover


class Restarts:
    """Which processes of a run are started again, and how often."""

    def __init__(self, retries: int, say: Callable[[str], None] = lambda text: None) -> None:
        self._retries = retries
        self._say = say
        self._done: Counter[str] = Counter()

    @classmethod
    def of(cls, recover: RecoverConfig, say: Callable[[str], None]) -> Restarts:
        """As configured; `say` is told of each."""
        return cls(recover.retries if recover.enabled else 0, say)

    def again(self, spec: ProcessSpec, returncode: int, ending: str, run_dir: RunDirectory) -> ProcessSpec | None:
        """What to start in place of a process that ended; None where it is not started again."""
        if returncode in (0, MISCONFIGURED) or self._done[spec.name] >= self._retries:
            return None
        self._done[spec.name] += 1
        self._say(f"{spec.name}: {ending}; started again ({self._done[spec.name]} of {self._retries})")
        return at_its_address(spec, run_dir)


def at_its_address(spec: ProcessSpec, run_dir: RunDirectory) -> ProcessSpec:
    """The spec of a Dataflow with the port that it had, any other as it is."""
    announced = run_dir.endpoint(spec.name)
    if not isinstance(spec.settings, DataflowSettings) or announced is None:
        return spec
    dataflow = spec.settings.dataflow.model_copy(update={"port": urlsplit(announced.url).port})
    return dataclasses.replace(spec, settings=spec.settings.model_copy(update={"dataflow": dataflow}))


def open_run_directory(path: Path, config: RunConfig, say: Callable[[str], None]) -> RunDirectory:
    """Return the claimed run directory of a new run, or of one that goes on.

    What an earlier run left is moved aside, never mixed or deleted, unless that run did not end and `recover.mode` says
    to go on. ConfigError where it says `resume` and there is nothing to go on from.
    """
    mode = recover_config(config).mode
    run_dir = RunDirectory(path)
    run_dir.hold()
    earlier = run_dir.config.exists()
    why_not = None if mode in ("auto", "resume") else f"recover.mode is {mode}"
    if earlier and why_not is None:
        why_not = _why_not(run_dir, config)
    if mode == "resume" and (not earlier or why_not is not None):
        run_dir.release()
        raise ConfigError(f"recover.mode is resume: {path} {why_not or 'holds no run'}")
    if earlier and why_not is None:
        say(f"the run in {path} goes on")
    elif earlier:
        names = (run_dir.root.with_name(f"{run_dir.root.name}.{number}") for number in itertools.count(1))
        try:
            aside = run_dir.root.rename(next(name for name in names if not name.exists()))
        except OSError as error:
            raise ConfigError(f"the earlier run in {path} cannot be moved aside: {error.strerror}") from error
        finally:
            run_dir.release()
        say(f"the earlier run in {path} is now {aside}")
        run_dir = RunDirectory(path)
        run_dir.hold()
    run_dir.withdraw_all()
    run_dir.token()
    return run_dir


def _why_not(run_dir: RunDirectory, config: RunConfig) -> str | None:
    """Why the run in a directory cannot go on with a configuration."""
    if run_dir.summary.exists():
        return "holds a run that ended well"
    if _without_recover(load_tree([run_dir.config]).values) != _without_recover(config.values()):
        return f"holds a run of another configuration: {run_dir.config}"
    return None


def _without_recover(values: dict[str, Any]) -> dict[str, Any]:
    """How a run recovers may differ from one start to the next."""

    def rest(section: dict[str, Any]) -> dict[str, Any]:
        return {key: section[key] for key in section if key != "recover"}

    return {name: rest(section) if name.startswith(TRAINER) else section for name, section in values.items()}
