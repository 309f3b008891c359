"""An OpenAI-compatible endpoint on the loopback interface: as a model to ask and as an agent at work."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from astraflow.errors import ConfigError, PeerError
from astraflow.evolution.traces.chat import ChatEndpoint
from astraflow.evolution.traces.practice.agents import ChatAgent
from astraflow.evolution.traces.practice.desk import Tasks
from astraflow.evolution.traces.practice.episodes import measure
from tests.evolution.traces.conftest import FakeServer, Model


def test_a_question_is_one_completion(serve: Callable[[Model], FakeServer]) -> None:
    server = serve(lambda body: {"role": "assistant", "content": "fine"})
    assert ChatEndpoint(server.url, "m", "key").ask("how?") == "fine"
    request = server.requests[0]
    assert (request["path"], request["model"]) == ("/v1/chat/completions", "m")
    assert request["messages"] == [{"role": "user", "content": "how?"}]
    assert server.headers[0]["authorization"] == "Bearer key"


@pytest.mark.parametrize("reply", [b"not json", b'{"choices": []}', b'{"error": "x"}'])
def test_a_broken_reply_is_the_peers_error(reply: bytes, serve: Callable[[Model], FakeServer]) -> None:
    with pytest.raises(PeerError, match="chat/completions"):
        ChatEndpoint(serve(lambda body: reply).url, "m").ask("how?")


def test_no_server_and_no_url() -> None:
    with pytest.raises(PeerError):
        ChatEndpoint("http://127.0.0.1:9/v1", "m").ask("how?")
    with pytest.raises(ConfigError):
        ChatEndpoint("file:///etc/passwd", "m")


def clerk(body: dict[str, Any]) -> dict[str, Any]:
    """A model that books an account if its instructions tell it to normalise and convert."""
    told = "normalise" in body["messages"][0]["content"]
    said = [message for message in body["messages"] if message["role"] == "tool"]
    plan = ["normalise", "lookup", "convert", "submit"] if told else ["lookup", "submit"]
    if len(said) >= len(plan):
        return {"role": "assistant", "content": "done"}
    prompt = body["messages"][1]["content"].removeprefix("Book this account: ")
    text = said[-1]["content"] if said else prompt
    call = {"name": plan[len(said)], "arguments": json.dumps({"text": text})}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"c{len(said)}", "type": "function", "function": call}],
    }


def test_a_chat_agent_works_by_its_skill(serve: Callable[[Model], FakeServer], tasks: Tasks) -> None:
    server = serve(clerk)
    agent = ChatAgent(ChatEndpoint(server.url, "m"))
    cases = [case for case in tasks.held_out if case.in_euros]
    assert set(measure(agent, "Book it.", cases, seed=0).values()) == {0.0}
    assert set(measure(agent, "First normalise, later convert.", cases, seed=0).values()) == {1.0}
    assert {tool["function"]["name"] for tool in server.requests[0]["tools"]} >= {"lookup", "submit"}
