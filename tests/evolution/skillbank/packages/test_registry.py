"""registry.json: what it may say, and two writers at once."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from astraflow.evolution.skillbank import SkillBankError
from astraflow.evolution.skillbank.packages import (
    Kind,
    PackageId,
    Registry,
    draft_experimental,
    draft_stable,
    load_registry,
)
from astraflow.evolution.skillbank.packages.registry import Entry


def entry(text: str) -> Entry:
    return Entry(PackageId.parse(text), "s", f"skill-bank/packages/{text}/manifest.json")


def test_selection_prefers_the_domains_vertical_package_to_the_stable_one() -> None:
    with pytest.raises(SkillBankError, match="no stable package"):
        Registry().select("math")
    registry = Registry()
    for text in ("stable:1", "stable:2", "experimental:math:e", "task:t", "lineage:math:l"):
        registry = registry.with_entry(entry(text))
    assert str(registry.select("math")) == "stable:2"
    registry = registry.with_entry(entry("vertical:math:v"))
    assert str(registry.select("math")) == "vertical:math:v"
    assert str(registry.select("code")) == "stable:2"


def test_an_unknown_package_is_answered_with_those_of_its_kind() -> None:
    registry = Registry().with_entry(entry("stable:1"))
    with pytest.raises(SkillBankError, match="no package 'stable:2'; known of its kind: stable:1"):
        registry.get(PackageId.parse("stable:2"))


def test_what_is_written_reads_back(workshop) -> None:
    for domain in ("math", "code"):
        workshop.make(draft_experimental(workshop.bank, workshop.registry, "e", domain, None))
    registry = workshop.registry
    assert [str(one.id) for one in registry.entries] == ["stable:base", "experimental:code:e", "experimental:math:e"]
    assert str(registry.current[Kind.EXPERIMENTAL, "math"]) == "experimental:math:e"
    values = json.loads((workshop.files.root / "registry.json").read_text())
    assert values == registry.as_json()
    assert values["stable"]["packages"][0]["path"] == "skill-bank/packages/stable/base/manifest.json"
    assert values["task_packages"] == values["lineage_archive"] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "must be a JSON object"),
        ('{\n"stable": }', r"registry\.json:2: not valid JSON"),
        (f'{{"stable": {"[" * 100_000}', "nested too deeply"),
        ('{"stable": {"packages": [{"id": "stable:1"}]}}', "a package needs id, status and path"),
        ('{"stable": {"current": "stable:1"}}', "current package 'stable:1' is not listed"),
        ('{"task_packages": [{"id": "stable:1", "status": "s", "path": "p"}]}', "in the wrong place"),
        ('{"vertical": []}', "'vertical' must be an object"),
        ('{"vertical": {"math": 1}}', "'math' must be an object"),
        ('{"task_packages": {}}', "'packages' must be a list"),
    ],
)
def test_a_broken_registry_is_an_error_that_says_where(workshop, text: str, message: str) -> None:
    (workshop.files.root / "registry.json").write_text(text)
    with pytest.raises(SkillBankError, match=message):
        load_registry(workshop.bank)


def test_two_who_add_at_once_are_both_listed(workshop) -> None:
    names = [f"n{index}" for index in range(8)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: workshop.make(draft_stable(workshop.bank, name)), names))
    assert {one.id.name for one in workshop.registry.entries} == {"base", *names}
