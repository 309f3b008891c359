"""The groups of one training step, as concatenated arrays with lengths; padding exists only in the client's view."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self

import msgspec
import numpy as np

from astraflow.core.data.trajectory import Trajectory, Value, sample_reward
from astraflow.errors import DataError

TOKEN_FIELDS = ("input_ids", "loss_mask", "logprobs", "versions")
"""Of a batch: [T], the others [N]."""


class Group(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The samples of one prompt occurrence for one model and agent role, after it closed.

    Only samples with a Value are in it; those that failed or were Invalid are counted by reason in `lost`.
    """

    group_id: int
    task_id: str
    prompt_id: int
    """The dataset row."""
    model_id: str
    agent: str = ""
    trajectories: tuple[Trajectory, ...]
    lost: dict[str, int] = {}
    """Samples that are not in the group, by reason."""

    @cached_property
    def rewards(self) -> np.ndarray:
        """float64 [samples], one raw reward a distinct sample (`sample_reward`)."""
        by_sample: dict[int, list[Trajectory]] = {}
        for trajectory in self.trajectories:
            by_sample.setdefault(trajectory.sample_id, []).append(trajectory)
        rewards = [reward for rows in by_sample.values() if (reward := sample_reward(rows)) is not None]
        return np.array(rewards, np.float64)

    @property
    def correct(self) -> int:
        """Distinct samples that are right, in all of their trajectories."""
        wrong = {t.sample_id for t in self.trajectories if not (isinstance(t.reward, Value) and t.reward.correct)}
        return self.samples - len(wrong)

    @property
    def samples(self) -> int:
        """Distinct samples."""
        return len({t.sample_id for t in self.trajectories})

    @cached_property
    def versions(self) -> np.ndarray:
        """The distinct versions among all sampled tokens, ascending."""
        return np.unique(np.concatenate([t.arrays.versions[t.arrays.mask.astype(bool)] for t in self.trajectories]))

    @cached_property
    def equal_rewards(self) -> bool:
        """Do all samples have the same rewards? Then no sample is better than another (LAW 9).

        The same number in every trajectory, or the same numbers in each sample, in any order: equal chains of turns.
        """
        by_sample: dict[int, list[float]] = {}
        for trajectory in self.trajectories:
            if isinstance(trajectory.reward, Value):
                by_sample.setdefault(trajectory.sample_id, []).append(trajectory.reward.value)
        chains = [sorted(values) for values in by_sample.values()]
        return all(chain == chains[0] for chain in chains) or len({v for chain in chains for v in chain}) == 1

    @property
    def reward_mean(self) -> float:
        return float(self.rewards.mean()) if self.trajectories else 0.0

    @property
    def reward_std(self) -> float:
        """Unbiased standard deviation of the raw rewards; 0 for a single sample, and where all are equal."""
        rewards = self.rewards
        return 0.0 if rewards.size < 2 or self.equal_rewards else float(rewards.std(ddof=1))

    @cached_property
    def length(self) -> int:
        """Sampled tokens of the longest trajectory."""
        return max((t.sampled for t in self.trajectories), default=0)

    @property
    def oldest_version(self) -> int:
        """The lowest version among all sampled tokens of the group."""
        versions = [v for t in self.trajectories if (v := t.oldest_version) is not None]
        if not versions:
            raise DataError(f"group {self.group_id} has no sampled token")
        return min(versions)


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """N trajectories laid end to end (T tokens in all)."""

    lengths: np.ndarray
    """int32 [N], tokens of each row; they sum to T."""
    input_ids: np.ndarray
    """int32 [T]."""
    loss_mask: np.ndarray
    """uint8 [T], 1 where the policy sampled the token."""
    logprobs: np.ndarray
    """float32 [T], of the behaviour policy; 0 where loss_mask is 0."""
    versions: np.ndarray
    """int32 [T]; -1 where loss_mask is 0."""
    rewards: np.ndarray
    """float32 [N], raw."""
    group_id: np.ndarray
    """int64 [N]."""
    sample_id: np.ndarray
    """int64 [N]; equal in rows of one episode."""
    prompt_id: np.ndarray
    """int64 [N]."""
    group_reward_mean: np.ndarray
    """float32 [N]."""
    group_reward_std: np.ndarray
    """float32 [N], unbiased."""
    truncated: np.ndarray
    """uint8 [N], 1 where the last generation ended by length (no end token)."""
    extra: dict[str, np.ndarray] = {}
    """What the workflow added, each [N] or [T]."""

    def digest(self) -> str:
        """blake2b over names, dtypes, shapes and bytes of all arrays: two batches with one digest are the same."""
        digest = hashlib.blake2b(digest_size=16)
        named = {name: getattr(self, name) for name in self.__struct_fields__ if name != "extra"}
        for name, array in (*named.items(), *sorted(self.extra.items())):
            digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    @classmethod
    def of(cls, groups: Sequence[Group]) -> Batch:
        rows = [(group, t) for group in groups for t in group.trajectories]
        if not rows:
            raise DataError("a batch needs at least one trajectory")

        def tokens(field: str, dtype: Any) -> np.ndarray:
            return np.concatenate([getattr(t.arrays, field) for _, t in rows]).astype(dtype, copy=False)

        def per_row(values: Sequence[Any], dtype: Any) -> np.ndarray:
            return np.array(values, dtype)

        means = {group.group_id: group.reward_mean for group in groups}
        stds = {group.group_id: group.reward_std for group in groups}
        return cls(
            lengths=per_row([t.length for _, t in rows], np.int32),
            input_ids=tokens("ids", np.int32),
            loss_mask=tokens("mask", np.uint8),
            logprobs=tokens("logprobs", np.float32),
            versions=tokens("versions", np.int32),
            rewards=per_row([_value(t) for _, t in rows], np.float32),
            group_id=per_row([g.group_id for g, _ in rows], np.int64),
            sample_id=per_row([t.sample_id for _, t in rows], np.int64),
            prompt_id=per_row([g.prompt_id for g, _ in rows], np.int64),
            group_reward_mean=per_row([means[g.group_id] for g, _ in rows], np.float32),
            group_reward_std=per_row([stds[g.group_id] for g, _ in rows], np.float32),
            truncated=per_row([t.stop == "length" for _, t in rows], np.uint8),
        )

    def check(self) -> Self:
        n, total = len(self.lengths), int(self.lengths.sum())
        rows = ("rewards", "group_id", "sample_id", "prompt_id", "group_reward_mean", "group_reward_std", "truncated")
        for name in rows:
            if getattr(self, name).shape != (n,):
                raise DataError(f"batch.{name} has shape {getattr(self, name).shape}, expected ({n},)")
        for name in TOKEN_FIELDS:
            if getattr(self, name).shape != (total,):
                raise DataError(f"batch.{name} has shape {getattr(self, name).shape}, expected ({total},) from lengths")
        if not np.isfinite(self.rewards).all():
            raise DataError("batch.rewards holds a value that is not finite")
        for name, array in self.extra.items():
            if array.shape[:1] not in ((n,), (total,)):
                raise DataError(f"batch.extra.{name} has {array.shape[:1]} rows, expected {n} or {total}")
        return self

    def select(self, rows: Sequence[int]) -> Batch:
        """Some rows, in the order given; group statistics stay what they were made of."""
        chosen, n = np.asarray(rows, np.int64), len(self.lengths)
        places = [np.arange(self.offsets[row], self.offsets[row + 1]) for row in chosen]
        tokens = np.concatenate([np.empty(0, np.int64), *places])

        fields = {
            name: getattr(self, name)[tokens if name in TOKEN_FIELDS else chosen]
            for name in self.__struct_fields__
            if name != "extra"
        }
        extra = {name: array[chosen if len(array) == n else tokens] for name, array in self.extra.items()}
        return Batch(**fields, extra=extra)

    @property
    def offsets(self) -> np.ndarray:
        """int64 [N+1], where each row starts; the last is T."""
        return np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])

    def padded(self) -> dict[str, np.ndarray]:
        """The documented view: right-padded arrays [N, L] with 0 everywhere in the padding and attention_mask False."""
        n, longest = len(self.lengths), int(self.lengths.max())
        attention = np.arange(longest)[None, :] < self.lengths[:, None]

        def pad(flat: np.ndarray, dtype: Any) -> np.ndarray:
            out = np.zeros((n, longest), dtype)
            out[attention] = flat
            return out

        return {
            "input_ids": pad(self.input_ids, np.int32),
            "loss_mask": pad(self.loss_mask, np.int32),
            "logprobs": pad(self.logprobs, np.float32),
            "versions": pad(self.versions, np.int32),
            "attention_mask": attention,
            "rewards": self.rewards,
            "group_id": self.group_id,
            "sample_id": self.sample_id,
            "prompt_id": self.prompt_id,
            "group_reward_mean": self.group_reward_mean,
            "group_reward_std": self.group_reward_std,
            **self.extra,
        }


def _value(trajectory: Trajectory) -> float:
    if not isinstance(trajectory.reward, Value):
        raise DataError(f"trajectory {trajectory.sample_id} has no reward ({trajectory.reward.reason})")
    return trajectory.reward.value
