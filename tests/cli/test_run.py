from pathlib import Path

import pytest

from astraflow.cli.run import described, outcome
from astraflow.launch.base_model import cache_path
from astraflow.launch.config import load_config_tree
from astraflow.launch.summary import summarise


def test_the_outcome_names_every_figure_and_the_file(run_yaml: Path, tmp_path: Path) -> None:
    config, _ = load_config_tree([run_yaml])
    records = [
        {"step": 0, "time": 0.0, "eval/a/avg@k": 30.0, "eval/a/greedy": 40.0, "dropped/stale": 2.0},
    ]
    lines = outcome(config, summarise(records, staleness_bound=2, wall_s=3.0)).splitlines()
    assert "accuracy_before: sampled 0.3, greedy 0.4" in lines
    assert "dropped: stale 2" in lines
    assert lines[-1] == f"summary: {tmp_path / 'run' / 'summary.json'}"


def test_a_base_model_that_is_cached_is_not_made_again(
    run_yaml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTRAFLOW_CACHE", str(tmp_path / "cache"))
    config, _ = load_config_tree([run_yaml])
    assert "astraflow.train_worker.trainer.sft" in described(config)
    assert config.base_model is not None
    cache_path(config.base_model).mkdir(parents=True)
    assert "astraflow.train_worker.trainer.sft" not in described(config)
