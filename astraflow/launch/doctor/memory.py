"""How much memory a run takes, by process, against what the machine has.

An estimate from what each process allocates: parameters, gradients, optimiser, the double buffer of published weights,
the KV cache and one micro-batch's activations. It is made to be above the true peak by a little, not below it.
"""

from __future__ import annotations

from astraflow.core.model.config import ModelConfig
from astraflow.launch.config import TRAINER
from astraflow.launch.doctor.finding import Finding, error, ok, unless, warning
from astraflow.launch.doctor.machine import GIB
from astraflow.launch.doctor.subject import Subject

CHECK = "memory"
MIB = 2**20
WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of an element."""
PROGRAM = {"dataflow": 150 * MIB, "raas": 260 * MIB, "train_worker": 260 * MIB, "sender": 65 * MIB, "reward": 120 * MIB}
"""Resident bytes of each program before it holds a model or rows (measured on Linux, torch 2.13 for CPUs)."""

_LOGITS = 2**25
"""Most logits of one slice in the trainer (train_worker/engine/logprobs.py)."""
_FIRST_POSITIONS = 64
"""The engine's KV cache doubles from here (raas/engines/embedded/cache.py)."""
_HALVES = 2
"""Versions that the trainer keeps published (core/weight_manager/segment.py)."""


def check(subject: Subject) -> list[Finding]:
    """The sum over all processes against the machine."""
    if subject.model is None:
        return []
    needed = estimate(subject, subject.model)
    total, machine = sum(needed.values()), subject.machine
    shown = ", ".join(f"{name} {size / GIB:.1f}" for name, size in needed.items())
    found = []
    if total > machine.memory:
        largest = max(needed, key=lambda name: needed[name])
        remedy, key = _remedy(subject, largest)
        found.append(
            error(
                CHECK,
                f"the run takes about {total / GIB:.1f} GiB, the machine has {machine.memory / GIB:.1f} ({shown})",
                remedy,
                key,
            )
        )
    elif total > machine.memory_available:
        found.append(
            warning(
                CHECK,
                f"the run takes about {total / GIB:.1f} GiB, {machine.memory_available / GIB:.1f} are available now "
                f"({shown})",
                "end other programs first",
            )
        )
    return unless(found, ok(CHECK, f"about {total / GIB:.1f} GiB of {machine.memory / GIB:.1f} ({shown})"))


def estimate(subject: Subject, model: ModelConfig) -> dict[str, int]:
    """Bytes per process, in the host's memory."""
    config = subject.config
    needed = {"dataflow": PROGRAM["dataflow"]}
    for number in range(config.raas.instances):
        engines = sum(_engine(subject, model, model_id) for model_id in config.model_ids)
        needed[f"raas-{number}"] = PROGRAM["raas"] + config.rollout.reward_workers * PROGRAM["reward"] + engines
    for model_id in config.model_ids:
        needed[f"train_worker-{model_id}"] = (
            PROGRAM["train_worker"] + PROGRAM["sender"] + _trainer(subject, model, model_id)
        )
    return needed


def parameters(model: ModelConfig) -> int:
    """Number of a decoder's parameters, a tied embedding counted once."""
    hidden, heads, kv = model.hidden_size, model.num_attention_heads, model.num_key_value_heads
    qkv = (heads + 2 * kv) * model.head_dim
    attention = hidden * qkv + heads * model.head_dim * hidden + (qkv if model.qkv_bias else 0)
    attention += (hidden if model.output_bias else 0) + (2 * model.head_dim if model.qk_norm else 0)
    mlp = 3 * hidden * model.intermediate_size
    mlp += 2 * model.intermediate_size + hidden if model.mlp_bias else 0
    embeddings = model.vocab_size * hidden * (1 if model.tie_word_embeddings else 2)
    return embeddings + model.num_hidden_layers * (attention + mlp + 2 * hidden) + hidden


def wire_bytes(subject: Subject, model: ModelConfig) -> int:
    """Bytes of one version on the wire."""
    experiment = subject.config.experiment
    return parameters(model) * WIDTH[experiment.wire_dtype or experiment.dtype]


def _trainer(subject: Subject, model: ModelConfig, model_id: str) -> int:
    trainer = subject.config.trainers[model_id]
    published = _HALVES * wire_bytes(subject, model)
    if trainer.engine.device != "cpu":
        return published
    width = WIDTH[subject.config.experiment.dtype]
    masters = 0 if width == 4 else 4
    state = parameters(model) * (width + masters + 4 + 8)  # parameters, masters, gradients, two moments
    return published + state + _activations(subject, model, model_id, width)


def _activations(subject: Subject, model: ModelConfig, model_id: str, width: int) -> int:
    """What one micro-batch keeps for its backward pass."""
    trainer = subject.config.trainers[model_id]
    longest = subject.longest_sequence(model_id) or model.max_position_embeddings
    tokens = min(trainer.actor.mb_spec.max_tokens_per_mb, trainer.train_batch_size * longest)
    heads = (model.num_attention_heads + 2 * model.num_key_value_heads) * model.head_dim
    # kept per token and layer: inputs and outputs of two norms, two residuals, q, k, v before and after rotation,
    # attention's output, gate, up, their product
    per_layer = 6 * model.hidden_size + 3 * heads + 4 * model.intermediate_size
    logits = min(tokens * model.vocab_size, _LOGITS)
    return tokens * model.num_hidden_layers * per_layer * width + 4 * 4 * logits


def _engine(subject: Subject, model: ModelConfig, model_id: str) -> int:
    config = subject.config
    served = config.raas.models[model_id]
    weights = wire_bytes(subject, model)  # also the staging memory of a pull
    if served.backend != "embedded" or served.embedded.device != "cpu":
        return weights
    rows = served.embedded.max_running_requests
    context = min(served.embedded.context_length or model.max_position_embeddings, model.max_position_embeddings)
    positions = _FIRST_POSITIONS
    while positions < min(subject.longest_sequence(model_id) or context, context):
        positions *= 2
    needed = rows * positions * bytes_per_position(subject, model)
    most = int(served.embedded.kv_cache_gib * GIB)
    cache = min(needed, most) * 3 // 2  # while it grows, the smaller one is still there
    sampler = rows * (9 * model.vocab_size + 16 * context) + 4 * 4 * rows * model.vocab_size
    return 2 * weights + cache + sampler


def bytes_per_position(subject: Subject, model: ModelConfig) -> int:
    """Bytes of the keys and values of one token in an engine."""
    experiment = subject.config.experiment
    width = WIDTH[experiment.wire_dtype or experiment.dtype]
    return 2 * model.num_hidden_layers * model.num_key_value_heads * model.head_dim * width


def _remedy(subject: Subject, largest: str) -> tuple[str, str]:
    """(what makes the largest process smaller, the key that says it)."""
    if largest.startswith("train_worker-"):
        key = f"{TRAINER}{largest.removeprefix('train_worker-')}.actor.mb_spec.max_tokens_per_mb"
        return f"lower {key} (the gradient stays the same), or take a smaller model or dtype=bfloat16", key
    key = f"raas.models.{subject.config.model_ids[0]}.embedded.max_running_requests"
    return f"lower {key} (and raas.instances), or take a smaller model", key
