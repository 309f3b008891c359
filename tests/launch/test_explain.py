import json
from pathlib import Path

import pytest

from astraflow.core.config import load_tree
from astraflow.errors import ConfigError
from astraflow.launch.config import load_config_tree
from astraflow.launch.explain import annotated, difference, explain, flatten, reference, schema


def test_a_key_says_type_default_docstring_and_who_reads_it() -> None:
    (found,) = explain("max_staleness")
    assert found.path == "dataflow.buffer.max_staleness"
    assert found.key.type == "int ≥ 0"
    assert found.key.default == "2"
    assert found.key.doc.startswith("η: most training steps")
    assert "astraflow.dataflow.service" in found.readers
    assert found.origin is None
    assert "read by   astraflow.dataflow.service" in str(found)


@pytest.mark.parametrize("name", ["trainer_base.actor.loss", "trainer_model0.actor.loss", "actor.loss"])
def test_a_trainers_key_is_found_by_its_sections_names(name: str) -> None:
    assert [found.path for found in explain(name)] == ["trainer_<name>.actor.loss"]


def test_a_section_is_explained_with_all_that_is_in_it() -> None:
    paths = [found.path for found in explain("dataflow.eval")]
    assert paths == ["dataflow.eval", *(f"dataflow.eval.{key}" for key in ("mode", "share", "keep_rows", "timeout_s"))]


def test_almost_every_key_is_read_by_a_module_that_the_source_shows() -> None:
    # the rest have one meaning only (engine.backend: native) or are written out by name
    leaves = [key for key in reference() if not key.section]
    silent = [found.path for found in explain_all() if not found.key.section and not found.readers]
    assert len(silent) < len(leaves) / 20, silent


def explain_all() -> list:
    return [found for top in ("experiment", "base_model", "raas", "rollout", "dataflow") for found in explain(top)]


def test_with_a_file_a_key_says_its_value_and_its_line(run_yaml: Path) -> None:
    (found,) = explain("max_new_tokens", [run_yaml])
    line = next(n for n, text in enumerate(run_yaml.read_text().splitlines(), 1) if "max_new_tokens" in text)
    assert (found.path, found.value, found.origin) == (
        "raas.models.model0.gconfig.max_new_tokens",
        16,
        f"{run_yaml}:{line}",
    )


def test_overrides_shorthands_and_defaults_are_named_as_such(run_yaml: Path) -> None:
    overrides = ["seed=7", "dataflow.buffer={max_staleness: 1}"]
    (seed,) = explain("experiment.seed", [run_yaml], overrides)
    assert (seed.value, seed.origin) == (7, "override 'experiment.seed=7'")
    (bound,) = explain("max_staleness", [run_yaml], overrides)
    assert (bound.value, bound.origin) == (1, "override 'dataflow.buffer={max_staleness: 1}'")
    (policy,) = explain("stale_policy", [run_yaml], overrides)
    assert (policy.value, policy.origin) == ("drop", "default")


def test_trainer_base_is_explained_where_it_takes_effect(run_yaml: Path) -> None:
    (found,) = explain("trainer_base.train_batch_size", [run_yaml])
    assert (found.path, found.value) == ("trainer_model0.train_batch_size", 32)
    assert str(run_yaml) in str(found.origin)


def test_a_key_that_is_passed_on_is_explained_by_the_function_that_takes_it(run_yaml: Path) -> None:
    (found,) = explain("dataflow.rollout_dataset.name", [run_yaml])
    assert found.key.type == "str"
    assert found.readers == ("astraflow.dataflow.dataset.reasoning_gym:get_reasoning_gym_rl_dataset",)
    (inside,) = explain("dataflow.rollout_dataset.params.max_digits", [run_yaml])
    assert inside.value == 2


def test_a_key_without_effect_says_why(run_yaml: Path) -> None:
    (found,) = explain("reward_timeout_s", [run_yaml], ["rollout.reward_workers=0"])
    assert found.without_effect is not None
    assert "reward_workers: 0" in found.without_effect


@pytest.mark.parametrize("with_file", [False, True])
def test_an_unknown_name_is_an_error_with_the_nearest(run_yaml: Path, with_file: bool) -> None:
    with pytest.raises(ConfigError, match="no key 'max_stalenes', did you mean 'max_staleness'"):
        explain("max_stalenes", [run_yaml] if with_file else [])


def test_what_show_prints_loads_to_the_same_configuration(run_yaml: Path, tmp_path: Path) -> None:
    config, tree = load_config_tree([run_yaml], ["seed=3"])
    text = annotated(config, tree)
    assert "  seed: 3  # override 'experiment.seed=3'" in text.splitlines()
    assert "    max_staleness: 2  # default" in text.splitlines()
    shown = tmp_path / "shown.yaml"
    shown.write_text(text + "\n")
    assert load_config_tree([shown])[0].values() == config.values()


def test_the_schema_knows_every_key_of_the_reference() -> None:
    described = schema()
    json.dumps(described)

    def resolve(node: dict) -> dict:
        for option in (node, *node.get("anyOf", []), *node.get("allOf", [])):
            if "$ref" in option:
                return described["$defs"][option["$ref"].rpartition("/")[2]]
        return next((option for option in (node, *node.get("anyOf", [])) if "properties" in option), node)

    for key in reference():
        node = described
        for part in key.path.split("."):
            node = resolve(node)
            if part == "trainer_<name>":
                (node,) = node["patternProperties"].values()
            elif part == "<name>":
                node = node["additionalProperties"]
            else:
                node = node["properties"][part]


def test_difference_counts_defaults_and_names_both_places(run_yaml: Path, tmp_path: Path) -> None:
    other = tmp_path / "run" / "config.yaml"
    other.parent.mkdir()
    other.write_text(run_yaml.read_text())
    assert difference(run_yaml, other.parent) == []
    other.write_text(other.read_text().replace("train_batch_size: 32", "train_batch_size: 64"))
    other.write_text(other.read_text().replace("max_new_tokens: 16}", "max_new_tokens: 16, temperature: 0.5}"))
    lines = difference(run_yaml, other.parent)
    assert len(lines) == 2
    assert lines[0].startswith("raas.models.model0.gconfig.temperature: 1 (default) → 0.5 (")
    assert str(other) in lines[1]


def test_flatten_gives_sections_before_what_is_in_them(run_yaml: Path) -> None:
    values = load_tree([run_yaml]).values
    paths = [path for path, _ in flatten(values)]
    assert paths.index("raas") < paths.index("raas.models") < paths.index("raas.models.model0.gconfig.n_samples")
