"""Loading, special tokens, templates and saving of tokenizers in Hugging Face layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from astraflow.core.text import Tokenizer, load_tokenizer, tiny_tokenizer
from astraflow.errors import ConfigError, DataError


def changed(**files: Any) -> Tokenizer:
    """The tiny tokenizer with some files replaced (None: removed)."""
    given = tiny_tokenizer().files
    for name, content in files.items():
        file = {"config": "tokenizer_config.json", "template": "chat_template.jinja"}.get(name, f"{name}.json")
        given.pop(file, None)
        if content is not None:
            given[file] = content.encode() if isinstance(content, str) else json.dumps(content).encode()
    return Tokenizer(given)


def test_a_saved_tokenizer_loads_with_the_same_bytes(tmp_path: Path) -> None:
    tiny_tokenizer().save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.files == tiny_tokenizer().files
    assert loaded.encode("a+1") == tiny_tokenizer().encode("a+1")


def test_a_directory_without_a_tokenizer_or_with_a_broken_one_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_end_tokens_come_from_tokenizer_and_generation_config() -> None:
    assert tiny_tokenizer().eos_token_ids == (6,)
    assert changed(generation_config={"eos_token_id": [9, 6]}).eos_token_ids == (6, 9)
    assert changed(generation_config={"eos_token_id": 7}).eos_token_ids == (6, 7)
    assert changed(config={"eos_token": {"content": "<|user|>"}}).eos_token_ids == (3,)
    assert changed(config={}).eos_token_ids == ()


def test_padding_falls_back_to_the_end_token() -> None:
    assert tiny_tokenizer().pad_token_id == 0
    assert changed(config={"eos_token": "<|end|>"}).pad_token_id == 6
    assert changed(config={}).pad_token_id == 0


def test_a_special_token_outside_the_vocabulary_is_an_error() -> None:
    with pytest.raises(DataError, match="eos_token '<eos>'"):
        _ = changed(config={"eos_token": "<eos>"}).eos_token_ids


def test_templates_are_found_in_either_file_and_missed_clearly() -> None:
    user = [{"role": "user", "content": "x"}]
    inline = changed(template=None, config={"chat_template": "{{ messages[0].content }}!"})
    assert inline.apply_chat_template(user) == "x!"
    listed = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    assert changed(template=None, config={"chat_template": listed}).apply_chat_template(user) == "yes"
    with pytest.raises(ConfigError, match="no chat template"):
        changed(template=None, config={}).apply_chat_template(user)


def test_padding_and_truncation_in_the_file_change_no_ids() -> None:
    backend = json.loads(tiny_tokenizer().files["tokenizer.json"])
    backend["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    assert len(changed(tokenizer=backend).encode("12345")) == 5


def test_decoding_leaves_out_special_tokens_unless_asked() -> None:
    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode("<|user|>7<|end|>")
    assert tokenizer.decode(ids) == "7"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|user|>7<|end|>"
