"""A store, the practice bank and its tasks, all in the test's own folder."""

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from astraflow.evolution.traces.capture import append
from astraflow.evolution.traces.optimizer import Optimizer
from astraflow.evolution.traces.payload import adapt
from astraflow.evolution.traces.practice.desk import Tasks
from astraflow.evolution.traces.shelf import SkillShelf
from astraflow.evolution.traces.store import TraceStore

REPOSITORY = Path(__file__).parents[3]
PRACTICE = REPOSITORY / "traj_opt" / "practice"
SKILL = "rllm-desk"

Send = Callable[..., dict[str, Any]]


@pytest.fixture
def store(tmp_path: Path) -> TraceStore:
    return TraceStore(tmp_path / "output")


@pytest.fixture
def send(store: TraceStore) -> Send:
    """Records a payload: send("PostToolUse", tool_name="Read", …)."""

    def record(name: str, session_id: str = "s1", **payload: Any) -> dict[str, Any]:
        event = adapt({"hook_event_name": name, "session_id": session_id, **payload}, name)
        assert event is not None
        append(str(store.root), event)
        return event

    return record


@pytest.fixture
def shelf(tmp_path: Path) -> SkillShelf:
    root = tmp_path / "skill-bank"
    shutil.copytree(PRACTICE / "skill-bank", root)
    shelf = SkillShelf(root)
    shelf.write(SKILL)
    return shelf


@pytest.fixture
def optimizer(store: TraceStore, shelf: SkillShelf) -> Optimizer:
    return Optimizer(store, shelf)


@pytest.fixture(scope="session")
def tasks() -> Tasks:
    return msgspec.json.decode((PRACTICE / "tasks.json").read_bytes(), type=Tasks)


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


Model = Callable[[dict[str, Any]], Any]


class FakeServer:
    """Answers chat completions with what `model` returns: a message, or bytes as they are."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                server.requests.append({"path": self.path, **body})
                server.headers.append({name.lower(): value for name, value in self.headers.items()})
                message = server.model(body)
                raw = (
                    message if isinstance(message, bytes) else json.dumps({"choices": [{"message": message}]}).encode()
                )
                self.send_response(200)
                self.send_header("content-length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *arguments: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/v1"


@pytest.fixture
def serve() -> Iterator[Callable[[Model], FakeServer]]:
    running: list[tuple[FakeServer, threading.Thread]] = []

    def start(model: Model) -> FakeServer:
        server = FakeServer(model)
        thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        running.append((server, thread))
        return server

    yield start
    for server, thread in running:
        server.http.shutdown()
        server.http.server_close()
        thread.join()
