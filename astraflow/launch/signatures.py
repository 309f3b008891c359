"""What a user's function or class takes, read from its source: a key that it does not name is refused at load.

Importing would answer the same questions seconds later and load torch, or a task package with a hundred generators.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from astraflow.errors import suggestion
from astraflow.registry import find_module, parse_source

_TYPES: dict[str, Any] = {
    "Any": Any,
    "bool": bool,
    "dict": dict,
    "float": float,
    "int": int,
    "list": list,
    "object": Any,
    "str": str,
}


@dataclass(frozen=True)
class Signature:
    """Keyword parameters of a function, or of a class's __init__."""

    types: Mapping[str, Any]
    """Name → type; Any where the annotation is missing or not one of the plain types that YAML can give."""
    required: frozenset[str] = frozenset()
    """Names without a default."""
    open: bool = False
    """Takes any further keyword (**kwargs)."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Name → default, of those that are literals."""

    def complaints(self, given: Mapping[str, Any], passed: frozenset[str], where: str) -> dict[str, str]:
        """Return key → what is wrong with it. `passed` are names that the system passes where they are taken."""
        wrong: dict[str, str] = {}
        for key, value in given.items():
            known = sorted(set(self.types) - passed)
            if key in passed and key not in self.types and not self.open:
                wrong[key] = f"{where} does not take it; it takes: {', '.join(known)}"
            elif key not in self.types and not self.open:
                wrong[key] = f"unknown key{suggestion(key, known)}; {where} takes: {', '.join(known)}"
            elif key in self.types:
                try:
                    msgspec.convert(value, self.types[key], strict=True)
                except msgspec.ValidationError as error:
                    wrong[key] = f"{error}: {value!r}{_choices(self.types[key])}"
        for key in sorted(self.required - passed - set(given)):
            wrong[key] = f"a value is required by {where}"
        return wrong


@cache
def signature_of(target: str) -> Signature | None:
    """Return the signature of "module:attr"; None where only importing could tell.

    Re-exports (`from x import name`) and inherited constructors are followed; a dataclass's fields are its parameters.
    """
    module_name, _, attr = target.partition(":")
    spec = find_module(module_name)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    module = _Module.read(module_name, Path(spec.origin))
    return module.signature(attr)


@dataclass(frozen=True)
class _Module:
    name: str
    definitions: Mapping[str, ast.stmt] = field(default_factory=dict)
    imports: Mapping[str, str] = field(default_factory=dict)
    """Local name → "module:attr"."""
    aliases: Mapping[str, ast.expr] = field(default_factory=dict)
    """Name → the expression assigned to it at the top level."""

    @classmethod
    @cache
    def read(cls, name: str, path: Path) -> _Module:
        definitions: dict[str, ast.stmt] = {}
        imports: dict[str, str] = {}
        aliases: dict[str, ast.expr] = {}
        for node in parse_source(path).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                definitions[node.name] = node
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imports.update({item.asname or item.name: f"{node.module}:{item.name}" for item in node.names})
            elif isinstance(node, ast.Assign):
                aliases.update({goal.id: node.value for goal in node.targets if isinstance(goal, ast.Name)})
        return cls(name, definitions, imports, aliases)

    def signature(self, attr: str) -> Signature | None:
        node = self.definitions.get(attr)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return self._of_arguments(node.args)
        if isinstance(node, ast.ClassDef):
            return self._of_class(node)
        return signature_of(self.imports[attr]) if attr in self.imports else None

    def _of_class(self, node: ast.ClassDef) -> Signature | None:
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                return self._of_arguments(item.args)
        if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
            fields = [
                item for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            ]
            named = {item.target.id: item for item in fields if isinstance(item.target, ast.Name)}
            return Signature(
                {name: self._type(item.annotation) for name, item in named.items()},
                frozenset(name for name, item in named.items() if item.value is None),
            )
        if not node.bases:
            return Signature({})
        base = node.bases[0]
        return self.signature(base.id) if isinstance(base, ast.Name) else None

    def _of_arguments(self, args: ast.arguments) -> Signature:
        positional = [*args.posonlyargs, *args.args]
        values = dict(zip(reversed(positional), reversed(args.defaults), strict=False))
        values |= {
            arg: value for arg, value in zip(args.kwonlyargs, args.kw_defaults, strict=True) if value is not None
        }
        named = {arg.arg: arg for arg in (*positional, *args.kwonlyargs) if arg.arg not in ("self", "cls")}
        return Signature(
            {name: self._type(arg.annotation) for name, arg in named.items()},
            frozenset(named) - {arg.arg for arg in values},
            args.kwarg is not None,
            {arg.arg: value.value for arg, value in values.items() if isinstance(value, ast.Constant)},
        )

    def _type(self, node: ast.expr | None) -> Any:
        """The plain type that an annotation means; Any where it means something else."""
        match node:
            case ast.Constant(value=None):
                return None
            case ast.Constant(value=str(text)):
                return self._type(ast.parse(text, mode="eval").body)
            case ast.Name(id=name) if name in _TYPES:
                return _TYPES[name]
            case ast.Name(id=name) if name in self.aliases:
                return self._type(self.aliases[name])
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return _union([self._type(left), self._type(right)])
            case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
                return _union([self._type(inner), None])
            case ast.Subscript(value=ast.Name(id="Literal"), slice=inner):
                choices = inner.elts if isinstance(inner, ast.Tuple) else [inner]
                if all(isinstance(choice, ast.Constant) for choice in choices):
                    return Literal[tuple(ast.literal_eval(choice) for choice in choices)]
            case ast.Subscript(value=ast.Name(id=("dict" | "list") as name)):
                return _TYPES[name]
        return Any


def _choices(kind: Any) -> str:
    """The names that a Literal knows, as the end of a message."""
    return f"; known: {', '.join(map(str, get_args(kind)))}" if get_origin(kind) is Literal else ""


def _union(members: list[Any]) -> Any:
    if Any in members:
        return Any
    return Union[tuple(types.NoneType if member is None else member for member in members)]  # noqa: UP007 (built at run time)
