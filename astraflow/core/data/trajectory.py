"""Invariant 1, alignment: a turn's ids, mask, logprobs and versions have one length; trained ids are the sampled ids.

Relied on by every consumer of trajectories: the ledger, the batch, packing and the losses index these four arrays with
one position. `check` runs at each border and names the turn that breaks it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Self

import msgspec
import numpy as np

from astraflow.core.config.ids import EXPECTED, why_no_id
from astraflow.core.data.generation import ModelResponse, StopReason
from astraflow.errors import DataError

INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
STOP_REASONS = frozenset(StopReason)
FLOAT32_MAX = float(np.finfo(np.float32).max)


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens that are new in one turn: context, then what the policy sampled. Turns concatenate to the episode."""

    ids: np.ndarray
    """int32 [T], token ids."""
    mask: np.ndarray
    """uint8 [T], 1 where the policy sampled the token."""
    logprobs: np.ndarray
    """float32 [T], log-probability under the sampled distribution; 0 where mask is 0."""
    versions: np.ndarray
    """int32 [T], the weight version that sampled the token; -1 where mask is 0."""

    @classmethod
    def of(cls, context: np.ndarray, response: ModelResponse) -> Turn:
        """Join the new context of a call and its response."""
        n, m = len(context), len(response.output_tokens)
        return cls(
            ids=np.concatenate([context, response.output_tokens]).astype(np.int32),
            mask=np.repeat(np.array([0, 1], np.uint8), [n, m]),
            logprobs=np.concatenate([np.zeros(n, np.float32), response.output_logprobs]).astype(np.float32),
            versions=np.concatenate([np.full(n, -1, np.int32), response.output_versions]).astype(np.int32),
        )

    def check(self, where: str = "turn") -> Self:
        for name in self.__struct_fields__:
            if not isinstance(array := getattr(self, name), np.ndarray):
                raise DataError(f"{where}: {name} is a {type(array).__name__}, expected a numpy array")
        shapes = {name: getattr(self, name).shape for name in self.__struct_fields__}
        if len(set(shapes.values())) != 1 or self.ids.ndim != 1:
            raise DataError(f"{where}: arrays differ in shape: {shapes}")
        kinds = {"ids": "iu", "mask": "bui", "logprobs": "f", "versions": "i"}
        for name, kind in kinds.items():
            if getattr(self, name).dtype.kind not in kind:
                raise DataError(f"{where}: {name} has dtype {getattr(self, name).dtype}")
        # what a batch holds, int32 and float32: a number that does not fit would wrap round or become infinite there
        for name, least, most in (("ids", 0, INT32_MAX), ("mask", 0, 1), ("versions", -1, INT32_MAX)):
            array = getattr(self, name)
            if array.size and not least <= int(array.min()) <= int(array.max()) <= most:
                raise DataError(f"{where}: {name} holds {array.min()} to {array.max()}, expected {least} to {most}")
        sampled = self.mask.astype(bool)
        if not (np.abs(self.logprobs[sampled]) <= FLOAT32_MAX).all() or (self.logprobs[sampled] > 1e-4).any():
            raise DataError(f"{where}: a sampled token's logprob is not a finite number ≤ 0 that float32 holds")
        if self.logprobs[~sampled].any():
            raise DataError(f"{where}: logprobs must be 0 on tokens that were not sampled")
        if (self.versions[sampled] < 0).any() or (self.versions[~sampled] != -1).any():
            raise DataError(f"{where}: versions must be ≥ 0 on sampled tokens and -1 elsewhere")
        return self


LARGEST_REWARD = 1e15
"""Its square is far below float32's largest number, 3.4e38: mean and variance stay finite, of 100 million samples too,
and so does what a trainer makes of them."""

CORRECT = 1 - 1e-6
"""A sample with at least this is right."""


class Value(msgspec.Struct, frozen=True, tag="value"):
    """A reward: an answer that cannot be parsed is Value(0)."""

    value: float
    parts: dict[str, float] = {}
    """Named components, for display; one that is named "correct" says whether the sample is right."""

    @property
    def correct(self) -> bool:
        """Is the sample right? By its part "correct", where it has one, so that no bonus or penalty decides on it."""
        return self.parts.get("correct", self.value) >= CORRECT

    @property
    def is_number(self) -> bool:
        """Whether it is finite, and what is computed from it in float32 too."""
        number = isinstance(self.value, int | float | np.number)
        return number and math.isfinite(self.value) and abs(self.value) <= LARGEST_REWARD


class Invalid(msgspec.Struct, frozen=True, tag="invalid"):
    """No reward could be given (gold unparsable, crash, timeout): the sample leaves statistics and loss, counted."""

    reason: str
    """One word for counting: crash, timeout, nan, gold."""
    detail: str = ""
    """What a reward function raised and its innermost frames, for people."""


Reward = Value | Invalid


class Trajectory(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One unbroken token sequence of an episode for one policy. Branches and agents of an episode share a sample_id."""

    task_id: str
    """The occurrence that asked for it."""
    group_id: int
    """The group whose statistics it belongs to."""
    sample_id: int
    """The episode, unique in the run; statistics count distinct samples."""
    model_id: str = "default"
    """The policy that sampled it."""
    agent: str = ""
    """Role path of a multi-agent episode ("solver/checker"); empty for a single agent."""
    turns: tuple[Turn, ...]
    reward: Reward
    stop: StopReason
    """Why the last generation ended."""
    timing: dict[str, float] = {}
    """Seconds by phase (generate, reward)."""

    def check(self) -> Self:
        """Return self, or raise DataError naming the field: a foreign workflow may have put anything there."""
        where = f"trajectory {self.sample_id!r:.60} of task {self.task_id}"
        if not isinstance(self.sample_id, int | np.integer) or not 0 <= self.sample_id <= INT64_MAX:
            raise DataError(f"{where}: sample_id is not a number of 0 to {INT64_MAX}")
        for name in ("task_id", "model_id", "agent"):
            if not isinstance(text := getattr(self, name), str) or (text and why_no_id(text)):
                raise DataError(f"{where}: {name} is {text!r:.60}, expected {EXPECTED}")
        if not isinstance(self.turns, tuple | list) or not self.turns:
            raise DataError(f"{where} has no turns: {self.turns!r:.60}, expected a tuple of Turn")
        for number, turn in enumerate(self.turns):
            if not isinstance(turn, Turn):
                raise DataError(f"turn {number} of {where} is a {type(turn).__name__}, expected a Turn")
            turn.check(f"turn {number} of {where}")
        if self.arrays.mask[:1].any():
            raise DataError(f"{where} is sampled from its first token, which nothing predicts: a context comes before")
        if not isinstance(self.reward, Value | Invalid):
            kind = type(self.reward).__name__
            raise DataError(f"{where}: reward is a {kind} ({self.reward!r:.60}), expected Value(…) or Invalid(…)")
        if isinstance(self.reward, Value) and not self.reward.is_number:
            raise DataError(f"{where}: reward is {self.reward.value}, expected a number within ± {LARGEST_REWARD:g}")
        if self.stop not in STOP_REASONS:
            raise DataError(f"{where}: stop is {self.stop!r:.60}, expected one of {', '.join(StopReason)}")
        return self

    @cached_property
    def arrays(self) -> Turn:
        """All turns as one."""
        if len(self.turns) == 1:
            return self.turns[0]
        return Turn(
            **{name: np.concatenate([getattr(turn, name) for turn in self.turns]) for name in Turn.__struct_fields__}
        )

    @property
    def length(self) -> int:
        """Tokens, context included."""
        return sum(len(turn.ids) for turn in self.turns)

    @property
    def sampled(self) -> int:
        """Tokens that the policy sampled: what lengths, truncation and penalties count."""
        return sum(int(turn.mask.sum()) for turn in self.turns)

    @property
    def oldest_version(self) -> int | None:
        """The lowest version among sampled tokens; None where nothing was sampled."""
        versions = self.arrays.versions[self.arrays.mask.astype(bool)]
        return int(versions.min()) if versions.size else None


def sample_reward(trajectories: Iterable[Trajectory]) -> float | None:
    """The reward of one sample: the mean over its trajectories that have one; None where none has.

    Branches and agents of an episode may be rewarded apart (a discounted chain of turns). Whoever takes statistics over
    samples, Dataflow for its filters or the trainer for advantages, counts a sample once, with this.
    """
    values = [t.reward.value for t in trajectories if isinstance(t.reward, Value)]
    return math.fsum(values) / len(values) if values else None


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """An episode that ended without a trajectory; data, not an exception."""

    reason: str
    """One word for counting: crash, timeout, engine, cut."""
    detail: str = ""
    """The exception and its innermost frames, for people."""


class Episode(msgspec.Struct, frozen=True, tag="episode"):
    """An episode that ended: its trajectories (several where it branched or had several agents)."""

    trajectories: tuple[Trajectory, ...]

    @property
    def reward(self) -> float | None:
        """What statistics count it with: see `sample_reward`."""
        return sample_reward(self.trajectories)

    @property
    def outcome(self) -> Value | None:
        """What it came to: the reward of its last trajectory that has one; what evaluation scores."""
        values = [t.reward for t in self.trajectories if isinstance(t.reward, Value)]
        return values[-1] if values else None

    def check(self) -> Self:
        for trajectory in self.trajectories:
            trajectory.check()
        return self


EpisodeResult = Episode | Failed


class GroupResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a RaaS returns for one task: n episode results, the failed ones included."""

    group_id: int
    episodes: tuple[EpisodeResult, ...]
    timing: dict[str, float] = {}

    def check(self) -> Self:
        for episode in self.episodes:
            if isinstance(episode, Episode):
                episode.check()
        return self

    def check_samples(self, n: int) -> Self:
        """Raise DataError unless n samples were run, and at most n count.

        Those beyond n (over-sampling, a straggler that was replaced) have no reward; where all failed, one may say so.
        """
        count = len(self.episodes)
        sampled = [episode for episode in self.episodes if isinstance(episode, Episode)]
        rewarded = sum(episode.reward is not None for episode in sampled)
        if rewarded > n or count < (n if sampled else 1):
            raise DataError(
                f"the result of group {self.group_id} has {count} episodes, {rewarded} of them with a reward; expected "
                f"{n}, the failed ones included"
            )
        return self


Row = dict[str, Any]
"""A dataset row: {messages: [{role, content}], answer, task_id, …metadata}, all of it JSON."""
