"""Whether batch, groups, minibatches, concurrency and the staleness bound fit each other."""

from __future__ import annotations

from collections.abc import Iterator

from astraflow.launch.config import TRAINER
from astraflow.launch.doctor.finding import Finding, error, ok, unless, warning
from astraflow.launch.doctor.machine import GIB
from astraflow.launch.doctor.memory import bytes_per_position
from astraflow.launch.doctor.subject import Subject

CHECK = "batch"


def check(subject: Subject) -> list[Finding]:
    found: list[Finding] = []
    fine = []
    for model_id in subject.config.model_ids:
        whole = list(_whole_groups(subject, model_id))
        found += whole or [
            *_concurrency(subject, model_id),
            *_cache(subject, model_id),
            *_lengths(subject, model_id),
            *_epochs(subject, model_id),
        ]
        groups, samples = subject.config.groups_per_batch(model_id), subject.config.n_samples(model_id)
        fine.append(
            f"{model_id}: {groups} groups × {samples} samples a step; at most {_bound(subject, groups)} groups are "
            f"accepted ahead, {_places(subject)} run at once"
        )
    return unless(found, ok(CHECK, "; ".join(fine)))


def _bound(subject: Subject, groups: int) -> int:
    """Groups that admission lets be accepted or running before the first step: (η + 1) · B."""
    return (subject.config.staleness_bound + 1) * groups


def _places(subject: Subject) -> int:
    return subject.config.raas.instances * subject.config.rollout.max_concurrent_rollouts


def _whole_groups(subject: Subject, model_id: str) -> Iterator[Finding]:
    trainer, samples = subject.config.trainers[model_id], subject.config.n_samples(model_id)
    key = f"{TRAINER}{model_id}.train_batch_size"
    groups, rest = divmod(trainer.train_batch_size, samples)
    if rest:
        near = [size for size in (groups * samples, (groups + 1) * samples) if size]
        yield error(
            CHECK,
            f"{trainer.train_batch_size} samples do not make whole groups of n_samples = {samples} "
            f"({groups} groups and {rest} samples over)",
            f"set train_batch_size={' or '.join(map(str, near))}",
            key,
        )
    elif trainer.actor.ppo_n_minibatches > groups:
        key = f"{TRAINER}{model_id}.actor.ppo_n_minibatches"
        yield error(
            CHECK,
            f"{groups} groups, which stay whole, cannot make {trainer.actor.ppo_n_minibatches} minibatches",
            f"set ppo_n_minibatches to {groups} or less",
            key,
        )


def _concurrency(subject: Subject, model_id: str) -> Iterator[Finding]:
    """Places that admission can never fill, and engines too narrow for the groups that run."""
    groups, samples = subject.config.groups_per_batch(model_id), subject.config.n_samples(model_id)
    bound, places = _bound(subject, groups), _places(subject)
    if places > bound:
        yield warning(
            CHECK,
            f"{places} groups may run at once, but the staleness bound admits at most (max_staleness + 1) × {groups} = "
            f"{bound}: {places - bound} places stay empty",
            f"set rollout.max_concurrent_rollouts={max(1, bound // subject.config.raas.instances)}, or raise "
            "dataflow.buffer.max_staleness or train_batch_size",
            "rollout.max_concurrent_rollouts",
        )
    served = subject.config.raas.models[model_id]
    running = served.embedded.max_running_requests
    if served.backend == "embedded" and running < samples:
        yield warning(
            CHECK,
            f"the engine decodes {running} sequences together, fewer than one group has samples ({samples}): the "
            "prompt of a group is computed more than once",
            f"set max_running_requests={samples} or more",
            f"raas.models.{model_id}.embedded.max_running_requests",
        )


def _cache(subject: Subject, model_id: str) -> Iterator[Finding]:
    """The engine's cache holds one sequence of its context: it does not open otherwise."""
    served, model = subject.config.raas.models[model_id], subject.model
    if served.backend != "embedded" or model is None:
        return
    context = min(served.embedded.context_length or model.max_position_embeddings, model.max_position_embeddings)
    needed = context * bytes_per_position(subject, model) / GIB
    if needed > served.embedded.kv_cache_gib:
        yield error(
            CHECK,
            f"a sequence of {context} tokens takes {needed:.3g} GiB of keys and values, the engine's cache has "
            f"{served.embedded.kv_cache_gib:g}",
            "set context_length to what prompts and answers need, or raise kv_cache_gib",
            f"raas.models.{model_id}.embedded.kv_cache_gib",
        )


def _lengths(subject: Subject, model_id: str) -> Iterator[Finding]:
    """The longest prompt with the longest answer fits the engine's context and the trainer's micro-batch."""
    longest = subject.longest_sequence(model_id)
    if longest is None:
        return
    new = subject.config.training_gconfig(model_id).max_new_tokens
    key = f"{TRAINER}{model_id}.actor.mb_spec.max_tokens_per_mb"
    most = subject.config.trainers[model_id].actor.mb_spec.max_tokens_per_mb
    if longest > most:
        yield error(
            CHECK,
            f"a prompt of {longest - new} tokens and {new} new ones do not fit a micro-batch of {most}",
            f"set max_tokens_per_mb={longest} or more, or lower max_new_tokens",
            key,
        )
    context = subject.config.raas.models[model_id].embedded.context_length
    if subject.model is not None:
        context = min(context or subject.model.max_position_embeddings, subject.model.max_position_embeddings)
    if context is not None and longest > context:
        yield error(
            CHECK,
            f"a prompt of {longest - new} tokens and {new} new ones do not fit a context of {context}: answers are cut",
            "lower max_new_tokens, or leave long prompts out with rollout_dataset.max_length",
            f"raas.models.{model_id}.gconfig.max_new_tokens",
        )


def _epochs(subject: Subject, model_id: str) -> Iterator[Finding]:
    """One batch holds a prompt at most once, unless there are fewer prompts than groups."""
    paths = ["dataflow.rollout_dataset", *(f"dataflow.mixture.{name}" for name in subject.config.dataflow.mixture)]
    rows = [subject.rows[path] for path in paths if path in subject.rows]
    prompts = sum(map(len, rows))
    groups = subject.config.groups_per_batch(model_id)
    if rows and prompts < groups:
        yield warning(
            CHECK,
            f"{prompts} prompts for {groups} groups a step: a batch holds the same prompt several times",
            "more rows, or a smaller train_batch_size",
            f"{TRAINER}{model_id}.train_batch_size",
        )
