"""Which agent works and which model is asked, from a command's options."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated

import typer

from astraflow.errors import ConfigError
from astraflow.evolution.traces.chat import ChatEndpoint
from astraflow.evolution.traces.practice.agents import Agent, ChatAgent, ScriptedAgent
from astraflow.evolution.traces.proposers.base import Ask

KEY_VARIABLE = "TRAJ_OPT_API_KEY"


class AgentKind(StrEnum):
    """Who works on the cases."""

    SCRIPTED = "scripted"
    """Follows the skill to the letter; needs no model."""
    CHAT = "chat"
    """The model behind --endpoint."""


AgentOption = Annotated[AgentKind, typer.Option("--agent", help="scripted, or chat: the model behind --endpoint.")]
EndpointOption = Annotated[
    str | None, typer.Option("--endpoint", metavar="URL", help=f"OpenAI-compatible API; its key is ${KEY_VARIABLE}.")
]
ModelOption = Annotated[str | None, typer.Option("--model", help="The model's name at the endpoint.")]


def agent_of(kind: AgentKind, endpoint: str | None, model: str | None) -> Agent:
    if kind is AgentKind.SCRIPTED:
        return ScriptedAgent()
    found = _endpoint(endpoint, model)
    if found is None:
        raise ConfigError("--agent chat needs --endpoint and --model")
    return ChatAgent(found)


def ask_of(endpoint: str | None, model: str | None) -> Ask | None:
    found = _endpoint(endpoint, model)
    return found.ask if found else None


def _endpoint(url: str | None, model: str | None) -> ChatEndpoint | None:
    if (url is None) != (model is None):
        raise ConfigError("--endpoint and --model go together")
    return ChatEndpoint(url, model, os.environ.get(KEY_VARIABLE, "")) if url and model else None
