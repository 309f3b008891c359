"""What a manifest may say, and which patches a profile makes active."""

from pathlib import Path

import pytest

from astraflow.evolution.skillbank.manifest import Manifest
from astraflow.evolution.skillbank.problem import SkillBankError


def read(tmp_path: Path, text: str) -> Manifest:
    file = tmp_path / "manifest.yaml"
    file.write_text(text)
    return Manifest.read(file)


def test_a_profile_replaces_the_active_list_or_takes_out_of_it(tmp_path: Path) -> None:
    manifest = read(tmp_path, "active: [b, a]\nprofiles: {small: {active: [a, c]}, plain: {disabled: [b]}, same: {}}\n")
    assert manifest.base == "base.md"
    assert manifest.active_in(None) == ("b", "a")
    assert manifest.active_in("small") == ("a", "c")
    assert manifest.active_in("plain") == ("a",)
    assert manifest.active_in("same") == ("b", "a")
    with pytest.raises(SkillBankError, match=r"unknown profile 'smal', did you mean 'small'\?"):
        manifest.active_in("smal")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("activ: [a]\n", "unknown key 'activ', did you mean 'active'"),
        ("active: [a, a]\n", "patch 'a' is active twice"),
        ("active: [a]\ndisabled: [a]\n", "patch 'a' is both active and disabled"),
        ("profiles: {p: {active: [a], disabled: [a]}}\n", "profile 'p': patch 'a' is both"),
        ("active: [1]\n", "'active' must be a list of texts"),
        ("profiles: {p: {patches: []}}\n", r"unknown key 'profiles\.p\.patches'"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SkillBankError, match=message):
        read(tmp_path, text)


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    text = "base: b.md\nactive: [x]\ndisabled: [y]\nprofiles: {p: {description: d, active: [y]}, q: {disabled: [x]}}\n"
    manifest = read(tmp_path, text)
    assert read(tmp_path, manifest.render()) == manifest
    assert manifest.with_active(("x", "y")).disabled == ()
