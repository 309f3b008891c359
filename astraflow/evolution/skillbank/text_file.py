"""Text files of a bank: strict YAML, front-matter, and writes that are seen whole or not at all."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from astraflow.errors import suggestion
from astraflow.evolution.skillbank.problem import Code, Problem, SkillBankError

FENCE = "---"
MERGE_TAG = "tag:yaml.org,2002:merge"


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice: YAML's rule, which PyYAML leaves unchecked."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == MERGE_TAG:
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                continue  # refused below, by the loader itself
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"key '{key}' is given twice", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


@dataclass(frozen=True)
class FrontMatter:
    """A Markdown file split at its front-matter."""

    values: dict[str, Any]
    header: str
    """The YAML between the fences, as written, with its last newline; empty without front-matter."""
    body: str
    body_line: int
    """The 1-based line of the file that the body starts at."""


def read_text(file: Path) -> str:
    """A file's text with `\\n` line ends. SkillBankError if it is missing or not UTF-8."""
    try:
        return file.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise SkillBankError(Problem(Code.MISSING_FILE, "no such file", file=file)) from None
    except UnicodeDecodeError as error:
        raise SkillBankError(Problem(Code.MALFORMED_FILE, f"not UTF-8: {error}", file=file)) from None


def parse_mapping(text: str, file: Path, first_line: int = 1) -> dict[str, Any]:
    """YAML text that must hold a mapping with string keys (nothing reads as an empty one)."""
    try:
        # a SafeLoader subclass: it makes plain values only
        value = yaml.load(text, Loader=_StrictLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # ValueError: a date such as 2026-13-01; RecursionError: thousands of nested brackets
        mark = getattr(error, "problem_mark", None)
        line = mark.line + first_line if mark else None
        message = f"not valid YAML: {getattr(error, 'problem', None) or error}"
        raise SkillBankError(Problem(Code.MALFORMED_FILE, message, file=file, line=line)) from None
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise SkillBankError(Problem(Code.MALFORMED_FILE, "must be a mapping with text keys", file=file))
    return value


def read_mapping(file: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping."""
    return parse_mapping(read_text(file), file)


def split_front_matter(text: str, file: Path) -> FrontMatter:
    """Split at the fences. A text that does not start with one has no front-matter."""
    lines = text.split("\n")
    if lines[0].rstrip() != FENCE:
        return FrontMatter({}, "", text, 1)
    for number, line in enumerate(lines[1:], 1):
        if line.rstrip() == FENCE:
            header = "".join(f"{one}\n" for one in lines[1:number])
            return FrontMatter(parse_mapping(header, file, 2), header, "\n".join(lines[number + 1 :]), number + 2)
    raise SkillBankError(Problem(Code.MALFORMED_FILE, "front-matter is not closed with '---'", file=file, line=1))


def to_yaml(values: Mapping[str, Any]) -> str:
    """YAML with the keys in their order, which reads back as the same values."""
    text = str(yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True, width=120))
    # PyYAML writes these as they are and reads them as line breaks
    if any(mark in text for mark in "\x85\u2028\u2029"):
        return str(yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=False, width=120))
    return text


def with_fields(text: str, file: Path, fields: Mapping[str, Any]) -> str:
    """The same file with some top-level front-matter keys set; every other line stays as it was written."""
    front = split_front_matter(text, file)
    header = front.header
    for key, value in fields.items():
        header = _without_key(header, key)[0] if value is None else _with_key(header, key, to_yaml({key: value}))
    kept = {key: value for key, value in front.values.items() if key not in fields}
    expected = kept | {key: value for key, value in fields.items() if value is not None}
    if parse_mapping(header, file, 2) != expected:
        # several keys on one line, as in `{id: a, status: b}`: written anew, a key a line
        header = to_yaml(expected)
    return f"{FENCE}\n{header}{FENCE}\n{front.body}"


def without_field(header: str, key: str) -> str:
    """Front-matter YAML without one top-level key."""
    return _without_key(header, key)[0]


def _with_key(header: str, key: str, rendered: str) -> str:
    rest, position = _without_key(header, key)
    lines = rest.splitlines(keepends=True)
    return "".join([*lines[:position], rendered, *lines[position:]])


def _without_key(header: str, key: str) -> tuple[str, int]:
    """The header without a key's lines, and the line where they were (its end, if it was not there)."""
    node = yaml.compose(header, Loader=yaml.SafeLoader)
    lines = header.splitlines(keepends=True)
    starts = [(k.value, k.start_mark.line) for k, _ in node.value] if isinstance(node, yaml.MappingNode) else []
    for index, (name, start) in enumerate(starts):
        if name == key:
            end = starts[index + 1][1] if index + 1 < len(starts) else len(lines)
            return "".join(lines[:start] + lines[end:]), start
    return header, len(lines)


def write_atomically(file: Path, text: str) -> None:
    """Write a whole file or nothing: a reader, and a crash, see the old text or the new one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(file.stat().st_mode & 0o777 if file.exists() else 0o644)
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One writer at a time; the folder itself is the lock, so that locking leaves no file behind."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


class Fields:
    """Typed reading of a YAML mapping: a wrong type or an unknown key is a problem that names the key."""

    def __init__(self, values: Mapping[str, Any], file: Path, where: str = "") -> None:
        self.values = values
        self.file = file
        self.where = where

    def only(self, *known: str) -> Fields:
        """Refuse keys that nothing reads."""
        for key in self.values:
            if key not in known:
                hint = suggestion(key, list(known))
                raise self.error(f"unknown key '{self.where}{key}'{hint}; known: {', '.join(known)}")
        return self

    def text(self, key: str, default: str = "") -> str:
        """A text; absent and null are the default."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.error(f"'{self.where}{key}' must be text, not {value!r} (quote it)")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; absent and null are the empty list."""
        value = self.values.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(f"'{self.where}{key}' must be a list of texts, not {value!r} (quote numbers)")
        return tuple(value)

    def mapping(self, key: str) -> Fields:
        """A mapping with text keys; absent and null are the empty one."""
        value = self.values.get(key)
        if value is None:
            value = {}
        if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
            raise self.error(f"'{self.where}{key}' must be a mapping with text keys, not {value!r}")
        return Fields(value, self.file, f"{self.where}{key}.")

    def mappings(self, key: str) -> dict[str, Fields]:
        """A mapping of mappings."""
        outer = self.mapping(key)
        return {name: outer.mapping(name) for name in outer.values}

    def error(self, message: str) -> SkillBankError:
        """A problem with this file."""
        return SkillBankError(Problem(Code.MALFORMED_FILE, message, file=self.file))
