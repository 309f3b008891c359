"""The embedded engine as a RaaS's settings ask for it."""

from __future__ import annotations

import zlib

from astraflow.raas.config import RaaSSettings
from astraflow.raas.engines.embedded.engine import EmbeddedEngine

UNVERIFIED = -1
"""The version of weights that no manifest proved; nothing is generated under it."""


def open_engine(model_id: str, settings: RaaSSettings) -> EmbeddedEngine:
    """Load the model's architecture; its weights stand until version 0 is pulled."""
    config = settings.raas.models[model_id].embedded
    experiment = settings.experiment
    return EmbeddedEngine.open(
        model_id,
        settings.model_paths[model_id],
        tokenizer_path=settings.tokenizer_path,
        dtype=experiment.wire_dtype or experiment.dtype,
        device=config.device,
        max_running_requests=config.max_running_requests,
        context_length=config.context_length,
        kv_cache_bytes=int(config.kv_cache_gib * 2**30),
        version=UNVERIFIED,
        # every instance samples a stream of its own
        seed=experiment.seed + zlib.crc32(f"{settings.uid}/{model_id}".encode()),
        threads=settings.raas.threads,
    )
