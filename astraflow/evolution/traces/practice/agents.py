"""Agents that work on a case by a skill: a scripted one that follows what the skill says, and any chat model."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from astraflow.evolution.traces.analyzer import signature
from astraflow.evolution.traces.chat import ChatEndpoint
from astraflow.evolution.traces.practice.desk import FINAL, TOOLS, Reply

MAX_STEPS = 6
Use = Callable[[str, str], Reply]
"""Uses a tool on a text; the caller records it."""

_STEP = re.compile(r"^\d+\. Call `(\w+)`", re.MULTILINE)
_ADVICE = re.compile(r"^- When `(\w+)` fails with \"(.+?)\": call `(\w+)`", re.MULTILINE)


class Agent(Protocol):
    """Works on one case until it is closed, or the agent gives up."""

    def work(self, skill: str, prompt: str, use: Use, seed: int) -> None: ...


class ScriptedAgent:
    """Follows a skill to the letter: its numbered steps, its advice on failures; where it says nothing, it tries tools.

    It handles one text at a time: what a tool returns is what the next one gets. It is as good as its skill, which
    makes it a measuring instrument for skills, and the same for the same seed.
    """

    def __init__(self, max_steps: int = MAX_STEPS) -> None:
        self._max_steps = max_steps

    def work(self, skill: str, prompt: str, use: Use, seed: int) -> None:
        source = random.Random(seed)
        plan = _STEP.findall(skill)
        advice = {(tool, text): step for tool, text, step in reversed(_ADVICE.findall(skill))}  # the first one counts
        text, left = prompt, self._max_steps
        for tool in plan:
            untried = sorted(TOOLS.keys() - {*plan, *FINAL})
            source.shuffle(untried)
            attempt: str | None = text
            while attempt is not None and left > 0:
                reply, left = use(tool, attempt), left - 1
                if reply.success:
                    text = reply.text
                    break
                told = advice.get((tool, signature(reply.text)))
                attempt = None
                while attempt is None and left > 0 and (told or untried):
                    step, told = told or untried.pop(), None
                    remedy, left = use(step, text), left - 1
                    attempt = remedy.text if remedy.success else None
            else:
                return


class ChatAgent:
    """A model behind an OpenAI-compatible endpoint, with the desk's tools as functions."""

    def __init__(self, endpoint: ChatEndpoint, max_steps: int = MAX_STEPS) -> None:
        self._endpoint = endpoint
        self._max_steps = max_steps

    def work(self, skill: str, prompt: str, use: Use, seed: int) -> None:
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": skill},
            {"role": "user", "content": f"Book this account: {prompt}"},
        ]
        for _ in range(self._max_steps):
            message = self._endpoint.complete(messages, FUNCTIONS, seed)
            if not message.tool_calls:
                return
            calls = [
                {"id": call.id, "type": "function", "function": msgspec.to_builtins(call.function)}
                for call in message.tool_calls
            ]
            messages.append({"role": "assistant", "content": message.content, "tool_calls": calls})
            for call in message.tool_calls:
                reply = use(call.function.name, _argument(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": reply.text})


FUNCTIONS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        },
    }
    for name, description in TOOLS.items()
]


def _argument(arguments: str) -> str:
    """The text that a model gives a tool; arguments that are not as declared are passed on as they are."""
    try:
        given = json.loads(arguments)
    except ValueError:
        return arguments
    return str(given.get("text", "")) if isinstance(given, dict) else arguments
