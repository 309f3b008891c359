"""The records that workflows read and write, at the module where public recipes import them."""

from astraflow.core.data import (
    Failed,
    GenerationHyperparameters,
    Invalid,
    ModelRequest,
    ModelResponse,
    Reward,
    StopReason,
    Trajectory,
    Turn,
    Value,
)
from astraflow.core.data.trajectory import Episode, EpisodeResult, GroupResult, Row

__all__ = [
    "Episode",
    "EpisodeResult",
    "Failed",
    "GenerationHyperparameters",
    "GroupResult",
    "Invalid",
    "ModelRequest",
    "ModelResponse",
    "Reward",
    "Row",
    "StopReason",
    "Trajectory",
    "Turn",
    "Value",
]
