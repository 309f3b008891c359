"""Settings and scripted peers for Dataflow's tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astraflow.dataflow.config import DataflowSettings

MakeSettings = Callable[..., DataflowSettings]


@pytest.fixture
def make_settings(tmp_path: Path) -> MakeSettings:
    """Settings of a run with `n_samples` per group and given keys of `dataflow` and `dataflow.buffer`."""

    def make(n_samples: int = 2, models: tuple[str, ...] = ("model0",), **dataflow: Any) -> DataflowSettings:
        return DataflowSettings.model_validate(
            {
                "experiment": {"experiment_name": "t", "trial_name": "t", "fileroot": str(tmp_path)},
                "dataflow": {"rollout_dataset": {"dataset_fn": "a.b:c"}, **dataflow},
                "gconfigs": {model_id: {"n_samples": n_samples} for model_id in models},
                "tokenizer_path": "none",
                "run_dir": str(tmp_path),
            }
        )

    return make
