"""Chat templates: conversations become text by the model's own Jinja program, in a sandbox.

The environment offers what templates on the Hugging Face Hub expect: trimmed blocks, loop controls, `tojson` that
leaves characters as they are, `raise_exception`, `strftime_now` and the `generation` block.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from astraflow.errors import ConfigError, DataError, boundary

_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
"""Noncharacters, which Unicode keeps for a program's own use."""
_MARKING = "astraflow_marks_generation"


class ChatTemplate:
    """A compiled template. `special_tokens` are the names (eos_token, …) it may refer to."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _strftime_now
        self.source = source
        self._special_tokens = dict(special_tokens)
        with boundary(ConfigError, "chat template"):
            self._template = environment.from_string(source)
        self.has_generation_blocks: bool = environment.extensions[_GenerationBlock.identifier].found  # type: ignore[attr-defined]
        """Whether the template marks what the assistant wrote."""

    def render_with_spans(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        keywords: Mapping[str, Any],
    ) -> tuple[str, list[tuple[int, int]]]:
        """Return the conversation's text and the characters [start, end) of its generation blocks.

        DataError where marking the blocks changes the text, for then there is no telling where they are.
        """
        text = self.render(messages, False, tools, keywords)
        if not self.has_generation_blocks:
            return text, []
        marked = self.render(messages, False, tools, {**keywords, _MARKING: True})
        spans, plain, opened = [], 0, 0
        pieces = re.split(f"([{_OPEN}{_CLOSE}])", marked)
        for piece in pieces:
            if piece == _OPEN:
                opened = plain
            elif piece == _CLOSE:
                spans.append((opened, plain))
            else:
                plain += len(piece)
        if "".join(piece for piece in pieces if piece not in (_OPEN, _CLOSE)) != text:
            raise DataError("chat template: its generation blocks cannot be found in what it renders")
        return text, spans

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        keywords: Mapping[str, Any],
    ) -> str:
        """Return the conversation's text; DataError where the template raises, and for a message without content.

        A template would write "None" for null. An assistant that calls tools has null content by rights.
        """
        for number, message in enumerate(messages):
            if message.get("content", "") is None and not message.get("tool_calls"):
                raise DataError(f"message {number} ({message.get('role')}) has null content, expected text")
        with boundary(DataError, "chat template"):
            return self._template.render(
                messages=messages,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
                **keywords,
            )


class _GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}` marks what the assistant wrote; its content is rendered as it is.

    Where the name _MARKING is true, a character that no text holds stands before it and another one behind.
    """

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance attribute
    found = False
    """Whether the template has one."""

    def parse(self, parser: Parser) -> list[nodes.Node]:
        self.found = True
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return [_mark(_OPEN, line), *body, _mark(_CLOSE, line)]


def _mark(character: str, line: int) -> nodes.Node:
    chosen = nodes.CondExpr(nodes.Name(_MARKING, "load"), nodes.Const(character), nodes.Const(""))
    return nodes.Output([chosen]).set_lineno(line)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)
