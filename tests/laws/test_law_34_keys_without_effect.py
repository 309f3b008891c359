"""LAW 34: a key without effect (unknown, of a component not selected, one the chosen engine cannot honour) is an error
at load. (SkyRL 644, AReaL vLLM path)
"""

from pathlib import Path

import pytest

from astraflow.errors import ConfigError
from astraflow.launch.check import load_config

WITHOUT_EFFECT = {
    "unknown": (["dataflow.buffer.staleness=1"], "dataflow.buffer.staleness: unknown key"),
    "of an engine that is not selected": (
        ["raas.models.model0.backend=scripted", "raas.models.model0.embedded.max_running_requests=8"],
        "raas.models.model0.embedded: has no effect: backend is scripted",
    ),
    "of a deadline that nothing keeps": (
        ["rollout.reward_workers=0", "rollout.reward_timeout_s=3.0"],
        "rollout.reward_timeout_s: has no effect",
    ),
    "of a transfer that is not selected": (
        ["raas.delta_full_sync_interval=5"],
        "raas.delta_full_sync_interval: has no effect: experiment.weight_transfer_strategies is full",
    ),
    "of a schedule that is not selected": (
        ["trainer_base.actor.optimizer.min_lr_ratio=0.1"],
        "min_lr_ratio: has no effect: lr_scheduler_type is constant",
    ),
    "of an evaluation without datasets": (
        ["dataflow.eval_datasets=null", "dataflow.eval_datasets={}", "trainer_base.evaluator.freq_steps=5"],
        "trainer_base.evaluator: has no effect: there are no dataflow.eval_datasets",
    ),
    "of an evaluation workflow that no dataset uses": (
        ["dataflow.eval_workflows.spare.workflow_cls=rlvr", "dataflow.eval_workflows.spare.reward_fn=math_verify"],
        "dataflow.eval_workflows.spare: has no effect: no entry of eval_datasets uses it",
    ),
    "that a workflow does not take": (["dataflow.workflow_spec.tools=[]"], "workflow rlvr takes: enable_thinking"),
    "that a dataset does not take": (["dataflow.rollout_dataset.shuffle=true"], "shuffle: unknown key"),
    "of a loss that is not selected": (["trainer_base.actor.m2_threshold=0.1"], "m2_threshold belongs to loss: m2po"),
    "that training cannot honour": (["raas.models.model0.gconfig.top_p=0.5"], "top_p: 0.5: training rollouts sample"),
}


@pytest.mark.parametrize(("overrides", "words"), WITHOUT_EFFECT.values(), ids=WITHOUT_EFFECT)
def test_a_key_without_effect_is_refused(run_yaml: Path, overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config([run_yaml], overrides)
    assert words in str(caught.value)
