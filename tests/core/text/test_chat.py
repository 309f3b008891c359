"""Spans of what the assistant wrote, and the prefix law, on templates as models have them."""

from __future__ import annotations

from typing import Any

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


MARKED = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>{% generation %}{{ m.content }}<|end|>"
    "{% endgeneration %}!!{% else %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Marks what the assistant wrote, up to its end token; `!!` follows each of its turns."""


def with_template(template: str) -> Tokenizer:
    return Tokenizer({**tiny_tokenizer().files, "chat_template.jinja": template.encode()})


def masked(tokenizer: Tokenizer, messages: list[dict[str, Any]]) -> str:
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


def test_spans_of_the_templates_own_generation_blocks_are_used() -> None:
    marked = MARKED.replace("<|end|>{% endgeneration %}", "{% endgeneration %}<|end|>", 1)
    assert masked(with_template(MARKED), TWO_TURNS) == "2<|end|><think>so</think>4<|end|>"
    assert masked(with_template(marked), TWO_TURNS) == "2<think>so</think>4"


def test_generation_blocks_are_found_where_transformers_finds_them() -> None:
    chat_templates = pytest.importorskip("transformers.utils.chat_template_utils")
    theirs = chat_templates.render_jinja_template(
        [TWO_TURNS], chat_template=MARKED, return_assistant_tokens_mask=True, add_generation_prompt=False
    )
    [text], [spans] = theirs
    assert masked(with_template(MARKED), TWO_TURNS) == "".join(text[start:end] for start, end in spans)


@pytest.mark.parametrize(
    "template",
    [
        # an empty block, another turn's words, and a block that the text around it swallows
        MARKED.replace("{{ m.content }}<|end|>{% endgeneration %}", "{% endgeneration %}{{ m.content }}<|end|>"),
        MARKED.replace("{{ m.content }}", "{{ messages[0].content }}", 1),
        "{% set text %}" + MARKED + "{% endset %}{{ text | length }}" + MARKED,
    ],
)
def test_generation_blocks_are_held_against_what_was_said(template: str) -> None:
    with pytest.raises(DataError, match=r"leaves out what message 1 of 4 says|cannot be found"):
        encode_with_spans(with_template(template), TWO_TURNS)


CALL = {"type": "function", "function": {"name": "e", "arguments": {"d": 1}}}


@pytest.mark.parametrize(
    ("turn", "lost"),
    [
        ({"content": "", "tool_calls": [CALL]}, "'e' is not in"),
        ({"content": "see", "tool_calls": [CALL]}, "'d' is not in"),
        ({"content": None, "tool_calls": [{"name": "run", "arguments": {}}]}, "'run' is not in"),
        ({"content": "2", "reasoning_content": "one and one"}, "'one and one' is not in"),
        ({"content": [{"type": "text", "text": "two"}]}, "'two' is not in"),
    ],
)
def test_what_a_template_leaves_out_is_not_trained_as_if_nothing_had_been_said(turn: dict[str, Any], lost: str) -> None:
    """A turn of tool calls would teach to end at once."""
    text_only = CHATML.replace("{{ m.content }}", "{{ m.content if m.content is string }}")
    with pytest.raises(DataError, match=f"leaves out what message 1 of 2 says: {lost}"):
        encode_with_spans(with_template(text_only), [TWO_TURNS[0], {"role": "assistant", **turn}])


def test_what_a_template_keeps_of_calls_and_reasoning_is_trained() -> None:
    turn = {"role": "assistant", "content": "<think>so</think>", "tool_calls": [CALL]}
    expected = '<think>so</think><tool_call>{"name": "e", "arguments": {"d": 1}}</tool_call><|end|>'
    assert masked(tiny_tokenizer(), [TWO_TURNS[0], turn]) == expected


def test_a_turn_that_is_written_otherwise_than_it_is_asked_for_is_refused() -> None:
    asks = CHATML.replace("<|assistant|>{% endif %}", "<|assistant|><think>{% endif %}")
    with pytest.raises(DataError, match="message 1 of 4"):
        encode_with_spans(with_template(asks), TWO_TURNS)


def test_the_prefix_law_names_what_breaks_it() -> None:
    assert check_append_only(tiny_tokenizer()) == []
    newline = check_append_only(with_template(CHATML.replace("\n", "{{ '\\n' }}")))
    assert len(newline) == 2
    assert all("other than the end token" in finding for finding in newline)
    stripped = check_append_only(with_template(WITHOUT_REASONING))
    assert stripped == ["an answer with reasoning: an earlier turn is rewritten when the next message arrives"]
