"""Keys of Dataflow (`dataflow`)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from astraflow.core.config import ExperimentConfig, OpenSection, Section, struct_field
from astraflow.core.config.ids import why_no_id
from astraflow.core.data import GenerationHyperparameters


class DatasetConfig(OpenSection):
    """A dataset by function. Further keys go to the function, which must name them."""

    dataset_fn: str
    """A registered name (gsm8k, reasoning_gym) or "module:function"."""
    max_length: int | None = Field(default=None, ge=1)
    """Rows whose prompt has more tokens are left out and counted."""


class RolloutDatasetConfig(DatasetConfig):
    """A dataset that rollouts are asked for from."""

    weight: float = Field(default=1.0, gt=0)
    """Its share of all occurrences, relative to the other rollout datasets'."""


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
    k: int | None = Field(default=None, ge=1)
    """Of pass@k, estimated without bias from all samples of a row; None: as many as there are."""


Filter = Literal["filter_invalid", "filter_stale", "filter_length", "filter_duplicate", "filter_zero_adv"]
"""What may drop a finished group; see dataflow.filters."""


def _as_list(value: Any) -> Any:
    """A name alone is a list of one, null an empty one."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


class LengthConfig(Section):
    """Which lengths `filter_length` lets pass: sampled tokens of a group's longest trajectory."""

    min_tokens: int = Field(default=0, ge=0)
    """A shorter group is dropped."""
    max_tokens: int | None = Field(default=None, ge=1)
    """A longer group is dropped; None: any length passes."""


class ReplayConfig(Section):
    """Groups that train again while they are within the staleness bound."""

    ratio: float = Field(default=0.0, ge=0, lt=1)
    """Share of a batch's groups, rounded down, that is replayed as far as there are groups to replay."""
    policy: Literal["uniform", "newest", "reward_spread"] = "uniform"
    """Which ones: at random (seeded), the last trained first, or those whose rewards differ most."""


class BufferConfig(Section):
    """Finished groups between rollout and training."""

    max_staleness: int = Field(default=2, ge=0)
    """η: most training steps between the step that made a token's version and the step that trains it."""
    count: Literal["groups", "samples"] = "groups"
    """What the bound and a batch count. samples: a group that lost some counts for what it has, and a batch takes
    groups until it has train_batch_size samples."""
    order: Literal["fifo", "edf"] = "fifo"
    """Which ready groups a batch takes first: as they finished, or (edf) the oldest version first."""
    max_groups: int | None = Field(default=None, ge=1)
    """Most ready groups a model keeps; the one that is next is evicted for one more (dropped/evicted). None: as many
    as admission lets in."""
    filter_function: Annotated[tuple[Filter, ...], BeforeValidator(_as_list)] = ("filter_zero_adv",)
    """A filter, or filters in the order in which they are applied; the first that drops a group gives the reason.
    filter_invalid and filter_stale come first where they are not named."""
    length: LengthConfig = LengthConfig()
    replay: ReplayConfig = ReplayConfig()
    min_group_size: int | None = Field(default=None, ge=1)
    """A group with fewer valid samples is dropped(invalid); None: min(2, n_samples)."""
    max_refill: int | None = Field(default=None, ge=1)
    """So many groups dropped while one batch fills end the run, with the counts by reason; None: the trainer's
    batch_timeout_s ends it."""
    shuffle_rewards: bool = False
    """Control experiment: permute rewards inside each group, so that nothing can be learnt."""
    stale_policy: Literal["drop", "mask"] = "drop"
    """A group with a token older than the bound: drop it, or mask its old tokens out of the loss."""
    rollout_wait: WaitConfig | None = None
    """Artificial wait after a group's generation, for measuring asynchrony."""

    @model_validator(mode="after")
    def _effective(self) -> Self:
        if len(set(self.filter_function)) != len(self.filter_function):
            raise ValueError("filter_function: a filter is named twice")
        limited = self.length != LengthConfig()
        if limited != ("filter_length" in self.filter_function):
            raise ValueError("length and filter_length in filter_function have an effect only together")
        if self.length.max_tokens is not None and self.length.max_tokens < self.length.min_tokens:
            raise ValueError("length: max_tokens is less than min_tokens")
        if self.count == "samples" and self.max_groups is not None:
            raise ValueError("max_groups: with count: samples a batch may take any number of groups")
        if self.replay.ratio > 0 and self.max_staleness == 0:
            raise ValueError("replay.ratio: with max_staleness 0 a trained group is always too old to train again")
        return self


class GroupConfig(Section):
    """How a RaaS runs the samples of one training group; buffer.min_group_size is the quorum.

    Early cuts favour short episodes: watch rollout/lost/cut and rollout/lost/straggler.
    """

    max_retries: int = Field(default=0, ge=0)
    """Times that a failed sample is run anew."""
    over_sample: int = Field(default=0, ge=0)
    """Samples that begin beyond n_samples; the first n_samples that end well are the group, the rest is cut."""
    straggler: Literal["wait", "shrink", "replace"] = "wait"
    """A sample that takes much longer than the quorum did: wait for it (to its own deadline), cut it, or cut it and
    begin another in its place, once."""
    patience: float = Field(default=2.0, ge=1)
    """How many times as long as the quorum took is too long."""


class WaitConfig(Section):
    """A log-normal wait, one per group (stands in for tools and environments in benchmarks)."""

    mean_s: float = Field(gt=0)
    """Mean of the waits, seconds."""
    sigma: float = Field(default=1.0, ge=0)
    """Standard deviation of their logarithm; 0: all are equal."""


class GresoConfig(Section):
    """Ask less for prompts whose rewards were all equal, visit after visit (arXiv 2506.02177)."""

    p: float = Field(default=0.5, ge=0, le=1)
    """A prompt is asked for with p^z after z visits in a row without variance of one kind."""
    easy_floor: float = Field(default=0.1, ge=0, le=1)
    """Smallest probability where every sample was right."""
    hard_floor: float = Field(default=0.4, ge=0, le=1)
    """Smallest probability where none was better than another and they were not right."""


class SolvedConfig(Section):
    """Leave out prompts that are solved."""

    after: int = Field(default=2, ge=1)
    """Visits in a row in which every sample was right."""
    passes: int | None = Field(default=None, ge=1)
    """Passes over the dataset for which it is left out, then it is asked for again; None: for good."""


class DifficultyConfig(Section):
    """Pools by smoothed success rate, each asked for at its own rate. A prompt never visited is medium."""

    easy_from: float = Field(default=0.8, ge=0, le=1)
    """Success rate from which a prompt is easy."""
    hard_to: float = Field(default=0.2, ge=0, le=1)
    """Success rate up to which it is hard."""
    easy_rate: float = Field(default=0.25, ge=0, le=1)
    """Share of passes in which an easy prompt is asked for."""
    medium_rate: float = Field(default=1.0, ge=0, le=1)
    """Likewise, for a medium one."""
    hard_rate: float = Field(default=0.5, ge=0, le=1)
    """Likewise, for a hard one."""
    smoothing: float = Field(default=0.5, gt=0, le=1)
    """Weight of the newest visit in the success rate."""

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if self.hard_to >= self.easy_from:
            raise ValueError("hard_to must be less than easy_from")
        return self


class CurriculumConfig(Section):
    """Which prompts are asked for, by how their rollouts went; the chances of all rules that are on are multiplied."""

    greso: GresoConfig | None = None
    solved: SolvedConfig | None = None
    difficulty: DifficultyConfig | None = None


class LedgerConfig(Section):
    """The record of every occurrence."""

    durable: bool = True
    """Keep it on disk, with the trajectories of ready groups: a Dataflow that is killed and started again goes on."""
    fsync: bool = False
    """Also outlive a machine that loses power: every commit waits for the disk."""
    keep_steps: int = Field(default=64, ge=0)
    """Most steps that a restored trainer can go back; a trainer that keeps states of its own says when an earlier step
    is let go (/save_buffer). One that is back before that is refused."""
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
    """exclusive: no new rollouts meanwhile, and the trainer waits. concurrent: a share of the pool holds the version
    and scores it, rollouts and training go on."""
    share: float = Field(default=0.5, gt=0, le=1)
    """Share of the pool's places that a concurrent round may take: whole RaaS where there are several, of which at
    least one is left to training; places where there is one."""
    keep_rows: int = Field(default=32, ge=0)
    """First rows of each dataset whose samples are kept, in `evaluations/` of the run directory."""
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
    rollout_dataset: RolloutDatasetConfig
    mixture: dict[str, RolloutDatasetConfig] = {}
    """Further rollout datasets by name: each gets the share of all occurrences that its weight is of all weights."""
    curriculum: CurriculumConfig = CurriculumConfig()
    workflow_spec: WorkflowConfig = WorkflowConfig()
    eval_workflows: dict[str, WorkflowConfig] = {}
    eval_datasets: dict[str, EvalDatasetConfig] = {}
    eval: EvalConfig = EvalConfig()
    group: GroupConfig = GroupConfig()
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

    @property
    def rollout_datasets(self) -> dict[str, RolloutDatasetConfig]:
        """All of them, by name."""
        return {"rollout_dataset": self.rollout_dataset, **self.mixture}

    @model_validator(mode="after")
    def _names(self) -> Self:
        if "rollout_dataset" in self.mixture:
            raise ValueError("mixture: the name rollout_dataset is the first dataset's; choose another")
        for section, names in {"mixture": list(self.mixture), "eval_datasets": list(self.eval_datasets)}.items():
            for why in filter(None, map(why_no_id, names)):
                raise ValueError(f"{section}: the name {why}")
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
