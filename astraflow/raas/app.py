"""The RaaS program: `python -m astraflow.raas.app --settings FILE`.

Binds, announces itself, registers with every Dataflow it was given and again whenever one forgot it, serves until
SIGTERM, /shutdown or its parent's end; then deregisters, ends its groups and engines, and exits 0 (70 after a broken
invariant).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from astraflow.core.config import read_settings
from astraflow.core.data import GenerationHyperparameters, Manifest
from astraflow.core.observability import lifeline, log
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.observability.spans import SpanLog
from astraflow.core.protocol import DataflowClient, Endpoint, SenderClient, Server, StatusEndpoint, build_app
from astraflow.core.protocol import messages as m
from astraflow.core.text import load_tokenizer
from astraflow.core.weight_manager.receiver import Receiver
from astraflow.core.weight_manager.version_log import VersionLog, served_log
from astraflow.errors import AstraFlowError
from astraflow.raas.config import RaaSSettings
from astraflow.raas.engines.base import Engine
from astraflow.raas.engines.registry import ENGINE_REGISTRY
from astraflow.raas.eval_lane import EvalLane
from astraflow.raas.generate import generate
from astraflow.raas.router import Router
from astraflow.raas.service import RaaSService
from astraflow.raas.updater import Updater, WeightSource
from astraflow.raas.workflows import RegisteredWorkflows, Rewards

logger = logging.getLogger(__name__)

HEARTBEAT = 5.0
"""Seconds between registrations while Dataflow is away; then as often as it says."""
FIRST_RETRY = 0.2
"""Seconds between tries until the first registration."""
GOODBYE_DEADLINE = 2.0
"""Seconds for deregistering."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="astraflow.raas.app", description="Run one rollout service.")
    parser.add_argument("--settings", type=Path, required=True)
    settings = read_settings(RaaSSettings, parser.parse_args(arguments).settings)
    log.configure()
    lifeline.watch_parent()
    try:
        return asyncio.run(run(settings))
    except AstraFlowError as error:
        logger.error("%s: %s", error.kind, error)
        return 1


async def run(settings: RaaSSettings) -> int:
    """Serve until told to stop; returns the exit status."""
    run_directory = RunDirectory(settings.run_dir)
    token = run_directory.token()
    engines = [
        ENGINE_REGISTRY.resolve(settings.raas.models[model_id].backend)(model_id, settings)
        for model_id in settings.raas.models
    ]
    port = 0

    def receiver() -> Receiver:  # its name among a sender's receivers is our address, known once we are bound
        return Receiver(
            settings.raas.host,
            port,
            token,
            transport=settings.experiment.weight_transfer_mode,
            strategy=settings.experiment.weight_transfer_strategies,
            full_sync_interval=settings.raas.delta_full_sync_interval,
        )

    spans = SpanLog(run_directory.spans, settings.uid)
    service = make_service(settings, engines, token, receiver, spans)
    server = Server(raas_app(service, token), settings.raas.host, settings.raas.port)
    port = server.port
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, service.stopping.set)
    run_directory.announce(settings.uid, server.url)
    serving = asyncio.create_task(server.serve())
    # tells our restart from a repeated registration: a new process has none of the old one's tasks
    incarnation = uuid4().hex
    registering = [
        asyncio.create_task(_stay_registered(url, token, settings, server.url, incarnation))
        for url in settings.dataflow_urls
    ]
    try:
        await asyncio.wait([serving, asyncio.create_task(service.stopping.wait())], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in registering:
            task.cancel()
        await asyncio.gather(*registering, return_exceptions=True)
        await _say_goodbye(settings, token, incarnation)
        await service.close()
        spans.close()
        server.stop()
        await serving
    return 70 if service.broken else 0


def make_service(
    settings: RaaSSettings,
    engines: Sequence[Engine],
    token: str,
    source: Callable[[], WeightSource],
    spans: SpanLog | None = None,
) -> RaaSService:
    """Build a service on engines that exist; `source` makes what pulls weights (a fake one, in tests)."""
    router = Router(engines)
    versions = VersionLog(served_log(Path(settings.run_dir), settings.uid))
    rewards = Rewards(settings.rollout.reward_workers, settings.rollout.reward_timeout_s)

    def supports(gconfig: GenerationHyperparameters) -> None:
        for engine in engines:
            engine.supports(gconfig)

    async def manifest_of(endpoint: str, version: int) -> Manifest:
        sender = SenderClient(f"http://{endpoint}", token)
        try:
            return await sender.manifest(version)
        finally:
            await sender.close()

    return RaaSService(
        engine_id=settings.uid,
        backend=settings.raas.models[router.default_model].backend,
        router=router,
        updater_for=lambda model_id, serves: Updater(
            router.engines[model_id], source, manifest_of, serves, spans, versions, settings.uid
        ),
        workflows=RegisteredWorkflows(
            settings.raas.models[router.default_model].gconfig,
            load_tokenizer(settings.tokenizer_path),
            rewards,
            supports,
        ),
        max_concurrent=settings.rollout.max_concurrent_rollouts,
        spans=spans,
    )


def raas_app(service: RaaSService, token: str) -> Any:
    """The ASGI application of a service."""

    evaluation = EvalLane(service)

    def route(path: str, request: type[Any], handler: Any) -> Endpoint:
        return Endpoint("POST", path, request, handler, envelope=True)

    return build_app(
        "RaaS",
        token,
        [
            StatusEndpoint("/status", service.status),
            StatusEndpoint("/availability", service.availability),
            route("/register_workflow", m.RegisterWorkflowRequest, service.register_workflow),
            route("/submit", m.SubmitRequest, service.submit),
            route("/pull", m.PullRequest, service.pull),
            route("/cancel", m.CancelRequest, service.cancel),
            route("/generate", m.GenerateRequest, partial(generate, service.router)),
            route("/notify_version", m.RaaSNotifyVersionRequest, service.notify_version),
            route("/pause", m.PauseRequest, service.pause),
            route("/resume", m.PauseRequest, service.resume),
            route("/reset_training_engine", m.ResetRequest, service.reset),
            route("/eval_start", m.Empty, evaluation.mark),
            route("/eval_submit", m.SubmitRequest, evaluation.submit),
            route("/eval_pull", m.PullRequest, evaluation.pull),
            route("/eval_end", m.Empty, evaluation.mark),
            route("/shutdown", m.Empty, service.shutdown),
        ],
    )


async def _stay_registered(url: str, token: str, settings: RaaSSettings, own_url: str, incarnation: str) -> None:
    """Register until it succeeds, then as a heartbeat; a Dataflow that is away, or lets us go, is only logged once."""
    request = m.RegisterRaaSRequest(
        uid=settings.uid,
        raas_url=own_url,
        capabilities={
            "max_concurrency": settings.rollout.max_concurrent_rollouts,
            "models": list(settings.raas.models),
            "backend": settings.raas.models[next(iter(settings.raas.models))].backend,
            "incarnation": incarnation,
        },
    )
    client = DataflowClient(url, token)
    pause, away, reason = FIRST_RETRY, False, ""
    try:
        while True:
            try:
                reply = await client.register_raas(request)
                if reply.reason and reply.reason != reason:
                    logger.warning("%s gives us no work: %s", url, reply.reason)
                pause, away, reason = reply.heartbeat_s, False, reply.reason
            except AstraFlowError as error:
                if not away:
                    logger.warning("cannot register with %s: %s", url, error)
                away = True
            await asyncio.sleep(pause)
    finally:
        await client.close()


async def _say_goodbye(settings: RaaSSettings, token: str, incarnation: str) -> None:
    for url in settings.dataflow_urls:
        client = DataflowClient(url, token, timeout=GOODBYE_DEADLINE)
        with contextlib.suppress(AstraFlowError):  # it may be gone already; then nobody waits for us
            await client.deregister_raas(settings.uid, drain=False, incarnation=incarnation)
        await client.close()


if __name__ == "__main__":
    sys.exit(main())
