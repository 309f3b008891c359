"""A trainer as a process of its own. What its model has learnt is a list: the groups of each step. It keeps that every
few steps, goes on from there when it is started again, and ends once it is told that there was enough.
"""

import argparse
from pathlib import Path

import msgspec

from astraflow.core.observability.lifeline import watch_parent
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.dataflow.scripted import manifest
from astraflow.train_worker.trainer.astraflow_client import AstraFlowClient

LAST_STEPS = 10
"""Steps after it was told."""


class Model(msgspec.Struct):
    step: int = 0
    version: int = 0
    learnt: dict[int, list[int]] = {}
    """step → its groups."""


def train(given: dict[str, str], run_dir: RunDirectory) -> None:
    state, enough = Path(given["state"]), Path(given["enough"])
    with AstraFlowClient(given["dataflow_url"], run_dir.token(), "model0", patience=60) as client:
        known = client.initialize(60)["agents"]["model0"]["trainer_ready"]
        run_dir.announce("train_worker-model0", "http://127.0.0.1:1")
        batch_size, keep_every = int(given["batch_size"]), int(given["keep_every"])
        model = msgspec.json.decode(state.read_bytes(), type=Model) if state.exists() else Model()
        if known or state.exists():
            model.version = client.signal_ready(
                batch_size, "127.0.0.1:2", recovered_version=model.version, recovered_step=model.step
            )
        else:
            client.signal_ready(batch_size, "127.0.0.1:1", manifest(0))
        client.notify_version(model.version, model.step, manifest(model.version))
        left = LAST_STEPS
        while left:
            left -= enough.exists()
            batch = client.get_batch(model.version, 60).batch
            model.step += 1
            model.version += 1
            model.learnt[model.step] = sorted(set(batch.group_id.tolist()))
            client.notify_version(model.version, model.step, manifest(model.version))
            if model.step % keep_every == 0 or not left:
                draft = state.with_suffix(".draft")
                draft.write_bytes(msgspec.json.encode(model))
                draft.replace(state)
                client.save_buffer(model.step)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--settings", type=Path, required=True)
    given = msgspec.json.decode(parser.parse_args().settings.read_bytes())
    watch_parent(0.5)
    train(given, RunDirectory(given["run_dir"]))
