"""The workflows that Dataflow registered here: a checked specification each, and the instances made of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from astraflow.core.data import GenerationHyperparameters
from astraflow.core.protocol.messages import RegisterWorkflowRequest, RegisterWorkflowResult
from astraflow.core.workflow.api.group import GroupPolicy
from astraflow.core.workflow.api.reward_api import ServedReward
from astraflow.core.workflow.api.workflow_api import EpisodeWorkflow, RolloutWorkflow
from astraflow.core.workflow.registry import REWARD_REGISTRY, WORKFLOW_REGISTRY
from astraflow.core.workflow.reward.pool import RewardPool
from astraflow.core.workflow.reward.shipping import RewardFunction
from astraflow.errors import CallerError, ConfigError, DataError, EngineError, boundary

INSTANCES_KEPT = 16
"""Instances of one workflow beside its own; n_samples comes with each task, and may be any."""

OFFERED = ("reward_fn", "gconfig", "tokenizer")
"""What a workflow's __init__ gets of us, those of it that it names."""


class Rewards:
    """How rewards are computed in this service."""

    def __init__(self, workers: int, timeout_seconds: float) -> None:
        self.pool = RewardPool(workers) if workers else None
        self.timeout_seconds = timeout_seconds

    def serve(self, name: str) -> ServedReward:
        """The reward of a registered name or module:function, not imported here where that can be helped."""
        REWARD_REGISTRY.check(name)
        target = REWARD_REGISTRY.target(name)
        function: RewardFunction | str = REWARD_REGISTRY.resolve(name) if target is None else target
        return ServedReward(function, pool=self.pool, timeout_seconds=self.timeout_seconds)

    def close(self) -> None:
        if self.pool is not None:
            self.pool.close()


class Registration:
    """One registered workflow. Tasks that change n_samples or greediness get an instance of their own, made once."""

    def __init__(
        self,
        request: RegisterWorkflowRequest,
        gconfig: GenerationHyperparameters,
        policy: GroupPolicy,
        make: Callable[[GenerationHyperparameters], RolloutWorkflow],
    ) -> None:
        self.request = request
        self.gconfig = gconfig
        self.policy = policy
        self._make = make
        self._instances = {(gconfig.n_samples, gconfig.greedy): make(gconfig)}

    def instance(self, n_samples: int, greedy: bool) -> RolloutWorkflow:
        """The workflow for groups of `n_samples`; `greedy` takes the most likely tokens whatever gconfig says."""
        key = (n_samples, greedy or self.gconfig.greedy)
        if key not in self._instances:
            if len(self._instances) > INSTANCES_KEPT:
                del self._instances[list(self._instances)[1]]  # the first is what the registration itself asks for
            self._instances[key] = self._make(self.gconfig.new(n_samples=key[0], greedy=key[1]))
        return self._instances[key]


class RegisteredWorkflows:
    """Registrations by workflow_id."""

    def __init__(
        self,
        gconfig: GenerationHyperparameters,
        tokenizer: Any,
        rewards: Rewards,
        supports: Callable[[GenerationHyperparameters], None],
    ) -> None:
        """`gconfig` is what overrides change; `supports` raises EngineError for what an engine cannot honour."""
        self.rewards = rewards
        self._gconfig = gconfig
        self._tokenizer = tokenizer
        self._supports = supports
        self._registrations: dict[str, Registration] = {}

    def register(self, request: RegisterWorkflowRequest) -> RegisterWorkflowResult:
        """Check and keep a specification; the same one again changes nothing, another one of that id replaces it.

        Raises ConfigError (400) for an unknown name, keyword, gconfig or policy field, or one that cannot be honoured.
        """
        known = self._registrations.get(request.workflow_id)
        changed = known is None or known.request != request
        if changed:
            self._registrations[request.workflow_id] = self._registration(request)
        return RegisterWorkflowResult(
            workflow_id=request.workflow_id, registered=changed, total_workflows=len(self._registrations)
        )

    def get(self, workflow_id: str) -> Registration:
        try:
            return self._registrations[workflow_id]
        except KeyError:
            known = ", ".join(sorted(self._registrations)) or "none"
            raise CallerError(f"workflow '{workflow_id}' is not registered; registered: {known}", 404) from None

    def _registration(self, request: RegisterWorkflowRequest) -> Registration:
        policy = _struct(GroupPolicy, request.group_policy, "group_policy")
        fields = {**msgspec.structs.asdict(self._gconfig), **request.gconfig_overrides}
        gconfig = _struct(GenerationHyperparameters, fields, "gconfig_overrides")
        try:
            self._supports(gconfig)
        except EngineError as error:
            raise ConfigError(f"workflow '{request.workflow_id}': {error}") from error
        cls = WORKFLOW_REGISTRY.resolve(request.workflow_cls)
        if not (isinstance(cls, type) and issubclass(cls, RolloutWorkflow)):
            raise ConfigError(f"workflow '{request.workflow_cls}' is not a RolloutWorkflow")
        if policy.by_sample and not issubclass(cls, EpisodeWorkflow):
            raise ConfigError(
                f"workflow '{request.workflow_cls}' samples whole groups: over_sample and straggler "
                f"{policy.straggler} need an EpisodeWorkflow"
            )
        offered = {"tokenizer": self._tokenizer}
        if request.reward_fn is not None:
            offered["reward_fn"] = self.rewards.serve(request.reward_fn)

        def make(with_gconfig: GenerationHyperparameters) -> RolloutWorkflow:
            return _construct(cls, {**offered, "gconfig": with_gconfig}, request.workflow_kwargs)

        return Registration(request, gconfig, policy, make)


def _construct(cls: type[RolloutWorkflow], offered: Mapping[str, Any], kwargs: Mapping[str, Any]) -> RolloutWorkflow:
    """Call a workflow's class with what it names of `offered`, and all of `kwargs`."""
    parameters = inspect.signature(cls).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    unknown = sorted(set(kwargs) - set(parameters)) if not takes_any else []
    if unknown:
        raise ConfigError(f"{cls.__name__} does not take {', '.join(unknown)}; it takes: {', '.join(parameters)}")
    missing = [name for name in OFFERED if name not in offered and _required(parameters.get(name))]
    if missing:
        raise ConfigError(f"{cls.__name__} needs {', '.join(missing)}, and none was configured")
    named = {name: value for name, value in offered.items() if name in parameters}
    with boundary(ConfigError, f"{cls.__name__} cannot be made"):
        return cls(**{**named, **kwargs})


def _required(parameter: inspect.Parameter | None) -> bool:
    return parameter is not None and parameter.default is parameter.empty


def _struct(kind: type[Any], fields: Mapping[str, Any], where: str) -> Any:
    try:
        return msgspec.convert(fields, kind, strict=True).check()
    except (msgspec.ValidationError, DataError) as error:
        known = ", ".join(kind.__struct_fields__)
        raise ConfigError(f"{where}: {error} (fields: {known})") from error
