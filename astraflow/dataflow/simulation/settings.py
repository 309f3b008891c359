"""The configuration of a simulated run."""

from __future__ import annotations

from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.simulation.scenario import Scenario

CURATED_FILTERS = ["filter_stale", "filter_invalid", "filter_duplicate", "filter_zero_adv"]
CURATED_PROMPTS = {"greso": {}, "solved": {"after": 2, "passes": 1}, "difficulty": {}}


def settings_of(scenario: Scenario) -> DataflowSettings:
    """The configuration of a simulated run."""
    held_out = {"dataset_fn": "astraflow.dataflow.scripted:example_rows", "eval_workflow": "sums"}
    return DataflowSettings.model_validate(
        {
            "experiment": {"experiment_name": "simulation", "trial_name": "t", "fileroot": "/nonexistent"},
            "dataflow": {
                "rollout_dataset": {"dataset_fn": "astraflow.dataflow.scripted:example_rows", "n": scenario.rows},
                "buffer": {
                    "max_staleness": scenario.max_staleness,
                    "count": scenario.count,
                    "order": scenario.order,
                    "replay": {"ratio": scenario.replay_ratio},
                    "stale_policy": scenario.stale_policy,
                    "filter_function": CURATED_FILTERS if scenario.curated else "filter_zero_adv",
                },
                "curriculum": CURATED_PROMPTS if scenario.curated else {},
                "ledger": {"replayable": scenario.replayable},
                "episode_timeout_s": scenario.episode_timeout_s,
                "eval_workflows": {"sums": {"workflow_cls": "rlvr"}} if scenario.eval_steps else {},
                "eval_datasets": {"held_out": held_out} if scenario.eval_steps else {},
                "eval": {"mode": scenario.eval_mode},
                "barrier": scenario.barrier,
                "barrier_timeout_s": scenario.barrier_timeout_s,
                "max_failure_streak": 10**9,
            },
            "gconfigs": {model_id: {"n_samples": scenario.n_samples} for model_id in scenario.models},
            "tokenizer_path": "none",
            "run_dir": "/nonexistent",
        }
    )
