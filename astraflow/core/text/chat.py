"""Conversations ↔ token ids with spans: which tokens the assistant wrote, and whether a template keeps what it wrote.

Masks come from the spans of messages in the rendered text, never from token values (law 4). A turn is trained behind
the very text that would be sent to have it written; what no template renders is refused, not trained as something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from astraflow.core.text.tokenizer import Message, Tokenizer
from astraflow.errors import AstraFlowError, DataError

Tools = Sequence[Mapping[str, Any]] | None
Encoded = tuple[np.ndarray, np.ndarray]
"""(ids int32 [T], mask uint8 [T])"""


def encode_with_spans(tokenizer: Tokenizer, messages: Sequence[Message], tools: Tools = None) -> Encoded:
    """Return (ids int32 [T], mask uint8 [T]); mask is 1 on what the assistant wrote, its end token included.

    What a template writes after the end token (a newline in ChatML) is context: at inference it is never sampled.
    DataError where the template rewrites earlier messages, because then no single sequence holds them all (see
    encode_turns), and where it leaves out what the assistant wrote.
    """
    whole = tokenizer.apply_chat_template(messages, False, tools)
    sequence = _Sequence(whole)
    for turn in _turns(tokenizer, messages, tools):
        if not whole.startswith(turn.text):
            raise DataError(
                f"the chat template rewrites message {turn.number} of {len(messages)} as the conversation grows"
            )
        sequence.spans += turn.spans
    return sequence.encode(tokenizer)


def encode_turns(tokenizer: Tokenizer, messages: Sequence[Message], tools: Tools = None) -> list[Encoded]:
    """Return sequences, each as encode_with_spans does, in which every turn of the assistant is trained once.

    One sequence where the template only appends. Where it rewrites earlier messages (Qwen3 takes their reasoning out),
    the turns that follow begin another one: each is trained behind the text that would be sent, as an episode of
    several turns branches there (LAW 2). DataError where a turn cannot be trained so.
    """
    sequences: list[_Sequence] = []
    for turn in _turns(tokenizer, messages, tools):
        if sequences and turn.text.startswith(sequences[-1].text):
            sequences[-1].text = turn.text
            sequences[-1].spans += turn.spans
        else:
            sequences.append(turn)
    return [sequence.encode(tokenizer) for sequence in sequences]


@dataclass
class _Sequence:
    """A rendered text and what of it the assistant wrote."""

    text: str
    spans: list[tuple[int, int]] = field(default_factory=list)
    """Characters [start, end)."""
    number: int = 0
    """Of the message that ends it."""

    def encode(self, tokenizer: Tokenizer) -> Encoded:
        ids, offsets = tokenizer.encode_with_offsets(self.text)
        starts = np.array([start for start, _ in offsets], np.int64)
        ends = np.array([end for _, end in offsets], np.int64)
        mask = np.zeros(len(ids), np.uint8)
        for begin, end in self.spans:
            inside = (starts >= begin) & (ends <= end) & (ends > starts)
            mask[inside] = 1
            closing = np.flatnonzero(inside & np.isin(ids, tokenizer.eos_token_ids))
            if closing.size:
                # the last end token of this span closes it; whatever follows in it is the template's
                mask[closing[-1] + 1 :][inside[closing[-1] + 1 :]] = 0
        return np.array(ids, np.int32), mask


def _turns(tokenizer: Tokenizer, messages: Sequence[Message], tools: Tools) -> Iterator[_Sequence]:
    """For each turn of the assistant, the conversation through it and what of it that turn is."""
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        where = f"message {number} of {len(messages)}"
        before = tokenizer.apply_chat_template(messages[:number], True, tools)
        text, blocks = tokenizer.template.render_with_spans(messages[: number + 1], tools, {})
        if not text.startswith(before):
            raise DataError(
                f"the chat template writes {where} otherwise than it is asked for: the prompt ends with "
                f"{before[-40:]!r}, and the turn is written {_after_common(before, text)!r}"
            )
        spans = [(len(before), len(text))]
        if tokenizer.template.has_generation_blocks:
            spans = [(start, end) for start, end in blocks if start >= len(before)]
        written = "".join(text[start:end] for start, end in spans).strip()
        for end_token in tokenizer.eos_token_ids:
            written = written.removesuffix(tokenizer.decode([end_token], skip_special_tokens=False))
        lost = [piece for piece in _said(message) if piece not in written]
        if lost:
            raise DataError(
                f"the chat template leaves out what {where} says: {lost[0][:60]!r} is not in what would be trained, "
                f"{written[-60:]!r}"
            )
        yield _Sequence(text, spans, number)


def _said(message: Message) -> Iterator[str]:
    """What a message of the assistant says, in pieces that a template may space and order as it likes."""
    content = message.get("content") or ""
    parts = [content] if isinstance(content, str) else [str(part.get("text") or "") for part in content]
    for part in [*parts, str(message.get("reasoning_content") or "")]:
        # reasoning and answer are told apart by the tags, which templates write with newlines of their own
        yield from (piece.strip() for piece in part.replace("<think>", "</think>").split("</think>"))
    for call in message.get("tool_calls") or []:
        function = call.get("function") or call
        yield str(function.get("name") or "")
        arguments = function.get("arguments")
        yield from arguments if isinstance(arguments, Mapping) else ()


def _after_common(before: str, text: str) -> str:
    """The few characters with which `text` departs from `before`."""
    same = next((i for i, (a, b) in enumerate(zip(before, text, strict=False)) if a != b), min(len(before), len(text)))
    return text[max(0, same - 20) : same + 20]


def check_demonstrations(tokenizer: Tokenizer) -> list[str]:
    """Return what of a conversation the template keeps from being trained as it would be sent; empty where nothing."""
    user: Message = {"role": "user", "content": "1+1?"}
    call = {"type": "function", "function": {"name": "add", "arguments": {"left": 1}}}
    first_turns: dict[str, Message] = {
        "answers": {"role": "assistant", "content": "2"},
        "answers with reasoning": {"role": "assistant", "content": "<think>\n1+1=2\n</think>\n\n2"},
        "tool calls": {"role": "assistant", "content": "", "tool_calls": [call]},
    }
    findings = []
    for kind, turn in first_turns.items():
        try:
            ids, mask = encode_turns(tokenizer, [user, turn, user, first_turns["answers"]])[-1]
        except AstraFlowError as error:
            findings.append(f"demonstrations with {kind} are refused ({error})")
            continue
        if not np.isin(ids[mask == 1], tokenizer.eos_token_ids).any():
            findings.append(f"demonstrations with {kind} do not train the end token, which no generation block holds")
    return findings


def check_append_only(tokenizer: Tokenizer) -> list[str]:
    """Return what breaks the prefix law: that a conversation's ids extend what was prompted and sampled before (law 2).

    An empty list means that multi-turn episodes stay one trajectory; otherwise each finding says when they branch.
    """
    user: Message = {"role": "user", "content": "1+1?"}
    follow_up: Message = {"role": "user", "content": "and 2+2?"}
    answers = {"an answer": "2", "an answer with reasoning": "<think>\n1+1=2\n</think>\n\n2"}
    findings = []
    for kind, content in answers.items():
        assistant: Message = {"role": "assistant", "content": content}
        prompt = tokenizer.encode_chat([user])
        through = tokenizer.encode_chat([user, assistant], add_generation_prompt=False)
        later = tokenizer.encode_chat([user, assistant, follow_up])
        sampled = prompt + tokenizer.encode(content)
        end = tokenizer.eos_token_ids
        if through[: len(sampled)] != sampled:
            findings.append(f"{kind}: prompt and sampled tokens are written differently once the turn is over")
        elif end and through[len(sampled) :] not in ([i] for i in end):
            findings.append(f"{kind}: something other than the end token follows it")
        if later[: len(through)] != through:
            findings.append(f"{kind}: an earlier turn is rewritten when the next message arrives")
    return findings
