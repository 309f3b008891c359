"""Weight versions from trainer to rollout services: published, moved, verified.

digest      what a version is: per-tensor digests and their total
layout      where each tensor lies in a version's buffer
segment     the double buffer in shared memory that holds the two newest full versions
tensors     the only file that imports torch: parameters → wire bytes → engine tensors
publish     WeightManager: the trainer's side
agent_pipe  what trainer and sender agent say to each other; the agent's life ends with the pipe
sender_agent, sender_state   the agent's process and its decisions
transports  how bulk bytes move: tcp, shm
receiver    the rollout service's side: fetch, verify, hand over
handover    how an engine takes a version in place, proves it, and gives it back

`WeightManager` loads torch and is resolved on first use; receivers and the agent never load it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from astraflow.core.weight_manager.publish import WeightManager

__all__ = ["WeightManager"]


def __getattr__(name: str) -> Any:
    if name == "WeightManager":
        return importlib.import_module("astraflow.core.weight_manager.publish").WeightManager
    raise AttributeError(f"module {__name__} has no attribute {name!r}")
