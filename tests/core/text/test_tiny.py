"""The tiny tokenizer: lossless over printable ASCII, read by transformers, append-only."""

from __future__ import annotations

import string
import warnings
from pathlib import Path

import pytest

from astraflow.core.text import check_append_only, tiny_tokenizer
from astraflow.core.text.tiny import CHARACTERS, SPECIAL_TOKENS

MESSAGES = [
    {"role": "user", "content": "12 + 30?"},
    {"role": "assistant", "content": "42"},
    {"role": "user", "content": "thanks"},
]


def test_every_printable_character_is_one_token_and_comes_back() -> None:
    tokenizer = tiny_tokenizer()
    text = "".join(c for c in string.printable if c not in "\t\r\x0b\x0c")
    assert set(text) == set(CHARACTERS)
    assert len(tokenizer.encode(text)) == len(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.vocab_size == len(SPECIAL_TOKENS) + len(CHARACTERS) == 103


def test_what_is_unknown_becomes_unk_one_by_one() -> None:
    assert tiny_tokenizer().encode("éé1") == [1, 1, tiny_tokenizer().encode("1")[0]]


def test_the_template_spends_two_tokens_on_a_message() -> None:
    tokenizer = tiny_tokenizer()
    text = tokenizer.apply_chat_template(MESSAGES)
    assert text == "<|user|>12 + 30?<|end|><|assistant|>42<|end|><|user|>thanks<|end|><|assistant|>"
    assert len(tokenizer.encode_chat(MESSAGES[:1])) == len("12 + 30?") + 3


def test_tools_and_their_calls_are_written() -> None:
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    text = tiny_tokenizer().apply_chat_template(
        [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "2"}],
        add_generation_prompt=False,
        tools=[{"name": "add"}],
    )
    assert text == (
        '<|system|>[{"name": "add"}]<|end|>'
        '<|assistant|><tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call><|end|><|tool|>2<|end|>'
    )


def test_multi_turn_episodes_stay_one_trajectory() -> None:
    assert check_append_only(tiny_tokenizer()) == []


def test_transformers_reads_it_alike(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = tiny_tokenizer()
    tokenizer.save(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    text = "<|user|>a b\nc +3<|end|>"
    assert peer(text, add_special_tokens=False)["input_ids"] == tokenizer.encode(text)
    assert peer.decode(tokenizer.encode(text)) == text
    assert peer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True) == (
        tokenizer.apply_chat_template(MESSAGES)
    )
    assert (peer.eos_token_id, peer.pad_token_id) == (tokenizer.eos_token_ids[0], tokenizer.pad_token_id)
