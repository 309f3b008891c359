from pathlib import Path

import pytest

from astraflow.core.config import (
    ExperimentConfig,
    OpenSection,
    Section,
    build,
    load_tree,
    read_settings,
    struct_field,
)
from astraflow.core.data import GenerationHyperparameters
from astraflow.errors import ConfigError


class Inner(Section):
    depth: int = 2
    rate: float = 1e-3
    names: tuple[str, ...] = ()


class Open(OpenSection):
    dataset_fn: str = "a:b"


class Root(Section):
    inner: Inner = Inner()
    extra: Open = Open()
    many: dict[str, Inner] = {}
    gconfig: struct_field(GenerationHyperparameters) = GenerationHyperparameters()  # type: ignore[valid-type]
    maybe: Inner | None = None


def write(tmp_path: Path, *texts: str) -> list[Path]:
    files = []
    for number, text in enumerate(texts):
        file = tmp_path / f"{number}.yaml"
        file.write_text(text)
        files.append(file)
    return files


def load(files: list[Path], *overrides: str) -> Root:
    return build(Root, load_tree(files, overrides))


def test_later_files_win_and_merge_deeply(tmp_path: Path) -> None:
    files = write(tmp_path, "inner: {depth: 1, rate: 5e-6}", "inner: {depth: 3}")
    assert load(files).inner == Inner(depth=3, rate=5e-6)


def test_a_byte_order_mark_is_not_part_of_the_first_key(tmp_path: Path) -> None:
    [file] = write(tmp_path, "\ufeffinner: {depth: 3}")
    assert load([file]).inner.depth == 3


def test_settings_that_are_no_text_are_named(tmp_path: Path) -> None:
    (tmp_path / "dataflow.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"dataflow\.json: Invalid JSON"):
        read_settings(Root, tmp_path / "dataflow.json")


def test_overrides_win_over_files(tmp_path: Path) -> None:
    files = write(tmp_path, "inner: {depth: 1}")
    root = load(files, "inner.depth=7", "+many.a.depth=4", "inner.names=[x,y]")
    assert (root.inner.depth, root.many["a"].depth, root.inner.names) == (7, 4, ("x", "y"))


def test_an_override_with_nothing_in_it_empties_a_section(tmp_path: Path) -> None:
    files = write(tmp_path, "inner: {depth: 1}\nmany: {a: {depth: 3}, b: {rate: 2.0}}")
    assert load(files, "many={}").many == {}
    assert load(files, "many.a={}").many == {"a": Inner(), "b": Inner(rate=2.0)}
    assert load(files, "many={}", "many.c.depth=5").many == {"c": Inner(depth=5)}
    assert load(files, "inner={}").inner == Inner()


def test_interpolation_reads_keys_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTRAFLOW_TEST_DEPTH", "9")
    files = write(
        tmp_path, "inner: {depth: '${oc.decode:${oc.env:ASTRAFLOW_TEST_DEPTH}}'}\nmaybe: {depth: '${inner.depth}'}"
    )
    root = load(files)
    assert root.inner.depth == 9
    assert root.maybe is not None
    assert root.maybe.depth == 9


def test_open_sections_keep_further_keys(tmp_path: Path) -> None:
    assert load(write(tmp_path, "extra: {dataset_fn: 'x:y', size: 3}")).extra.keywords == {"size": 3}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("inner:\n  dept: 1", ["0.yaml:2", "inner.dept", "unknown key", "did you mean 'depth'", "names, rate"]),
        ("inner: {depth: 1.5}", ["0.yaml:1", "inner.depth", "integer", "1.5"]),
        ("inner: {depth: true}", ["inner.depth", "integer", "True"]),
        ("inner: {depth: '3'}", ["inner.depth", "integer", "'3'"]),
        ("inner: {names: x}", ["inner.names", "'x'"]),
        ("inner: 3", ["0.yaml:1", "inner"]),
        ("many: {a: {dept: 1}}", ["many.a.dept", "unknown key", "did you mean 'depth'"]),
        ("maybe: {rat: 1}", ["maybe.rat", "did you mean 'rate'"]),
        ("innr: {depth: 1}", ["innr", "unknown key", "did you mean 'inner'"]),
        ("gconfig: {temperatur: 1.0}", ["gconfig", "temperatur", "temperature"]),
        ("gconfig: {temperature: 0.0}", ["gconfig.temperature", "out of range"]),
        ("gconfig: {n_samples: two}", ["gconfig", "int"]),
        ("inner: {depth: 1}\ninner: {depth: 2}", ["0.yaml:2", "inner is set twice"]),
        ("inner: {depth: 1", ["0.yaml:", "not YAML"]),
        ("- a", ["expected keys and values"]),
        ("? [a, b]\n: 1", ["0.yaml", "unhashable"]),
        ("inner: &x {depth: *x}", ["0.yaml", "an alias holds itself"]),
        ("a: " + "[" * 5000, ["0.yaml", "nested too deeply"]),
        ("inner: {depth: '${nothing.here}'}", ["interpolation", "nothing.here"]),
        ("inner: {depth: '${oc.env:ASTRAFLOW_SURELY_UNSET}'}", ["interpolation", "ASTRAFLOW_SURELY_UNSET"]),
    ],
)
def test_a_wrong_file_is_one_clear_error(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, text))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("inner.dept=1", ["override 'inner.dept=1'", "unknown key", "did you mean 'depth'"]),
        ("inner.depth", ["expected key.path=value"]),
        ("=1", ["expected key.path=value"]),
        ("inner..depth=1", ["expected key.path=value"]),
        ("+inner.depth=3", ["is set already", "0.yaml:1"]),
        ("inner.depth=x", ["override 'inner.depth=x'", "integer"]),
    ],
)
def test_a_wrong_override_is_named(tmp_path: Path, override: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, "inner: {depth: 1}"), override)
    for word in words:
        assert word in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: No such file"):
        load_tree([tmp_path / "none.yaml"])


def test_a_missing_value_is_named(tmp_path: Path) -> None:
    files = write(tmp_path, "experiment_name: a")
    with pytest.raises(ConfigError, match="trial_name: a value is required"):
        build(ExperimentConfig, load_tree(files))


def test_all_wrong_keys_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, "inner: {dept: 1, rat: 2}"))
    assert len(str(caught.value).splitlines()) == 2


def test_sections_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Inner().depth = 3  # type: ignore[misc]
