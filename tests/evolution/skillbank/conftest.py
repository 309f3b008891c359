"""A small skill bank in a folder of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from astraflow.evolution.skillbank import Bank

BASE = """\
---
name: {name}
description: What {name} does and when to use it.
---

# {name}

<!-- section:intro -->
The intro.
<!-- /section:intro -->

Between.

<!-- section:steps -->
The steps.
<!-- /section:steps -->
"""

MakeBank = Callable[..., "BankFiles"]


class BankFiles:
    """Writes the files of a bank below `root`/skill-bank."""

    def __init__(self, root: Path) -> None:
        self.repository = root
        self.root = root / "skill-bank"
        self.groups: dict[str, dict[str, Any]] = {}
        self.settings: dict[str, Any] = {"compiled_dir": "compiled", "output_base": "../"}

    def skill(self, name: str, group: str = "rllm", base: str = BASE, **manifest: Any) -> BankFiles:
        """Add a skill; keywords are keys of its manifest."""
        self.groups.setdefault(group, {})[name] = {"output": f".claude/skills/{name}/SKILL.md"}
        folder = self.root / group / name
        (folder / "patches").mkdir(parents=True, exist_ok=True)
        (folder / "base.md").write_text(base.replace("{name}", name), "utf-8")
        self.manifest(name, group, **manifest)
        return self.write()

    def manifest(self, name: str, group: str = "rllm", **manifest: Any) -> None:
        """Write a skill's manifest."""
        text = yaml.safe_dump({"base": "base.md", "active": [], **manifest}, sort_keys=False)
        (self.root / group / name / "manifest.yaml").write_text(text, "utf-8")

    def patch(self, skill: str, patch_id: str, body: str = "", group: str = "rllm", **fields: Any) -> Path:
        """Write a patch; by default it appends its id to the intro."""
        values = {"id": patch_id, "target_section": "intro", "action": "append", **fields}
        header = yaml.safe_dump({key: value for key, value in values.items() if value is not None}, sort_keys=False)
        file = self.root / group / skill / "patches" / f"{patch_id}.md"
        file.write_text(f"---\n{header}---\n\n{body or f'Text of {patch_id}.'}\n", "utf-8")
        return file

    def write(self) -> BankFiles:
        """Write bank.yaml."""
        groups = {group: {"description": f"Group {group}", "skills": skills} for group, skills in self.groups.items()}
        values = {"version": "1.0", "groups": groups, "settings": self.settings}
        (self.root / "bank.yaml").write_text(yaml.safe_dump(values, sort_keys=False), "utf-8")
        return self

    def load(self) -> Bank:
        """The bank as it is on disk now."""
        return Bank.load(self.root)

    def output(self, name: str) -> Path:
        """A skill's compiled file."""
        return self.repository / ".claude" / "skills" / name / "SKILL.md"


@pytest.fixture
def make_bank(tmp_path: Path) -> MakeBank:
    """Makes a bank with these skills, each with these patches, all active in this order."""

    def make(skills: Mapping[str, Sequence[str]] | None = None) -> BankFiles:
        files = BankFiles(tmp_path)
        for name, patches in ({"one": ()} if skills is None else skills).items():
            files.skill(name, active=list(patches))
            for patch_id in patches:
                files.patch(name, patch_id)
        return files

    return make


@pytest.fixture(scope="session")
def bank_at() -> Callable[[Path], BankFiles]:
    """An empty bank in a repository at a path."""
    return BankFiles


@pytest.fixture(scope="session")
def snapshot_of_tree() -> Callable[[Path], dict[str, bytes]]:
    """Every file below a folder with its bytes, and every folder: equal before and after means nothing was changed."""

    def take(folder: Path) -> dict[str, bytes]:
        return {
            str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"<folder>"
            for path in sorted(folder.rglob("*"))
        }

    return take
