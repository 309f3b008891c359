"""File hygiene: one newline at the end, no trailing spaces, no tabs, no conflict marks, no large file."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
TEXT = [
    f
    for f in TRACKED
    if f and (ROOT / f).is_file() and Path(f).suffix in {".py", ".md", ".yaml", ".yml", ".toml", ".txt", ""}
]


@pytest.mark.parametrize("name", TEXT)
def test_file_is_clean(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    assert not text or text.endswith("\n"), "no newline at the end"
    assert not text.endswith("\n\n"), "empty lines at the end"
    assert "\r" not in text
    for number, line in enumerate(text.split("\n"), 1):
        assert line == line.rstrip() or name == "LICENSE", f"line {number} ends in spaces"
        assert not line.startswith(("<" * 7, ">" * 7)), f"line {number} is a conflict mark"
        if not name.endswith("Makefile"):
            assert not line.startswith("\t"), f"line {number} starts with a tab"


def test_no_large_file_is_tracked() -> None:
    assert [f for f in TRACKED if f and (ROOT / f).is_file() and (ROOT / f).stat().st_size > 500_000] == []
