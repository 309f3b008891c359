"""Commands about packages: make, review, list, select, verify, smoke-test."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from astraflow.evolution.skillbank.answer import Answer
from astraflow.evolution.skillbank.bank import Bank
from astraflow.evolution.skillbank.packages import (
    Draft,
    Kind,
    PackageId,
    Registry,
    draft_experimental,
    draft_lineage,
    draft_stable,
    draft_task,
    draft_vertical,
    load_registry,
    make_package,
    packages_in_use,
    parse_rounds,
    review,
    run_folder,
    smoke_test_bank,
    smoke_test_package,
    verify_package,
)
from astraflow.evolution.skillbank.problem import Code, Problem, SkillBankError


def package_command(bank: Bank, options: argparse.Namespace) -> Answer:
    """Make a package, or with `--review` only say what a promotion would take and which gates are closed."""
    registry = load_registry(bank)
    if options.review:
        promotion = review(bank, registry, options.name, options.domain, _source(options))
        return Answer(document=promotion.as_json())
    draft = _draft(bank, registry, options)
    entry = make_package(bank, draft, datetime.now(UTC), options.dry_run)
    verb = "would make" if options.dry_run else "made"
    origin = f" from {draft.details['source']}" if "source" in draft.details else ""
    return Answer(
        lines=[f"{verb} {entry.id} ({entry.status}, {len(draft.files)} files){origin}", f"  {entry.path}"],
        values={
            "command": "package",
            "dry_run": options.dry_run,
            "package": entry.as_json(),
            "files": sorted(draft.files),
            "details": dict(draft.details),
        },
        warnings=draft.warnings,
    )


def list_command(bank: Bank, options: argparse.Namespace) -> Answer:
    """All packages, by kind; the current ones are marked."""
    del options
    registry = load_registry(bank)
    current = set(registry.current.values())
    lines: list[str] = []
    for kind in Kind:
        lines.append(f"[{kind}]")
        entries = registry.of_kind(kind)
        lines += [f"  {entry.id} ({entry.status}){' current' if entry.id in current else ''}" for entry in entries]
        lines += [] if entries else ["  none"]
    return Answer(lines=lines, values={"command": "list-packages", "registry": registry.as_json()})


def select_command(bank: Bank, options: argparse.Namespace) -> Answer:
    """The package that a task of a domain gets, or one by its id."""
    registry = load_registry(bank)
    chosen = PackageId.parse(options.package_id) if options.package_id else registry.select(options.domain or "")
    entry = registry.get(chosen)
    return Answer(lines=[f"{entry.id} {entry.path}"], values={"command": "select", "package": entry.as_json()})


def verify_command(bank: Bank, options: argparse.Namespace) -> Answer:
    """Compare a package's files with the digests of when it was made."""
    chosen = _named(load_registry(bank), options.verify)
    problems = list(verify_package(bank, chosen))
    line = f"{chosen}: {len(problems)} files differ" if problems else f"{chosen}: every file is as it was frozen"
    return Answer(lines=[line], values={"command": "verify", "package": str(chosen)}, errors=problems)


def smoke_command(bank: Bank, options: argparse.Namespace) -> Answer:
    """The bank's skills compile and the packages in use (or one) hold working skills."""
    registry = load_registry(bank)
    chosen = [PackageId.parse(options.package_id)] if options.package_id else packages_in_use(registry)
    results: dict[str, list[Problem]] = {}
    if not options.package_id:
        results["bank"] = list(smoke_test_bank(bank))
    for package_id in chosen:
        results[str(package_id)] = list(smoke_test_package(bank, registry, package_id))
    lines = [f"{name}: {'ok' if not problems else f'{len(problems)} errors'}" for name, problems in results.items()]
    errors = [problem for problems in results.values() for problem in problems]
    return Answer(lines=lines, values={"command": "smoke-test", "tested": list(results)}, errors=errors)


def _draft(bank: Bank, registry: Registry, options: argparse.Namespace) -> Draft:
    source = _source(options)
    match options.package:
        case "stable":
            return draft_stable(bank, options.name)
        case "experimental":
            return draft_experimental(bank, registry, options.name, options.domain, source)
        case "vertical":
            return draft_vertical(review(bank, registry, options.name, options.domain, source))
        case "lineage-archive":
            rounds = parse_rounds(options.round or "", options.round_range or "")
            return draft_lineage(bank, registry, options.name, options.domain, rounds, source)
    run = Path(options.run_dir).resolve() if options.run_dir else run_folder(bank, options.run_id)
    return draft_task(bank, registry, options.name, run, options.domain or "", source)


def _source(options: argparse.Namespace) -> PackageId | None:
    return PackageId.parse(options.from_package) if options.from_package else None


def _named(registry: Registry, text: str) -> PackageId:
    """A package by its id, or by its name alone where only one has it."""
    if ":" in text:
        return registry.get(PackageId.parse(text)).id
    found = [entry.id for entry in registry.entries if entry.id.name == text]
    if len(found) != 1:
        listed = ", ".join(map(str, found or [entry.id for entry in registry.entries])) or "none"
        which = "several packages have" if found else "no package has"
        message = f"{which} the name '{text}': {listed}"
        raise SkillBankError(Problem(Code.UNKNOWN_PACKAGE, message, tuple(map(str, found)) or (text,)))
    return found[0]
