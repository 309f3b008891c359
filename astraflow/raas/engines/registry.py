"""Engines by backend name: functions `(model_id, RaaSSettings) -> Engine`. torch loads with the embedded one only."""

from __future__ import annotations

from astraflow.registry import Registry

ENGINE_REGISTRY = Registry(
    "engine",
    {
        "embedded": "astraflow.raas.engines.embedded.opening:open_engine",
        "scripted": "astraflow.raas.engines.scripted_opening:open_engine",
    },
    entry_point_group="astraflow.engines",
)
