from pathlib import Path

import pytest

from astraflow.core.config import ExperimentConfig, write_settings
from astraflow.core.observability import log
from astraflow.launch import publisher
from astraflow.launch.evaluation import PublisherSettings


def test_a_checkpoint_that_cannot_be_read_is_one_line_and_exit_code_1(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "configure", lambda: None)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    settings = PublisherSettings(
        experiment=ExperimentConfig(experiment_name="e", trial_name="t", fileroot=str(tmp_path)),
        model_id="model0",
        model_path=str(tmp_path),
        train_batch_size=8,
        timeout_s=1.0,
        dataflow_url="http://127.0.0.1:9",
        run_dir=str(tmp_path / "run"),
        output=str(tmp_path / "eval.json"),
    )
    assert publisher.main(["--settings", str(write_settings(settings, tmp_path / "publisher.json"))]) == 1
    assert "unknown model_type 'gpt2'" in caplog.records[-1].message
