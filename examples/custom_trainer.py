"""A trainer of one's own: numpy and AstraFlowClient.

    python custom_trainer.py http://127.0.0.1:8000 weights

Its model is a table: how likely each of eight letters (token ids 0 to 7) is after each other. It learns by policy
gradient. Axes: N samples of a batch, T their tokens laid end to end, S the sampled ones among them, V letters.
"""

import os
import sys
from pathlib import Path

import numpy as np

from astraflow.core.data import Batch, Manifest
from astraflow.core.weight_manager.digest import build_manifest
from astraflow.core.weight_manager.layout import lay_out
from astraflow.train_worker.trainer.astraflow_client import AstraFlowClient

MODEL = "model0"
LETTERS = 8
LAYOUT = lay_out([("table", (LETTERS, LETTERS), "float32")])
STEPS = 20
BATCH_SIZE = 64
"""Samples of a step: a multiple of n_samples."""
LEARNING_RATE = 8.0
LARGEST_RATIO = 2.0
"""How much more than once a token may count that the model likes better now than when it was sampled."""


def publish(table: np.ndarray, version: int, folder: Path) -> Manifest:
    """Lay a version where the RaaS finds it, and say what it is: names, shapes and digests of its bytes."""
    data = table.astype(np.float32).tobytes()
    draft = folder / "draft"
    draft.write_bytes(data)
    draft.rename(folder / str(version))
    return build_manifest(MODEL, version, LAYOUT, memoryview(data))


def gradient(table: np.ndarray, batch: Batch) -> np.ndarray:
    """Of the mean over samples of advantage times log-probability, corrected for the age of what was sampled."""
    differs_N = batch.group_reward_std > 0  # where all samples are equal, none is better than another
    advantages_N = (batch.rewards - batch.group_reward_mean) / np.where(differs_N, batch.group_reward_std, np.inf)
    sampled_T = batch.loss_mask.astype(bool)
    advantages_S = np.repeat(advantages_N, batch.lengths)[sampled_T]
    chosen_S = batch.input_ids[sampled_T]
    before_S = np.roll(batch.input_ids, 1)[sampled_T]  # a row begins with its prompt: what is before is the row's own
    scores_SV = np.exp(table[before_S] - table[before_S].max(axis=1, keepdims=True))
    probabilities_SV = scores_SV / scores_SV.sum(axis=1, keepdims=True)
    each_S = np.arange(len(chosen_S))
    # the tokens were sampled by older versions; batch.logprobs says how likely they were then
    ratios_S = probabilities_SV[each_S, chosen_S] / np.exp(batch.logprobs[sampled_T])
    towards_SV = -probabilities_SV
    towards_SV[each_S, chosen_S] += 1
    total = np.zeros_like(table)
    np.add.at(total, before_S, (advantages_S * ratios_S.clip(max=LARGEST_RATIO))[:, None] * towards_SV)
    return total / len(batch.lengths)


def main(url: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    table = np.zeros((LETTERS, LETTERS))
    with AstraFlowClient(url, os.environ["ASTRAFLOW_TOKEN"], MODEL) as client:
        client.initialize()
        # our RaaS reads a folder and asks no weight sender, so the endpoint only has to be one
        client.signal_ready(BATCH_SIZE, sender_endpoint="127.0.0.1:0", manifest=publish(table, 0, folder))
        client.notify_version(0, step=0)
        for step in range(1, STEPS + 1):
            reply = client.get_batch(version=step - 1)
            table += LEARNING_RATE * gradient(table, reply.batch)
            # acknowledges the batch and makes the version current; what follows runs beside it
            client.notify_version_async(step, step, publish(table, step, folder))
            staleness = step - 1 - reply.batch.versions[reply.batch.loss_mask.astype(bool)].min()
            print(f"step {step}: reward {reply.batch.rewards.mean():.2f}, staleness {staleness}", flush=True)
            client.drain_pending_notifications()
        client.shutdown_service()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
