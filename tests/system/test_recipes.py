"""Every recipe in examples/ is right as it stands, and its rows and rewards are what it says."""

import json
from pathlib import Path

import pytest

from astraflow.core.data import Value
from astraflow.core.dataset.loading import load_rows
from astraflow.core.workflow.registry import REWARD_REGISTRY
from astraflow.launch.check import load_config
from astraflow.launch.config import RunConfig

EXAMPLES = Path(__file__).parents[2] / "examples"
RECIPES = sorted(EXAMPLES.rglob("*.yaml"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Stands where a recipe names a model that may not be installed."""
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    return tmp_path


@pytest.fixture(autouse=True)
def gsm8k(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"question": f"What is {n}?", "answer": f"It is.\n#### {n}"} for n in range(100)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.setenv("GSM8K_JSONL", str(tmp_path / "train.jsonl"))


def checked(file: Path, model: Path) -> RunConfig:
    """A recipe, or what is put on top of the quickstart."""
    text = file.read_text("utf-8")
    files = [file] if "rollout_dataset" in text else [EXAMPLES / "quickstart.yaml", file]
    return load_config(files, [f"experiment.model_path={model}"] if "model_path" in text else [])


@pytest.mark.parametrize("file", RECIPES, ids=[file.stem for file in RECIPES])
def test_a_recipe_is_right(file: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.syspath_prepend(str(file.parent))
    config = checked(file, model)
    assert config.model_ids
    assert config.experiment.experiment_name == file.stem


def test_gsm8k_pays_for_the_number_and_a_tenth_for_its_line(model: Path) -> None:
    pytest.importorskip("math_verify")
    config = checked(EXAMPLES / "gsm8k-smollm2.yaml", model)
    dataset = config.dataflow.rollout_dataset
    row = load_rows(dataset.dataset_fn, dataset.keywords, split="train", seed=1, tokenizer=None)[0]
    reward = REWARD_REGISTRY.resolve(str(config.dataflow.workflow_spec.reward_fn))
    assert reward("", f"Let me see.\n#### {row['answer']}", [], [], **row) == Value(
        1.1, {"correct": 1.0, "format": 1.0}
    )
    assert reward("", f"The answer is {row['answer']}", [], [], **row) == Value(1.0, {"correct": 1.0, "format": 0.0})


def test_the_form_that_pays_is_the_one_that_is_asked_for(model: Path) -> None:
    config = checked(EXAMPLES / "smollm2-format.yaml", model)
    dataset = config.dataflow.rollout_dataset
    row = load_rows(dataset.dataset_fn, {**dataset.keywords, "size": 5}, split="train", seed=1, tokenizer=None)[0]
    asked = row["messages"][0]["content"]
    assert "equation" in asked
    expression = row["entry"]["metadata"]["expression"]
    reward = REWARD_REGISTRY.resolve(str(config.dataflow.workflow_spec.reward_fn))
    assert reward("", f"{expression} = {row['answer']}", [], [], **row) == 1.0
    assert reward("", f"The answer is {row['answer']}", [], [], **row) == 0.0
