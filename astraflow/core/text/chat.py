"""Conversations ↔ token ids with spans: which tokens the assistant wrote, and whether a template keeps what it wrote.

Masks come from the spans of messages in the rendered text, never from token values (law 4).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astraflow.core.text.tokenizer import Message, Tokenizer
from astraflow.errors import DataError


def encode_with_spans(tokenizer: Tokenizer, messages: Sequence[Message]) -> tuple[np.ndarray, np.ndarray]:
    """Return (ids int32 [T], mask uint8 [T]); mask is 1 on what the assistant wrote, its end token included.

    What a template writes after the end token (a newline in ChatML) is context: at inference it is never sampled.
    DataError where the template rewrites earlier messages, because then no single sequence holds them all.
    """
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=False)
    ids, offsets = tokenizer.encode_with_offsets(text)
    starts = np.array([start for start, _ in offsets], np.int64)
    ends = np.array([end for _, end in offsets], np.int64)
    mask = np.zeros(len(ids), np.uint8)
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        begin, end = _span(tokenizer, messages, number, text)
        inside = (starts >= begin) & (ends <= end) & (ends > starts)
        mask[inside] = 1
        closing = np.flatnonzero(inside & np.isin(ids, tokenizer.eos_token_ids))
        if closing.size:
            # the last end token of this span closes it; whatever follows in it is the template's
            mask[closing[-1] + 1 :][inside[closing[-1] + 1 :]] = 0
    return np.array(ids, np.int32), mask


def _span(tokenizer: Tokenizer, messages: Sequence[Message], number: int, text: str) -> tuple[int, int]:
    before = tokenizer.apply_chat_template(messages[:number], add_generation_prompt=True)
    through = tokenizer.apply_chat_template(messages[: number + 1], add_generation_prompt=False)
    if not (through.startswith(before) and text.startswith(through)):
        raise DataError(f"the chat template rewrites message {number} of {len(messages)} as the conversation grows")
    return len(before), len(through)


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
