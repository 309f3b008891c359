"""Snapshots: every compiled text that was ever written, as `compiled/vNNN/<group>/<skill>.md`.

A snapshot is whole (it has every skill that was compiled so far) and is made only when something differs from the one
before. Together they are the record of what the compiler ever wrote: a compiled file that is in none of them was edited
by hand.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from astraflow.evolution.skillbank.bank import Bank
from astraflow.evolution.skillbank.text_file import read_text, write_atomically

VERSION = re.compile(r"v(\d{3,})")


@dataclass(frozen=True)
class Snapshot:
    """One version of all compiled skills."""

    number: int
    """0 for the empty one that every bank starts from."""
    folder: Path
    texts: Mapping[str, str]
    """`<group>/<skill>` → compiled text, in alphabetical order."""

    @property
    def name(self) -> str:
        """`vNNN`."""
        return version_name(self.number)


def version_name(number: int) -> str:
    """The folder name of a snapshot."""
    return f"v{number:03d}"


def latest_snapshot(bank: Bank) -> Snapshot:
    """The snapshot with the highest number."""
    folders = bank.compiled_dir.iterdir() if bank.compiled_dir.is_dir() else ()
    numbered = {int(match[1]): folder for folder in folders if (match := VERSION.fullmatch(folder.name))}
    if not numbered:
        return Snapshot(0, bank.compiled_dir / version_name(0), {})
    number = max(numbered)
    folder = numbered[number]
    files = sorted(folder.glob("*/*.md"))
    return Snapshot(number, folder, {f"{file.parent.name}/{file.stem}": read_text(file) for file in files})


def was_compiled(bank: Bank, skill: str, content: bytes) -> bool:
    """Is this what the compiler once wrote for a skill?"""
    entry = bank.entry(skill)
    files = bank.compiled_dir.glob(f"v*/{entry.group}/{skill}.md")
    return any(file.read_bytes() == content for file in files)


def record(bank: Bank, written: Mapping[str, str]) -> Snapshot:
    """Make a snapshot of `written` (skill → text) over the latest one; the latest one itself, if nothing differs."""
    latest = latest_snapshot(bank)
    known = {f"{entry.group}/{entry.name}" for entry in bank.skills.values()}
    texts = {key: text for key, text in latest.texts.items() if key in known}
    texts |= {f"{bank.entry(skill).group}/{skill}": text for skill, text in written.items()}
    texts = dict(sorted(texts.items()))
    if texts == dict(latest.texts):
        return latest
    bank.compiled_dir.mkdir(parents=True, exist_ok=True)
    number = latest.number + 1
    folder = bank.compiled_dir / version_name(number)
    staging = Path(tempfile.mkdtemp(dir=bank.compiled_dir, prefix=".staging-"))
    try:
        staging.chmod(0o755)
        for key, text in texts.items():
            write_atomically(staging / f"{key}.md", text)
        staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return Snapshot(number, folder, texts)
