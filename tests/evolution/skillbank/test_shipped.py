"""The bank that ships: every skill is valid and compiled, every command that a skill or the page names runs."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from astraflow.cli.main import app as astraflow_app
from astraflow.evolution.skillbank import Bank
from astraflow.evolution.skillbank.cli import main
from astraflow.evolution.skillbank.compiler import compile_skill
from astraflow.evolution.skillbank.output import FileState, file_state
from astraflow.evolution.skillbank.validation import validate
from astraflow.evolution.traces.cli.main import app as traj_app

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "evolution" / "skill-bank.md"
NAMES = {
    "rllm": ["rllm-train", "rllm-config", "rllm-run", "rllm-monitor", "rllm-analyze"],
    "traj": ["traj-setup", "traj-segment", "traj-analyze-rllm", "traj-optimize", "traj-status", "traj-loop"],
}
EVERY = [name for names in NAMES.values() for name in names]
BLOCK = re.compile(r"^ *```bash\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:astraflow|traj|skill-bank) [^`\n]*)`")
APPS = {"astraflow": astraflow_app, "traj": traj_app}


def commands(text: str) -> Iterator[str]:
    """Every command line of a skill, in order, line continuations joined."""
    for block in BLOCK.findall(text):
        yield from (line.strip() for line in block.replace("\\\n", " ").splitlines() if line.strip())
    yield from INLINE.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def compiled(name: str) -> str:
    return (ROOT / ".claude" / "skills" / name / "SKILL.md").read_text("utf-8")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What a fresh clone has of the skill bank, and a finished run and a round as its user would have them."""
    folder = tmp_path / "clone"
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    wanted = ("skill-bank/", ".claude/", "astraflow/__init__.py", "astraflow/errors.py", "astraflow/evolution/")
    for name in listed.splitlines():
        if name.startswith(wanted) and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    for name, text in (
        ("runs/quickstart/seed-1/config.yaml", "seed: 1\n"),
        ("runs/quickstart/seed-1/logs/dataflow.log", "ended\n"),
        ("runs/quickstart/seed-1/trajectories/step_000001.jsonl", "{}\n"),
        ("runs/quickstart/seed-1/summary.json", '{"accuracy_after": {"greedy": 0.98}}'),
        ("traj_opt/output/rounds/round_1/status.json", '{"round": 1, "status": "optimization_complete"}'),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    return folder


@pytest.fixture
def bare_python(tmp_path: Path) -> dict[str, str]:
    """An environment whose `python` has the standard library and PyYAML, and nothing else."""
    packages, programs = tmp_path / "packages", tmp_path / "programs"
    packages.mkdir()
    programs.mkdir()
    (packages / "yaml").symlink_to(Path(yaml.__file__).parent)
    (programs / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    (programs / "python").chmod(0o755)
    return {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(packages)}


def shell(script: str, clone: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-e", "-c", script], cwd=clone, env=environment, capture_output=True, text=True, check=False
    )


def test_the_skills_that_ship_are_these() -> None:
    bank = Bank.load(ROOT / "skill-bank")
    assert {group: bank.group_members(group) for group in bank.groups} == NAMES


def test_the_bank_is_in_order() -> None:
    findings = validate(Bank.load(ROOT / "skill-bank"))
    assert [str(problem) for problem in (*findings.errors, *findings.warnings)] == []


@pytest.mark.parametrize("name", EVERY)
def test_what_is_committed_is_what_the_sources_say(name: str) -> None:
    bank = Bank.load(ROOT / "skill-bank")
    made = compile_skill(bank, name)
    assert file_state(bank, made, bank.output_file(name)) is FileState.CURRENT
    front = yaml.safe_load(made.text.split("---")[1])
    assert front["name"] == name
    assert "Use " in front["description"], "a description says when the skill is to be used"


@pytest.mark.system
def test_a_bare_python_runs_every_command_and_a_dry_run_leaves_the_clone_as_it_was(
    clone: Path, bare_python: dict[str, str], snapshot_of_tree: Any
) -> None:
    assert shell('python -c "import msgspec"', clone, bare_python).returncode == 1
    looks = ("--validate", "--list-packages", "--smoke-test", "--status")
    operations = (
        "--all",
        "rllm-run --squash",
        "--package stable --name s",
        "--package experimental --domain math --name e",
        "--package task-package --domain math --name t --run-dir runs/quickstart/seed-1",
        "--package lineage-archive --domain math --name l --round-range 1-2",
        "--package vertical --domain math --name v",
    )
    for arguments in (*looks, *operations):
        before = snapshot_of_tree(clone)
        if arguments in operations:
            dry = shell(f"python skill-bank/compile.py {arguments} --dry-run --json", clone, bare_python)
            assert (dry.returncode, json.loads(dry.stdout)["dry_run"]) == (0, True), dry.stderr
            assert snapshot_of_tree(clone) == before
        done = shell(f"python skill-bank/compile.py {arguments}", clone, bare_python)
        assert done.returncode == 0, done.stderr
    # the committed outputs are current: compiling all of them changed nothing but packages
    assert (clone / "skill-bank/compiled/v002").exists() is False


@pytest.mark.system
def test_every_command_of_the_page_runs_in_order(clone: Path, bare_python: dict[str, str]) -> None:
    script = "\n".join(BLOCK.findall(PAGE.read_text("utf-8")))
    done = shell(script, clone, bare_python)
    assert done.returncode == 0, done.stderr
    assert "refused, exit code 1" in done.stdout
    assert "vertical:math:1.0 skill-bank/packages/vertical/math/1.0/manifest.json" in done.stdout
    assert "Never look twice" in (clone / ".claude/skills/rllm-monitor/SKILL.md").read_text("utf-8")


class Placeholders:
    """Puts something real in the place of `<…>` in a command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self, command: str) -> str:
        return re.sub(r"<([\w.]+)>", lambda match: self._value(match[1]), command)

    def _value(self, name: str) -> str:
        if name.endswith("run_directory"):
            return "runs/quickstart/seed-1"
        if "." in name:
            file = self.folder / name
            file.write_text("{}\n", "utf-8")
            return str(file)
        return "placeholder"


def parse_only(app: typer.Typer, arguments: list[str]) -> None:
    """Parse a command down to its last option, without running it; an unknown option or choice raises."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("program", list(arguments))
    while hasattr(command, "commands"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)


ALL_COMMANDS = [
    pytest.param(name, command, id=f"{name}: {command}") for name in EVERY for command in commands(compiled(name))
]


@pytest.mark.parametrize(("name", "command"), ALL_COMMANDS)
def test_every_command_that_a_skill_names_is_one(name: str, command: str, tmp_path: Path) -> None:
    program, *arguments = shlex.split(Placeholders(tmp_path).fill(command).split("|")[-1])
    if program in APPS:
        parse_only(APPS[program], arguments)
        for argument in arguments:
            assert not argument.startswith("examples/") or (ROOT / argument).is_file()
    elif program == "python":
        assert (ROOT / arguments[0]).is_file()
    else:
        assert program == "skill-bank" or shutil.which(program), f"{name} names {program}"


def test_every_skill_bank_command_that_a_skill_names_runs(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bank = clone / "skill-bank"
    prepared = "--package experimental --domain math --name e"
    assert main(shlex.split(prepared), bank) == 0
    fill = Placeholders(clone).fill
    ran = 0
    for name in EVERY:
        for command in commands(compiled(name)):
            if command.startswith("skill-bank "):
                arguments = fill(command).replace("runs/", f"{clone}/runs/")
                assert main(shlex.split(arguments)[1:], bank) == 0, (command, capsys.readouterr().err)
                ran += 1
    assert ran > 10
