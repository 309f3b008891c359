"""What a finished occurrence becomes: groups worth training on, or dropped with a counted reason.

In order: split into groups by model and agent role · no reward at all (invalid) · unknown versions (lineage) · rewards
permuted where the control experiment asks for it · the configured filters. Only samples with a Value stay in a group;
the others are counted by reason in its `lost`. Statistics are over distinct samples of one group id (LAW 8).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from astraflow.core.data import Failed, Group, Invalid, Trajectory, Value
from astraflow.core.data.trajectory import EpisodeResult, GroupResult
from astraflow.core.workflow.api.group import CUT, STRAGGLER
from astraflow.dataflow.filters import Filter
from astraflow.dataflow.ledger import DropReason, GroupKey
from astraflow.dataflow.policies import Policies
from astraflow.errors import DataError, WorkflowError

NOT_FAILED = frozenset({CUT, STRAGGLER})
"""Reasons of episodes that were ended from outside: nobody's failure."""


@dataclass(frozen=True)
class Occurrence:
    """One time a row is asked for."""

    group_id: int
    prompt_id: int
    task_id: str
    """Of the dataset row."""
    epoch: int = 0


@dataclass(frozen=True)
class Outcome:
    """One group of a finished occurrence and what curation decided."""

    key: GroupKey
    group: Group
    drop: DropReason | None = None


def groups_of(occurrence: Occurrence, result: GroupResult, models: Iterable[str]) -> list[Group]:
    """Split a result by model and role, keeping samples that have a reward and a sampled token.

    models: the policies of the run. An occurrence without any trajectory gives no group. DataError for a record that
    breaks its own rules or belongs to somebody else.
    """
    result.check()
    known = set(models)
    lost: Counter[str] = Counter(failure.reason for failure in result.episodes if isinstance(failure, Failed))
    by_key: dict[GroupKey, list[Trajectory]] = {}
    lost_by_key: dict[GroupKey, Counter[str]] = {}
    for episode in result.episodes:
        if isinstance(episode, Failed):
            continue
        kept: set[GroupKey] = set()
        reasons: dict[GroupKey, str] = {}
        for trajectory in episode.trajectories:
            _own(trajectory, occurrence, known)
            key = GroupKey(trajectory.model_id, trajectory.agent)
            group = by_key.setdefault(key, [])
            reason = _why_lost(trajectory)
            if reason is None:
                group.append(trajectory)
                kept.add(key)
            else:
                reasons.setdefault(key, reason)
        for key in reasons.keys() - kept:
            lost_by_key.setdefault(key, Counter())[reasons[key]] += 1
    return [
        Group(
            group_id=occurrence.group_id,
            task_id=occurrence.task_id,
            prompt_id=occurrence.prompt_id,
            model_id=key.model_id,
            agent=key.agent,
            trajectories=tuple(trajectories),
            lost=dict(lost + lost_by_key.get(key, Counter())),
        )
        for key, trajectories in by_key.items()
    ]


def _own(trajectory: Trajectory, occurrence: Occurrence, models: set[str]) -> None:
    if trajectory.group_id != occurrence.group_id:
        raise DataError(f"a trajectory of group {trajectory.group_id} in the result of group {occurrence.group_id}")
    if trajectory.model_id not in models:
        raise DataError(
            f"group {occurrence.group_id}: model '{trajectory.model_id}' is not one of {', '.join(sorted(models))}"
        )


def _why_lost(trajectory: Trajectory) -> str | None:
    if isinstance(trajectory.reward, Invalid):
        return word(trajectory.reward.reason)
    return None if trajectory.sampled else "empty"


def word(reason: str) -> str:
    """The part of a reason that is counted: what stands before the first colon or line end."""
    return reason.partition("\n")[0].partition(":")[0].strip() or "unknown"


class Curator:
    """Decides on finished groups, in the module's order."""

    def __init__(self, policies: Policies, filters: Sequence[Filter], *, shuffle_seed: int | None = None) -> None:
        """shuffle_seed None: rewards are not permuted."""
        self._policies = policies
        self._filters = tuple(filters)
        self._shuffle_seed = shuffle_seed

    def close(self, occurrence: Occurrence, result: GroupResult) -> list[Outcome]:
        """Return the occurrence's groups with what becomes of each; empty where no episode gave a trajectory.

        DataError as of `groups_of`, and for a token id that the model does not have.
        """
        groups = groups_of(occurrence, result, [policy.model_id for policy in self._policies.all])
        for group in groups:
            self._in_vocabulary(group)
        return [self._decide(group) for group in groups]

    def _in_vocabulary(self, group: Group) -> None:
        published = self._policies.get(group.model_id).current
        size = None if published is None or published.manifest is None else published.manifest.vocab_size
        highest = max((int(t.arrays.ids.max()) for t in group.trajectories), default=0)
        if size is not None and highest >= size:
            raise DataError(
                f"group {group.group_id}: token id {highest} is outside the vocabulary of {group.model_id}, which has "
                f"{size} tokens"
            )

    def _decide(self, group: Group) -> Outcome:
        key = GroupKey(group.model_id, group.agent)
        if not group.trajectories:
            return Outcome(key, group, DropReason.INVALID)
        if (self._policies.get(group.model_id).steps.steps_of(group.versions) < 0).any():
            return Outcome(key, group, DropReason.LINEAGE)
        if self._shuffle_seed is not None:
            group = shuffle_rewards(group, self._shuffle_seed)
        return Outcome(key, group, next((f.reason for f in self._filters if f.objects(group)), None))


def shuffle_rewards(group: Group, seed: int) -> Group:
    """The group with its rewards permuted among its distinct samples: a control from which nothing can be learnt."""
    by_sample = {t.sample_id: t.reward for t in group.trajectories}
    order = np.random.default_rng([seed, group.group_id]).permutation(len(by_sample))
    rewards = list(by_sample.values())
    shuffled = {sample: rewards[i] for sample, i in zip(by_sample, order, strict=True)}
    return msgspec.structs.replace(
        group,
        trajectories=tuple(msgspec.structs.replace(t, reward=shuffled[t.sample_id]) for t in group.trajectories),
    )


class FailureStreak:
    """LAW 27: so many samples in a row without one reward stop the run with the first traceback."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._length = 0
        self._first = ""

    def observe(self, episodes: Iterable[EpisodeResult]) -> WorkflowError | None:
        """Count finished samples; return the error that stops the run, once the streak is too long."""
        for episode in episodes:
            if isinstance(episode, Failed) and episode.reason in NOT_FAILED:
                continue
            failure = _failure(episode)
            if failure is None:
                self._length, self._first = 0, ""
            else:
                self._length += 1
                self._first = self._first or failure
        if self._length < self._most:
            return None
        return WorkflowError(f"{self._length} samples in a row had no reward; the first: {self._first}")


def why_failed(episode: EpisodeResult) -> str | None:
    """Why a sample has no reward, a word and then its text; None where it has one, or was ended from outside."""
    return None if isinstance(episode, Failed) and episode.reason in NOT_FAILED else _failure(episode)


def _failure(episode: EpisodeResult) -> str | None:
    """Why a sample has no reward; None where it has one."""
    if isinstance(episode, Failed):
        return f"{episode.reason}\n{episode.detail}".strip()
    reasons = [
        f"{t.reward.reason}\n{t.reward.detail}".strip() for t in episode.trajectories if isinstance(t.reward, Invalid)
    ]
    has_value = any(isinstance(t.reward, Value) for t in episode.trajectories)
    return None if has_value else (reasons[0] if reasons else "an episode without trajectories")
