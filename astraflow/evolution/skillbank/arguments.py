"""The command line of the skill bank, and which option has an effect with which command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

COMMANDS: dict[str, tuple[str, ...]] = {
    "compile": ("skills", "group", "all", "profile", "dry_run", "force"),
    "diff": ("skills", "group", "all", "profile"),
    "status": ("skills", "group", "all"),
    "explain": ("skills", "profile"),
    "squash": ("skills", "dry_run"),
    "validate": (),
    "list_packages": (),
    "smoke_test": ("package_id",),
    "verify": (),
    "select": ("domain", "package_id"),
    "package": ("name", "domain", "from_package", "run_id", "run_dir", "round", "round_range", "review", "dry_run"),
}
"""Command → the options that it reads, besides --bank and --json."""
OF_PACKAGES: dict[str, tuple[str, ...]] = {
    "stable": (),
    "experimental": ("domain", "from_package"),
    "vertical": ("domain", "from_package", "review"),
    "task-package": ("domain", "from_package", "run_id", "run_dir"),
    "lineage-archive": ("domain", "from_package", "round", "round_range"),
}
ALWAYS = ("bank", "json")
EXAMPLES = """examples:
  compile.py rllm-config                 compile one skill
  compile.py --group rllm                a group; --all for every skill
  compile.py rllm-config -p small        with a profile of its manifest
  compile.py rllm-config --diff          what would change
  compile.py rllm-config --explain tune  where a section comes from
  compile.py --package stable --name 1   freeze the latest snapshot
  compile.py --package vertical --name 1 --domain math --review
"""


def parser() -> argparse.ArgumentParser:
    """The argument parser; `parse` also refuses options without effect."""
    made = argparse.ArgumentParser(
        prog="skill-bank",
        description="Compile skills from bases and patches, and keep packages of them.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("skills", nargs="*", metavar="NAME", help="skills")
    made.add_argument("--group", metavar="G", help="all skills of a group")
    made.add_argument("--all", action="store_true", help="all skills")
    made.add_argument("-p", "--profile", metavar="PROFILE", help="a profile of the skill's manifest")
    made.add_argument("--force", action="store_true", help="overwrite a SKILL.md that was edited by hand")
    made.add_argument("--dry-run", action="store_true", help="say what would be done; write nothing")
    made.add_argument("--json", action="store_true", help="answer with one JSON object")
    made.add_argument("--bank", metavar="DIR", help="the skill-bank folder (default: the nearest one)")
    commands = made.add_argument_group("instead of compiling").add_mutually_exclusive_group()
    commands.add_argument("--diff", action="store_true", help="what compiling would change")
    commands.add_argument("--status", action="store_true", help="patches and output of each skill")
    commands.add_argument("--explain", metavar="SECTION", help="where each part of a section comes from")
    commands.add_argument("--squash", action="store_true", help="make the active patches part of the base")
    commands.add_argument("--validate", action="store_true", help="check sources, patches, outputs and packages")
    commands.add_argument("--list-packages", action="store_true", help="packages and which are current")
    commands.add_argument("--smoke-test", action="store_true", help="would an agent find working skills?")
    commands.add_argument("--verify", metavar="NAME", help="compare a package with its SHA-256 digests")
    commands.add_argument("--select", action="store_true", help="the package that a task gets")
    commands.add_argument("--package", choices=list(OF_PACKAGES), help="make a package")
    options = made.add_argument_group("packages")
    options.add_argument("--name", help="the new package's name")
    options.add_argument("--domain", help="the domain: math, code, search, …")
    options.add_argument("--from-package", metavar="ID", help="what it is made from, e.g. stable:1")
    options.add_argument("--package-id", metavar="ID", help="one package, for --smoke-test and --select")
    options.add_argument("--run-id", metavar="ID", help="a run under rllm_train/output/runs")
    options.add_argument("--run-dir", metavar="DIR", help="a run directory anywhere")
    options.add_argument("--round", metavar="1,2", help="rounds to archive")
    options.add_argument("--round-range", metavar="1-3", help="rounds to archive, both ends included")
    options.add_argument("--review", action="store_true", help="print a promotion's classification and gates only")
    return made


def parse(argv: Sequence[str] | None) -> tuple[str, argparse.Namespace]:
    """The command and its options. A wrong or useless option ends the program with exit code 2."""
    made = parser()
    options = made.parse_args(argv)
    command = next((name for name in COMMANDS if name != "compile" and getattr(options, name)), "compile")
    read = {command, *COMMANDS[command], *ALWAYS}
    if command == "package":
        read -= {option for options_ in OF_PACKAGES.values() for option in options_}
        read |= set(OF_PACKAGES[options.package])
    for name, value in vars(options).items():
        if value not in (None, False, []) and name not in read:
            flag = "NAME" if name == "skills" else f"--{name.replace('_', '-')}"
            made.error(f"{flag} has no effect with --{command.replace('_', '-')}")
    _need(made, command, options)
    return command, options


def _need(made: argparse.ArgumentParser, command: str, options: argparse.Namespace) -> None:
    chosen = sum(map(bool, (options.skills, options.group, options.all)))
    if command in ("compile", "diff") and chosen == 0:
        made.error("name a skill, or give --group G or --all (--help shows more)")
    if chosen > 1:
        made.error("give one of NAME, --group and --all")
    if command in ("explain", "squash") and len(options.skills) != 1:
        made.error(f"--{command} needs one skill")
    if command == "package":
        if not options.name:
            made.error(f"--package {options.package} needs --name")
        if options.package in ("experimental", "vertical", "lineage-archive") and not options.domain:
            made.error(f"--package {options.package} needs --domain")
        if options.package == "task-package" and bool(options.run_id) == bool(options.run_dir):
            made.error("--package task-package needs one of --run-id and --run-dir")
