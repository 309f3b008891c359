"""The process that stands in for a train worker when a checkpoint is scored.

    python -m astraflow.launch.publisher --settings FILE

The manifest is made from the checkpoint; RaaS pulls and verifies it like any version (invariant 5).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from astraflow.core.config import read_settings
from astraflow.core.model import load_model, named_weights, tied_aliases
from astraflow.core.observability import lifeline, log
from astraflow.core.observability.lines import write_whole
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.protocol import DataflowClient
from astraflow.core.protocol.messages import EvalResults, NotifyVersionRequest, ReadyRequest
from astraflow.core.weight_manager import WeightManager
from astraflow.errors import AstraFlowError, PeerError
from astraflow.launch.evaluation import PublisherSettings

LOGGER = logging.getLogger("astraflow.publisher")
VERSION = 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="astraflow.launch.publisher", description="Publish a checkpoint for scoring.")
    parser.add_argument("--settings", type=Path, required=True)
    settings = read_settings(PublisherSettings, parser.parse_args(arguments).settings)
    log.configure()
    lifeline.watch_parent()
    try:
        results = publish(settings)
    except AstraFlowError as error:
        LOGGER.error("%s: %s", error.kind, error)
        return 1
    write_whole(Path(settings.output), msgspec.json.encode(results))
    return 0


def publish(settings: PublisherSettings) -> EvalResults:
    """Offer the checkpoint as version 0 until Dataflow has scored it."""
    experiment = settings.experiment
    run_dir = RunDirectory(settings.run_dir)
    token = run_dir.token()
    decoder, config = load_model(settings.model_path, experiment.dtype)
    weights = dict(named_weights(decoder))
    manager = WeightManager(
        settings.model_id,
        token,
        transports=(experiment.weight_transfer_mode,),
        wire_dtype=experiment.wire_dtype,
        folder=run_dir.root / "weights" / settings.model_id if experiment.weight_transfer_mode == "disk" else None,
    )
    try:
        manager.initialize(weights, aliases=tied_aliases(config))
        manager.offload(weights, VERSION)
        return asyncio.run(_ask(settings, manager, token))
    finally:
        manager.shutdown()


async def _ask(settings: PublisherSettings, manager: WeightManager, token: str) -> EvalResults:
    manifest = manager.manifest(VERSION)
    client = DataflowClient(settings.dataflow_url, token)
    try:
        await client.ready(
            ReadyRequest(
                train_batch_size=settings.train_batch_size,
                sender_endpoint=manager.get_sender_endpoint(),
                model_id=settings.model_id,
                manifest=manifest,
            )
        )
        reply = await client.notify_version(
            NotifyVersionRequest(version=VERSION, step=0, run_eval=True, model_id=settings.model_id, manifest=manifest),
            timeout=settings.timeout_s,
        )
    finally:
        await client.close()
    if reply.eval_results is None:
        raise PeerError(f"{settings.dataflow_url} answered without evaluation results")
    return reply.eval_results


if __name__ == "__main__":
    sys.exit(main())
