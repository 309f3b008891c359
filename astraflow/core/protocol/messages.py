"""Every message of the wire, one struct a request and a reply. Field names are the protocol's.

Requests refuse unknown fields: a misspelt field is the caller's error, not a silent default.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta

from astraflow.core.data import Batch, LeaseId, Manifest, ModelRequest, StopReason
from astraflow.core.data.generation import MOST_SAMPLES
from astraflow.core.data.ids import Id, OptionalId
from astraflow.core.data.trajectory import GroupResult, Row

Blob = bytes
"""For fields of records that have one called bytes."""
Lane = Literal["train", "eval"]


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all requests."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all replies; unknown fields are skipped, so that a newer peer can say more."""


class Empty(Request, frozen=True, kw_only=True):
    """A request that says nothing."""


class Ok(Reply, frozen=True, kw_only=True):
    ok: bool = True


class ErrorBody(Reply, frozen=True, kw_only=True):
    """Body of every status ≥ 400."""

    ok: bool = False
    error: str
    kind: str = "AstraFlowError"
    detail: str = ""


# ---- Dataflow ------------------------------------------------------------------------------------------------------


class ReadyRequest(Request, frozen=True, kw_only=True):
    """A trainer is ready; its version 0 (or its restored weights) can be pulled from sender_endpoint."""

    train_batch_size: int
    """Samples per step."""
    sender_endpoint: str
    """host:port of the weight sender agent."""
    model_id: Id = "default"
    recovered_version: int = 0
    recovered_step: int | None = None
    manifest: Manifest | None = None
    """Version 0's; absent on recovery."""
    incarnation: str = ""
    """A text that every process makes for itself: a repetition that comes late is told from a trainer that is back."""


class ReadyReply(Ok, frozen=True, kw_only=True):
    next_version: int


class BatchRequest(Request, frozen=True, kw_only=True):
    """GET /batch carries these as query parameters."""

    model_id: Id = "default"
    version: int = 0
    """The version the trainer holds: the batch is the one that makes the next."""
    timeout: float = 60.0
    """Seconds to wait before 503."""


class BatchReply(Ok, frozen=True, kw_only=True):
    batch: Batch
    buffer_stats: dict[str, float] = {}


class NotifyVersionRequest(Request, frozen=True, kw_only=True):
    version: int
    step: int
    """The training step that made the version; 0 at the start."""
    run_eval: bool = False
    model_id: Id = "default"
    manifest: Manifest | None = None
    last: bool = False
    """No batch will be asked for after this version: several policies go on without this one."""


class SaveBufferRequest(Request, frozen=True, kw_only=True):
    """A cut of ledger, buffer and cursor is to be durable, now that a trainer's checkpoint is."""

    model_id: Id | None = None
    """Whose; without it the only model's."""
    step: int | None = None
    """The checkpoint's; what earlier steps trained is never taken back. None: the last announced."""


class EvalDatasetResult(
    Reply,
    frozen=True,
    kw_only=True,
    rename={
        "avg_at_k": "avg@k",
        "pass_at_k": "pass@k",
        "avg_at_k_interval": "avg@k_interval",
        "pass_at_k_interval": "pass@k_interval",
    },
):
    """One dataset of an evaluation round; shares in percent."""

    avg_at_k: float
    pass_at_k: float
    mean_reward: float
    correct: int
    total: int
    """Prompts."""
    sample_count: int
    k: int
    """Of pass@k; avg@k is over all samples of a prompt."""
    avg_at_k_interval: tuple[float, float]
    """95%, cluster bootstrap over prompts."""
    pass_at_k_interval: tuple[float, float]
    """Likewise."""
    greedy: float | None = None
    """Share of prompts whose greedy sample is right; None where not asked for."""
    invalid: int = 0
    """Samples without a reward; they count as wrong."""


class EvalResults(
    Reply,
    frozen=True,
    kw_only=True,
    rename={"overall_avg_at_k": "overall_avg@k", "overall_pass_at_k": "overall_pass@k"},
):
    datasets: dict[str, EvalDatasetResult]
    overall_avg_at_k: float
    overall_pass_at_k: float
    version: int = 0
    """The asking policy's."""
    versions: dict[str, int] = {}
    """model_id → version, of every policy: what was scored is all of them together."""


class NotifyVersionReply(Ok, frozen=True, kw_only=True):
    eval_results: EvalResults | None = None
    weight_transfer_info: dict[str, bool] = msgspec.field(default_factory=lambda: {"use_full": True})


class RegisterRaaSRequest(Request, frozen=True, kw_only=True):
    uid: OptionalId
    raas_url: str
    gpu_count: int = 0
    capabilities: dict[str, Any] = {}
    """max_concurrency (groups), models, backend."""


class RegisterRaaSReply(Ok, frozen=True, kw_only=True):
    uid: str
    pool_size: int
    heartbeat_s: float = 5.0
    """Seconds after which to register again, as a sign of life."""
    reason: str = ""
    """Why it is not in the pool: it was told to leave. Empty where it is."""


class DeregisterRaaSRequest(Request, frozen=True, kw_only=True):
    uid: OptionalId
    drain: bool = True
    shutdown: bool = False
    incarnation: OptionalId = ""
    """Only this one leaves: nothing happens to its successor. Empty: whoever has the uid."""


class DeregisterTrainerRequest(Request, frozen=True, kw_only=True):
    """A model's trainer has ended before its last step and is not started again: the others go on without it."""

    model_id: Id


class PoolInstance(Reply, frozen=True, kw_only=True):
    """A RaaS in the pool."""

    uid: str
    url: str
    version: int
    """What it serves, proved; -1 for none."""
    verified: bool
    health: str
    inflight: int
    """Groups that it was given."""
    available: int
    """Groups that it has room for."""
    max_concurrency: int
    failure_count: int
    gpu_count: int
    last_seen: float
    """Unix time."""
    group_s: float | None = None
    """Seconds that a group takes there, as measured; None: not measured."""
    reason: str
    """Why it is not healthy."""


class Advice(Reply, frozen=True, kw_only=True):
    """What to do about the number of RaaS."""

    action: Literal["grow", "shrink", "hold"]
    instances: int
    """By so many; 0 for hold."""
    reason: str
    wait_share: float = 0.0
    """Of the time, trainers waited for a batch."""
    idle_share: float = 0.0
    """Of the serving RaaS' places, nothing ran there."""
    stale_share: float = 0.0
    """Of the groups that ended, were too old."""


class PoolStatus(Reply, frozen=True, kw_only=True):
    """GET /raas_pool."""

    size: int
    """Those that live."""
    version: int
    """The newest that all models have; -1 for none."""
    advice: Advice
    instances: list[PoolInstance]


class AgentStatus(Reply, frozen=True, kw_only=True):
    """A model of the run."""

    raas_ready: bool
    trainer_ready: bool
    started: bool
    """It has a version."""
    version: int
    step: int = 0
    """The last trained one: a trainer cannot come back at a later one."""
    highest: int = -1
    """The highest version number so far, of any lineage; -1 before the first."""


class Waiting(Reply, frozen=True, kw_only=True):
    """Somebody waits."""

    who: str
    on: str
    since: float
    """Unix time."""


class DataflowStatus(Reply, frozen=True, kw_only=True):
    """GET /status of Dataflow."""

    status: Literal["starting", "ready", "draining"]
    error: str | None
    """Why the run is over."""
    eval_running: bool
    agents: dict[str, AgentStatus]
    """By model_id."""
    raas_pool: PoolStatus
    waiting: list[Waiting]
    live: dict[str, Any]
    """Figures that a terminal view shows."""


# ---- RaaS ----------------------------------------------------------------------------------------------------------


class RaaSReply(Reply, frozen=True, kw_only=True):
    """The envelope of every RaaS reply; `result` is the route's own."""

    ok: bool
    result: msgspec.Raw = msgspec.Raw(b"\xc0")
    error: str | None = None


class RegisterWorkflowRequest(Request, frozen=True, kw_only=True):
    workflow_id: Id
    workflow_cls: str
    reward_fn: str | None = None
    gconfig_overrides: dict[str, Any] = {}
    workflow_kwargs: dict[str, Any] = {}
    group_policy: dict[str, Any] = {}
    """episode_timeout_s, wait {mean_s, sigma} …: decided by Dataflow, enforced by RaaS."""


class RegisterWorkflowResult(Reply, frozen=True, kw_only=True):
    workflow_id: str
    registered: bool
    """False where the same spec was registered before."""
    total_workflows: int


class Task(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One occurrence: it yields one group per model and role."""

    task_id: Id
    group_id: int
    owner: str = ""
    """The registration that the group is leased to, as Dataflow names it."""
    attempt: int = 1
    """Which lease of the group this is."""
    data: Row
    n_samples: Annotated[int, Meta(ge=1, le=MOST_SAMPLES)] | None = None
    """Replaces gconfig.n_samples for this task."""
    greedy: bool = False
    """Sample greedily (evaluation)."""

    @property
    def lease(self) -> LeaseId:
        """What its result has to name."""
        return LeaseId(self.group_id, self.owner, self.attempt)


class SubmitRequest(Request, frozen=True, kw_only=True):
    tasks: list[Task]
    workflow_id: Id = "default"
    lane: Lane = "train"
    version: int | None = None
    """Refuse (409) unless this version is served."""


class Accepted(Reply, frozen=True, kw_only=True):
    task_id: str
    accepted: bool
    reason: str = ""


class PullRequest(Request, frozen=True, kw_only=True):
    max_items: Annotated[int, Meta(ge=1)] = 256
    timeout: Annotated[float, Meta(ge=0)] = 0.0
    """Long poll: seconds to wait for the first result."""
    lane: Lane = "train"
    ack: list[Id] = []
    """Results received before: they can be forgotten."""


class PulledItem(Reply, frozen=True, kw_only=True):
    task_id: Id
    lease: LeaseId
    """The task's group_id, owner and attempt: a result of another lease than the current one changes nothing."""
    result: GroupResult | None = None
    """None: the workflow rejected the occurrence."""


class CancelRequest(Request, frozen=True, kw_only=True):
    task_ids: list[Id]


class CancelResult(Reply, frozen=True, kw_only=True):
    cancelled: list[str]


class RaaSNotifyVersionRequest(Request, frozen=True, kw_only=True):
    model_id: Id
    version: int
    sender_endpoint: str | None = None
    manifest: Manifest | None = None


class RaaSNotifyVersionResult(Reply, frozen=True, kw_only=True):
    ok: bool
    model_id: str
    version: int
    """The version served now."""
    pulled: bool
    reason: str = ""
    pull_result: dict[str, Any] = {}
    """mode, bytes, …"""
    timing: dict[str, float] = {}
    """pull_s, verify_s, pause_s, load_s, resume_s"""


class PauseRequest(Request, frozen=True, kw_only=True):
    model_id: Id = "default"
    mode: Literal["keep", "abort", "wait"] = "keep"


class ResetRequest(Request, frozen=True, kw_only=True):
    timeout: Annotated[float, Meta(ge=0, le=600)] = 5.0
    """Seconds to wait for what runs to end."""


class ResetResult(Reply, frozen=True, kw_only=True):
    ready_for_eval: bool
    """Everything that ran has ended."""
    cancelled: int
    """Tasks that were forgotten."""
    stragglers: int
    """Groups that still run; their results never appear."""
    reset_epoch: int
    """Resets so far."""


class EvalPullResult(Reply, frozen=True, kw_only=True):
    """/eval_pull, the documented name of a pull from lane eval."""

    items: list[PulledItem]
    inflight: int
    pending: int
    """Queued."""
    total_submitted: int
    """Since the start of the service."""


class VersionState(Reply, frozen=True, kw_only=True):
    number: int
    digest: str
    verified: bool


class RaaSStatus(Reply, frozen=True, kw_only=True):
    status: Literal["idle", "starting", "ready", "error"]
    engine_id: str
    backend: str
    models: list[str]
    versions: dict[str, VersionState]
    inflight: int
    message: str = ""
    load: dict[str, float] = {}
    """tokens_generated and other counters since the start."""


class EngineLoad(Reply, frozen=True, kw_only=True):
    """How busy an engine is."""

    running: int
    """Sequences that are being decoded."""
    queued: int
    """Requests waiting for a place."""
    tokens_generated: int
    """Tokens sampled since the engine started."""


class Availability(Reply, frozen=True, kw_only=True):
    """GET /availability; places count groups."""

    available: int
    inflight: int
    max_concurrency: int
    queued: int
    engines: dict[str, EngineLoad] = {}
    """By model_id."""


class GenerateRequest(ModelRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /generate: a request to an engine, from outside."""

    stream: bool = False
    """Answer with GeneratedParts while tokens are sampled; otherwise with one ModelResponse."""


class GeneratedPart(Reply, frozen=True, kw_only=True):
    """The tokens that were sampled since the part before; the three arrays have one length, also 0."""

    output_tokens: np.ndarray
    """int32 [T]"""
    output_logprobs: np.ndarray
    """float32 [T]"""
    output_versions: np.ndarray
    """int32 [T]"""
    stop_reason: StopReason | None = None
    """Of the last part; None: more parts follow."""


# ---- Weight sender agent -------------------------------------------------------------------------------------------


class SenderVersion(Reply, frozen=True, kw_only=True):
    """GET /get_version."""

    version: int
    """The newest; -1 before the first publish."""


class BufferInfo(Reply, frozen=True, kw_only=True):
    """GET /get_buffer_info."""

    single_buffer_length: int
    """Bytes of a full version."""
    tensors_meta: list[tuple[str, tuple[list[int], str]]]
    """[name, [shape, dtype]] of each, in buffer order."""


class SenderCapabilities(Reply, frozen=True, kw_only=True):
    """GET /get_capabilities."""

    strategies: list[Literal["full", "delta"]]
    version: int
    delta_ready: bool
    """The newest version has one."""
    delta_base_version: int | None
    delta_sparsity: float | None
    """Share of the elements that it leaves alone."""
    delta_size_bytes: int | None
    transports: list[str]


class RegisterReceiverRequest(Request, frozen=True, kw_only=True):
    """Documented as /register_sglang_instance; fields that only other transports use are optional."""

    sglang_http_host: str
    sglang_http_port: int
    session_ids: list[str] = []
    buffer_ptr: int = 0
    buffer_length: int = 0
    zmq_endpoint: str = ""
    zmq_port: int = 0
    handshake_ports: list[int] = []
    transport: Literal["tcp", "shm", "disk"] = "tcp"


class RegisterReceiverReply(Ok, frozen=True, kw_only=True):
    trainer_global_rank: int = 0
    trainer_world_size: int = 1
    trainer_session_ids: list[str] = []
    trainer_buffer_ptr: int = 0
    trainer_buffer_length: int = 0
    trainer_hostname: str = ""
    trainer_rpc_port: int = 0
    """Port of the bulk streams."""
    shm_name: str | None = None
    path: str | None = None


class ManifestRequest(Request, frozen=True, kw_only=True):
    """GET /manifest/{version}."""

    version: int


class TransferRequest(Request, frozen=True, kw_only=True):
    instance_id: str
    """"sglang_http_host:sglang_http_port" of the registration."""
    mode: Literal["full", "delta"] = "full"
    have_version: int = -1
    version: int | None = None
    """The version wanted; None: the newest."""
    inline_max: int = 0
    """A delta of at most so many bytes may come in the reply: over a long line each round trip costs more than it."""


class TransferReply(Reply, frozen=True, kw_only=True):
    ok: bool
    version: int = -1
    mode: str = "full"
    bytes: int = 0
    offset: int = 0
    """First byte of the version in the shared segment (shm) or file (disk)."""
    path: str | None = None
    """Where the bytes lie, if not in the segment of the registration: a delta (shm), a version's file (disk)."""
    digest: str = ""
    """xxh3-128 of the delta file; empty for a full version, whose manifest says it."""
    ticket: str = ""
    """Names the transfer on the bulk streams (tcp)."""
    data: Blob = b""
    """The delta itself, where it is short enough; then there is nothing to fetch."""
    fallback: str | None = None
    reason: str = ""
