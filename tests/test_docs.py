"""The documentation is true: every command in it runs, every message in it is one, and it builds without a warning.

A page's `console` blocks (commands after "$ ", the other lines have to be in what they print) and `bash` blocks
(scripts) are run from top to bottom in a folder that holds what a clone holds. A block under a paragraph that is only
a file name in code and a colon is that file. A comment right above a block changes how it is run:

    <!-- docs-test: small -->          `astraflow run` is the small run of conftest.py, of two steps
    <!-- docs-test: dry-run -->        `astraflow run` gets --dry-run
    <!-- docs-test: with TEXT -->      commands get this at their end
    <!-- docs-test: exit 2 -->         the commands end with this code
    <!-- docs-test: needs PACKAGE -->  they are left out where the package, which no extra brings, is not installed

`make` is asked what it would do (it would make an environment). `pip install` would go to the network: that its extras
exist and other projects' names are this project's own requirements is checked instead.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from astraflow.core.protocol import messages as m

ROOT = Path(__file__).parent.parent
FOLLOWED_ELSEWHERE = {
    "docs/custom-parts.md": "system/test_custom_parts.py",
    "docs/custom-raas.md": "system/test_custom_programs.py",
    "docs/custom-trainer.md": "system/test_custom_programs.py",
    "docs/evolution/skill-bank.md": "evolution/skillbank/test_shipped.py",
    "docs/evolution/traj-opt.md": "evolution/traces/test_worked_example.py",
}
"""Page → the test that follows it, in a way of its own."""
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHORT = ("trainer_base.total_train_steps=2", "+trainer_base.actor.entropy_coef=0.01")
"""The entropy bonus moves the weights where every reward is 0, as a base model of 20 steps has it."""
RUN = "runs/quickstart/seed-1"
BLOCK = re.compile(
    r"(?:^<!-- docs-test: (?P<how>[^\n]+) -->\n\n|^`(?P<file>[\w./-]+)`:\n\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
LINE_NUMBER = re.compile(r"\.yaml:\d+")
TIMEOUT_S = 300.0
FOLLOWS = "::test_every_command_runs_and_prints_what_the_page_shows["


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


def options(how: str) -> dict[str, str]:
    """ "exit 2, needs x" → {"exit": "2", "needs": "x"}."""
    return {name: value for name, _, value in (part.strip().partition(" ") for part in how.split(",")) if name}


def adapted(command: str, how: dict[str, str], small: str = "") -> str:
    """The command as it is run here."""
    if command.startswith("make "):
        return command.replace("make ", "make --dry-run ", 1)
    if command.startswith("pip "):
        check_installable(command)
        return "true"
    if re.search(r"(^| )astraflow run ", command):
        command += f" {small}" if "small" in how else " --dry-run" if "dry-run" in how else ""
    return f"{command} {how['with']}" if "with" in how else command


def check_installable(command: str) -> None:
    """A `pip install` names this project's extras, or what pyproject.toml speaks of."""
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    extras = tomllib.loads(project)["project"]["optional-dependencies"]
    for name in shlex.split(command)[2:]:
        own = re.fullmatch(r"astraflow\[([\w,-]+)\]", name)
        if own:
            assert set(own[1].split(",")) <= set(extras), command
        elif not name.startswith("-"):
            assert name in project, command


def make_clone(folder: Path) -> Path:
    """What a clone holds besides the package and the tests."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in tracked.splitlines():
        if not name.startswith(("astraflow/", "tests/")) and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    problems = [f'{{"question": "What is {n} plus 1?", "answer": "{n}+1\\n#### {n + 1}"}}' for n in range(20)]
    (folder / "train.jsonl").write_text("\n".join(problems))  # the file that a page speaks of
    return folder


class Shell:
    """Runs commands one after the other as a person at a terminal: `cd` stays."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self.environment = {
            **os.environ,
            "PATH": path,
            "PYTHONPATH": os.pathsep.join([str(folder / ".site"), str(ROOT)]),
        }

    def run(self, command: str) -> tuple[int, str]:
        script = f"trap 'pwd > \"$HERE\"' EXIT\nset -euo pipefail\n{command}"
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


def commands(block: Block) -> list[tuple[str, list[str]]]:
    if block.kind == "bash":
        return [(block.text, [])]
    return transcripts(block.text) if block.kind == "console" else []


def pages_with_commands() -> list[str]:
    names = [str(page.relative_to(ROOT)) for page in PAGES if any(map(commands, blocks(page)))]
    return [name for name in names if name not in FOLLOWED_ELSEWHERE]


@pytest.fixture(scope="module")
def followed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, small_run: tuple[str, ...]
) -> Iterator[dict[str, Future[None]]]:
    """Page → what comes of following it. Each has a folder of its own, and most wait for one process: two at a time."""
    small = shlex.join([*small_run, *SHORT])
    pages = {
        str(item.callspec.params["page"]): None
        for item in request.session.items
        if isinstance(item, pytest.Function) and FOLLOWS in item.nodeid
    }
    with ThreadPoolExecutor(2) as pool:
        yield {page: pool.submit(follow, page, make_clone(tmp_path_factory.mktemp("clone")), small) for page in pages}


@pytest.mark.system
@pytest.mark.parametrize("page", pages_with_commands())
def test_every_command_runs_and_prints_what_the_page_shows(page: str, followed: dict[str, Future[None]]) -> None:
    followed[page].result()


def follow(page: str, folder: Path, small: str) -> None:
    shell = Shell(folder)
    found = blocks(ROOT / page)
    text = "".join(block.text for block in found)
    if RUN in text and "astraflow run" not in text:
        code, printed = shell.run(f"astraflow run examples/quickstart.yaml {small}")
        assert code == 0, printed
    for block in found:
        if block.file:
            (shell.folder / block.file).write_text(block.text, "utf-8")
        how = options(block.how)
        if "needs" in how and find_spec(how["needs"]) is None:
            continue
        for command, shown in commands(block):
            code, printed = shell.run(adapted(command, how, small))
            assert code == int(how.get("exit", 0)), f"{command}\n{printed}"
            for line in shown:
                assert LINE_NUMBER.sub(".yaml:N", line) in LINE_NUMBER.sub(".yaml:N", printed), f"{command}\n{printed}"


@pytest.mark.parametrize(("page", "test"), FOLLOWED_ELSEWHERE.items())
def test_pages_that_are_followed_elsewhere_are(page: str, test: str) -> None:
    assert Path(page).name in (ROOT / "tests" / test).read_text("utf-8")


@pytest.mark.parametrize("page", sorted({str(page.relative_to(ROOT)) for page in PAGES} - FOLLOWED_ELSEWHERE.keys()))
def test_commands_are_in_blocks_that_are_run(page: str) -> None:
    for block in blocks(ROOT / page):
        if block.kind in ("", "text", "sh", "shell"):
            lines = [line for line in block.text.splitlines() if re.match(r"(\$ )?(astraflow|pip|python|traj) ", line)]
            assert lines == []


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


def test_the_curve_shows_what_a_run_measured(tmp_path: Path) -> None:
    run = tmp_path / "quickstart" / "seed-1"
    run.mkdir(parents=True)
    shares = {"eval/held_out/avg@k": 25.0, "eval/held_out/avg@k_low": 20.0, "eval/held_out/avg@k_high": 30.0}
    records = [
        {"step": 0, **shares},
        {"step": 1, "rollout/samples": 8.0, "rollout/reward_mean": 0.5},
        {"step": 2, "rollout/samples": 8.0, "rollout/reward_mean": 1.0},
    ]
    (run / "metrics.jsonl").write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))
    command = [sys.executable, str(ROOT / "docs" / "make_curve.py"), str(run)]
    drawn = ElementTree.fromstring(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    (point,) = drawn.findall("{*}circle")
    assert point.attrib["cy"] == "244.0"  # a quarter of the way from 0% (312) to 100% (40)
    assert any("M380.0 176.0L704.0 108.0" in path.attrib["d"] for path in drawn.findall("{*}path"))
    assert (ROOT / "docs" / "learning-curve.svg").stat().st_size < 100_000


def test_how_a_page_is_read() -> None:
    assert transcripts("$ a \\\n    b\nx\n$ c\n") == [("a b", ["x"]), ("c", [])]
    assert options("exit 2, needs x, small") == {"exit": "2", "needs": "x", "small": ""}
    assert adapted("A=b astraflow run x.yaml", {"dry-run": ""}) == "A=b astraflow run x.yaml --dry-run"
    assert adapted("make test", {}) == "make --dry-run test"
    with pytest.raises(AssertionError):
        adapted("pip install 'astraflow[no-such-extra]'", {})
