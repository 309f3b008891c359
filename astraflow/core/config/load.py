"""Invariant 7, effective config: a key without effect is an error at load, with file, path and the nearest name.

YAML files deep-merge (later wins), then `a.b=c` overrides, then `${…}` interpolation, then a strictly typed model.
Where each key was set is kept, so that an error points at a line and not at a stack trace.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

from astraflow.errors import ConfigError, suggestion

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Tree:
    """A merged, interpolated configuration and where each of its keys was set."""

    values: dict[str, Any]
    origins: dict[str, str] = field(default_factory=dict)
    """Dotted path → "file.yaml:12" or "override 'a.b=c'"."""

    def origin(self, path: str) -> str:
        """Where a key was set, else where something in it was, else where the nearest section above it was."""
        if path in self.origins:
            return self.origins[path]
        inside = [where for key, where in self.origins.items() if key.startswith(f"{path}.")]
        if inside:
            return inside[-1]
        parent = path.rpartition(".")[0]
        return self.origin(parent) if parent else "configuration"

    def is_set(self, path: str) -> bool:
        """Whether a file or an override sets a key, or a section that holds it."""
        node: Any = self.values
        for part in path.split("."):
            if not isinstance(node, dict) or part not in node:
                return False
            node = node[part]
        return True


def load_tree(files: Iterable[Path], overrides: Iterable[str] = ()) -> Tree:
    """Read, merge, override and interpolate. ConfigError names the file or override that is wrong."""
    origins: dict[str, str] = {}
    merged = OmegaConf.create({})
    for file in files:
        merged = _merge(merged, OmegaConf.create(_read(file, origins)), str(file))
    for override in overrides:
        addition = _override(override, merged, origins)
        _empty(merged, addition)
        merged = _merge(merged, addition, f"override '{override}'")
    try:
        values = OmegaConf.to_container(merged, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"interpolation: {str(error).splitlines()[0]} (at {error.full_key})") from error
    assert isinstance(values, dict)
    return Tree({str(key): value for key, value in values.items()}, origins)


def build(model: type[M], tree: Tree) -> M:
    """Return the typed configuration, or raise one ConfigError with a line for each wrong key."""
    try:
        # JSON mode is strict on types and still takes lists for tuples and strings for paths
        return model.model_validate_json(json.dumps(tree.values), strict=True)
    except ValidationError as error:
        lines = [_explain(model, tree, item) for item in error.errors()]
        raise ConfigError("\n".join(dict.fromkeys(lines))) from None


def to_yaml(values: Mapping[str, Any]) -> str:
    """The text of a configuration file with these values, in their order."""
    return str(yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True, width=120))


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of a configuration, as editors read it."""
    return model.model_json_schema(schema_generator=_Schema)


def write_settings(settings: BaseModel, path: Path) -> Path:
    """Write a program's settings where `read_settings` finds them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(settings.model_dump_json(indent=1), "utf-8")
    return path


def read_settings(model: type[M], path: Path) -> M:
    """Read a program's settings as the launcher wrote them."""
    try:
        return model.model_validate_json(path.read_bytes(), strict=True)
    except OSError as error:
        raise ConfigError(f"settings file {path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        key = f"{'.'.join(map(str, first['loc']))}: " if first["loc"] else ""
        raise ConfigError(f"{path}: {key}{first['msg']}") from None


def _read(file: Path, origins: dict[str, str]) -> dict[str, Any]:
    try:
        text = file.read_text("utf-8-sig")  # some editors begin a file with a mark
        root = yaml.compose(text, yaml.SafeLoader)
    except OSError as error:
        raise ConfigError(f"configuration file {file}: {error.strerror}") from error
    except RecursionError as error:
        raise ConfigError(f"{file}: nested too deeply") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"{file}{line}: not YAML: {getattr(error, 'problem', None) or error}") from error
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{file}: expected keys and values at the top")
    try:
        _note_lines(root, "", file, origins)
        # OmegaConf's loader reads 5e-6 as a number, plain YAML 1.1 does not
        values = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except RecursionError as error:
        raise ConfigError(f"{file}: an alias holds itself") from error
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{file}: {getattr(error, 'problem', None) or str(error).splitlines()[0]}") from error
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def _note_lines(node: yaml.MappingNode, prefix: str, file: Path, origins: dict[str, str]) -> None:
    seen: set[str] = set()
    for key, value in node.value:
        path = f"{prefix}{key.value}"
        where = f"{file}:{key.start_mark.line + 1}"
        if path in seen:
            raise ConfigError(f"{where}: {path} is set twice in this file")
        seen.add(path)
        origins[path] = where
        if isinstance(value, yaml.MappingNode):
            _note_lines(value, f"{path}.", file, origins)


def _override(text: str, merged: Any, origins: dict[str, str]) -> Any:
    path, equals, value = text.removeprefix("+").partition("=")
    if not equals or not path or not all(path.split(".")):
        raise ConfigError(f"override '{text}': expected key.path=value")
    if text.startswith("+") and OmegaConf.select(merged, path, throw_on_missing=False) is not None:
        raise ConfigError(f"override '{text}': {path} is set already ({origins.get(path, 'above')}); write {text[1:]}")
    origins[path] = f"override '{text}'"
    try:
        return OmegaConf.from_dotlist([f"{path}={value}"])
    except (OmegaConfBaseException, yaml.YAMLError) as error:
        raise ConfigError(f"override '{text}': {str(error).splitlines()[0]}") from error


def _empty(base: Any, addition: Any) -> None:
    """Take out of `base` what an override sets to {}: merged, an empty section would have no effect."""
    for key in addition:
        value, held = addition._get_node(key), base._get_node(key) if key in base else None
        if not (OmegaConf.is_dict(value) and OmegaConf.is_dict(held)):
            continue
        if value:
            _empty(held, value)
        else:
            del base[key]


def _merge(base: Any, addition: Any, where: str) -> Any:
    try:
        return OmegaConf.merge(base, addition)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{where}: {str(error).splitlines()[0]}") from error


def _explain(model: type[BaseModel], tree: Tree, item: Any) -> str:
    location = [str(part) for part in item["loc"]]
    path = ".".join(location)
    where = tree.origin(path)
    if item["type"] == "extra_forbidden":
        known = _known_keys(model, location[:-1])
        return f"{where}: {path}: unknown key{suggestion(location[-1], known)}; known here: {', '.join(known)}"
    if item["type"] == "missing":
        return f"{where}: {path}: a value is required"
    given = item.get("input")
    shown = "" if isinstance(given, Mapping) else f", got {given!r}"
    message = item["msg"].removeprefix("Value error, ")
    return f"{where}: {path}: {message}{shown}"


class _Schema(GenerateJsonSchema):
    """Defaults that are msgspec structs have no JSON form of their own; only key names are read here."""

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012


def _known_keys(model: type[BaseModel], location: list[str]) -> list[str]:
    """Keys of the section at `location`, found through the JSON schema so that any nesting of containers works."""
    schema = json_schema(model)
    node = schema
    for part in location:
        node = _child(_deref(node, schema), part, schema)
    node = _deref(node, schema)
    return sorted(node.get("properties", {}))


def _child(node: dict[str, Any], part: str, schema: dict[str, Any]) -> dict[str, Any]:
    for option in (node, *(_deref(o, schema) for o in node.get("anyOf", []))):
        if part in option.get("properties", {}):
            return dict(option["properties"][part])
        if isinstance(option.get("additionalProperties"), dict):
            return dict(option["additionalProperties"])
        if "items" in option:
            return dict(option["items"])
    return {}


def _deref(node: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    for option in (node, *node.get("anyOf", []), *node.get("allOf", [])):
        if "$ref" in option:
            target: dict[str, Any] = schema["$defs"][option["$ref"].rpartition("/")[2]]
            return target
    return node
