"""The command as a user runs it: a process, its exit code and what it prints."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import astraflow.cli.main as cli
from astraflow.errors import AstraFlowError


def astraflow(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "astraflow.cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


def cpu_seconds() -> float:
    """What the programs that have ended took of a processor: other than the time, no matter what else it does."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_names_every_command() -> None:
    done = astraflow("--help")
    assert done.returncode == 0
    for name in ("run", "join", "eval", "bench", "version"):
        assert name in done.stdout


def test_version() -> None:
    assert astraflow("version").stdout.strip()[0].isdigit()


def test_a_wrong_key_is_one_line_exit_code_2_and_nothing_starts(run_yaml: Path, tmp_path: Path) -> None:
    before = cpu_seconds()
    done = astraflow("run", run_yaml, "dataflow.buffer.max_stalenes=1")
    assert cpu_seconds() - before < 10  # 2 s, on a machine that is not shared
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "did you mean 'max_staleness'?" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_dry_run_prints_processes_and_configuration_and_starts_nothing(run_yaml: Path, tmp_path: Path) -> None:
    done = astraflow("run", run_yaml, "seed=5", "--dry-run")
    assert done.returncode == 0, done.stderr
    printed = yaml.safe_load(done.stdout)
    assert list(printed["processes"]) == ["base_model", "dataflow", "raas-0", "train_worker-model0"]
    assert printed["config"]["experiment"]["seed"] == 5
    assert not (tmp_path / "run").exists()


def test_a_refusal_loads_nothing_heavy(run_yaml: Path) -> None:
    code = (
        "import sys\nimport astraflow.cli.main as cli\n"
        f"sys.argv = ['astraflow', 'run', {str(run_yaml)!r}, 'sead=1']\n"
        "try:\n    cli.main()\nexcept SystemExit as end:\n    code = end.code\n"
        "heavy = ('torch', 'transformers', 'ray', 'reasoning_gym', 'fastapi', 'uvicorn')\n"
        "print(code, [name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "2 []", done.stderr


def test_a_users_own_reward_is_found_in_the_working_directory(run_yaml: Path, tmp_path: Path) -> None:
    (tmp_path / "my_reward.py").write_text("def score(prompt, completions, prompt_ids, completion_ids, **row): ...\n")
    right = "dataflow.workflow_spec.reward_fn=my_reward:score"
    assert astraflow("run", run_yaml, right, "--dry-run", cwd=tmp_path).returncode == 0
    wrong = astraflow("run", run_yaml, f"{right}s", "--dry-run", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "did you mean 'score'?" in wrong.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["eval", "nowhere", "--config", "RUN"], "no Hugging Face directory"),
        (["bench", "async", "RUN", "--seeds", "1,b"], "expected whole numbers"),
        (["join", "nowhere", "far"], "no run goes on there"),
        (["run", "nowhere.yaml"], "nowhere.yaml: No such file"),
    ],
)
def test_other_commands_refuse_in_one_line(run_yaml: Path, arguments: list[str], words: str) -> None:
    done = astraflow(*(run_yaml if argument == "RUN" else argument for argument in arguments))
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_failed_run_ends_with_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise AstraFlowError("raas-0 ended")

    monkeypatch.setattr(cli, "app", fail)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 1
    assert capsys.readouterr().err == "astraflow: raas-0 ended\n"
