"""SmolLM2-135M-Instruct: our decoder and engine equal transformers' on a real model.

The converted model is taken from the user's cache where it is, else converted here; all of it is left out where its
package is not installed.
"""

import asyncio
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from astraflow.core.data import GenerationHyperparameters, ModelRequest
from astraflow.core.model import load_model, packed_attention, packed_positions
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.text import Tokenizer, load_tokenizer
from astraflow.launch.cache import make_model
from astraflow.launch.model_source import complaint, conversion_spec, converted_path, template_findings
from astraflow.raas.engines.embedded.engine import EmbeddedEngine

NAME = "smollm2-135m-instruct"
PROMPTS = 100
NEW_TOKENS = 8

pytestmark = [
    pytest.mark.system,
    pytest.mark.nightly,
    pytest.mark.skipif(complaint(NAME) is not None, reason=f"{complaint(NAME)}"),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cached = converted_path(NAME)
    if cached.is_dir():
        return cached
    place = tmp_path_factory.mktemp("smollm2")
    run_dir = RunDirectory(place / "run")
    make_model(place / NAME, lambda draft: conversion_spec(NAME, run_dir, draft), run_dir, lambda line: None)
    return place / NAME


@pytest.fixture(scope="module")
def peer(directory: Path):
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype="float32").eval()


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return load_tokenizer(directory)


@pytest.fixture(scope="module")
def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    """Chats of different lengths."""
    chance = random.Random(1)
    words = ["river", "seven", "apples", "how", "many", "minus", "tell me", "about", "the capital", "price", "of", "a"]
    texts = [" ".join(chance.choices(words, k=chance.randint(1, 24))) + "?" for _ in range(PROMPTS)]
    return [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in texts]


def test_its_files_are_a_hugging_face_directory(directory: Path, tokenizer: Tokenizer) -> None:
    decoder, config = load_model(directory)
    assert decoder.model.embed_tokens.weight.dtype == torch.bfloat16
    assert sum(p.numel() for p in decoder.parameters()) == 134_515_008
    assert config.vocab_size == tokenizer.vocab_size == 49_152
    assert tokenizer.eos_token_ids == (tokenizer.token_to_id("<|im_end|>"),)
    assert len(tokenizer.encode("12+345")) == 6, "a digit is a token"


def test_text_and_templates_are_those_of_transformers(directory: Path, tokenizer: Tokenizer) -> None:
    theirs = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(directory)
    chat = [
        {"role": "user", "content": "What is 12+34?  Naïve 🙂\n"},
        {"role": "assistant", "content": "46"},
        {"role": "user", "content": "thanks"},
    ]
    for messages in (chat[:1], chat):
        expected = theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        assert tokenizer.apply_chat_template(messages) == expected
        assert tokenizer.encode_chat(messages) == theirs(expected, add_special_tokens=False)["input_ids"]


def test_its_template_is_known_to_break_the_prefix_law(directory: Path) -> None:
    """It writes a newline after the end token: an episode of several turns branches, and the user is told."""
    assert all("something other than the end token" in finding for finding in template_findings(directory))
    assert template_findings(directory)


def test_logits_equal_transformers(directory: Path, peer, prompts: list[list[int]]) -> None:
    decoder, _ = load_model(directory, "float32")
    lengths = torch.tensor([0, *map(len, prompts[:8])])
    cu_seqlens = lengths.cumsum(0)
    ids = torch.tensor([token for prompt in prompts[:8] for token in prompt])
    with torch.no_grad():
        hidden = decoder(ids, packed_positions(cu_seqlens), packed_attention(cu_seqlens))
        ours = decoder.logits(hidden).split(lengths[1:].tolist())
        for prompt, logits in zip(prompts[:8], ours, strict=True):
            theirs = peer(torch.tensor([prompt])).logits[0]
            torch.testing.assert_close(logits, theirs, atol=1e-4, rtol=1e-4)


def test_greedy_tokens_equal_transformers(
    directory: Path, peer, tokenizer: Tokenizer, prompts: list[list[int]]
) -> None:
    parts = [prompts[start : start + 25] for start in range(0, PROMPTS, 25)]
    expected = [answer for part in parts for answer in generate(peer, tokenizer, part)]
    decoder, _ = load_model(directory, "float32")
    gconfig = GenerationHyperparameters(greedy=True, max_new_tokens=NEW_TOKENS)

    async def ours() -> list[list[int]]:
        engine = EmbeddedEngine("m", decoder, tokenizer=tokenizer, max_running_requests=32, context_length=256)
        requests = [
            ModelRequest(rid=str(n), input_ids=np.array(prompt, np.int32), gconfig=gconfig)
            for n, prompt in enumerate(prompts)
        ]
        try:
            answers = await asyncio.gather(*(engine.agenerate(request) for request in requests))
        finally:
            await engine.close()
        return [answer.output_tokens.tolist() for answer in answers]

    assert asyncio.run(ours()) == expected


def generate(peer, tokenizer: Tokenizer, prompts: list[list[int]]) -> list[list[int]]:
    """transformers' greedy answers, up to and with the end token; prompts are padded on the left."""
    end = tokenizer.eos_token_ids[0]
    width = max(map(len, prompts))
    ids = torch.tensor([[end] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    out = peer.generate(ids, attention_mask=mask, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=end)
    answers = [row[width:].tolist() for row in out]
    return [answer[: answer.index(end) + 1] if end in answer else answer for answer in answers]
