"""The whole bank, looked at."""

from datetime import UTC, datetime

from astraflow.evolution.skillbank import Code, write_skills
from astraflow.evolution.skillbank.packages import PackageId, draft_stable, make_package
from astraflow.evolution.skillbank.validation import skill_status, validate

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def codes(problems) -> list[Code]:
    return [problem.code for problem in problems]


def test_a_bank_in_order_has_nothing_to_say(make_bank) -> None:
    files = make_bank({"one": ["a"], "two": []})
    files.manifest("one", active=["a"], profiles={"plain": {"active": []}})
    write_skills(files.load(), ["one", "two"])
    make_package(files.load(), draft_stable(files.load(), "s"), NOW)
    findings = validate(files.load())
    assert (findings.errors, findings.warnings) == ([], [])


def test_every_skill_is_looked_at_and_each_error_said_once(make_bank) -> None:
    files = make_bank({"one": ["a"], "two": ["b"], "three": []})
    files.patch("one", "a", action="merge")
    files.manifest("one", active=["a"], profiles={"same": {}})
    (files.root / "rllm/two/base.md").unlink()
    assert codes(validate(files.load()).errors) == [Code.UNKNOWN_ACTION, Code.MISSING_FILE]


def test_patches_that_are_not_active_are_looked_at_too(make_bank) -> None:
    files = make_bank({"one": []})
    files.patch("one", "broken", status="done")
    files.patch("one", "lost", target_section="nowhere")
    files.patch("one", "x").rename(files.root / "rllm/one/patches/y.md")
    files.patch("one", "x")
    files.manifest("one", disabled=["gone"])
    findings = validate(files.load())
    assert codes(findings.errors) == [Code.MALFORMED_FILE, Code.MALFORMED_FILE, Code.MISSING_FILE]
    assert Code.UNKNOWN_SECTION in codes(findings.warnings)


def test_an_error_of_a_profile_is_found(make_bank) -> None:
    files = make_bank({"one": []})
    files.manifest("one", profiles={"p": {"active": ["none"]}})
    assert [problem.ids for problem in validate(files.load()).errors] == [("none",)]


def test_outputs_are_compared_with_sources(make_bank) -> None:
    files = make_bank({"one": [], "two": [], "three": []})
    write_skills(files.load(), ["one", "two"])
    files.output("one").write_text("mine\n")
    files.manifest("two", active=["p"])
    files.patch("two", "p")
    assert codes(validate(files.load()).warnings) == [Code.HAND_EDITED, Code.STALE, Code.MISSING_FILE]
    states = {name: skill_status(files.load(), name).state for name in ("one", "two", "three")}
    assert states == {"one": "hand_edited", "two": "stale", "three": "missing"}


def test_packages_are_compared_with_their_digests_and_the_registry(make_bank) -> None:
    files = make_bank()
    write_skills(files.load(), ["one"])
    make_package(files.load(), draft_stable(files.load(), "s"), NOW)
    (files.root / "packages/stable/s/skills/rllm/one.md").write_text("changed\n")
    (files.root / "packages/vertical/math/copied").mkdir(parents=True)
    findings = validate(files.load())
    assert codes(findings.errors) == [Code.DIGEST]
    assert findings.errors[0].ids == (str(PackageId.parse("stable:s")), "skills/rllm/one.md")
    assert [(w.code, w.ids) for w in findings.warnings] == [(Code.UNKNOWN_PACKAGE, ("copied",))]


def test_a_registry_that_points_elsewhere_is_an_error(make_bank) -> None:
    files = make_bank()
    write_skills(files.load(), ["one"])
    make_package(files.load(), draft_stable(files.load(), "s"), NOW)
    registry = files.root / "registry.json"
    registry.write_text(registry.read_text().replace("packages/stable/s/manifest", "packages/stable/t/manifest"))
    assert codes(validate(files.load()).errors) == [Code.MALFORMED_FILE]


def test_a_source_that_the_bank_does_not_list_is_said(make_bank) -> None:
    files = make_bank({"one": [], "two": []})
    del files.groups["rllm"]["two"]
    write_skills(files.write().load(), ["one"])
    assert [(w.code, w.ids) for w in validate(files.load()).warnings] == [(Code.UNKNOWN_SKILL, ("two",))]


def test_a_status_counts_patches_and_survives_broken_skills(make_bank) -> None:
    files = make_bank({"one": ["a"], "two": ["b"]})
    files.patch("one", "new", status="proposed")
    files.patch("one", "broken", action="merge")
    status = skill_status(files.load(), "one")
    assert status.patches == {"accepted": 1, "proposed": 1, "unreadable": 1}
    assert (status.active, status.state) == (("a",), "missing")
    (files.root / "rllm/two/manifest.yaml").write_text("active: b\n")
    assert skill_status(files.load(), "two").state == "broken"
