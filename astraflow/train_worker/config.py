"""Keys of the train worker (`trainer_base`, `trainer_<model_id>`). No torch import."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from astraflow.core.config import ExperimentConfig, OpenSection, Section
from astraflow.core.observability.config import StatsLoggerConfig

EPS_CLIP = 0.2
BEHAV_IMP_WEIGHT_CAP = 5.0


class MicroBatchConfig(Section):
    """How a minibatch is cut for memory. The gradient does not depend on it."""

    max_tokens_per_mb: int = Field(default=16384, ge=1)
    """Most tokens in one forward pass; a longer trajectory is an error."""


class OptimizerConfig(Section):
    """AdamW (Loshchilov & Hutter, 2019) and its learning-rate schedule."""

    type: Literal["adam", "adamw"] = "adamw"
    """Both names mean AdamW with decoupled weight decay."""
    lr: float = Field(default=1e-6, gt=0)
    """Peak learning rate."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's decoupled decay, times the learning rate; of matrices only."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of AdamW's mean of gradients."""
    beta2: float = Field(default=0.999, ge=0, lt=1)
    """Decay of AdamW's mean of squared gradients."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to AdamW's root of the mean square."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    """Shape after the warm-up; linear and cosine end at min_lr_ratio."""
    warmup_steps: int = Field(default=0, ge=0)
    """Optimiser steps of linear warm-up."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """Share of lr that linear and cosine end at."""
    gradient_clipping: float = Field(default=1.0, gt=0)
    """Largest global gradient norm."""


class NormConfig(Section):
    """Where a mean is subtracted and a standard deviation divided by."""

    mean_level: Literal["group", "batch", "none"] = "group"
    """Over what the mean that is subtracted is taken; none: nothing is."""
    std_level: Literal["group", "batch", "none"] = "group"
    """Over what the standard deviation that is divided by is taken; none: nothing is."""
    mean_leave_one_out: bool = False
    """Leave the sample itself out of its group's mean (RLOO)."""
    eps: float = Field(default=1e-5, gt=0)
    """Added to the standard deviation."""


class OverlongConfig(Section):
    """Penalty for answers near the length limit (DAPO, eq. 13); of a row, its longest generation counts."""

    buffer_len: int = Field(ge=1)
    """The penalty grows over this many tokens before the limit."""
    penalty_factor: float = Field(default=1.0, ge=0)
    """The largest penalty."""


class ActorConfig(Section):
    """The policy's loss and optimiser."""

    mb_spec: MicroBatchConfig = MicroBatchConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    loss: Literal["ppo", "decoupled", "m2po"] = "decoupled"
    """ppo: ratio against the behaviour policy. decoupled: clipped ratio against the proximal policy times the behaviour
    importance weight (AReaL). m2po: bounds chosen from the second moment of the behaviour ratio (M2PO)."""
    eps_clip: float = Field(default=EPS_CLIP, gt=0)
    """Lower clip of the ratio."""
    eps_clip_higher: float | None = Field(default=None, gt=0)
    """Upper clip; None: eps_clip."""
    c_clip: float | None = Field(default=None, gt=1)
    """Dual clip for negative advantages; None: off."""
    m2_threshold: float | None = Field(default=None, gt=0)
    """M2PO's bound on the mean squared log-ratio; required by loss: m2po and refused elsewhere."""
    behav_imp_weight_cap: float | None = Field(default=BEHAV_IMP_WEIGHT_CAP, gt=1)
    """decoupled: behaviour importance weights are truncated here: no token counts for more than so many. Without a cap
    (None) a single token that its engine thought all but impossible takes the whole step."""
    ppo_n_minibatches: int = Field(default=1, ge=1)
    """Optimiser steps per batch, groups kept whole."""
    loss_agg: Literal["token", "sequence", "prompt", "constant"] = "token"
    """What a minibatch's loss is the mean over: all sampled tokens; rows' token means; prompts' token means; or the
    token sum over rows × loss_constant."""
    loss_constant: float | None = Field(default=None, gt=0)
    """Tokens that one row counts for under loss_agg: constant."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Entropy bonus."""
    reward_scaling: float = 1.0
    """Factor of the shaped reward."""
    reward_bias: float = 0.0
    """Shaped reward = (raw + bias) × scaling."""
    reward_clip: float | None = Field(default=None, gt=0)
    """Shaped rewards are clipped to ± this."""
    overlong: OverlongConfig | None = None
    reward_norm: NormConfig | None = NormConfig()
    """Rewards → advantages of an outcome (GRPO: group mean, group std)."""
    adv_norm: NormConfig | None = None
    """Advantages over the sampled tokens of the whole batch."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.loss == "m2po") != (self.m2_threshold is not None):
            raise ValueError("m2_threshold belongs to loss: m2po (and is required there)")
        if self.loss == "m2po" and (self.eps_clip_higher is not None or self.eps_clip != EPS_CLIP):
            raise ValueError("loss: m2po chooses its own clip bounds: eps_clip and eps_clip_higher have no effect")
        if self.behav_imp_weight_cap not in (None, BEHAV_IMP_WEIGHT_CAP) and self.loss != "decoupled":
            raise ValueError("behav_imp_weight_cap has an effect with loss: decoupled only")
        if (self.loss_agg == "constant") != (self.loss_constant is not None):
            raise ValueError("loss_constant belongs to loss_agg: constant (and is required there)")
        return self


class EngineConfig(Section):
    """Where the model's computation runs."""

    backend: Literal["native"] = "native"
    """native: one process, one device."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the model is trained."""


class EvaluatorConfig(Section):
    """When the policy is scored on the evaluation datasets; the last version always is, where there are any."""

    eval_at_start: bool = False
    """Evaluate version 0, before the first step."""
    freq_steps: int | None = Field(default=None, ge=1)
    """Every so many steps; None: not between start and end."""


class SaverConfig(Section):
    """When a checkpoint in Hugging Face layout is written. The last step always is."""

    freq_steps: int | None = Field(default=None, ge=1)
    """Every so many steps; None: only the last."""


class RecoverConfig(Section):
    """Going on after a process died."""

    mode: Literal["disabled", "auto", "fault", "resume"] = "disabled"
    """disabled: a process that dies ends the run. fault: it is started again in place. auto: also, a run that was
    stopped goes on when it is started again in its run directory. resume: as auto, and an error where there is nothing
    to go on from."""
    freq_steps: int = Field(default=10, ge=1)
    """Steps between two states that the trainer can continue from (model, optimiser, schedule, random state)."""
    retries: int = Field(default=3, ge=0)
    """How often one process of the run is started again."""

    @property
    def enabled(self) -> bool:
        return self.mode != "disabled"


class TrainerConfig(Section):
    """One policy's training."""

    total_train_steps: int = Field(ge=1)
    """Steps of the run; each trains one batch."""
    train_batch_size: int = Field(ge=1)
    """Samples per step: groups × n_samples."""
    threads: int = Field(default=1, ge=1)
    """torch threads of this process."""
    engine: EngineConfig = EngineConfig()
    actor: ActorConfig = ActorConfig()
    evaluator: EvaluatorConfig = EvaluatorConfig()
    saver: SaverConfig = SaverConfig()
    recover: RecoverConfig = RecoverConfig()
    stats_logger: StatsLoggerConfig = StatsLoggerConfig()
    batch_timeout_s: float = Field(default=600.0, gt=0)
    """Longest wait for a batch before the run stops, naming what Dataflow waits for."""


class SFTDatasetConfig(OpenSection):
    """Demonstrations by function. Further keys go to the function, which must name them."""

    dataset_fn: str
    """A registered name or "module:function"; gives rows {messages} or {input_ids, loss_mask}."""
    max_length: int | None = Field(default=None, ge=1)
    """Rows with more tokens are left out and counted."""


class SFTConfig(Section):
    """Supervised fine-tuning of a new model (`base_model`): what a run starts from where no model is given."""

    preset: str
    """Architecture and tokenizer of the new model, e.g. tiny-1m."""
    dataset: SFTDatasetConfig
    total_train_steps: int = Field(ge=1)
    """Steps of the run; each trains one batch."""
    train_batch_size: int = Field(ge=1)
    """Demonstrations per step."""
    seed: int = Field(default=1, ge=0)
    """Seeds initialisation and data order. Not experiment.seed: runs with several seeds share one base model."""
    threads: int = Field(default=1, ge=1)
    """torch threads. Two are hardly faster at these sizes, and many times slower where another process needs a core."""
    optimizer: OptimizerConfig = OptimizerConfig(lr=1e-3)
    mb_spec: MicroBatchConfig = MicroBatchConfig()


class SFTSettings(Section):
    """Everything the SFT process is given."""

    sft: SFTConfig
    output_dir: str
    """Where the Hugging Face directory is written."""


class TrainWorkerSettings(Section):
    """Everything one train worker process is given."""

    experiment: ExperimentConfig
    model_id: str
    model_path: str
    """Hugging Face directory to start from."""
    n_samples: int = Field(ge=1)
    """Samples of a group; divides train_batch_size."""
    max_new_tokens: int = Field(ge=1)
    """Length limit that the over-long penalty counts from."""
    temperature: float = Field(default=1.0, gt=0)
    """Rollout temperature: the trainer's logprobs are of the same distribution."""
    trainer: TrainerConfig
    eval_concurrent: bool = False
    """Evaluations go on while training does (dataflow.eval.mode); only the last one is waited for."""
    notify_timeout_s: float = Field(default=900.0, gt=0)
    """Longest wait for a version to be taken, its evaluation included: longer than Dataflow's own deadlines, whose
    messages name who is late."""
    dataflow_url: str
    further: str | None = None
    """Names the places of metrics and checkpoints where this is not the run's first model, whose a report shows."""
    host: str = "127.0.0.1"
    """Address of the weight sender agent."""
    sender_port: int = Field(default=0, ge=0, le=65535)
    """0: any free port, announced after it is bound."""
    run_dir: str

    @model_validator(mode="after")
    def _whole_groups(self) -> Self:
        groups, rest = divmod(self.trainer.train_batch_size, self.n_samples)
        if rest:
            raise ValueError(f"{self.trainer.train_batch_size} samples do not make whole groups of {self.n_samples}")
        if self.trainer.actor.ppo_n_minibatches > groups:
            raise ValueError(f"{groups} groups cannot make {self.trainer.actor.ppo_n_minibatches} minibatches")
        return self
