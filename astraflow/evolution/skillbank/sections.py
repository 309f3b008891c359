"""A skill's body: sections between anchors, and the text between them.

    <!-- section:NAME -->…<!-- /section:NAME -->

Sections do not nest and each name is used once. Anchors in code (fenced blocks, inline spans) are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from astraflow.evolution.skillbank.problem import Code, Problem, SkillBankError

ANCHOR = re.compile(r"<!-- *(?P<end>/?)section:(?P<name>[A-Za-z0-9][A-Za-z0-9_.-]*) *-->")
MEANT_AS_ANCHOR = re.compile(r"<!--\s*/?\s*section\b", re.IGNORECASE)
FENCED = re.compile(
    r"^ {0,3}(?P<mark>`{3,}|~{3,})[^\n]*\n(?:.*\n)*?(?: {0,3}(?P=mark)[`~]*[ \t]*$|.*\Z)",
    re.MULTILINE,
)
INLINE = re.compile(r"(?<!`)(?P<mark>`+)(?!`)[^\n]*?(?<!`)(?P=mark)(?!`)")


@dataclass(frozen=True)
class Part:
    """A stretch of text and where it comes from."""

    text: str
    """Without blank lines at either end."""
    origin: str
    """`base`, or the id of the patch that wrote it."""
    file: Path
    line: int
    """1-based line of `file` that the text starts at."""


@dataclass(frozen=True)
class Piece:
    """A section, or (with an empty name) the text between two sections."""

    name: str
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """What this piece puts into the skill: its parts, one blank line apart."""
        return "\n\n".join(part.text for part in self.parts if part.text)

    def with_parts(self, *parts: Part) -> Piece:
        """The same piece made of other parts."""
        return replace(self, parts=parts)


@dataclass(frozen=True)
class Document:
    """A body as its pieces, in order."""

    pieces: tuple[Piece, ...]

    @property
    def section_names(self) -> tuple[str, ...]:
        """The sections, in order."""
        return tuple(piece.name for piece in self.pieces if piece.name)

    def section(self, name: str) -> Piece | None:
        """A section by its name."""
        return next((piece for piece in self.pieces if name and piece.name == name), None)

    def with_section(self, section: Piece) -> Document:
        """The document with the section of that name exchanged."""
        return Document(tuple(section if piece.name == section.name else piece for piece in self.pieces))

    def with_new_section(self, section: Piece, after: str) -> Document:
        """The document with a new section right after an existing one."""
        pieces: list[Piece] = []
        for piece in self.pieces:
            pieces.append(piece)
            if piece.name == after:
                pieces.append(section)
        return Document(tuple(pieces))

    def render(self, anchors: bool = False) -> str:
        """The body as Markdown: pieces one blank line apart, with their anchors or without."""
        return "\n\n".join(filter(None, (_rendered(piece, anchors) for piece in self.pieces))) + "\n"


def parse_document(body: str, file: Path, first_line: int) -> Document:
    """Read a body. SkillBankError names file and line of the first anchor that is not right."""
    pieces: list[Piece] = []
    opened: re.Match[str] | None = None
    start = 0
    for anchor in find_anchors(body, file, first_line):
        name = anchor["name"]
        stretch = _part(body, start, anchor.start(), file, first_line)
        line = first_line + body.count("\n", 0, anchor.start())
        if not anchor["end"]:
            if opened is not None:
                raise _malformed(f"section '{name}' starts inside section '{opened['name']}'", name, file, line)
            if any(piece.name == name for piece in pieces):
                problem = Problem(Code.DUPLICATE_SECTION, f"section '{name}' is there twice", (name,), file, line)
                raise SkillBankError(problem)
            opened = anchor
            pieces.append(Piece("", (stretch,)))
        elif opened is None or opened["name"] != name:
            inside = f"section '{opened['name']}' is open" if opened else "no section is open"
            raise _malformed(f"end of section '{name}', but {inside}", name, file, line)
        else:
            opened = None
            pieces.append(Piece(name, (stretch,)))
        start = anchor.end()
    if opened is not None:
        line = first_line + body.count("\n", 0, opened.start())
        raise _malformed(f"section '{opened['name']}' is never closed", opened["name"], file, line)
    pieces.append(Piece("", (_part(body, start, len(body), file, first_line),)))
    return Document(tuple(piece for piece in pieces if piece.name or piece.text))


def find_anchors(body: str, file: Path, first_line: int) -> Iterable[re.Match[str]]:
    """Every anchor outside code, in order; one that is misspelt is refused rather than taken for text."""
    prose = _without_code(body)
    for meant in MEANT_AS_ANCHOR.finditer(prose):
        anchor = ANCHOR.match(prose, meant.start())
        if anchor is None:
            line = first_line + body.count("\n", 0, meant.start())
            written = body[meant.start() :].split("\n", 1)[0][:60]
            raise _malformed(f"'{written}' is no anchor; write <!-- section:NAME -->", "", file, line)
        yield anchor


def _without_code(body: str) -> str:
    """The body with code blanked out, of the same length and with the same lines."""
    fenced = FENCED.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), body)
    return INLINE.sub(lambda match: " " * len(match[0]), fenced)


def _part(body: str, start: int, end: int, file: Path, first_line: int) -> Part:
    stretch = body[start:end]
    kept = stretch.strip("\n")
    # leading lines that hold only spaces are dropped like empty ones; indentation of the first real line stays
    while kept and not kept.split("\n", 1)[0].strip():
        kept = kept.split("\n", 1)[1].strip("\n") if "\n" in kept else ""
    kept = kept.rstrip()
    at = start + (stretch.find(kept) if kept else 0)
    return Part(kept, "base", file, first_line + body.count("\n", 0, at))


def _rendered(piece: Piece, anchors: bool) -> str:
    if not anchors or not piece.name:
        return piece.text
    inside = f"{piece.text}\n" if piece.text else ""
    return f"<!-- section:{piece.name} -->\n{inside}<!-- /section:{piece.name} -->"


def _malformed(message: str, name: str, file: Path, line: int) -> SkillBankError:
    return SkillBankError(Problem(Code.MALFORMED_ANCHOR, message, (name,) if name else (), file, line))
