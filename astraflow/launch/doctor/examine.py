"""All checks of one configuration, in the order in which their findings help."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from astraflow.core.config import Tree
from astraflow.core.model.config import ModelConfig
from astraflow.core.model.presets import PRESETS
from astraflow.core.text.tiny import tiny_tokenizer
from astraflow.core.text.tokenizer import Tokenizer, load_tokenizer
from astraflow.errors import AstraFlowError, ConfigError
from astraflow.launch.check import complaints
from astraflow.launch.config import RunConfig, load_config_tree
from astraflow.launch.doctor import batch, data, disk, machine, memory, ports, template, threads, weights
from astraflow.launch.doctor.finding import Finding, Severity, error, ok, warning
from astraflow.launch.doctor.machine import Machine
from astraflow.launch.doctor.subject import Subject
from astraflow.launch.model_source import PACKAGED, planned_model

CONFIGURATION = "configuration"
_SEVERITIES = list(Severity)


def examine(
    files: Iterable[Path], overrides: Iterable[str] = (), *, here: Machine, phrasings: Sequence[str] = ()
) -> list[Finding]:
    """Return every finding, the machine's first; without files only the machine's."""
    files = list(files)
    found = machine.check(here)
    if not files:
        return found
    try:
        config, tree = load_config_tree(files, overrides)
    except ConfigError as refused:
        remedy = "a run refuses this too; `astraflow config explain` says what a key takes"
        return found + [error(CONFIGURATION, line, remedy) for line in str(refused).splitlines()]
    subject, missing = subject_of(config, tree, here)
    checks = (threads.check, memory.check, weights.check, batch.check, template.check)
    found += missing
    for check in checks:
        found += check(subject)
    found += data.check(subject, phrasings)
    found += [*ports.check(subject), *disk.check(subject)]
    return found[:1] + configuration(config, tree, found) + found[1:]


def configuration(config: RunConfig, tree: Tree, told: Sequence[Finding]) -> list[Finding]:
    """What a run would refuse at load, without what another check has told with its remedy."""
    known = {finding.key for finding in told if finding.severity is Severity.ERROR}
    wrong = list(complaints(config, tree))
    if not wrong:
        return [ok(CONFIGURATION, "every key is known and has an effect")]
    return [
        error(CONFIGURATION, text, f"set at {tree.origin(path)}; see `astraflow config explain {path}`", path)
        for path, text in wrong
        if path not in known
    ]


def worst(found: Iterable[Finding]) -> Severity:
    return max((finding.severity for finding in found), key=_SEVERITIES.index, default=Severity.OK)


def subject_of(config: RunConfig, tree: Tree, here: Machine) -> tuple[Subject, list[Finding]]:
    """(the subject, what could not be loaded for it)."""
    missing: list[Finding] = []
    tokenizer: Tokenizer | None = None
    model: ModelConfig | None = None
    try:
        tokenizer, model = _tokenizer(config), _model(config)
    except AstraFlowError as failure:
        key = "base_model.preset" if config.base_model is not None else "experiment.model_path"
        missing.append(error("model", str(failure), "name a directory of a supported model with its tokenizer", key))
    if not missing and (tokenizer is None or model is None):
        text = "not on this machine yet, so that memory, template and prompt lengths were not checked"
        comes = "converts" if config.experiment.model_path in PACKAGED else "fetches"
        missing.append(warning("model", text, f"start the run once, which {comes} it", "experiment.model_path"))
    rows, broken = data.load(Subject(config, tree, here).datasets, tokenizer, config.experiment.seed)
    return Subject(config, tree, here, tokenizer, model, rows), [*missing, *broken]


def _tokenizer(config: RunConfig) -> Tokenizer | None:
    """The run's tokenizer; a preset's before there is a model of it; None where it is still to be fetched."""
    named = config.experiment.tokenizer_path
    path = Path(named).expanduser() if named is not None else planned_model(config)
    if config.base_model is not None and named is None and not path.is_dir():
        return tiny_tokenizer()
    return load_tokenizer(path) if path.is_dir() else None


def _model(config: RunConfig) -> ModelConfig | None:
    if config.base_model is not None:
        return PRESETS.get(config.base_model.preset)
    path = planned_model(config)
    return ModelConfig.read(path) if path.is_dir() else None
