"""The command as a user runs it: a process, its exit code and what it prints."""

import os
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import astraflow.cli.main as cli
from astraflow.errors import AstraFlowError

RUN_READERS = (["report"], ["audit"], ["replay"], ["weights", "verify"], ["inspect", "version", "1"])
"""Commands whose last argument is a run directory."""


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
        "heavy = ('torch', 'transformers', 'ray', 'reasoning_gym', 'starlette', 'uvicorn')\n"
        "print(code, [name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "2 []", done.stderr


@pytest.mark.parametrize("closed", [(2,), (1, 2), (0, 1, 2)])
def test_closed_standard_streams_change_nothing(
    run_yaml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: tuple[int, ...]
) -> None:
    """A run from a service manager or with `2>&-`: here it ends for want of a cache, as it would with them open."""
    monkeypatch.setenv("ASTRAFLOW_CACHE", str(run_yaml / "no_folder"))
    redirected = " ".join(f"{number}>&-" for number in closed)
    command = f"exec {shlex.quote(sys.executable)} -m astraflow.cli.main run {shlex.quote(str(run_yaml))} {redirected}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")
    assert (tmp_path / "run" / "config.yaml").is_file()


def test_a_working_directory_that_is_not_utf8_is_one_line(run_yaml: Path, tmp_path: Path) -> None:
    here = tmp_path / os.fsdecode(b"caf\xe9")
    here.mkdir()
    for more in ([], ["--dry-run"]):
        done = astraflow("run", run_yaml, "experiment.fileroot=runs", *more, cwd=here)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert "experiment.fileroot" in done.stderr
        assert r"caf\udce9/runs' is not UTF-8" in done.stderr
    checked = astraflow("doctor", run_yaml, "experiment.fileroot=runs", cwd=here)
    assert checked.returncode == 1
    assert r"caf\udce9/runs' is not UTF-8" in checked.stdout
    assert astraflow("version", cwd=here).returncode == 0


@pytest.mark.parametrize("text", ["trial_name=caf", "caf", "caf.yaml"])
def test_an_argument_that_is_not_utf8_is_one_line(run_yaml: Path, text: str) -> None:
    for command in ("run", "doctor", "report"):
        arguments = [sys.executable, "-m", "astraflow.cli.main", command, str(run_yaml), text.encode() + b"\xe9"]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert rf"{text}\udce9' is not UTF-8" in done.stderr


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
        (["eval", "nowhere", "--config", "RUN"], "CHECKPOINT: there is no Hugging Face directory"),
        (["bench", "async", "RUN", "--seeds", "1,b"], "expected whole numbers"),
        (["join", "nowhere", "far"], "no run goes on there"),
        (["run", "nowhere.yaml"], "nowhere.yaml: No such file"),
        (["run", "RUN", f"trial_nam={'x' * 300}"], "trial_nam: unknown key"),
        (["run", "RUN", "seed=99999999999999999999999"], "less than or equal to 9223372036854775807"),
        (["doctor", "RUN", "--json", "nowhere/out.json"], "nowhere/out.json cannot be written: No such file"),
        (["join", "RUN", "far"], "no run goes on there"),
        (["simulate", "--latencies", "nowhere"], "nowhere: No such file or directory: expected a run directory"),
        *(([*command, "."], ". is not a run directory") for command in RUN_READERS),
        *(([*command, "nowhere"], "nowhere is not a run directory") for command in RUN_READERS),
        (["simulate", "--latencies", "."], ". is not a run directory"),
    ],
)
def test_other_commands_refuse_in_one_line(run_yaml: Path, tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "empty").mkdir()
    done = astraflow(*(run_yaml if argument == "RUN" else argument for argument in arguments), cwd=tmp_path / "empty")
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_what_the_machine_refuses_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(cli, "app", lambda: (tmp_path / "no" / "log").write_text(""))
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 1
    assert capsys.readouterr().err == f"astraflow: {tmp_path}/no/log: No such file or directory\n"


def test_a_working_directory_that_was_deleted_is_one_line(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"rmdir {gone} && {sys.executable} -m astraflow.cli.main run run.yaml"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, cwd=gone)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("astraflow: the working directory: FileNotFoundError")
    assert "Traceback" not in done.stderr


def test_results_that_could_not_be_written_are_refused_before_the_work(tmp_path: Path) -> None:
    before = cpu_seconds()
    done = astraflow("bench", "dataflow", "--seconds", "60", "--json", tmp_path)
    assert (done.returncode, done.stderr) == (2, f"astraflow: {tmp_path} cannot be written: Is a directory\n")
    assert cpu_seconds() - before < 10


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
