"""What all tests share."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings

# one thread a process, as launch sets it: two cores, several programs
os.environ.setdefault("OMP_NUM_THREADS", "1")

# the same examples every time, and no deadline: a first call that imports is slow on a busy machine
settings.register_profile("seeded", deadline=None, derandomize=True, database=None)
settings.load_profile("seeded")


@pytest.fixture(scope="session", autouse=True)
def model_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Base models of whole-system runs are made once for all tests, and never taken from an earlier session."""
    session = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        session = session.parent  # shared by the workers
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASTRAFLOW_CACHE", str(session / "cache"))
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole-system runs come first: what is short is left for whichever worker is free at the end."""
    items.sort(key=lambda item: item.get_closest_marker("system") is None)


SMALL_RUN = (
    "base_model.total_train_steps=20",
    "base_model.dataset.size=200",
    "dataflow.rollout_dataset.size=100",
    "dataflow.eval_datasets.held_out.size=4",
    "dataflow.buffer.filter_function=null",
    "rollout.max_concurrent_rollouts=8",
    "trainer_base.train_batch_size=32",
)


@pytest.fixture(scope="session")
def small_run() -> tuple[str, ...]:
    """Overrides of the quickstart: all programs and every part, steps of a second, nothing is learnt."""
    return SMALL_RUN


@pytest.fixture(scope="session")
def launch() -> Callable[..., subprocess.Popen[str]]:
    """`astraflow run` of the quickstart as a process: (run directory, *overrides), what it says on its stdout."""

    def start(run_dir: Path, *overrides: str) -> subprocess.Popen[str]:
        recipe = Path(__file__).parents[1] / "examples" / "quickstart.yaml"
        command = [sys.executable, "-m", "astraflow.cli.main", "run", str(recipe), f"experiment.fileroot={run_dir}"]
        return subprocess.Popen([*command, *overrides], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    return start


@pytest.fixture(scope="session")
def follow() -> Callable[[subprocess.Popen[str], str], list[str]]:
    """Read what a process says up to the line that holds the words; the lines."""

    def read(process: subprocess.Popen[str], words: str) -> list[str]:
        lines = []
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if words in line:
                return lines
        raise AssertionError(f"'{words}' was never said:\n{''.join(lines)}")

    return read


RUN_YAML = """\
experiment: {experiment_name: tiny, trial_name: t0, fileroot: ROOT/run}
base_model:
  preset: tiny-1m
  dataset: {dataset_fn: "astraflow.dataflow.dataset.reasoning_gym:get_reasoning_gym_sft_dataset", size: 100}
  total_train_steps: 10
  train_batch_size: 16
raas:
  models:
    model0:
      gconfig: {n_samples: 4, max_new_tokens: 16}
rollout: {max_concurrent_rollouts: 8}
dataflow:
  rollout_dataset:
    dataset_fn: "astraflow.dataflow.dataset.reasoning_gym:get_reasoning_gym_rl_dataset"
    name: chain_sum
    params: {min_digits: 1, max_digits: 2}
  workflow_spec: {workflow_cls: rlvr, reward_fn: "astraflow.core.dataset.reasoning_gym:score"}
  eval_workflows:
    sums: {reward_fn: "astraflow.core.dataset.reasoning_gym:score", gconfig_overrides: {n_samples: 2}}
  eval_datasets:
    held_out:
      dataset_fn: "astraflow.dataflow.dataset.reasoning_gym:get_reasoning_gym_rl_dataset"
      name: chain_sum
      split: test
      eval_workflow: sums
trainer_base:
  total_train_steps: 10
  train_batch_size: 32
"""


@pytest.fixture
def run_yaml(tmp_path: Path) -> Path:
    """A right configuration of a run, in a file of the test's own folder."""
    file = tmp_path / "run.yaml"
    file.write_text(RUN_YAML.replace("ROOT", str(tmp_path)), "utf-8")
    return file


class Page(NamedTuple):
    """What a browser without a network made of a file."""

    dom: str
    """The document after its scripts ran."""
    console: list[str]
    """What was said on the console, what the chart library says of itself left out."""

    @property
    def drawn(self) -> set[str]:
        """Charts that are on the screen."""
        return set(re.findall(r'data-chart="([\w-]+)"[^>]*data-drawn="yes"', self.dom))

    @property
    def ready(self) -> bool:
        return 'data-ready="yes"' in self.dom[:400]


_OWN_WORDS = re.compile(r'"\[bokeh [\d.]+\] (setting log level|document idle)')


@pytest.fixture
def browse(tmp_path: Path) -> Callable[[Path], Page]:
    """Open a file in headless Chromium, every host name unknown to it."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("Chromium is not installed")

    def look(path: Path) -> Page:
        flags = (
            "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
            "--disable-component-update --disable-sync --enable-logging=stderr --virtual-time-budget=20000 --dump-dom"
        )
        command = [program, *flags.split(), "--host-resolver-rules=MAP * ~NOTFOUND"]
        command += [f"--user-data-dir={tmp_path / 'profile'}", path.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        said = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
        return Page(done.stdout, [line for line in said if not _OWN_WORDS.search(line)])

    return look
