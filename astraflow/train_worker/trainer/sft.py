"""Supervised fine-tuning: demonstrations in, a Hugging Face directory out.

    python -m astraflow.train_worker.trainer.sft --settings FILE

Makes the base model of a run that names none. Tokens that the assistant wrote are learnt, each with equal weight in a
step. The result depends on settings and code alone, so launch keeps it by their hash.
"""

from __future__ import annotations

import argparse
import inspect
import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from astraflow.core.config import read_settings
from astraflow.core.dataset.registry import DATASET_REGISTRY
from astraflow.core.model import new_model
from astraflow.core.observability import lifeline, log
from astraflow.core.text.chat import Encoded, encode_turns
from astraflow.core.text.tiny import tiny_tokenizer
from astraflow.core.text.tokenizer import Tokenizer
from astraflow.errors import AstraFlowError, ConfigError, DataError, boundary
from astraflow.train_worker.algorithms.aggregation import token_weights
from astraflow.train_worker.config import SFTConfig, SFTDatasetConfig, SFTSettings
from astraflow.train_worker.engine.base import StepResult, TokenOutputs
from astraflow.train_worker.engine.native import NativeEngine
from astraflow.train_worker.packed_rows import PackedRows

LOGGER = logging.getLogger("astraflow.sft")
LOG_EVERY = 50
"""Steps between two lines of the log."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="astraflow.train_worker.trainer.sft", description=__doc__.splitlines()[0])
    parser.add_argument("--settings", type=Path, required=True)
    settings = read_settings(SFTSettings, parser.parse_args(arguments).settings)
    log.configure()
    lifeline.watch_parent()
    try:
        run(settings.sft, Path(settings.output_dir))
    except AstraFlowError as error:
        LOGGER.error("%s: %s", error.kind, error)
        return 1
    return 0


def run(config: SFTConfig, output_dir: Path) -> None:
    """Train a new model and write it."""
    torch.set_num_threads(config.threads)
    started = time.perf_counter()
    tokenizer = tiny_tokenizer()
    rows = demonstrations(config.dataset, tokenizer)
    LOGGER.info("%d demonstrations of %d tokens in %.1f s", len(rows.lengths), len(rows.mask), _since(started))
    engine = NativeEngine(
        new_model(config.preset, seed=config.seed),
        config.optimizer,
        config.total_train_steps,
        max_tokens_per_mb=config.mb_spec.max_tokens_per_mb,
    )
    started, tokens = time.perf_counter(), 0
    orders = batches(len(rows.lengths), config.train_batch_size, config.seed)
    for step in range(1, config.total_train_steps + 1):
        batch = rows.select(torch.from_numpy(next(orders)))
        result = train_step(engine, batch)
        tokens += len(batch.mask)
        if step % LOG_EVERY == 0 or step == config.total_train_steps:
            LOGGER.info(
                "step %d/%d loss %.4f grad_norm %.2f lr %.1e tokens/s %.0f",
                *(step, config.total_train_steps, result.loss, result.grad_norm, result.learning_rate),
                tokens / _since(started),
            )
    engine.save(output_dir, tokenizer)
    LOGGER.info("wrote %s", output_dir)


def train_step(engine: NativeEngine, batch: PackedRows) -> StepResult:
    """One step on the mean negative log-likelihood of the batch's target tokens."""
    return engine.train_step(batch, token_weights(batch.mask, batch.cu_seqlens), negative_log_likelihood)


def negative_log_likelihood(rows: PackedRows, outputs: TokenOutputs) -> Tensor:
    """−log p of each token, [T]."""
    return -outputs.logprobs


def batches(n_rows: int, batch_size: int, seed: int) -> Iterator[np.ndarray]:
    """Row numbers of each step without end: every epoch in a new order, batches run on over its border."""
    chance = np.random.default_rng(seed)
    queue = np.empty(0, np.int64)
    while True:
        while len(queue) < batch_size:
            queue = np.concatenate([queue, chance.permutation(n_rows)])
        yield queue[:batch_size]
        queue = queue[batch_size:]


def demonstrations(dataset: SFTDatasetConfig, tokenizer: Tokenizer) -> PackedRows:
    """Load and encode a dataset. Rows that are too long are left out and counted; DataError where none is left."""
    function = DATASET_REGISTRY.resolve(dataset.dataset_fn)
    offered = {"tokenizer": tokenizer, "max_length": dataset.max_length, "split": "train"}
    named = inspect.signature(function).parameters
    keywords = {**{name: value for name, value in offered.items() if name in named}, **dataset.keywords}
    with boundary(ConfigError, f"dataset {dataset.dataset_fn}"):
        rows = function(**keywords)
    encoded = [
        sequence
        for number, row in enumerate(rows)
        for sequence in encode(row, tokenizer, f"{dataset.dataset_fn}, row {number}")
    ]
    limit = dataset.max_length
    kept = [(ids, mask) for ids, mask in encoded if limit is None or len(ids) <= limit]
    if len(kept) < len(encoded):
        LOGGER.warning("%d of %d rows have more than %d tokens", len(encoded) - len(kept), len(encoded), limit)
    if not kept:
        raise DataError(f"dataset {dataset.dataset_fn} gave no row to train on")
    return PackedRows(
        torch.tensor([len(ids) for ids, _ in kept]),
        torch.from_numpy(np.concatenate([ids for ids, _ in kept]).astype(np.int64)),
        torch.from_numpy(np.concatenate([mask for _, mask in kept]).astype(bool)),
    ).check()


def encode(row: Mapping[str, Any], tokenizer: Tokenizer, where: str) -> list[Encoded]:
    """Return the (ids, mask) of a row {messages, tools?} or {input_ids, loss_mask}; DataError names the row.

    Several where the chat template rewrites earlier turns: each turn is trained behind what would be sent.
    """
    if "messages" in row:
        try:
            with boundary(DataError, "it cannot be encoded"):  # a tokenizer refuses half an emoji in its own words
                sequences = encode_turns(tokenizer, row["messages"], row.get("tools"))
        except DataError as error:
            raise DataError(f"{where}: {error}") from error
    elif "input_ids" in row and "loss_mask" in row:
        sequences = [(np.asarray(row["input_ids"]), np.asarray(row["loss_mask"]))]
    else:
        raise DataError(f"{where}: expected messages, or input_ids and loss_mask, got {', '.join(map(str, row))}")
    if not sequences:
        raise DataError(f"{where}: no message of the assistant, so no token to learn")
    for ids, mask in sequences:
        if ids.shape != mask.shape or ids.ndim != 1 or not mask.any():
            raise DataError(
                f"{where}: {ids.shape} ids, {mask.shape} mask; one length, and some token to learn, are needed"
            )
    return sequences


def _since(start: float) -> float:
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
