"""What a workflow is asked for: a group of episodes of one row, and the limits within which they run."""

from __future__ import annotations

import random
from math import log
from typing import Any, Literal, Self

import msgspec

from astraflow.core.data import GenerationHyperparameters
from astraflow.core.data.trajectory import Row
from astraflow.errors import DataError

SAMPLE_BITS = 16
"""sample_id = (group_id << SAMPLE_BITS) | index of the sample in its group."""


CUT = "cut"
"""Reason of an episode that was ended from outside before it was needed."""
STRAGGLER = "straggler"
"""Reason of an episode that was ended because it took so much longer than others of its group."""


class Wait(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A log-normal wait, one per group: stands in for tools and environments when asynchrony is measured."""

    mean_s: float
    """The distribution's mean, seconds."""
    sigma: float = 1.0
    """Standard deviation of its logarithm."""

    def seconds(self, group_id: int) -> float:
        """The wait of one group: the same in every run, so that two configurations wait alike."""
        return random.Random(group_id).lognormvariate(log(self.mean_s) - self.sigma**2 / 2, self.sigma)


class GroupPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of a group: Dataflow decides them, RaaS enforces them."""

    episode_timeout_s: float = 120.0
    """An episode that runs longer is failed(timeout)."""
    max_retries: int = 0
    """Times that a failed episode is run anew."""
    min_group_size: int | None = None
    """The quorum: samples with a reward that are enough for a group; None: min(2, n)."""
    over_sample: int = 0
    """Samples that begin beyond n; the first n that end well are the group, the rest is cut."""
    straggler: Literal["wait", "shrink", "replace"] = "wait"
    """What becomes of a sample that takes longer than `patience` times what the quorum took."""
    patience: float = 2.0
    wait: Wait | None = None
    """Artificial wait after the group's generation."""

    @property
    def by_sample(self) -> bool:
        """Does it need a workflow that runs its samples one by one?"""
        return self.over_sample > 0 or self.straggler != "wait"

    def check(self) -> Self:
        if self.episode_timeout_s <= 0 or self.max_retries < 0:
            raise DataError("group_policy: episode_timeout_s must be > 0 and max_retries ≥ 0")
        if self.over_sample < 0 or self.patience < 1 or (self.min_group_size or 1) < 1:
            raise DataError("group_policy: over_sample must be ≥ 0, patience ≥ 1 and min_group_size ≥ 1")
        if self.wait is not None and (self.wait.mean_s <= 0 or self.wait.sigma < 0):
            raise DataError("group_policy.wait: mean_s must be > 0 and sigma ≥ 0")
        return self


class GroupTask(msgspec.Struct, frozen=True, kw_only=True):
    """One occurrence, as a workflow is asked for it."""

    task_id: str
    group_id: int
    data: Row
    n_samples: int
    model_id: str = "default"
    """The policy that the trajectories belong to, where the workflow does not say."""
    policy: GroupPolicy = GroupPolicy()

    def sample_id(self, index: int) -> int:
        return (self.group_id << SAMPLE_BITS) | index


class EpisodeTask(msgspec.Struct, frozen=True, kw_only=True):
    """One sample of a group, as an EpisodeWorkflow is asked for it."""

    task_id: str
    group_id: int
    sample_id: int
    model_id: str
    data: Row
    gconfig: GenerationHyperparameters
    """How this sample is to be generated: where the group has a seed, each sample has its own."""
    shared: Any = None
    """What `EpisodeWorkflow.prepare` made for the whole group."""

    @classmethod
    def of(cls, group: GroupTask, index: int, gconfig: GenerationHyperparameters, shared: Any = None) -> EpisodeTask:
        if gconfig.seed is not None:  # one seed for all samples would make them equal
            own = random.Random(f"{gconfig.seed}/{group.group_id}/{index}").getrandbits(31)
            gconfig = msgspec.structs.replace(gconfig, seed=own)
        return cls(
            task_id=group.task_id,
            group_id=group.group_id,
            sample_id=group.sample_id(index),
            model_id=group.model_id,
            data=group.data,
            gconfig=gconfig,
            shared=shared,
        )
