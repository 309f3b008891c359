"""Spans of what the assistant wrote, and the prefix law, on templates as models have them."""

from __future__ import annotations

import numpy as np
import pytest

from astraflow.core.text import Tokenizer, check_append_only, encode_with_spans, tiny_tokenizer
from astraflow.errors import DataError

CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
WITHOUT_REASONING = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{{ m.content if loop.last else m.content.split('</think>')[-1] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TWO_TURNS = [
    {"role": "user", "content": "1+1"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "2+2"},
    {"role": "assistant", "content": "<think>so</think>4"},
]


def with_template(template: str) -> Tokenizer:
    return Tokenizer({**tiny_tokenizer().files, "chat_template.jinja": template.encode()})


def masked(tokenizer: Tokenizer, messages: list[dict[str, str]]) -> str:
    ids, mask = encode_with_spans(tokenizer, messages)
    assert (ids.dtype, mask.dtype, ids.shape) == (np.int32, np.uint8, mask.shape)
    assert ids.tolist() == tokenizer.encode_chat(messages, add_generation_prompt=False)
    return tokenizer.decode(ids[mask == 1], skip_special_tokens=False)


def test_the_mask_covers_contents_and_end_tokens() -> None:
    assert masked(tiny_tokenizer(), TWO_TURNS) == "2<|end|><think>so</think>4<|end|>"
    assert masked(tiny_tokenizer(), TWO_TURNS[:1]) == ""


def test_a_newline_after_the_end_token_is_the_templates() -> None:
    # trim_blocks eats a newline that directly follows a block, so this one is written out
    assert masked(with_template(CHATML.replace("\n", "{{ '\\n' }}")), TWO_TURNS) == "2<|end|><think>so</think>4<|end|>"


def test_an_end_token_inside_the_content_does_not_end_the_span() -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "a<|end|>b"}]
    assert masked(tiny_tokenizer(), messages) == "a<|end|>b<|end|>"


def test_a_template_that_rewrites_earlier_turns_is_refused_for_several_and_fine_for_one() -> None:
    tokenizer = with_template(WITHOUT_REASONING)
    reasoned = [TWO_TURNS[0], {"role": "assistant", "content": "<think>1</think>2"}]
    assert masked(tokenizer, reasoned) == "<think>1</think>2<|end|>"
    with pytest.raises(DataError, match="rewrites message 1 of 3"):
        encode_with_spans(tokenizer, [*reasoned, {"role": "user", "content": "?"}])


def test_the_prefix_law_names_what_breaks_it() -> None:
    assert check_append_only(tiny_tokenizer()) == []
    newline = check_append_only(with_template(CHATML.replace("\n", "{{ '\\n' }}")))
    assert len(newline) == 2
    assert all("other than the end token" in finding for finding in newline)
    stripped = check_append_only(with_template(WITHOUT_REASONING))
    assert stripped == ["an answer with reasoning: an earlier turn is rewritten when the next message arrives"]
