"""What each key of a run's configuration is, what it is set to, where, and who reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import create_model

from astraflow.core.config import OpenSection, Tree, json_schema, to_yaml
from astraflow.core.config.readers import Readers
from astraflow.core.config.reference import NAME, Key, keys, type_text, value_text
from astraflow.core.dataset.registry import DATASET_REGISTRY
from astraflow.core.workflow.registry import WORKFLOW_REGISTRY
from astraflow.errors import ConfigError, suggestion
from astraflow.launch.config import TRAINER, TRAINER_BASE, RunConfig, RunSections, load_config_tree
from astraflow.launch.signatures import signature_of
from astraflow.train_worker.config import TrainerConfig

BY_DEFAULT = "default"
PACKAGE = Path(__file__).parents[1]
DOCTOR = "astraflow.launch.doctor."


@dataclass(frozen=True)
class Explained:
    """A key in a configuration."""

    key: Key
    path: str
    """As it stands in this configuration."""
    readers: tuple[str, ...]
    """Modules that read it."""
    value: Any = None
    origin: str | None = None
    """Where it was set; BY_DEFAULT; None where there is no configuration."""
    without_effect: str | None = None
    """Why it has none here."""

    def __str__(self) -> str:
        lines = {"type": self.key.type, "default": self.key.default}
        if self.origin is not None:
            lines |= {"value": value_text(self.value), "set at": self.origin}
        if self.without_effect is not None:
            lines["no effect"] = self.without_effect
        lines["read by"] = ", ".join(self.readers)
        doc = [f"  {line}" for line in self.key.doc.splitlines()]
        return "\n".join([self.path, *doc, *(f"  {name:<9} {text}" for name, text in lines.items() if text)])


@cache
def reference() -> tuple[Key, ...]:
    """Every key of a run; `trainer_<name>` stands for each model's trainer section and for trainer_base."""
    return (*keys(RunSections), *keys(TrainerConfig, f"{TRAINER}{NAME}."))


@cache
def readers() -> Readers:
    """Who reads what in this package."""
    return Readers(PACKAGE)


def read_by(key: Key) -> tuple[str, ...]:
    """Modules that read a key; the doctor, which looks at most of them, is left out."""
    return tuple(module for module in readers().of(key.owner, key.name) if not module.startswith(DOCTOR))


def explain(name: str, files: Iterable[Path] = (), overrides: Iterable[str] = ()) -> list[Explained]:
    """Explain the keys that `name` means: a whole path, the end of one, or a section with all that is in it.

    With files, each key says its value and where that was set. ConfigError for a name that means nothing.
    """
    files = list(files)
    if not files:
        found = [key for key in reference() if _means(name, key)]
        if not found:
            raise _unknown(name, [key.path for key in reference()])
        return [Explained(key, key.path, read_by(key)) for key in found]
    config, tree = load_config_tree(files, overrides)
    paths = dict(flatten(config.values()))
    unused = config.unused
    asked = [path for path in {**paths, **unused} if path == name or path.endswith(f".{name}") or _base(name, path)]
    if not asked:
        raise _unknown(name, list(paths))
    return [_explained(path, paths.get(path), config, tree) for path in asked]


def annotated(config: RunConfig, tree: Tree) -> str:
    """The resolved configuration as YAML, with where each key was set as a comment."""
    lines: list[str] = []
    for path, value in flatten(config.values()):
        *parents, name = path.split(".")
        indent = "  " * len(parents)
        if isinstance(value, dict) and value:
            lines.append(f"{indent}{name}:")
            continue
        text = to_yaml({name: value}).rstrip().splitlines()
        comment = f"  # {origin(tree, path)}"
        lines += [indent + line for line in (text if len(text) > 1 else [text[0] + comment])]
    return "\n".join(lines)


def schema() -> dict[str, Any]:
    """The JSON schema of a run's configuration; editors complete and check YAML files by it."""
    model = create_model("RunConfig", __base__=RunSections, **{TRAINER_BASE: (TrainerConfig, ...)})  # type: ignore[call-overload]
    out = json_schema(model)
    trainer = out["properties"].pop(TRAINER_BASE)
    out["required"] = [name for name in out["required"] if name != TRAINER_BASE]
    # a model's own section may leave out what trainer_base gives, so that neither is complete by itself
    definition = dict(out["$defs"]["TrainerConfig"])
    definition.pop("required", None)
    out["$defs"]["TrainerConfig"] = definition
    out["patternProperties"] = {f"^{TRAINER}[A-Za-z0-9_-]+$": trainer}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **out}


def difference(first: Path, second: Path) -> list[str]:
    """Lines "path: a (where) → b (where)" of the keys that two configurations differ in.

    Each is a YAML file or a run directory, and counts with its defaults.
    """
    loaded = [load_config_tree([_file_of(path)]) for path in (first, second)]
    one, two = ({path: value for path, value in flatten(config.values()) if _leaf(value)} for config, _ in loaded)
    trees = [tree for _, tree in loaded]
    lines = []
    for path in dict.fromkeys([*one, *two]):
        if one.get(path) == two.get(path) and (path in one) == (path in two):
            continue
        sides = [
            f"{value_text(side[path])} ({origin(tree, path)})" if path in side else "absent"
            for side, tree in zip((one, two), trees, strict=True)
        ]
        lines.append(f"{path}: {sides[0]} → {sides[1]}")
    return lines


def origin(tree: Tree, path: str) -> str:
    """Where a key was set: a file's line or an override; BY_DEFAULT where nothing sets it."""
    section, _, rest = path.partition(".")
    if section.startswith(TRAINER) and section not in tree.values:
        path = f"{TRAINER_BASE}.{rest}" if rest else TRAINER_BASE
    return tree.origin(path) if tree.is_set(path) else BY_DEFAULT


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of every section and key, sections before what is in them."""
    for name, value in values.items():
        yield f"{prefix}{name}", value
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")


def _explained(path: str, value: Any, config: RunConfig, tree: Tree) -> Explained:
    key = next((key for key in reference() if key.matches(path)), None)
    where = next((reason for start, reason in config.unused.items() if f"{path}.".startswith(f"{start}.")), None)
    if key is None:
        key, target = _keyword(path, config)
        return Explained(key, path, (target,), value, origin(tree, path), where)
    return Explained(key, path, read_by(key), value, origin(tree, path), where)


def _keyword(path: str, config: RunConfig) -> tuple[Key, str]:
    """(a key that an open section passes on, the function or class that takes it), described by the signature."""
    section, name = _open_section(path, config)
    workflow = getattr(section, "workflow_cls", None)
    dataset = getattr(section, "dataset_fn", None)
    target = DATASET_REGISTRY.target(dataset) if dataset else WORKFLOW_REGISTRY.target(workflow) if workflow else None
    signature = signature_of(target) if target else None
    kind = type_text(signature.types.get(name, Any)) if signature else "anything"
    default = value_text(signature.defaults[name]) if signature and name in signature.defaults else ""
    return Key(path, type(section), name, kind, f"Passed on to {target}.", default), str(target)


def _open_section(path: str, config: RunConfig) -> tuple[object, str]:
    """(the open section that a key belongs to, the key's path in it)."""
    node: Any = config
    parts = path.split(".")
    for depth, part in enumerate(parts):
        if isinstance(node, OpenSection) and part not in type(node).model_fields:
            return node, ".".join(parts[depth:])
        node = node.get(part) if isinstance(node, Mapping) else getattr(node, part, None)
    return node, parts[-1]


def _means(name: str, key: Key) -> bool:
    name = name.replace(TRAINER_BASE, f"{TRAINER}{NAME}", 1) if name.startswith(TRAINER_BASE) else name
    section = key.path == name or key.path.startswith(f"{name}.")
    return section or key.path.endswith(f".{name}") or key.matches(name)


def _base(name: str, path: str) -> bool:
    """Whether a key of trainer_base is meant, which stands in each model's section."""
    if not name.startswith(TRAINER_BASE) or not path.startswith(TRAINER):
        return False
    return path.partition(".")[2] == name.partition(".")[2]


def _unknown(name: str, known: list[str]) -> ConfigError:
    ends = sorted({path.rpartition(".")[2] for path in known})
    return ConfigError(f"there is no key '{name}'{suggestion(name, known) or suggestion(name, ends)}")


def _file_of(path: Path) -> Path:
    return path / "config.yaml" if path.is_dir() else path


def _leaf(value: Any) -> bool:
    return not isinstance(value, Mapping) or not value
