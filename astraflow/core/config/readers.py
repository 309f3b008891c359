"""Which modules read a key: attribute reads on values that are, by their annotations, the key's section.

The code is fully annotated, so following parameters, attributes, returned values and loops is enough; nothing is
imported. A plain search for `.name` would answer with half of the package.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_SAME = frozenset({"copy", "get", "items", "model_copy", "pop", "values"})
"""Methods whose result is, or holds, what the container or model holds."""
_PASSING = frozenset({"dict", "enumerate", "list", "next", "reversed", "set", "sorted", "tuple"})
"""Functions whose result holds what their first argument holds."""

Environment = dict[str, str]
"""Name → the class of its value, or of what its value holds."""


Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_BINDS = (
    ast.Assign, ast.AnnAssign, ast.For, ast.AsyncFor, ast.comprehension, ast.NamedExpr, ast.withitem,
)  # fmt: skip


@dataclass
class Scope:
    """What a module, class or function does itself, in order; the trees are walked once, though read twice."""

    binds: list[ast.AST] = field(default_factory=list)
    reads: list[ast.Attribute] = field(default_factory=list)
    classes: list[tuple[ast.ClassDef, Scope]] = field(default_factory=list)
    functions: list[tuple[Function, Scope]] = field(default_factory=list)

    @classmethod
    def of(cls, body: Sequence[ast.AST]) -> Scope:
        """Return the scope of these statements; what decorates a function inside is none of it."""
        scope = cls()
        pending = list(reversed(body))
        while pending:
            node = pending.pop()
            if isinstance(node, Function):
                scope.functions.append((node, cls.of([node.body] if isinstance(node, ast.Lambda) else node.body)))
            elif isinstance(node, ast.ClassDef):
                scope.classes.append((node, cls.of(node.body)))
            else:
                if isinstance(node, _BINDS):
                    scope.binds.append(node)
                elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    scope.reads.append(node)
                pending += reversed(list(ast.iter_child_nodes(node)))
        return scope


class Readers:
    """Reads of attributes in a package, by class and attribute."""

    def __init__(self, package: Path) -> None:
        sources = {
            ".".join((package.name, *file.relative_to(package).with_suffix("").parts)).removesuffix(".__init__"): file
            for file in sorted(package.rglob("*.py"))
        }
        scopes = {name: Scope.of(ast.parse(file.read_text("utf-8")).body) for name, file in sources.items()}
        self._classes: dict[str, ast.ClassDef] = {}
        self._functions: dict[str, ast.expr] = {}
        self._attributes: dict[str, dict[str, str]] = defaultdict(dict)
        self._reads: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._declared: dict[str, str] = {}
        for module, scope in scopes.items():
            self._index(module, scope)
        for name, node in self._classes.items():
            self._declare(name, node)
        for _ in range(2):  # what a method assigns to self may come from an attribute that is assigned elsewhere
            self._reads.clear()
            for module, scope in scopes.items():
                self._scan(module, scope, {}, None)

    def of(self, owner: type, name: str) -> list[str]:
        """Modules that read `owner.name`, but not the one that declares it."""
        bases = [base.__name__ for base in owner.__mro__ if name in getattr(base, "__annotations__", {})]
        related = {owner.__name__, *bases}
        found = {module for base in related for module in self._reads.get((base, name), ())}
        return sorted(found - {self._declared.get(base, "") for base in related})

    def _declare(self, name: str, node: ast.ClassDef) -> None:
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                self._note(self._attributes[name], item.target.id, self._named(item.annotation))
            elif isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
                self._note(self._attributes[name], item.name, self._named(item.returns))

    def _index(self, module: str, scope: Scope) -> None:
        """Note the classes and functions of a scope and of all inside it."""
        for node, inside in scope.classes:
            self._classes[node.name] = node
            self._declared[node.name] = module
            self._index(module, inside)
        for function, inside in scope.functions:
            if not isinstance(function, ast.Lambda) and function.returns is not None:
                self._functions[function.name] = function.returns
            self._index(module, inside)

    def _scan(self, module: str, scope: Scope, outer: Mapping[str, str], own: str | None) -> None:
        """Note the reads of a scope in a class `own`; functions inside see the names around them."""
        names = dict(outer)
        for node, inside in scope.classes:
            self._scan(module, inside, names, node.name)
        for bound in scope.binds:
            self._bind(bound, names)
        for read in scope.reads:
            self._read(module, read, names)
        for function, inside in scope.functions:
            self._scan(module, inside, {**names, **self._parameters(function, own)}, own)

    def _read(self, module: str, node: ast.Attribute, names: Environment) -> None:
        owner = self._infer(node.value, names)
        if owner is not None:
            for base in self._bases(owner):
                self._reads[base, node.attr].add(module)

    def _parameters(self, function: Function, own: str | None) -> Environment:
        names: Environment = {}
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        for argument in arguments:
            self._note(names, argument.arg, self._named(argument.annotation))
        if own is not None and arguments and arguments[0].arg in ("self", "cls"):
            names[arguments[0].arg] = own
        return names

    def _bind(self, node: ast.AST, names: Environment) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._target(target, value, names)
            case ast.AnnAssign(target=target, annotation=annotation):
                self._store(target, self._named(annotation), names)
            case ast.For(target=target, iter=value) | ast.AsyncFor(target=target, iter=value):
                self._target(target, value, names)
            case ast.comprehension(target=target, iter=value):
                self._target(target, value, names)
            case ast.NamedExpr(target=target, value=value):
                self._target(target, value, names)
            case ast.withitem(context_expr=value, optional_vars=ast.Name() as target):
                self._target(target, value, names)

    def _target(self, target: ast.expr, value: ast.expr, names: Environment) -> None:
        if isinstance(target, ast.Tuple):
            parts = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts) else None
            if parts is None:  # (name, section) of .items(), (number, section) of enumerate()
                self._store(target.elts[-1], self._infer(value, names), names)
                return
            for inner, part in zip(target.elts, parts, strict=True):
                self._target(inner, part, names)
            return
        self._store(target, self._infer(value, names), names)

    def _store(self, target: ast.expr, found: str | None, names: Environment) -> None:
        if isinstance(target, ast.Name):
            self._note(names, target.id, found)
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
            self._note(self._attributes[names.get("self", "")], target.attr, found)

    def _infer(self, node: ast.expr, names: Environment) -> str | None:
        """The class of an expression's value, or of what it holds."""
        match node:
            case ast.Name(id=name):
                return names.get(name)
            case ast.Attribute(value=value, attr=attr):
                owner = self._infer(value, names)
                return self._attribute(owner, attr) if owner is not None else None
            case ast.Subscript(value=value) | ast.Await(value=value) | ast.NamedExpr(value=value):
                return self._infer(value, names)
            case ast.Call(func=ast.Name(id=name), args=arguments):
                if name in self._classes:
                    return name
                if name in _PASSING and arguments:
                    return self._infer(arguments[0], names)
                return self._named(self._functions.get(name))
            case ast.Call(func=ast.Attribute(value=value, attr=attr)):
                owner = self._infer(value, names)
                return owner if attr in _SAME else self._attribute(owner, attr) if owner is not None else None
            case ast.IfExp(body=first, orelse=second):
                return self._infer(first, names) or self._infer(second, names)
            case ast.BoolOp(values=values):
                return next((found for value in values if (found := self._infer(value, names))), None)
        return None

    def _attribute(self, owner: str, attr: str) -> str | None:
        return next((found for base in self._bases(owner) if (found := self._attributes[base].get(attr))), None)

    def _bases(self, name: str) -> list[str]:
        out = [name]
        for base in self._classes[name].bases if name in self._classes else ():
            if isinstance(base, ast.Name) and base.id not in out:
                out += self._bases(base.id)
        return out

    def _named(self, annotation: ast.expr | None) -> str | None:
        """The first class of the package that an annotation names."""
        for node in ast.walk(annotation) if annotation is not None else ():
            if isinstance(node, ast.Name) and node.id in self._classes:
                return node.id
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in self._classes:
                return node.value
        return None

    @staticmethod
    def _note(names: dict[str, str], name: str, found: str | None) -> None:
        if found is not None:
            names[name] = found
