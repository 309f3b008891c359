import io
import signal
from pathlib import Path

import pytest

from astraflow.core.observability.run_directory import RunDirectory
from astraflow.errors import ConfigError
from astraflow.launch import evaluation
from astraflow.launch.config import RunConfig, load_config_tree
from astraflow.launch.evaluation import evaluate, publisher_spec
from astraflow.launch.local import Interrupted
from astraflow.launch.specs import ModelPaths
from astraflow.launch.view import PlainView


def test_nothing_to_score_on_is_an_error_before_anything_starts(run_yaml: Path, tmp_path: Path) -> None:
    text = run_yaml.read_text()
    start, end = text.index("  eval_workflows:"), text.index("trainer_base:")
    run_yaml.write_text(text[:start] + text[end:])
    config = load_config_tree([run_yaml])[0].starting_from(tmp_path)
    with pytest.raises(ConfigError, match="eval_datasets is empty"):
        evaluate(config, PlainView(io.StringIO()))


def test_a_checkpoint_is_of_one_model(run_yaml: Path, tmp_path: Path) -> None:
    config = load_config_tree([run_yaml], ["raas.models.model1.backend=embedded"])[0].starting_from(tmp_path)
    with pytest.raises(ConfigError, match="of one model"):
        evaluate(config, PlainView(io.StringIO()))


def test_an_evaluation_that_is_interrupted_leaves_nothing(
    run_yaml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(config: RunConfig, run_dir: RunDirectory, progress: object) -> Path:
        seen.append(run_dir.root)
        raise Interrupted(signal.SIGINT)

    seen: list[Path] = []
    monkeypatch.setattr(evaluation, "ensure_model", interrupted)
    config = load_config_tree([run_yaml])[0].starting_from(tmp_path)
    with pytest.raises(Interrupted):
        evaluate(config, PlainView(io.StringIO()))
    assert len(seen) == 1
    assert not seen[0].exists()


def test_the_publisher_is_given_the_checkpoint(run_yaml: Path, tmp_path: Path) -> None:
    config = load_config_tree([run_yaml])[0].starting_from(tmp_path / "step_000001")
    paths = ModelPaths.of(config, tmp_path / "step_000001")
    spec = publisher_spec(config, RunDirectory(tmp_path, create=False), paths, "http://x", tmp_path / "eval.json")
    assert spec.module == "astraflow.launch.publisher"
    assert spec.settings.model_dump()["model_path"] == str(tmp_path / "step_000001")
