"""docs/custom-parts.md, followed word for word in an empty folder."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "custom-parts.md").read_text("utf-8")
FILES = dict(re.findall(r"^`([\w.-]+)`:\n\n```\w+\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL))
COMMANDS = [
    line.removeprefix("$ ")
    for block in re.findall(r"^```console\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]
PARTS = ("custom_dataset.py", "custom_reward.py", "custom_workflow.py")


@pytest.mark.parametrize("name", PARTS)
def test_the_guide_shows_the_examples(name: str) -> None:
    assert FILES[name] == (ROOT / "examples" / name).read_text("utf-8")


def test_the_guide_has_the_commands_that_are_followed_here() -> None:
    assert sorted(FILES) == sorted([*PARTS, "pyproject.toml", "run.yaml"])
    assert [command.split(" dataflow.")[0] for command in COMMANDS] == [
        "mkdir my-parts && cd my-parts",
        "astraflow run run.yaml --dry-run",
        "astraflow run run.yaml",
        "pip install .",
        "astraflow run run.yaml",
    ]


def environment(**more: str) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, **more}


def shell(command: str, folder: Path, env: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def sampled_episodes(run: Path) -> list[dict]:
    files = sorted((run / "trajectories").glob("step_*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]


def turns(episode: dict) -> int:
    """How often the policy takes over from the context."""
    mask = episode["mask"]
    return sum(before < after for before, after in zip([0, *mask], mask, strict=False))


def install(folder: Path, site: Path) -> None:
    """What `pip install .` leaves of the folder: its modules and the entry points of its pyproject.toml."""
    project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
    info = site / f"{project['project']['name'].replace('-', '_')}-{project['project']['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['project']['name']}\nVersion: {project['project']['version']}\n"
    )
    groups = project["project"]["entry-points"]
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in points.items())
        for group, points in groups.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    for module in project["tool"]["setuptools"]["py-modules"]:
        shutil.move(folder / f"{module}.py", site / f"{module}.py")


@pytest.mark.system
def test_the_trio_works_in_an_empty_folder_and_by_name(tmp_path: Path) -> None:
    make_folder, dry_run, run, _, run_by_name = COMMANDS
    env = environment()
    shell(make_folder, tmp_path, env)
    folder = tmp_path / "my-parts"
    for name, text in FILES.items():
        (folder / name).write_text(text, "utf-8")

    described = shell(dry_run, folder, env)
    assert "custom_workflow:SecondTry" in described
    assert not (folder / "runs").exists()
    shell(run, folder, env)
    summary = json.loads((folder / "runs" / "custom" / "summary.json").read_text())
    assert summary["rl_steps"] == 5
    episodes = sampled_episodes(folder / "runs" / "custom")
    assert {turns(episode) for episode in episodes} <= {1, 2}
    assert max(turns(episode) for episode in episodes) == 2, "some needed the second try"
    assert all(0 <= episode["reward"] <= 1 for episode in episodes)

    site = tmp_path / "site"
    install(folder, site)
    shell(f"{run_by_name} trainer_base.total_train_steps=2", folder, environment(PYTHONPATH=str(site)))
    assert json.loads((folder / "runs" / "custom" / "summary.json").read_text())["rl_steps"] == 2
    assert (folder / "runs" / "custom.1").is_dir(), "the first run was kept"
