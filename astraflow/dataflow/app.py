"""The Dataflow process: python -m astraflow.dataflow.app --settings FILE.

It binds its port, announces it in the run directory, serves until SIGTERM, /shutdown or a failure, and stops in
order. Exit code 0 after an ordered stop; 1 where the run could not go on, after whoever waits for a batch was told
why.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from astraflow.core.config import read_settings
from astraflow.core.dataset.loading import APART, shared_rows
from astraflow.core.observability.lifeline import watch_parent
from astraflow.core.observability.log import configure
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.observability.spans import SpanLog
from astraflow.core.protocol import Endpoint, RaaSClient, Server, StatusEndpoint, build_app
from astraflow.core.protocol import messages as m
from astraflow.core.text.tokenizer import Tokenizer, load_tokenizer
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.eval_log import EvalLog
from astraflow.dataflow.rows import load_rollout_rows, load_rows
from astraflow.dataflow.service import AstraFlow
from astraflow.dataflow.store import LedgerStore
from astraflow.dataflow.trajectory_log import TrajectoryLog
from astraflow.dataflow.workflows import samples_per_group
from astraflow.errors import AstraFlowError

log = logging.getLogger(__name__)

TELL_S = 10.0
"""Longest that a failed run stays up so that its trainer is told why."""

MISSING_RAAS = "Request body must contain 'uid' and 'raas_url'"


def create_service(
    settings: DataflowSettings,
    connect: Callable[[str], RaaSClient],
    tokenizer: Tokenizer | None,
    spans: SpanLog | None = None,
) -> AstraFlow:
    """Load the datasets and compose the service. ConfigError or DataError where a dataset is not right."""
    config, seed = settings.dataflow, settings.experiment.seed
    rows = load_rollout_rows(config, seed=seed, tokenizer=tokenizer)
    eval_rows = {
        name: load_rows(dataset, split="test", seed=seed, tokenizer=tokenizer)
        for name, dataset in config.eval_datasets.items()
    }
    counts = [{name: len(r) for name, r in loaded.items()} for loaded in (rows, eval_rows)]
    log.info("rollout rows: %s; evaluation: %s", *counts)
    trained = [row for loaded in rows.values() for row in loaded]
    for name, scored in eval_rows.items():
        if both := shared_rows(trained, scored):
            log.warning("eval_datasets.%s: %d of %d rows are trained on too; %s", name, both, len(scored), APART)
    decode = None if tokenizer is None else _decoder(tokenizer)
    _, *further = samples_per_group(settings)
    trajectories = TrajectoryLog(RunDirectory(settings.run_dir), decode, further)
    ledger = config.ledger
    store = LedgerStore(RunDirectory(settings.run_dir).ledger, fsync=ledger.fsync) if ledger.durable else None
    eval_log = EvalLog(RunDirectory(settings.run_dir).evaluations, config.eval.keep_rows, decode)
    return AstraFlow(settings, rows, eval_rows, connect, trajectories, spans=spans, store=store, eval_log=eval_log)


def create_app(service: AstraFlow, token: str) -> Any:
    """The ASGI application of a service, for a server or for in-process clients."""

    async def shutdown(_: m.Empty) -> m.Ok:
        service.stopping.set()
        return m.Ok()

    return build_app(
        "Dataflow",
        token,
        [
            Endpoint("POST", "/ready", m.ReadyRequest, service.ready),
            Endpoint("GET", "/batch", m.BatchRequest, service.batch),
            Endpoint("POST", "/notify_version", m.NotifyVersionRequest, service.notify_version),
            Endpoint("POST", "/save_buffer", m.SaveBufferRequest, service.save_buffer),
            Endpoint("POST", "/register_raas", m.RegisterRaaSRequest, service.register_raas, required=MISSING_RAAS),
            Endpoint("POST", "/deregister_raas", m.DeregisterRaaSRequest, service.deregister_raas),
            Endpoint("POST", "/deregister_trainer", m.DeregisterTrainerRequest, service.deregister_trainer),
            Endpoint("POST", "/shutdown", m.Empty, shutdown),
            StatusEndpoint("/raas_pool", service.raas_pool, m.PoolStatus),
            StatusEndpoint("/status", service.status, m.DataflowStatus),
            StatusEndpoint("/metrics", service.metrics),
        ],
    )


async def serve(settings: DataflowSettings) -> int:
    """Run the program; returns its exit code."""
    run_dir = RunDirectory(settings.run_dir)
    token = run_dir.token()
    tokenizer = load_tokenizer(settings.tokenizer_path)
    spans = SpanLog(run_dir.spans, "dataflow")
    service = create_service(settings, lambda url: RaaSClient(url, token), tokenizer, spans)
    server = Server(create_app(service, token), settings.dataflow.host, settings.dataflow.port)
    try:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, service.stopping.set)
        service.start()
        serving = asyncio.create_task(server.serve())
        run_dir.announce("dataflow", server.url)
        log.info("Dataflow listens at %s", server.url)
        await service.stopping.wait()
        if service.error is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(service.serving.told.wait(), TELL_S)
        await service.stop()
        server.stop()
        await serving
    finally:
        server.close()
        spans.close()
    log.info("Dataflow has stopped")
    return 0 if service.error is None else 1


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the process."""
    parser = argparse.ArgumentParser(prog="python -m astraflow.dataflow.app", description="The Dataflow service.")
    parser.add_argument("--settings", type=Path, required=True, help="settings file that the launcher wrote")
    arguments = parser.parse_args(argv)
    configure()
    watch_parent()
    try:
        return asyncio.run(serve(read_settings(DataflowSettings, arguments.settings)))
    except AstraFlowError as error:
        log.error("%s: %s", error.kind, error)
        return 1


def _decoder(tokenizer: Tokenizer) -> Callable[[Sequence[int]], str]:
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False)


if __name__ == "__main__":
    sys.exit(main())
