"""Commands about skills: compile, diff, status, explain, squash, validate."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from astraflow.evolution.skillbank.answer import Answer
from astraflow.evolution.skillbank.bank import Bank
from astraflow.evolution.skillbank.explain import Explanation, explain
from astraflow.evolution.skillbank.output import Outcome, SkillResult, diff, has_profile, write_skills
from astraflow.evolution.skillbank.problem import Code, Problem, SkillBankError
from astraflow.evolution.skillbank.squash import squash_skill
from astraflow.evolution.skillbank.validation import skill_status, validate


def chosen_skills(bank: Bank, options: argparse.Namespace) -> list[str]:
    """The skills of NAME…, `--group` or `--all`; every skill where none of them is given."""
    if options.group:
        return bank.group_members(options.group)
    return [bank.entry(name).name for name in dict.fromkeys(options.skills)] or list(bank.skills)


def compile_command(bank: Bank, options: argparse.Namespace) -> Answer:
    """Compile and write; with `--dry-run` say what would be written."""
    names = chosen_skills(bank, options)
    several = _profile_for_several(bank, names, options)
    report = write_skills(bank, names, options.profile, options.force, options.dry_run, where_defined=several)
    lines = [_result_line(bank, result, options.dry_run) for result in report.results]
    if not options.dry_run:
        lines.append(f"snapshot {report.snapshot} ({'new' if report.new_snapshot else 'unchanged'})")
    elif len(names) == 1 and report.results[0].compiled is not None:
        lines += ["", report.results[0].compiled.text.rstrip("\n")]
    return Answer(
        lines=lines,
        values={
            "command": "compile",
            "dry_run": options.dry_run,
            "skills": [_result_values(bank, result, options.dry_run) for result in report.results],
            "snapshot": report.snapshot,
            "new_snapshot": report.new_snapshot,
        },
        errors=report.problems,
        warnings=[warning for result in report.results for warning in result.warnings],
    )


def diff_command(bank: Bank, options: argparse.Namespace) -> Answer:
    """A unified diff a skill, from the file to what the sources say."""
    names = chosen_skills(bank, options)
    several = _profile_for_several(bank, names, options)
    lines: list[str] = []
    values: list[dict[str, Any]] = []
    errors: list[Problem] = []
    for name in names:
        profile = options.profile if not several or has_profile(bank, name, options.profile) else None
        try:
            text = diff(bank, name, profile)
        except SkillBankError as error:
            errors += error.problems
            continue
        values.append({"skill": name, "diff": text})
        lines.append(text.rstrip("\n") if text else f"{name}: no difference")
    return Answer(lines=lines, values={"command": "diff", "skills": values}, errors=errors)


def status_command(bank: Bank, options: argparse.Namespace) -> Answer:
    """Every skill's patches and how its file stands to its sources."""
    statuses = [skill_status(bank, name) for name in chosen_skills(bank, options)]
    lines: list[str] = []
    for group in dict.fromkeys(status.group for status in statuses):
        lines.append(f"[{group}] {bank.groups[group]}".rstrip())
        for status in statuses:
            if status.group == group:
                counts = ", ".join(f"{count} {name}" for name, count in status.patches.items()) or "no patches"
                active = f"; active: {', '.join(status.active)}" if status.active else ""
                profiles = f"; profiles: {', '.join(status.profiles)}" if status.profiles else ""
                lines.append(f"  {status.skill:<20} {status.state:<12} {counts}{active}{profiles}")
    return Answer(lines=lines, values={"command": "status", "skills": [status.as_json() for status in statuses]})


def explain_command(bank: Bank, options: argparse.Namespace) -> Answer:
    """Where each part of a section comes from."""
    explanation = explain(bank, options.skills[0], options.explain, options.profile)
    return Answer(lines=_explained(explanation), values={"command": "explain", **explanation.as_json()})


def squash_command(bank: Bank, options: argparse.Namespace) -> Answer:
    """Make the active patches part of the base."""
    squash = squash_skill(bank, options.skills[0], options.dry_run)
    verb = "would become" if options.dry_run else "became"
    named = ", ".join(squash.patches)
    line = f"{squash.skill}: {named} {verb} part of the base" if named else f"{squash.skill}: no active patches"
    values = {"command": "squash", "dry_run": options.dry_run, "skill": squash.skill, "patches": list(squash.patches)}
    return Answer(lines=[line], values=values)


def validate_command(bank: Bank, options: argparse.Namespace) -> Answer:
    """Check everything in the bank."""
    del options
    findings = validate(bank)
    summary = f"{len(bank.skills)} skills: {len(findings.errors)} errors, {len(findings.warnings)} warnings"
    values = {"command": "validate", "skills": list(bank.skills)}
    return Answer(lines=[summary], values=values, errors=findings.errors, warnings=findings.warnings)


def _profile_for_several(bank: Bank, names: Sequence[str], options: argparse.Namespace) -> bool:
    """May skills without the profile stay plain? Yes for a group or all, if at least one defines it."""
    if options.profile is None or options.skills:
        return False
    if not any(has_profile(bank, name, options.profile) for name in names):
        message = f"no skill here has the profile '{options.profile}'"
        raise SkillBankError(Problem(Code.UNKNOWN_SKILL, message, (options.profile,), bank.file))
    return True


def _result_line(bank: Bank, result: SkillResult, dry_run: bool) -> str:
    if result.outcome is Outcome.WRITTEN:
        return f"{result.skill}: {'would write' if dry_run else 'wrote'} {bank.entry(result.skill).output}"
    return f"{result.skill}: {result.outcome.replace('_', ' ')}"


def _result_values(bank: Bank, result: SkillResult, with_text: bool) -> dict[str, Any]:
    values: dict[str, Any] = {
        "skill": result.skill,
        "outcome": str(result.outcome),
        "output": bank.entry(result.skill).output,
    }
    if result.compiled is not None:
        values["patches"] = [patch.id for patch in result.compiled.patches]
        if with_text:
            values["text"] = result.compiled.text
    return values


def _explained(explanation: Explanation) -> list[str]:
    lines = [f"section '{explanation.section.name}' of {explanation.skill}"]
    for part in explanation.as_json()["parts"]:
        how = f" ({part['action']}, {part['status']})" if "action" in part else ""
        lines += ["", f"── {part['origin']}{how} — {Path(part['file']).name}:{part['line']}"]
        lines += [f"   {part['description']}"] if part.get("description") else []
        lines += [f"   {key}: {value}" for key, value in part.get("evidence", {}).items()]
        lines += [f"   | {line}".rstrip() for line in part["text"].split("\n")]
    if explanation.lost():
        lines += ["", f"replaced: {', '.join(explanation.lost())}"]
    return lines
