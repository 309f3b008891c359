"""Tokenizers, chat templates with spans, tool-call parsing. No torch."""

from astraflow.core.text.chat import check_append_only, check_demonstrations, encode_turns, encode_with_spans
from astraflow.core.text.tiny import tiny_tokenizer
from astraflow.core.text.tokenizer import Message, Tokenizer, load_tokenizer
from astraflow.core.text.tool_calls import ToolCall, parse_tool_calls

__all__ = [
    "Message",
    "Tokenizer",
    "ToolCall",
    "check_append_only",
    "check_demonstrations",
    "encode_turns",
    "encode_with_spans",
    "load_tokenizer",
    "parse_tool_calls",
    "tiny_tokenizer",
]
