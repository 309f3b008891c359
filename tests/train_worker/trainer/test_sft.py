"""Supervised fine-tuning."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from astraflow.core.dataset.registry import DATASET_REGISTRY
from astraflow.core.model import load_model, packed_attention, packed_positions
from astraflow.core.text.tiny import tiny_tokenizer
from astraflow.core.text.tokenizer import Tokenizer, load_tokenizer
from astraflow.errors import DataError
from astraflow.train_worker.algorithms.aggregation import token_weights
from astraflow.train_worker.config import OptimizerConfig, SFTConfig, SFTDatasetConfig
from astraflow.train_worker.engine.base import TokenOutputs
from astraflow.train_worker.packed_rows import PackedRows
from astraflow.train_worker.trainer import sft

WORDS = {"one": "two", "three": "four", "five": "six"}


def word_pairs(suffix: str = "") -> list[dict[str, Any]]:
    return [
        {"messages": [{"role": "user", "content": a}, {"role": "assistant", "content": b + suffix}]}
        for a, b in WORDS.items()
    ]


def config(monkeypatch: pytest.MonkeyPatch, steps: int = 80) -> SFTConfig:
    monkeypatch.setattr(DATASET_REGISTRY, "resolve", lambda name: word_pairs)
    return SFTConfig(
        preset="tiny-0.2m",
        dataset=SFTDatasetConfig(dataset_fn="tests:word_pairs", suffix="!"),
        total_train_steps=steps,
        train_batch_size=4,
        threads=1,
        optimizer=OptimizerConfig(lr=1e-2),
    )


def test_it_learns_and_writes_a_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sft.run(config(monkeypatch), tmp_path / "model")
    decoder, _ = load_model(tmp_path / "model")
    tokenizer = load_tokenizer(tmp_path / "model")
    rows = sft.demonstrations(SFTDatasetConfig(dataset_fn="tests:word_pairs", suffix="!"), tokenizer)
    hidden = decoder(rows.input_ids, packed_positions(rows.cu_seqlens), packed_attention(rows.cu_seqlens))
    targets = rows.mask.nonzero().squeeze(1)
    predicted = decoder.logits(hidden[targets - 1]).argmax(-1)
    assert predicted.tolist() == rows.input_ids[targets].tolist()


def test_the_same_settings_give_the_same_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("first", "second"):
        sft.run(config(monkeypatch, steps=3), tmp_path / name)
    first, second = (tmp_path / name / "model.safetensors" for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()


def test_targets_are_what_the_assistant_wrote() -> None:
    tokenizer = tiny_tokenizer()
    [(ids, mask)] = sft.encode(word_pairs()[0], tokenizer, "row")
    assert tokenizer.decode(ids[mask == 1].tolist(), skip_special_tokens=False) == "two<|end|>"


def test_rows_of_ids_are_taken_as_they_are() -> None:
    [(ids, mask)] = sft.encode({"input_ids": [1, 2, 3], "loss_mask": [0, 1, 0]}, tiny_tokenizer(), "row")
    assert (ids.tolist(), mask.tolist()) == ([1, 2, 3], [0, 1, 0])


# As Qwen3 does: an empty reasoning is written before the last answer, and that of earlier turns is taken out
REWRITES = """\
{%- if tools %}{{ '<|system|>' + (tools | tojson) + '<|end|>' }}{% endif %}
{%- for m in messages %}
{%- if m.role != 'assistant' %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}
{%- elif loop.last and '<think>' not in m.content %}{{ '<|assistant|><think></think>' + m.content + '<|end|>' }}
{%- elif loop.last %}{{ '<|assistant|>' + m.content + '<|end|>' }}
{%- else %}{{ '<|assistant|>' + m.content.split('</think>')[-1] + '<|end|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}
"""
CONVERSATION = [
    {"role": "user", "content": "1+1"},
    {"role": "assistant", "content": "<think>so</think>2"},
    {"role": "user", "content": "2+2"},
    {"role": "assistant", "content": "4"},
]
TOOLS = [{"type": "function", "function": {"name": "add"}}]


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("template", [None, REWRITES])
def test_each_turn_is_trained_once_behind_what_would_be_sent(
    monkeypatch: pytest.MonkeyPatch, template: str | None, tools: list[dict[str, Any]] | None
) -> None:
    """Also where the template rewrites earlier turns: then no single sequence holds them all."""
    files = tiny_tokenizer().files
    tokenizer = Tokenizer(files if template is None else {**files, "chat_template.jinja": template.encode()})
    row = {"messages": CONVERSATION} | ({"tools": tools} if tools else {})
    monkeypatch.setattr(DATASET_REGISTRY, "resolve", lambda name: lambda: [row])
    rows = sft.demonstrations(SFTDatasetConfig(dataset_fn="d:f"), tokenizer)
    trained = []
    for ids, mask in zip(
        rows.input_ids.split(rows.lengths.tolist()), rows.mask.split(rows.lengths.tolist()), strict=True
    ):
        for start in np.flatnonzero(np.diff(mask.numpy().astype(int), prepend=0) == 1):
            end = start + int(np.argmin([*mask[start:], False]))
            trained.append((tokenizer.decode(ids[:start], False), tokenizer.decode(ids[start:end], False)))
    empty = "" if template is None else "<think></think>"
    assert trained == [
        (tokenizer.apply_chat_template(CONVERSATION[:1], tools=tools), "<think>so</think>2<|end|>"),
        (tokenizer.apply_chat_template(CONVERSATION[:3], tools=tools), f"{empty}4<|end|>"),
    ]


def test_a_row_whose_turn_cannot_be_trained_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": {}}}]}
    rows = [{"messages": CONVERSATION}, {"messages": [CONVERSATION[0], call]}]
    monkeypatch.setattr(DATASET_REGISTRY, "resolve", lambda name: lambda: rows)
    tokenizer = Tokenizer({**tiny_tokenizer().files, "chat_template.jinja": REWRITES.encode()})
    with pytest.raises(DataError, match=r"d:f, row 1: the chat template leaves out what message 1 of 2 says: 'add'"):
        sft.demonstrations(SFTDatasetConfig(dataset_fn="d:f"), tokenizer)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"messages": CONVERSATION[:1]}, "some token to learn|no token to learn"),
        ({"messages": [{"role": "assistant", "content": "\ud83d"}]}, "d, row 7: it cannot be encoded"),
        ({"text": "x"}, "d, row 7: expected messages"),
        ({"input_ids": [1, 2], "loss_mask": [1]}, "one length"),
        ({"input_ids": [1, 2], "loss_mask": [0, 0]}, "some token to learn"),
    ],
)
def test_a_row_that_is_neither_is_named(row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        sft.encode(row, tiny_tokenizer(), "d, row 7")


def test_long_rows_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(DATASET_REGISTRY, "resolve", lambda name: word_pairs)
    with caplog.at_level(logging.WARNING):
        rows = sft.demonstrations(SFTDatasetConfig(dataset_fn="d:f", max_length=10), tiny_tokenizer())
    assert len(rows.lengths) == 1
    assert "2 of 3 rows have more than 10 tokens" in caplog.text
    with pytest.raises(DataError, match="no row"):
        sft.demonstrations(SFTDatasetConfig(dataset_fn="d:f", max_length=3), tiny_tokenizer())


def test_each_epoch_sees_each_row_once() -> None:
    orders = sft.batches(5, 3, seed=1)
    drawn = np.concatenate([next(orders) for _ in range(5)])
    assert [sorted(drawn[i : i + 5].tolist()) for i in (0, 5, 10)] == [[0, 1, 2, 3, 4]] * 3
    assert not np.array_equal(drawn[:5], drawn[5:10])


def test_the_loss_is_the_mean_over_target_tokens() -> None:
    rows = PackedRows(torch.tensor([3]), torch.tensor([1, 2, 3]), torch.tensor([False, True, True]))
    outputs = TokenOutputs(torch.tensor([0.0, -1.0, -3.0]), torch.zeros(3))
    weights = token_weights(rows.mask, rows.cu_seqlens)
    assert (sft.negative_log_likelihood(rows, outputs) * weights).sum().item() == 2
