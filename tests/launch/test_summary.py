import json
from pathlib import Path

from astraflow.launch.summary import summarise, write_summary

STEP = {"rollout/tokens_per_s": 100.0, "train/tokens_per_s": 300.0, "batch/trajectories_with_two_versions": 2.0}
START = {"eval/a/avg@k": 30.0, "eval/a/greedy": 40.0, "eval/a/total": 200.0}
END = {"eval/a/avg@k": 60.0, "eval/a/avg@k_low": 55.0, "eval/a/avg@k_high": 65.0, "eval/a/greedy": 75.0}
RECORDS = [
    {"step": 0, "time": 0.0, "version": 0.0, **START},
    {"step": 1, "time": 2.0, "version": 1.0, "staleness/max": 0.0, **STEP},
    {"step": 2, "time": 4.0, "version": 2.0, "staleness/max": 2.0, **STEP, "dropped/zero_advantage": 7.0},
    {"step": 3, "time": 8.0, "version": 3.0, "staleness/max": 1.0, **STEP, "dropped/zero_advantage": 9.0}
    | {**START, **END, "timeperf/eval": 2.0},
]


def test_the_summary_of_a_run(tmp_path: Path) -> None:
    summary = summarise(RECORDS, staleness_bound=2, wall_s=12.344)
    write_summary(summary, tmp_path / "summary.json")
    assert json.loads((tmp_path / "summary.json").read_text()) == {
        "accuracy_before": {"sampled": 0.3, "greedy": 0.4},
        "accuracy_after": {"sampled": 0.6, "greedy": 0.75},
        "accuracy_after_interval": [0.55, 0.65],
        "eval_count": 200,
        "eval_rounds": 2,
        "rl_steps": 3,
        "wall_s": 12.34,
        "max_trained_staleness": 2,
        "staleness_bound": 2,
        "weight_updates": 3,
        "trajectories_with_two_versions": 6,
        "rollout_tokens_per_s": 100.0,
        "train_tokens_per_s": 300.0,
        "steps_per_min": 30.0,
        "dropped": {"zero_advantage": 9},
    }


def test_only_an_evaluation_before_the_first_step_is_the_start() -> None:
    summary = summarise(RECORDS[1:], staleness_bound=2, wall_s=1.0)
    assert summary.accuracy_before == {}
    assert summary.accuracy_after == {"sampled": 0.6, "greedy": 0.75}


def test_a_run_without_steps_or_evaluations_has_a_summary() -> None:
    summary = summarise([], staleness_bound=2, wall_s=1.0)
    assert (summary.rl_steps, summary.accuracy_before, summary.eval_count) == (0, {}, 0)
