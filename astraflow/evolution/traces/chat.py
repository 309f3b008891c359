"""Any OpenAI-compatible endpoint: one chat completion a call, with the standard library's client."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

import msgspec

from astraflow.errors import ConfigError, PeerError

TIMEOUT = 120.0
MAX_REPLY = 8 * 2**20


class FunctionCall(msgspec.Struct, frozen=True):
    """What a tool call names; `arguments` is JSON text."""

    name: str
    arguments: str = "{}"


class ChatToolCall(msgspec.Struct, frozen=True):
    """A call that the model asks for."""

    id: str
    function: FunctionCall


class ChatMessage(msgspec.Struct, frozen=True):
    """What the model said."""

    content: str | None = None
    tool_calls: list[ChatToolCall] | None = None


class _Choice(msgspec.Struct, frozen=True):
    message: ChatMessage


class _Completion(msgspec.Struct, frozen=True):
    choices: list[_Choice]


@dataclass(frozen=True)
class ChatEndpoint:
    """Where a model answers."""

    url: str
    """The API's base, for example http://127.0.0.1:8000/v1."""
    model: str
    api_key: str = ""
    temperature: float = 0.0

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"endpoint '{self.url}': expected http://… or https://…")

    def ask(self, prompt: str) -> str:
        """Return the reply's text to one user message."""
        return self.complete([{"role": "user", "content": prompt}]).content or ""

    def complete(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = (), seed: int | None = None
    ) -> ChatMessage:
        """Return the model's next message; PeerError says what the endpoint did instead."""
        body: dict[str, Any] = {"model": self.model, "messages": list(messages), "temperature": self.temperature}
        if tools:
            body["tools"] = list(tools)
        if seed is not None:
            body["seed"] = seed
        headers = {"content-type": "application/json"}
        if self.api_key:
            headers["authorization"] = f"Bearer {self.api_key}"
        url = self.url.rstrip("/") + "/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as reply:
                completion = msgspec.json.decode(reply.read(MAX_REPLY), type=_Completion)
        except (OSError, HTTPException, msgspec.DecodeError) as error:
            raise PeerError(f"{url}: {type(error).__name__}: {error}") from error
        if not completion.choices:
            raise PeerError(f"{url}: a reply without choices")
        return completion.choices[0].message
