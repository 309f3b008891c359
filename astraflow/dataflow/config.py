"""Keys of Dataflow (`dataflow`)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from astraflow.core.config import ExperimentConfig, OpenSection, Section, struct_field
from astraflow.core.data import GenerationHyperparameters


class DatasetConfig(OpenSection):
    """A dataset by function. Further keys go to the function, which must name them."""

    dataset_fn: str
    """A registered name (gsm8k, reasoning_gym) or "module:function"."""
    max_length: int | None = Field(default=None, ge=1)
    """Rows whose prompt has more tokens are left out and counted."""


class WorkflowConfig(OpenSection):
    """What an episode is. Further keys go to the workflow's __init__."""

    workflow_cls: str = "rlvr"
    """A registered name or module:Class."""
    reward_fn: str | None = None
    """A registered name or module:function; None where the workflow gives the reward itself."""
    gconfig_overrides: dict[str, bool | int | float | str | list[int | str] | None] = {}
    """Fields of gconfig that this workflow changes."""


class EvalDatasetConfig(DatasetConfig):
    """A dataset scored in evaluation rounds."""

    eval_workflow: str
    """A key of eval_workflows."""
    repeat: int = Field(default=1, ge=1)
    """Occurrences per row and round (for a row's k samples see gconfig n_samples)."""
    greedy: bool = True
    """Also score one greedy sample per row."""


class BufferConfig(Section):
    """Finished groups between rollout and training."""

    max_staleness: int = Field(default=2, ge=0)
    """η: most training steps between the step that made a token's version and the step that trains it."""
    filter_function: Literal["filter_zero_adv"] | None = "filter_zero_adv"
    """Drop groups whose rewards are all equal (they have no gradient); refilled by admission. Off for n_samples 1."""
    min_group_size: int | None = Field(default=None, ge=1)
    """A group with fewer valid samples is dropped(invalid); None: min(2, n_samples)."""
    shuffle_rewards: bool = False
    """Control experiment: permute rewards inside each group, so that nothing can be learnt."""
    stale_policy: Literal["drop", "mask"] = "drop"
    """A group with a token older than the bound: drop it, or mask its old tokens out of the loss."""
    rollout_wait: WaitConfig | None = None
    """Artificial wait after a group's generation, for measuring asynchrony."""


class WaitConfig(Section):
    """A log-normal wait, one per group (stands in for tools and environments in benchmarks)."""

    mean_s: float = Field(gt=0)
    """Mean of the waits, seconds."""
    sigma: float = Field(default=1.0, ge=0)
    """Standard deviation of their logarithm; 0: all are equal."""


class LedgerConfig(Section):
    """The record of every occurrence."""

    durable: bool = True
    """Keep it on disk, with the trajectories of ready groups: a Dataflow that is killed and started again goes on."""
    fsync: bool = False
    """Also outlive a machine that loses power: every commit waits for the disk."""
    keep_steps: int = Field(default=64, ge=0)
    """Most steps that a restored trainer goes back without losing what they had trained; a trainer's checkpoint
    (/save_buffer) lets go earlier."""
    replayable: bool = False
    """Keep all that RaaS return, so that `astraflow replay` can derive every batch again; otherwise trajectories go
    when nobody can need them."""


class PoolConfig(Section):
    """The live RaaS."""

    heartbeat_s: float = Field(default=5.0, gt=0)
    """Seconds between two signs of life of a RaaS."""
    missed_heartbeats: int = Field(default=3, ge=1)
    """So many missed make it suspect: no new work, and it is asked; without an answer within one more it is dead, and
    its leases go to others."""
    quarantine_failures: int = Field(default=3, ge=1)
    """So many failures in a row (groups without an episode, deaths) put a RaaS in quarantine, where others can work."""
    quarantine_s: float = Field(default=60.0, gt=0)
    """Seconds without work the first time; twice as long each time after, until a group of it succeeds."""
    session_key: str | None = None
    """Field of a dataset row: rows with equal values go to the same RaaS where it has room, for its caches; None: by
    speed and room alone."""
    advice_window_s: float = Field(default=60.0, gt=0)
    """Seconds over which it is measured whether more or fewer RaaS would do (raas/advice)."""


class EvalConfig(Section):
    """How evaluation rounds run."""

    mode: Literal["concurrent", "exclusive"] = "exclusive"
    """exclusive: no new rollouts meanwhile. concurrent: rollouts go on."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Longest that a round may take, seconds; then it is an error."""


class DataflowConfig(Section):
    """The service that owns dataset cursor, ledger, admission, curation, pool and evaluation."""

    host: str = "127.0.0.1"
    """Address that it binds; others than this machine reach it only where it is told one of theirs."""
    port: int = Field(default=0, ge=0, le=65535)
    """0: any free port, announced after it is bound."""
    buffer: BufferConfig = BufferConfig()
    ledger: LedgerConfig = LedgerConfig()
    pool: PoolConfig = PoolConfig()
    rollout_dataset: DatasetConfig
    workflow_spec: WorkflowConfig = WorkflowConfig()
    eval_workflows: dict[str, WorkflowConfig] = {}
    eval_datasets: dict[str, EvalDatasetConfig] = {}
    eval: EvalConfig = EvalConfig()
    episode_timeout_s: float = Field(default=120.0, gt=0)
    """An episode that runs longer ends as failed(timeout)."""
    barrier: Literal["barrier", "independent"] = "barrier"
    """Several models: a step's announcement waits for the others', so that versions leave together, or for none."""
    barrier_timeout_s: float = Field(default=600.0, gt=0)
    """Several models: longest that a step's announcement waits for the other models' before it goes on without them; a
    trainer that is silent for so long holds up nobody until its next call."""
    policy_death: Literal["continue", "stop"] = "continue"
    """Several models: when the trainer of one has died for good, the others go on to their end, or the run stops."""
    max_failure_streak: int = Field(default=200, ge=1)
    """So many samples in a row without one valid reward stop the run with the first traceback."""

    @model_validator(mode="after")
    def _names(self) -> Self:
        for name, dataset in self.eval_datasets.items():
            if dataset.eval_workflow not in self.eval_workflows:
                known = ", ".join(sorted(self.eval_workflows)) or "none"
                raise ValueError(
                    f"eval_datasets.{name}.eval_workflow: '{dataset.eval_workflow}' is not in eval_workflows ({known})"
                )
        return self


class DataflowSettings(Section):
    """Everything the Dataflow process is given."""

    experiment: ExperimentConfig
    dataflow: DataflowConfig
    gconfigs: dict[str, struct_field(GenerationHyperparameters)]  # type: ignore[valid-type]
    """Sampling per model_id; its keys are the expected models."""
    tokenizer_path: str
    run_dir: str


BufferConfig.model_rebuild()
