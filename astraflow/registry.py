"""A name, a "module:attr" path or an entry point becomes an object; a miss lists the known names.

`check` answers without importing what is named: a built-in is looked up in its table, a "module:attr" by finding the
module's source and reading its top-level definitions. So a configuration is refused within milliseconds, before torch
or any plug-in is loaded. `resolve` imports.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

from astraflow.errors import ConfigError, UnknownNameError, boundary, suggestion

T = TypeVar("T")


class Registry:
    """Objects of one kind (workflows, rewards, engines, …) by name.

    `builtins` maps names to "module:attr", imported on first use. Entry points of the group
    `astraflow.<kind, plural>` add names from installed packages; `register` adds objects of the running process.
    """

    def __init__(self, kind: str, builtins: dict[str, str], entry_point_group: str | None = None) -> None:
        self.kind = kind
        self._targets = dict(builtins)
        self._objects: dict[str, Any] = {}
        self._group = entry_point_group

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that registers its object under `name`; a second object of that name is refused."""

        def add(thing: T) -> T:
            if self._objects.get(name, thing) is not thing or name in self._targets:
                raise ConfigError(f"{self.kind} '{name}' is already registered")
            self._objects[name] = thing
            return thing

        return add

    def names(self) -> list[str]:
        return sorted({*self._targets, *self._objects, *self._entry_points()})

    def check(self, spec: str) -> None:
        """Raise ConfigError unless `spec` names something; imports nothing that is named."""
        if ":" in spec:
            check_target(spec, self.kind)
        elif spec not in self.names():
            raise UnknownNameError(self.kind, spec, self.names())

    def target(self, spec: str) -> str | None:
        """The "module:attr" behind a name, without importing it; None for unknown names and objects of this process."""
        return spec if ":" in spec else self._targets.get(spec) or self._entry_points().get(spec)

    def resolve(self, spec: str) -> Any:
        """Return the object that `spec` names, importing its module."""
        if spec in self._objects:
            return self._objects[spec]
        target = self.target(spec)
        if target is None:
            raise UnknownNameError(self.kind, spec, self.names())
        return load_target(target, self.kind)

    def _entry_points(self) -> dict[str, str]:
        if self._group is None:
            return {}
        return {point.name: point.value for point in entry_points(group=self._group)}


def load_target(target: str, kind: str = "object") -> Any:
    """Import "module:attr" and return the attribute; ConfigError says what is missing."""
    module_name, attr = _split(target, kind)
    with boundary(ConfigError, f"{kind} '{target}' cannot be imported"):
        module = importlib.import_module(module_name)
    if not hasattr(module, attr):
        public = sorted(name for name in vars(module) if not name.startswith("_"))
        raise ConfigError(f"{kind} '{target}': module {module_name} has no '{attr}'{suggestion(attr, public)}")
    return getattr(module, attr)


def check_target(target: str, kind: str = "object") -> None:
    """Raise ConfigError unless the module's source exists and defines the attribute at its top level."""
    module_name, attr = _split(target, kind)
    spec = find_module(module_name)
    if spec is None:
        raise ConfigError(f"{kind} '{target}': there is no module {module_name}")
    if spec.origin is None and spec.submodule_search_locations is not None:
        raise ConfigError(f"{kind} '{target}': {module_name} is a folder, not a module")
    if spec.origin is None or not spec.origin.endswith(".py"):
        return  # a compiled module: only importing it can tell
    names = top_level_names(Path(spec.origin))
    if attr not in names and "*" not in names:
        known = sorted(name for name in names if not name.startswith("_"))
        raise ConfigError(
            f"{kind} '{target}': {module_name} does not define '{attr}'{suggestion(attr, known)}; "
            f"it defines: {', '.join(known) or 'nothing'}"
        )


def find_module(name: str) -> ModuleSpec | None:
    """Find a module's spec without importing it or its parents."""
    path: list[str] | None = None
    spec: ModuleSpec | None = None
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        try:
            spec = PathFinder.find_spec(".".join(parts[:depth]), path or sys.path)
        except KeyError:  # a namespace package inside one that is not imported
            spec = ModuleSpec(".".join(parts[:depth]), None, is_package=True)
            places = [Path(entry, parts[depth - 1]) for entry in path or []]
            path = [str(place) for place in places if place.is_dir()]
            continue
        if spec is None:
            # an editable install resolves its top package by a finder of its own
            loaded = sys.modules.get(".".join(parts[:depth]))
            spec = getattr(loaded, "__spec__", None)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or [])
    return spec


def parse_source(source: Path) -> ast.Module:
    """Parse a module's source; ConfigError with file and line where it is not Python."""
    try:
        return ast.parse(source.read_bytes())
    except SyntaxError as error:
        line = f":{error.lineno}" if error.lineno else ""
        raise ConfigError(f"{source}{line}: not Python: {error.msg}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{source}: not Python: {error}") from error


def top_level_names(source: Path) -> set[str]:
    """Names that a module's source binds at its top level; "*" where a star import hides some."""
    names: set[str] = set()
    for node in ast.walk(ast.Module(body=_top_level(parse_source(source).body), type_ignores=[])):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def _top_level(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements that run at import, those inside if/try included, without the bodies of functions and classes."""
    out: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            out.append(ast.FunctionDef(node.name, node.args, [], [], lineno=node.lineno))
        elif isinstance(node, ast.ClassDef):
            out.append(ast.ClassDef(node.name, [], [], [], [], lineno=node.lineno))
        elif isinstance(node, ast.If):
            out += _top_level(node.body) + _top_level(node.orelse)
        elif isinstance(node, ast.Try):
            out += _top_level(node.body) + _top_level(node.orelse) + _top_level(node.finalbody)
            for handler in node.handlers:
                out += _top_level(handler.body)
        else:
            out.append(node)
    return out


def _split(target: str, kind: str) -> tuple[str, str]:
    module_name, _, attr = target.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")) or not attr.isidentifier():
        raise ConfigError(f"{kind} '{target}' is not of the form package.module:name")
    return module_name, attr
