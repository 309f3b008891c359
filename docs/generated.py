"""Reference pages from the code: every configuration key, every command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

import typer

from astraflow.cli.main import app
from astraflow.core.config.reference import Key
from astraflow.launch.explain import read_by, reference


def configuration() -> str:
    """A table for each section of the configuration."""
    parts = []
    for section, keys in groupby(_by_section(), key=lambda item: item[0]):
        rows = [key for _, key in keys]
        head = next((key for key in reference() if key.path == section), None)
        parts.append(f"## {_code(section)}\n")
        if head is not None:
            parts.append(f"{_cell(head.doc)}\n")
        parts.append("| key | type | default | meaning | read by |\n| --- | --- | --- | --- | --- |")
        parts += [_row(key) for key in rows]
        parts.append("")
    return "\n".join(parts)


def commands() -> str:
    """Each command with its own help."""
    return "\n".join(_command(typer.main.get_command(app), ("astraflow",)))


PAGES: dict[str, tuple[str, Callable[[], str]]] = {
    "reference/configuration": ("<!-- generated: configuration -->", configuration),
    "reference/commands": ("<!-- generated: commands -->", commands),
}
"""Page → (the mark that is replaced, what makes its content)."""


def _by_section() -> Iterator[tuple[str, Key]]:
    """(path of the section, key) of every key that is no section, sections in the order of their first key."""
    sections: dict[str, list[Key]] = {}
    for key in reference():
        if not key.section:
            sections.setdefault(key.path.rpartition(".")[0], []).append(key)
    for section, keys in sections.items():
        yield from ((section, key) for key in keys)


def _row(key: Key) -> str:
    modules = [module.removeprefix("astraflow.") for module in read_by(key)]
    cells = (_code(key.name), _cell(key.type), _code(key.default), _cell(key.doc), ", ".join(map(_code, modules)))
    return f"| {' | '.join(cells)} |"


def _code(text: str) -> str:
    return f"`{_cell(text)}`" if text else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _command(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    """A command's help, or a group's and that of each command in it."""
    inside = getattr(command, "commands", None)
    if inside is None:
        context = command.make_context(" ".join(path), [], resilient_parsing=True)
        yield f"{'#' * len(path)} {' '.join(path)}\n\n```text\n{context.get_help()}\n```\n"
        return
    if len(path) > 1:
        yield f"## {' '.join(path)}\n\n{command.help}\n"
    for name, inner in inside.items():
        yield from _command(inner, (*path, name))
