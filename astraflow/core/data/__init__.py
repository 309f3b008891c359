"""What flows between the programs: frozen records of aligned arrays. No torch, no IO."""

from astraflow.core.data.batch import Batch, Group
from astraflow.core.data.codec import decode, encode
from astraflow.core.data.generation import GenerationHyperparameters, ModelRequest, ModelResponse, StopReason
from astraflow.core.data.lease import LeaseId
from astraflow.core.data.manifest import Canary, Manifest, TensorEntry
from astraflow.core.data.trajectory import Failed, Invalid, Reward, Trajectory, Turn, Value

__all__ = [
    "Batch",
    "Canary",
    "Failed",
    "GenerationHyperparameters",
    "Group",
    "Invalid",
    "LeaseId",
    "Manifest",
    "ModelRequest",
    "ModelResponse",
    "Reward",
    "StopReason",
    "TensorEntry",
    "Trajectory",
    "Turn",
    "Value",
    "decode",
    "encode",
]
