"""Every key of the actor changes what a trainer does to its weights exactly as the key's formula says.

Each case trains through the trainer's public step, on an engine that is built from the settings as the process builds
it, and compares the weights with those that the formulas give (`reference`). So a key that is lost between the
configuration and the function that has it shows, whatever that function's own tests say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest
import torch
from pydantic import BaseModel

from astraflow.core.config import ExperimentConfig
from astraflow.core.data import Batch, Group, StopReason, Trajectory, Turn, Value
from astraflow.core.model import load_model, new_model, save_model
from astraflow.core.text.tiny import tiny_tokenizer
from astraflow.errors import DataError, InvariantError
from astraflow.train_worker.app import build_engine
from astraflow.train_worker.config import ActorConfig, TrainerConfig, TrainWorkerSettings
from astraflow.train_worker.trainer.astraflow_client import AstraFlowClient
from astraflow.train_worker.trainer.ppo_trainer import AstraFlowPPOTrainer
from tests.train_worker.conftest import RecordedMetrics, ScriptedPublisher
from tests.train_worker.trainer.reference import Reference

TEMPERATURE, MAX_NEW_TOKENS, STEPS = 0.8, 6, 2

PLAIN = {"lr": 1e4, "eps": 1e6, "gradient_clipping": 1e9, "beta1": 0.0, "beta2": 0.0}
"""With an ε far above the gradient AdamW subtracts lr / ε times the gradient: that moves the weights."""


@dataclass(frozen=True)
class Case:
    """A key that differs, and what has to be set for it to have an effect."""

    key: str
    value: Any
    given: dict[str, Any]
    inert: bool = False
    """The key may not change the weights: it is about memory, or has one meaning."""

    def actor(self, changed: bool = True) -> dict[str, Any]:
        tree: dict[str, Any] = {"optimizer": dict(PLAIN)}
        for key, value in {**self.given, **({self.key: self.value} if changed else {})}.items():
            *path, name = key.split(".")
            section = tree
            for part in path:
                section[part] = dict(section.get(part) or {})
                section = section[part]
            section[name] = value
        return tree

    def __str__(self) -> str:
        return f"{self.key}={self.value} with {self.given}" if self.given else f"{self.key}={self.value}"


TWICE = {"ppo_n_minibatches": 2}
"""The decoupled loss clips from its second minibatch on: in the first every ratio is 1."""
ADAM = {"optimizer.lr": 1e-2, "optimizer.eps": 1e-2, "optimizer.beta1": 0.9, "optimizer.beta2": 0.999}
RUN = {"optimizer.lr_scheduler_type": "linear", **TWICE}

CASES = [
    Case("mb_spec.max_tokens_per_mb", 20, {}, inert=True),
    Case("optimizer.type", "adam", {}, inert=True),
    Case("optimizer.lr", 2e4, {}),
    Case("optimizer.weight_decay", 1e-6, {}),
    Case("optimizer.beta1", 0.5, ADAM),
    Case("optimizer.beta2", 0.2, ADAM),
    Case("optimizer.eps", 5e-2, ADAM),
    Case("optimizer.lr_scheduler_type", "linear", TWICE),
    Case("optimizer.lr_scheduler_type", "cosine", TWICE),
    Case("optimizer.lr_scheduler_type", "linear", {}),
    Case("optimizer.warmup_steps", 3, TWICE),
    Case("optimizer.min_lr_ratio", 0.5, RUN),
    Case("optimizer.gradient_clipping", 0.5, {}),
    Case("loss", "ppo", {}),
    Case("eps_clip", 0.05, TWICE),
    Case("eps_clip", 0.05, {"loss": "ppo"}),
    Case("eps_clip_higher", 0.6, {"eps_clip": 0.02, **TWICE}),
    Case("eps_clip_higher", 0.6, {"loss": "ppo"}),
    Case("c_clip", 1.05, TWICE),
    Case("c_clip", 1.1, {"loss": "ppo"}),
    Case("m2_threshold", 0.01, {"loss": "m2po", "m2_threshold": 1.0}),
    Case("m2_threshold", 0.01, {"loss": "m2po", "m2_threshold": 1.0, **TWICE}),
    Case("behav_imp_weight_cap", 1.2, {}),
    Case("behav_imp_weight_cap", None, {}),
    Case("behav_imp_weight_cap", 1.2, TWICE),
    Case("ppo_n_minibatches", 2, {}),
    Case("ppo_n_minibatches", 3, {"loss": "ppo"}),
    Case("loss_agg", "sequence", {}),
    Case("loss_agg", "prompt", {}),
    Case("loss_constant", 4.0, {"loss_agg": "constant", "loss_constant": 10.0}),
    Case("entropy_coef", 0.5, {}),
    Case("entropy_coef", 0.5, {"loss": "m2po", "m2_threshold": 0.04}),
    Case("reward_scaling", 3.0, {"reward_norm": None}),
    Case("reward_bias", -0.7, {"reward_norm": None}),
    Case("reward_clip", 0.3, {"reward_norm": None}),
    Case("reward_clip", 0.3, {}),
    Case("overlong.penalty_factor", 2.0, {"overlong.buffer_len": 3}),
    Case("overlong.buffer_len", 3, {"overlong.buffer_len": 5}),
    Case("reward_norm", None, {}),
    Case("reward_norm.mean_level", "batch", {}),
    Case("reward_norm.mean_level", "none", {}),
    Case("reward_norm.std_level", "batch", {}),
    Case("reward_norm.std_level", "none", {}),
    Case("reward_norm.mean_leave_one_out", True, {}),
    Case("reward_norm.eps", 0.5, {}),
    Case("adv_norm.mean_level", "batch", {"adv_norm.std_level": "none"}),
    Case("adv_norm.mean_level", "none", {"adv_norm.std_level": "batch"}),
    Case("adv_norm.std_level", "batch", {"adv_norm.mean_level": "batch"}),
    Case("adv_norm.mean_leave_one_out", True, {"adv_norm.mean_level": "group", "reward_norm": None}),
    Case("adv_norm.eps", 0.5, {"adv_norm.mean_level": "batch", "adv_norm.std_level": "batch"}),
]


def keys(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every key of a section that is no section itself."""
    for name, field in section.model_fields.items():
        kinds = [field.annotation, *getattr(field.annotation, "__args__", ())]
        nested = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        yield from [f"{prefix}{name}"] if nested is None else keys(nested, f"{prefix}{name}.")


def test_every_key_of_the_actor_has_a_case() -> None:
    assert sorted(set(keys(ActorConfig)) - {case.key for case in CASES}) == []


@pytest.fixture(scope="module", name="model")
def _model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose weights are large enough to prefer some tokens clearly."""
    decoder = new_model("tiny-0.2m", seed=5)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3)
    folder = tmp_path_factory.mktemp("wiring") / "model"
    save_model(folder, decoder, decoder.config)
    tiny_tokenizer().save(folder)
    return folder


class Bench:
    """A trainer as its process builds it, and what the formulas make of the same batches."""

    def __init__(self, model: Path, actor: dict[str, Any], **changes: Any) -> None:
        self.settings = TrainWorkerSettings(
            experiment=ExperimentConfig(experiment_name="e", trial_name="t", fileroot=str(model.parent)),
            model_id="model0",
            model_path=str(model),
            n_samples=2,
            max_new_tokens=MAX_NEW_TOKENS,
            temperature=changes.pop("temperature", TEMPERATURE),
            trainer=TrainerConfig(total_train_steps=STEPS, train_batch_size=12, actor=ActorConfig(**actor)),
            dataflow_url="http://dataflow",
            run_dir=str(model.parent),
        )
        engine = build_engine(self.settings)
        self.trainer = AstraFlowPPOTrainer(
            self.settings,
            engine,
            cast(AstraFlowClient, None),
            ScriptedPublisher(),
            RecordedMetrics(),
            tiny_tokenizer(),
        )

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: tensor.double().clone() for name, tensor in self.trainer.engine.named_weights()}

    def update(self, *batches: Batch) -> torch.Tensor:
        """What the batches change of all weights, in one row."""
        before = self.weights()
        for batch in batches:
            self.trainer.train_on(batch)
        return torch.cat([(tensor - before[name]).flatten() for name, tensor in self.weights().items()])


def expected(model: Path, actor: ActorConfig, *batches: Batch, temperature: float = TEMPERATURE) -> torch.Tensor:
    """The same by the formulas; many cases start from one configuration, which is computed once."""
    assert all(batch is own for batch, own in zip(batches, _batches(model), strict=False))
    return _expected(model, actor.model_dump_json(), len(batches), temperature)


@cache
def _expected(model: Path, actor_json: str, n_batches: int, temperature: float) -> torch.Tensor:
    actor, batches = ActorConfig.model_validate_json(actor_json), _batches(model)[:n_batches]
    decoder, _ = load_model(model)
    before = {name: tensor.detach().double().clone() for name, tensor in decoder.named_parameters()}
    reference = Reference(decoder, actor, STEPS, temperature, MAX_NEW_TOKENS)
    for batch in batches:
        reference.train_on(batch)
    return torch.cat([(p.detach() - before[name]).flatten() for name, p in reference.decoder.named_parameters()])


def distance(ours: torch.Tensor, other: torch.Tensor) -> float:
    """Between two updates, as a share of the second."""
    return float((ours - other).norm() / other.norm())


def make_batch(model: Path, seed: int) -> Batch:
    """Five groups of two or three samples, rows interleaved; ratios near 1 and far from it; gaps of tool text."""
    chance = np.random.default_rng(seed)
    trajectories = []
    for group, samples in enumerate((2, 3, 2, 3, 2)):
        prompt = chance.integers(3, 90, 2 + group).tolist()
        for sample in range(samples):
            turns = [(prompt, chance.integers(3, 90, 1 + (group + sample) % MAX_NEW_TOKENS).tolist())]
            if sample == 1:
                turns.append((chance.integers(3, 90, 2).tolist(), chance.integers(3, 90, 3).tolist()))
            trajectories.append(_trajectory(group + 7, sample, turns, float(chance.normal())))
    batch = _interleaved(trajectories)
    decoder, _ = load_model(model)
    current = Reference(decoder, ActorConfig(), STEPS, TEMPERATURE, MAX_NEW_TOKENS).logprobs(batch)
    far = chance.normal(0, 0.4, len(current)) + np.where(chance.random(len(current)) < 0.1, -2.5, 0)
    behaviour = np.minimum(current + far, -1e-3).astype(np.float32)
    return msgspec.structs.replace(batch, logprobs=np.where(batch.loss_mask == 1, behaviour, 0)).check()


def _trajectory(group: int, sample: int, turns: list[tuple[list[int], list[int]]], reward: float) -> Trajectory:
    made = []
    for context, sampled in turns:
        mask = np.repeat(np.array([0, 1], np.uint8), [len(context), len(sampled)])
        values = mask.astype(np.float32)
        ids = np.array([*context, *sampled], np.int32)
        made.append(Turn(ids=ids, mask=mask, logprobs=-values, versions=mask.astype(np.int32) - 1))
    return Trajectory(
        task_id=str(group),
        group_id=group,
        sample_id=(group << 16) | sample,
        model_id="model0",
        turns=tuple(made),
        reward=Value(reward),
        stop=StopReason.STOP,
    ).check()


def _interleaved(trajectories: list[Trajectory]) -> Batch:
    """Rows of one group lie apart: only their group ids say that they belong together."""
    order = sorted(trajectories, key=lambda t: (t.sample_id & 0xFFFF, -t.group_id))
    groups = [
        Group(group_id=t.group_id, task_id=t.task_id, prompt_id=t.group_id, model_id="model0", trajectories=(t,))
        for t in order
    ]
    return Batch.of(groups).check()


@cache
def _batches(model: Path) -> tuple[Batch, Batch]:
    return make_batch(model, 1), make_batch(model, 2)


@pytest.fixture(name="batches")
def _batches_fixture(model: Path) -> tuple[Batch, Batch]:
    return _batches(model)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_key_changes_the_weights_as_its_formula_says(case: Case, model: Path, batches: tuple[Batch, Batch]) -> None:
    changed, without = case.actor(), case.actor(changed=False)
    # what an optimiser remembers shows from the second step on
    used = batches if case.key.startswith("optimizer.") else batches[:1]
    ours = Bench(model, changed).update(*used)
    right = expected(model, ActorConfig(**changed), *used)
    assert distance(ours, right) < 2e-3
    if not case.inert:
        assert distance(expected(model, ActorConfig(**without), *used), right) > 0.02, "the case exercises nothing"


def test_defaults(model: Path, batches: tuple[Batch, Batch]) -> None:
    actor: dict[str, Any] = {"optimizer": PLAIN}
    assert distance(Bench(model, actor).update(*batches), expected(model, ActorConfig(**actor), *batches)) < 2e-3


def test_the_temperature_of_the_rollouts_is_that_of_the_gradient(model: Path, batches: tuple[Batch, Batch]) -> None:
    actor: dict[str, Any] = {"optimizer": PLAIN}
    ours = Bench(model, actor, temperature=0.5).update(batches[0])
    assert distance(ours, expected(model, ActorConfig(**actor), batches[0], temperature=0.5)) < 2e-3
    assert distance(ours, expected(model, ActorConfig(**actor), batches[0], temperature=1.0)) > 0.05


def test_no_pass_is_of_more_tokens_than_the_configuration_allows(model: Path, batches: tuple[Batch, Batch]) -> None:
    bench = Bench(model, {"optimizer": PLAIN, "mb_spec": {"max_tokens_per_mb": 20}})
    passes: list[int] = []
    decoder = cast(Any, bench.trainer.engine)._decoder
    decoder.register_forward_pre_hook(lambda module, inputs: passes.append(len(inputs[0])))
    bench.trainer.train_on(batches[0])
    assert len(passes) > 1
    assert max(passes) <= 20


def poison(bench: Bench, value: float) -> None:
    """Put a number into the last norm's weights, without a trace in gradients."""
    with torch.no_grad():
        dict(bench.trainer.engine.named_weights())["model.norm.weight"][0] = value


def test_a_gradient_that_is_not_finite_costs_its_step_and_not_the_run(
    model: Path, batches: tuple[Batch, Batch]
) -> None:
    bench = Bench(model, {"optimizer": PLAIN})
    sound = float(dict(bench.trainer.engine.named_weights())["model.norm.weight"][0])
    before = bench.weights()
    poison(bench, np.nan)
    stats = bench.trainer.train_on(batches[0])
    assert stats["ppo/skipped_steps"] == 1
    poison(bench, sound)
    assert all(torch.equal(tensor, before[name]) for name, tensor in bench.weights().items())
    stats = bench.trainer.train_on(batches[0])
    assert stats["ppo/skipped_steps"] == 0
    assert np.isfinite(stats["ppo/grad_norm"])


def test_gradients_that_are_never_finite_stop_the_run_with_their_step(
    model: Path, batches: tuple[Batch, Batch]
) -> None:
    bench = Bench(model, {"optimizer": PLAIN})
    poison(bench, np.inf)
    for _ in range(4):
        bench.trainer.train_on(batches[0])
    with pytest.raises(InvariantError, match="the gradient's norm is nan at optimiser step 4"):
        bench.trainer.train_on(batches[0])


def test_one_token_that_its_engine_thought_impossible_does_not_take_the_step(
    model: Path, batches: tuple[Batch, Batch]
) -> None:
    """By default no token's behaviour weight is beyond 5: the step is nearly that of the batch without it."""
    batch = batches[0]
    place = int(np.flatnonzero(batch.loss_mask)[4])
    logprobs = batch.logprobs.copy()
    logprobs[place] = -90.0
    usual = Bench(model, {"optimizer": PLAIN}).trainer.train_on(batch)
    odd = Bench(model, {"optimizer": PLAIN}).trainer.train_on(msgspec.structs.replace(batch, logprobs=logprobs))
    assert odd["ppo/grad_norm"] < 3 * usual["ppo/grad_norm"]


def test_why_a_generation_ended_is_its_stop_reason_whatever_the_widths(model: Path) -> None:
    """The longest row stopped by itself, the shorter ones were cut."""
    rows = [
        ([5, 6], [7, 8, 9, 10, 11, 12], StopReason.STOP),
        ([5, 6], [7], StopReason.LENGTH),
        ([5], [9, 9], StopReason.LENGTH),
    ]
    trajectories = [
        msgspec.structs.replace(_trajectory(1, number, [(prompt, sampled)], float(number)), stop=stop)
        for number, (prompt, sampled, stop) in enumerate(rows)
    ]
    stats = Bench(model, {"optimizer": PLAIN}).trainer.train_on(_interleaved(trajectories))
    assert stats["batch/truncated"] == pytest.approx(2 / 3)


def with_row(batch: Batch, row: int, **changes: Any) -> Batch:
    """The same batch with other values in one row's tokens."""
    start, end = batch.offsets[row : row + 2]
    arrays = {name: getattr(batch, name).copy() for name in changes}
    for name, (place, value) in changes.items():
        arrays[name][start:end][place] = value
    return msgspec.structs.replace(batch, **arrays)


UNFIT: dict[str, dict[str, Any]] = {
    "an id that the model does not have": {"input_ids": (1, 10**6)},
    "a negative id": {"input_ids": (0, -1)},
    "sampled from its first token": {"loss_mask": (0, 1)},
    "a logprob that is not finite": {"logprobs": (slice(None), -np.inf)},
}


@pytest.mark.parametrize("what", UNFIT)
@pytest.mark.parametrize("minibatches", [1, 5])
def test_a_row_that_cannot_be_trained_on_is_as_if_it_were_not_there(
    model: Path, batches: tuple[Batch, Batch], what: str, minibatches: int
) -> None:
    batch, row = batches[0], 5
    without = [number for number in range(len(batch.lengths)) if number != row]
    actor: dict[str, Any] = {"optimizer": PLAIN, "ppo_n_minibatches": minibatches}
    ours = Bench(model, actor)
    update = ours.update(with_row(batch, row, **UNFIT[what]))
    assert distance(update, Bench(model, actor).update(rows_only(batch, without))) < 1e-4


def test_a_row_that_is_longer_than_a_pass_may_be_does_not_end_the_run(
    model: Path, batches: tuple[Batch, Batch]
) -> None:
    batch = batches[0]
    bench = Bench(model, {"optimizer": PLAIN, "mb_spec": {"max_tokens_per_mb": 12}})
    stats = bench.trainer.train_on(batch)
    assert stats["batch/unfit_rows"] == (batch.lengths > 12).sum() > 0
    assert stats["batch/rows"] == (batch.lengths <= 12).sum()


def test_batches_without_any_row_to_train_on_stop_the_run_with_the_key(
    model: Path, batches: tuple[Batch, Batch]
) -> None:
    bench = Bench(model, {"optimizer": PLAIN, "mb_spec": {"max_tokens_per_mb": 2}})
    before = bench.weights()
    for _ in range(2):
        assert bench.trainer.train_on(batches[0]) == {"batch/unfit_rows": 12}
    assert all(torch.equal(tensor, before[name]) for name, tensor in bench.weights().items())
    with pytest.raises(DataError, match=r"no row of 3 batches .* actor\.mb_spec\.max_tokens_per_mb allow 2"):
        bench.trainer.train_on(batches[0])


def rows_only(batch: Batch, rows: list[int]) -> Batch:
    """Some rows of a batch."""
    tokens = np.concatenate([np.arange(batch.offsets[row], batch.offsets[row + 1]) for row in rows])
    of_tokens = {"input_ids", "loss_mask", "logprobs", "versions"}
    fields = {name: getattr(batch, name) for name in batch.__struct_fields__ if name != "extra"}
    return Batch(**{name: array[tokens if name in of_tokens else rows] for name, array in fields.items()}).check()
