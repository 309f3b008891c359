"""What the configuration asks of RaaS."""

from collections.abc import Callable

import msgspec

from astraflow.core.protocol import messages as m
from astraflow.core.workflow.api.group import GroupPolicy
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.scripted import example_rows
from astraflow.dataflow.workflows import eval_sets, samples_per_group, workflow_requests

MakeSettings = Callable[..., DataflowSettings]
EVALS = {
    "eval_workflows": {"w": {"gconfig_overrides": {"n_samples": 2}}, "same": {}},
    "eval_datasets": {
        "held_out": {"dataset_fn": "a.b:c", "eval_workflow": "w", "repeat": 3, "greedy": False},
        "other": {"dataset_fn": "a.b:c", "eval_workflow": "same"},
    },
}


def test_workflows_are_told_to_every_raas(make_settings: MakeSettings) -> None:
    settings = make_settings(
        workflow_spec={"workflow_cls": "rlvr", "reward_fn": "x:y", "gconfig_overrides": {"top_p": 0.9}, "color": "red"},
        episode_timeout_s=9,
        group={"max_retries": 1, "over_sample": 2, "straggler": "replace", "patience": 4},
        buffer={"min_group_size": 3},
        **EVALS,
    )
    default, evaluation, _ = workflow_requests(settings.dataflow)
    assert default == m.RegisterWorkflowRequest(
        workflow_id="default",
        workflow_cls="rlvr",
        reward_fn="x:y",
        gconfig_overrides={"top_p": 0.9},
        workflow_kwargs={"color": "red"},
        group_policy={
            "episode_timeout_s": 9.0,
            "max_retries": 1,
            "over_sample": 2,
            "straggler": "replace",
            "patience": 4.0,
            "min_group_size": 3,
        },
    )
    assert (evaluation.workflow_id, evaluation.gconfig_overrides) == ("eval/w", {"n_samples": 2})
    assert evaluation.group_policy == {"episode_timeout_s": 9.0}  # an evaluation takes every sample
    for request in (default, evaluation):
        msgspec.convert(request.group_policy, GroupPolicy, strict=True).check()


def test_samples_per_group_are_those_of_the_training_workflow(make_settings: MakeSettings) -> None:
    assert samples_per_group(make_settings(n_samples=8)) == {"model0": 8}
    overridden = make_settings(n_samples=8, workflow_spec={"gconfig_overrides": {"n_samples": 4}})
    assert samples_per_group(overridden) == {"model0": 4}


def test_evaluation_sets_take_the_samples_of_their_workflow(make_settings: MakeSettings) -> None:
    rows = {"held_out": example_rows(1), "other": example_rows(2)}
    held_out, other = eval_sets(make_settings(n_samples=8, **EVALS), rows)
    assert (held_out.workflow_id, held_out.n_samples, held_out.repeat, held_out.greedy) == ("eval/w", 2, 3, False)
    assert (other.workflow_id, other.n_samples, other.repeat, other.greedy) == ("eval/same", 8, 1, True)
