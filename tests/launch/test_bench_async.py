from pathlib import Path

import pytest

from astraflow.errors import ConfigError
from astraflow.launch.bench_async import ARMS, Estimate, arm_config, bench
from astraflow.launch.config import RunConfig, load_config_tree
from astraflow.launch.summary import Summary


@pytest.fixture
def config(run_yaml: Path) -> RunConfig:
    return load_config_tree([run_yaml], ["trainer_base.evaluator.freq_steps=5"])[0]


def summary(steps_per_min: float, accuracy: float, stale: int) -> Summary:
    return Summary(
        accuracy_before={},
        accuracy_after={"sampled": accuracy, "greedy": None},
        accuracy_after_interval=None,
        eval_count=200,
        eval_rounds=1,
        rl_steps=10,
        wall_s=1.0,
        max_trained_staleness=1,
        staleness_bound=2,
        weight_updates=10,
        trajectories_with_two_versions=1,
        rollout_tokens_per_s=1.0,
        train_tokens_per_s=1.0,
        steps_per_min=steps_per_min,
        dropped={"stale": stale, "zero_advantage": 20 - stale},
    )


def test_arms_differ_in_bound_threads_and_wait_only(config: RunConfig) -> None:
    arms = {arm.name: arm_config(config, arm, seed=3) for arm in ARMS}
    assert {name: c.staleness_bound for name, c in arms.items()} == {
        "wait/async": 2,
        "wait/sync": 0,
        "plain/async": 2,
        "plain/sync": 0,
        "plain/sync_2_threads": 0,
    }
    assert {name for name, c in arms.items() if c.dataflow.buffer.rollout_wait} == {"wait/async", "wait/sync"}
    assert {name for name, c in arms.items() if c.trainers["model0"].threads == 2} == {"plain/sync_2_threads"}
    assert len({c.experiment.fileroot for c in arms.values()}) == len(ARMS)
    for arm in arms.values():
        assert arm.experiment.seed == 3
        assert arm.trainers["model0"].evaluator.freq_steps is None
        assert arm.rollout == config.rollout
        assert arm.raas == config.raas


def test_ratios_shares_and_intervals(config: RunConfig) -> None:
    speeds = {"wait-async": 40.0, "wait-sync": 8.0, "plain-async": 30.0, "plain-sync": 20.0}

    def run(arm: RunConfig) -> Summary:
        name, _, seed = Path(arm.experiment.fileroot).name.rpartition("-seed")
        return summary(speeds.get(name, 25.0), 0.6 + int(seed) / 100, stale=10 if arm.staleness_bound else 0)

    result = bench(config, [1, 2, 3], run, lambda line: None)
    assert result.ratios == {"wait": 5.0, "plain_vs_sync_1_thread": 1.5, "plain_vs_sync_2_threads": 1.2}
    assert result.arms["wait/async"].stale_share == 30 / (3 * (10 * 8 + 20))
    assert result.arms["wait/sync"].stale_share == 0.0
    assert result.accuracy_intervals_overlap == dict.fromkeys(result.ratios, True)
    assert (result.max_concurrent, result.groups_per_step, result.steps) == (8, 8, 10)


def test_intervals_are_students() -> None:
    estimate = Estimate.of([1.0, 2.0, 3.0])
    assert estimate.mean == 2.0
    assert estimate.interval == pytest.approx((2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5))
    assert estimate.overlaps(Estimate.of([9.0, 9.1, 9.2])) is False
    assert Estimate.of([1.0]).interval is None
    assert Estimate.of([1.0]).overlaps(estimate) is None


def test_a_bench_needs_an_evaluation(run_yaml: Path) -> None:
    text = run_yaml.read_text()
    start, end = text.index("  eval_workflows:"), text.index("trainer_base:")
    run_yaml.write_text(text[:start] + text[end:])
    with pytest.raises(ConfigError, match="eval_datasets is empty"):
        bench(load_config_tree([run_yaml])[0], [1], lambda arm: summary(1, 1, 0), print)
