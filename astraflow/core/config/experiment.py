"""What every program of a run shares."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from astraflow.core.config.ids import checked_id
from astraflow.core.config.section import Section

Name = Annotated[str, AfterValidator(checked_id)]
"""1 to 128 printable ASCII characters."""

WireDtype = Literal["float32", "bfloat16", "float16"]


class ExperimentConfig(Section):
    """Identity of the run and the model it starts from."""

    experiment_name: Name
    """Groups runs of one question."""
    trial_name: Name
    """One run of it."""
    fileroot: str
    """The run directory: everything the run leaves is under it."""
    model_path: str | None = None
    """A Hugging Face directory, owner/name on the Hub, or smollm2-135m-instruct. None where `base_model` makes one."""
    tokenizer_path: str | None = None
    """Where the tokenizer is; None: beside the model."""
    seed: int = Field(default=1, ge=0, le=2**63 - 1)
    """Seeds data order, sampling and initialisation."""
    dtype: WireDtype = "float32"
    """Parameters' type while computing, in trainer and embedded engine."""
    wire_dtype: WireDtype | None = None
    """Weights' type on the wire and in the engine; None: the same as dtype."""
    weight_transfer_mode: Literal["tcp", "shm", "disk"] = "tcp"
    """How weights reach a RaaS: shared memory needs one host, disk a run directory that all hosts share."""
    weight_transfer_strategies: Literal["full", "delta"] = "full"
    """delta: only what changed since the version that a RaaS is proven to hold, where there is such a base."""
