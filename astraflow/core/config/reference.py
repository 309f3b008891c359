"""Every key of a configuration with its type, default and docstring, read from the sections themselves.

What `astraflow config explain` prints and what the reference pages show is this, so neither can differ from the code.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union

import msgspec
from pydantic import BaseModel
from pydantic.fields import FieldInfo

NAME = "<name>"
"""Stands in a path for a key that the user chooses."""

_LIMITS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
"""Attributes of the constraints that `Field` makes, and how the reference writes them."""
_REQUIRED = object()


@dataclass(frozen=True)
class Key:
    """One key, or one section."""

    path: str
    """Dotted; NAME stands where the user chooses the name."""
    owner: type
    """The section that declares it."""
    name: str
    """The field's name in `owner`."""
    type: str
    """In words: "int ≥ 1", "'drop' or 'mask'", "section"."""
    doc: str
    """The field's docstring, for a section without one the section's own."""
    default: str
    """As YAML would say it; "required" where there is none, empty for a section, which is described by its keys."""
    section: bool = False

    def matches(self, path: str) -> bool:
        """Whether a path as a user writes it is this key."""
        return re.fullmatch(re.escape(self.path).replace(NAME, r"[^.]+"), path) is not None


def keys(section: type, prefix: str = "", default: Any = None) -> Iterator[Key]:
    """Yield every key of a section and of those inside it, in the order of the source.

    A section is a pydantic model or, for records of core.data, a msgspec struct. `default` is the section's value where
    nothing is set, if it has one: its values are then the keys' defaults.
    """
    described = _struct_fields(section) if issubclass(section, msgspec.Struct) else _model_fields(section)
    for name, field in described.items():
        path = f"{prefix}{name}"
        value = field.default if default is None else getattr(default, name)
        inner, many = _inner(field.annotation)
        shown = "required" if value is _REQUIRED else value_text(value)
        if inner is None:
            yield Key(path, section, name, type_text(field.annotation, field.limits), field.doc, shown)
            continue
        kind = "sections by name" if many else "section"
        shown = shown if shown in ("required", "null") else ""
        yield Key(path, section, name, kind, field.doc or _first_line(inner), shown, section=True)
        inside = value if isinstance(value, inner) else None
        yield from keys(inner, f"{path}.{NAME}." if many else f"{path}.", inside)


def type_text(annotation: Any, limits: str = "") -> str:
    """A type as the reference says it."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return type_text(arguments[0], limits or _limits(arguments[1:]))
    if origin is Literal:
        return " or ".join(repr(choice) for choice in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join("null" if option is types.NoneType else type_text(option, limits) for option in arguments)
    if annotation is Any:
        return "anything"
    plain = str(getattr(annotation, "__name__", annotation))
    if arguments:
        inside = ", ".join(type_text(argument) for argument in arguments if argument is not ...)
        plain = f"{'list' if plain == 'tuple' else plain}[{inside}]"
    return f"{plain} {limits}".strip()


def value_text(value: Any) -> str:
    """A value as YAML in one line."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.to_builtins(value)
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {value_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(value_text, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


@cache
def attribute_docstrings(owner: type) -> Mapping[str, str]:
    """Docstrings under the fields of a class, from its source."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        match field, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = inspect.cleandoc(text)
    return found


@dataclass(frozen=True)
class _Field:
    annotation: Any
    limits: str
    default: Any
    """_REQUIRED where there is none."""
    doc: str


def _model_fields(section: type) -> dict[str, _Field]:
    assert issubclass(section, BaseModel)
    return {
        name: _Field(
            field.annotation, _limits(field.metadata), _default(field), inspect.cleandoc(field.description or "")
        )
        for name, field in section.model_fields.items()
    }


def _default(field: FieldInfo) -> Any:
    return _REQUIRED if field.is_required() else field.get_default(call_default_factory=True)


def _struct_fields(section: type) -> dict[str, _Field]:
    docs = attribute_docstrings(section)
    return {
        field.name: _Field(field.type, "", _REQUIRED if field.required else field.default, docs.get(field.name, ""))
        for field in msgspec.structs.fields(section)
    }


def _inner(annotation: Any) -> tuple[type | None, bool]:
    """(the section in a type, whether there are many of them by name)."""
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return (annotation, False) if issubclass(annotation, BaseModel | msgspec.Struct) else (None, False)
    many = typing.get_origin(annotation) in (dict, Mapping)
    for argument in typing.get_args(annotation):
        inner, nested = _inner(argument)
        if inner is not None:
            return inner, many or nested
    return None, False


def _limits(metadata: Any) -> str:
    found = ["(not empty)" for item in metadata if getattr(item, "min_length", 0)]
    for item in metadata:
        limits = {sign: getattr(item, attribute, None) for attribute, sign in _LIMITS.items()}
        found += [f"{sign} {limit:g}" for sign, limit in limits.items() if limit is not None]
    return ", ".join(found)


def _first_line(section: type) -> str:
    return inspect.cleandoc(section.__doc__ or "").partition("\n")[0]
