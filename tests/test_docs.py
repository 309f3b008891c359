"""The documentation is true: every command in it runs, every message in it is one, and it builds without a warning.

A page's `console` blocks are run from top to bottom in a folder of their own that holds what a clone holds. Lines that
begin with "$ " are commands; the other lines have to be in what they print. A block under a paragraph that is nothing
but a file's name in code and a colon is that file. A comment right above a block changes how it is run:

    <!-- docs-test: small -->          `astraflow run` gets the overrides of SMALL, which learn nothing and take seconds
    <!-- docs-test: with a.b=c -->     `astraflow run` gets these overrides
    <!-- docs-test: exit 2 -->         the command ends with this code

`make` is asked what it would do (it would make an environment), and `pip install` installs into a folder of the test.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from astraflow.core.protocol import messages as m

ROOT = Path(__file__).parent.parent
FOLLOWED_ELSEWHERE = {"docs/custom-parts.md"}
"""By tests/system/test_custom_parts.py, in an empty folder."""
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SMALL = (
    "base_model.total_train_steps=20 base_model.dataset.size=200 dataflow.rollout_dataset.size=100 "
    "dataflow.eval_datasets.held_out.size=10 dataflow.buffer.filter_function=null rollout.max_concurrent_rollouts=8 "
    "trainer_base.total_train_steps=2 trainer_base.train_batch_size=32"
)
BLOCK = re.compile(
    r"(?:^<!-- docs-test: (?P<how>[^\n]+) -->\n\n|^`(?P<file>[\w./-]+)`:\n\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
LINE_NUMBER = re.compile(r"\.yaml:\d+")
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Block:
    kind: str
    text: str
    file: str = ""
    how: str = ""


def blocks(page: Path) -> list[Block]:
    found = BLOCK.finditer(page.read_text("utf-8"))
    return [Block(b["kind"], b["text"], b["file"] or "", b["how"] or "") for b in found]


def transcripts(text: str) -> list[tuple[str, list[str]]]:
    """(command, the lines that it prints) of a console block; a command goes on after a backslash."""
    found: list[tuple[str, list[str]]] = []
    for line in re.sub(r" *\\\n\s*", " ", text).splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.strip():
            assert found, f"a console block begins with a command after '$ ': {line!r}"
            found[-1][1].append(line)
    return found


def adapted(command: str, how: str) -> str:
    """The command as it is run here."""
    program, _, rest = command.partition(" ")
    if program == "make":
        return f"make --dry-run {rest}"
    if program == "pip":
        assert rest.startswith("install "), command
        return f"python -m pip install --quiet --no-deps --no-build-isolation --target .site {rest[len('install ') :]}"
    if command.startswith("astraflow run"):
        kind, _, overrides = how.partition(" ")
        command += {"small": f" {SMALL}", "with": f" {overrides}"}.get(kind, "")
    return command


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where base models are kept: made once for all pages."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What a clone holds besides the package and the tests."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in tracked.splitlines():
        if not name.startswith(("astraflow/", "tests/")) and (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


class Shell:
    """Runs commands one after the other as a person at a terminal: `cd` stays."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder = folder
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self.environment = {
            **os.environ,
            "PATH": path,
            "PYTHONPATH": os.pathsep.join([str(folder / ".site"), str(ROOT)]),
            "ASTRAFLOW_CACHE": str(cache),
        }

    def run(self, command: str) -> tuple[int, str]:
        script = f'{command}\ncode=$?\npwd > "$HERE"\nexit $code'
        here = self.folder / ".here"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env={**self.environment, "HERE": str(here)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        self.folder = Path(here.read_text().strip())
        here.unlink()
        return done.returncode, done.stdout


@pytest.mark.system
@pytest.mark.parametrize(
    "page",
    [
        str(page.relative_to(ROOT))
        for page in PAGES
        if any(block.kind == "console" for block in blocks(page))
        and str(page.relative_to(ROOT)) not in FOLLOWED_ELSEWHERE
    ],
)
def test_every_command_runs_and_prints_what_the_page_shows(page: str, clone: Path, cache: Path) -> None:
    shell = Shell(clone, cache)
    for block in blocks(ROOT / page):
        if block.file:
            (shell.folder / block.file).write_text(block.text, "utf-8")
        for command, shown in transcripts(block.text) if block.kind == "console" else ():
            expected = int(block.how.removeprefix("exit ")) if block.how.startswith("exit ") else 0
            code, printed = shell.run(adapted(command, block.how))
            assert code == expected, f"{command}\n{printed}"
            for line in shown:
                assert LINE_NUMBER.sub(".yaml:N", line) in LINE_NUMBER.sub(".yaml:N", printed), f"{command}\n{printed}"


EXAMPLES = {
    "POST /ready": m.ReadyRequest,
    "POST /notify_version": m.NotifyVersionRequest,
    "POST /register_raas": m.RegisterRaaSRequest,
    "POST /register_workflow": m.RegisterWorkflowRequest,
    "POST /submit": m.SubmitRequest,
    "POST /pull": m.PullRequest,
    "POST /request_transfer": m.TransferRequest,
}


def test_every_message_of_the_protocol_page_is_one() -> None:
    text = (ROOT / "docs" / "protocol.md").read_text("utf-8")
    found = re.findall(r"^### (\w+ /\w+)\n\n```json\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in found] == list(EXAMPLES)
    for name, body in found:
        message = msgspec.json.decode(body, type=EXAMPLES[name])
        if isinstance(message, m.ReadyRequest):
            assert message.manifest is not None
            message.manifest.check()


def test_every_route_of_the_programs_is_on_the_protocol_page() -> None:
    text = (ROOT / "docs" / "protocol.md").read_text("utf-8")
    sources = ("dataflow/app.py", "raas/app.py", "core/weight_manager/sender_agent.py")
    code = "\n".join((ROOT / "astraflow" / source).read_text("utf-8") for source in sources)
    routes = re.findall(r'(?:Endpoint|route)\((?:"(?:GET|POST)", )?"(/[\w/{}]+)"', code)
    assert len(routes) > 25
    assert [route for route in routes if route not in text] == []


def test_python_on_the_pages_is_python() -> None:
    for page in PAGES:
        for block in blocks(page):
            if block.kind == "python":
                compile(block.text, str(page), "exec")


@pytest.mark.system
def test_the_documentation_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        str(ROOT / "docs"),
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    reference = (tmp_path / "reference" / "configuration.html").read_text("utf-8")
    assert "max_staleness" in reference
    assert "astraflow doctor" in (tmp_path / "reference" / "commands.html").read_text("utf-8")


def test_shown_commands_are_split_as_a_shell_does() -> None:
    assert transcripts("$ a \\\n    b\nx\n$ c\n") == [("a b", ["x"]), ("c", [])]
    assert shlex.split(adapted("astraflow run x.yaml", "with a.b=1 c=2"))[-2:] == ["a.b=1", "c=2"]
    assert adapted("make test", "") == "make --dry-run test"
