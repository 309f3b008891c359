"""Keys of RaaS (`raas`, `rollout`)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from astraflow.core.config import ExperimentConfig, Section, struct_field
from astraflow.core.config.experiment import Name
from astraflow.core.data import GenerationHyperparameters


class EmbeddedConfig(Section):
    """The engine inside the RaaS process."""

    context_length: int | None = Field(default=None, ge=2)
    """Most tokens of one sequence; None: the model's own."""
    max_running_requests: int = Field(default=64, ge=1)
    """Most sequences decoded together."""
    kv_cache_gib: float = Field(default=4.0, gt=0, allow_inf_nan=False)
    """Memory of keys and values, in 2³⁰ bytes: a request waits until its prompt and max_new_tokens fit beside others;
    one sequence of context_length must fit."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the engine computes."""


class RaaSModelConfig(Section):
    """One policy that is served."""

    backend: Literal["embedded", "scripted"] = "embedded"
    """embedded: our engine, in process. scripted: answers from a script, for tests."""
    gconfig: struct_field(GenerationHyperparameters) = GenerationHyperparameters()  # type: ignore[valid-type]
    """How to sample."""
    embedded: EmbeddedConfig = EmbeddedConfig()


class ScalingConfig(Section):
    """Start and stop RaaS processes by Dataflow's advice (raas/advice)."""

    min_instances: int = Field(default=1, ge=1)
    """Fewer are never left."""
    max_instances: int = Field(ge=1)
    """More are never started."""


class RaaSConfig(Section):
    """Rollout services."""

    models: dict[str, RaaSModelConfig] = Field(min_length=1)
    """model_id → how it is served."""
    instances: int = Field(default=1, ge=1)
    """RaaS processes that the launcher starts."""
    scaling: ScalingConfig | None = None
    """Limits within which it starts more and drains some; None: their number stays."""
    threads: int = Field(default=1, ge=1)
    """torch threads of each."""
    host: str = "127.0.0.1"
    """Address that it binds and registers under."""
    port: int = Field(default=0, ge=0, le=65535)
    """0: any free port; with several instances, or with scaling, only 0."""
    delta_full_sync_interval: int = Field(default=0, ge=0)
    """After so many deltas in a row a full version is pulled; 0: never for that reason."""


class RolloutConfig(Section):
    """Limits of one RaaS."""

    max_concurrent_rollouts: int = Field(default=64, ge=1)
    """Groups that run at once."""
    reward_workers: int = Field(default=1, ge=0)
    """Killable processes that compute rewards; 0: in the RaaS process, without a deadline."""
    reward_timeout_s: float = Field(default=15.0, gt=0)
    """A reward that runs longer is killed and Invalid(timeout)."""


class RaaSSettings(Section):
    """Everything one RaaS process is given."""

    experiment: ExperimentConfig
    raas: RaaSConfig
    rollout: RolloutConfig
    model_paths: dict[str, str]
    """model_id → Hugging Face directory: the architecture, and the weights until version 0 is pulled."""
    tokenizer_path: str
    dataflow_urls: list[str]
    uid: Name
    run_dir: str
