"""What the configuration asks of RaaS: the workflows to register, and how many samples each takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from astraflow.core.data.trajectory import Row
from astraflow.core.protocol.messages import RegisterWorkflowRequest
from astraflow.dataflow.config import DataflowConfig, DataflowSettings, WorkflowConfig
from astraflow.dataflow.data_acquisition import WORKFLOW_ID
from astraflow.dataflow.evaluation import EvalSet


def workflow_requests(config: DataflowConfig) -> list[RegisterWorkflowRequest]:
    """What every RaaS is to know: the training workflow as "default", the others as "eval/<name>"."""
    specs = {WORKFLOW_ID: config.workflow_spec, **{f"eval/{name}": w for name, w in config.eval_workflows.items()}}
    requests = []
    for workflow_id, spec in specs.items():
        policy: dict[str, Any] = {"episode_timeout_s": config.episode_timeout_s}
        if workflow_id == WORKFLOW_ID:
            policy |= _training_policy(config)
        requests.append(
            RegisterWorkflowRequest(
                workflow_id=workflow_id,
                workflow_cls=spec.workflow_cls,
                reward_fn=spec.reward_fn,
                gconfig_overrides=dict(spec.gconfig_overrides),
                workflow_kwargs=spec.keywords,
                group_policy=policy,
            )
        )
    return requests


def _training_policy(config: DataflowConfig) -> dict[str, Any]:
    """What only training groups have: an evaluation takes every sample, however long."""
    buffer = config.buffer
    policy: dict[str, Any] = config.group.model_dump(exclude_defaults=True)
    if buffer.min_group_size is not None:
        policy["min_group_size"] = buffer.min_group_size
    if buffer.rollout_wait is not None:
        policy["wait"] = buffer.rollout_wait.model_dump()
    return policy


def samples_per_group(settings: DataflowSettings) -> dict[str, int]:
    """model_id → n_samples of the training workflow."""
    return {model_id: _n_samples(settings, model_id, settings.dataflow.workflow_spec) for model_id in settings.gconfigs}


def eval_sets(settings: DataflowSettings, rows: Mapping[str, Sequence[Row]]) -> list[EvalSet]:
    """The evaluation datasets with their rows, by name."""
    config = settings.dataflow
    model_id = next(iter(settings.gconfigs))
    return [
        EvalSet(
            name=name,
            workflow_id=f"eval/{dataset.eval_workflow}",
            rows=rows[name],
            n_samples=_n_samples(settings, model_id, config.eval_workflows[dataset.eval_workflow]),
            repeat=dataset.repeat,
            greedy=dataset.greedy,
            k=dataset.k,
        )
        for name, dataset in config.eval_datasets.items()
    ]


def _n_samples(settings: DataflowSettings, model_id: str, workflow: WorkflowConfig) -> int:
    return int(workflow.gconfig_overrides.get("n_samples", settings.gconfigs[model_id].n_samples))
