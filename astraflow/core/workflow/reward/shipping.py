"""How a reward function reaches a worker process: by name where it can be imported there, else by its code.

A function at the top level of an importable module travels as "module:attr" and is imported in the worker only. A
lambda, a closure or a function of a script travels as its code object with the values that it refers to. Both ends are
processes of one program, and the worker's pipe has no other writer.
"""

from __future__ import annotations

import builtins
import importlib
import marshal
import pickle
import sys
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import msgspec

from astraflow.errors import ConfigError
from astraflow.registry import find_module, load_target

RewardFunction = Callable[..., Any]


class Shipment(msgspec.Struct, frozen=True):
    """A function on its way to a worker."""

    label: str
    """Its name, for messages."""
    target: str = ""
    """ "module:attr", where the worker can import it."""
    body: bytes = b""
    """Pickled otherwise: a callable object, or the parts of a function."""


class _Code(msgspec.Struct):
    """A function by its parts."""

    key: int
    """What a _Seen within it means."""
    name: str
    code: bytes
    defaults: Any
    kwdefaults: Any
    closure: list[Any]
    globals: dict[str, Any]


class _Seen(msgspec.Struct):
    """A function that is being packed already: it, or one that it refers to, refers back."""

    key: int


class _Module(msgspec.Struct):
    name: str


def ship(function: RewardFunction | str) -> Shipment:
    """Pack a callable or a "module:attr", which is not imported here; ConfigError where a worker could not have it."""
    if isinstance(function, str):
        return Shipment(function, function)
    label = getattr(function, "__qualname__", type(function).__name__)
    if isinstance(function, FunctionType) and _importable(function):
        target = f"{function.__module__}:{function.__qualname__}"
        return Shipment(target, target)
    try:
        return Shipment(label, body=pickle.dumps(_pack(function, frozenset())))
    except (pickle.PicklingError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"reward function {label} cannot run in a worker process ({error}); define it at the top level of a "
            "module, or compute rewards in this process with max_workers=0"
        ) from error


def unship(shipment: Shipment) -> RewardFunction:
    """Return the callable in the process that received it; imports its module."""
    if shipment.target:
        function: RewardFunction = load_target(shipment.target, "reward")
        return function
    unpacked: RewardFunction = _unpack(pickle.loads(shipment.body), {})
    return unpacked


def _importable(function: FunctionType) -> bool:
    """Whether a fresh process finds this very function by name: on the path, and the name leads back to it."""
    name = function.__module__
    module = sys.modules.get(name)
    if name == "__main__" or getattr(module, function.__qualname__, None) is not function:
        return False
    spec = find_module(name)
    return spec is not None and spec.origin == getattr(module, "__file__", None)


def _pack(value: Any, seen: frozenset[int]) -> Any:
    """Replace what pickle cannot carry, modules and functions, by their parts."""
    if isinstance(value, ModuleType):
        return _Module(value.__name__)
    if not isinstance(value, FunctionType) or _importable(value):
        return value
    if id(value) in seen:
        return _Seen(id(value))
    seen |= {id(value)}
    names = set(_names(value.__code__)) & set(value.__globals__) - set(dir(builtins))
    return _Code(
        key=id(value),
        name=value.__name__,
        code=marshal.dumps(value.__code__),
        defaults=value.__defaults__,
        kwdefaults=value.__kwdefaults__,
        closure=[_pack(cell.cell_contents, seen) for cell in value.__closure__ or ()],
        globals={name: _pack(value.__globals__[name], seen) for name in sorted(names)},
    )


def _unpack(value: Any, made: dict[int, FunctionType]) -> Any:
    if isinstance(value, _Module):
        return importlib.import_module(value.name)
    if isinstance(value, _Seen):
        return made[value.key]
    if not isinstance(value, _Code):
        return value
    cells = tuple(CellType() for _ in value.closure)
    scope: dict[str, Any] = {"__builtins__": builtins}
    function = FunctionType(marshal.loads(value.code), scope, value.name, value.defaults, cells)
    function.__kwdefaults__ = value.kwdefaults
    made[value.key] = function  # what it refers to may refer back, so that is filled in now
    for cell, content in zip(cells, value.closure, strict=True):
        cell.cell_contents = _unpack(content, made)
    scope.update({name: _unpack(item, made) for name, item in value.globals.items()})
    return function


def _names(code: CodeType) -> Iterator[str]:
    """Global names that a code object and those nested in it refer to."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
