import sys
from pathlib import Path

import pytest

from astraflow.errors import ConfigError, UnknownNameError
from astraflow.registry import Registry, check_target, load_target


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_plugin_pkg").mkdir()
    (tmp_path / "my_plugin_pkg" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "my_plugin_pkg" / "parts.py").write_text(
        "raise RuntimeError('imported')\n"
        "class Base:\n    def __init__(self, reward_fn, depth=2): ...\n"
        "class Child(Base):\n    pass\n"
        "class Plain: pass\n"
        "def reward(prompt, completions, *, strict=False, **row): ...\n"
        "def dataset(split, path=None): ...\n"
        "if True:\n    LATE = 1\n"
        "try:\n    import json as fast\nexcept ImportError:\n    fast = None\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return "my_plugin_pkg.parts"


@pytest.mark.parametrize("name", ["Base", "Child", "reward", "LATE", "fast"])
def test_a_target_is_checked_without_importing_it(plugin: str, name: str) -> None:
    check_target(f"{plugin}:{name}")
    assert plugin not in sys.modules


def test_a_missing_attribute_names_what_the_module_defines(plugin: str) -> None:
    with pytest.raises(ConfigError, match="does not define 'rewrd', did you mean 'reward'"):
        check_target(f"{plugin}:rewrd")


@pytest.mark.parametrize("target", ["no_such_module_x:a", "my_plugin_pkg.none:a"])
def test_a_missing_module_is_named(plugin: str, target: str) -> None:
    with pytest.raises(ConfigError, match="there is no module"):
        check_target(target)


@pytest.mark.parametrize("target", ["a b:c", "a:", ":a", "a.b:c d", "a..b:c"])
def test_a_malformed_target_is_refused(target: str) -> None:
    with pytest.raises(ConfigError, match="not of the form"):
        check_target(target)


def test_a_failing_import_is_a_config_error(plugin: str) -> None:
    with pytest.raises(ConfigError, match="cannot be imported: RuntimeError: imported"):
        load_target(f"{plugin}:Base")


def test_builtins_resolve_lazily_and_registered_objects_win() -> None:
    registry = Registry("codec", {"json": "json:dumps"})
    assert registry.resolve("json") is __import__("json").dumps
    marker = object()
    registry.register("mine")(marker)
    assert registry.resolve("mine") is marker
    assert registry.names() == ["json", "mine"]
    registry.check("mine")
    assert registry.resolve("json:loads") is __import__("json").loads


def test_a_name_is_registered_once() -> None:
    registry = Registry("codec", {"json": "json:dumps"})
    registry.register("mine")(1)
    for taken in ("mine", "json"):
        with pytest.raises(ConfigError, match="already registered"):
            registry.register(taken)(2)


def test_a_miss_lists_the_known_names() -> None:
    registry = Registry("codec", {"json": "json:dumps", "yaml": "yaml:dump"})
    for look_up in (registry.check, registry.resolve):
        with pytest.raises(UnknownNameError, match="unknown codec 'jsn', did you mean 'json'\\?; known: json, yaml"):
            look_up("jsn")


@pytest.mark.parametrize(
    ("source", "words"),
    [(b"def f(:\n", ":1: not Python: invalid syntax"), (b"\xff\xfe", "not Python"), (b"x = '\0'\n", "not Python")],
)
def test_a_source_that_is_not_python_is_named(
    source: bytes, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_module.py").write_bytes(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"broken_module\.py") as caught:
        Registry("codec", {}).check("broken_module:f")
    assert words in str(caught.value)


def test_a_folder_is_not_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_a_folder").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="only_a_folder is a folder"):
        Registry("codec", {}).check("only_a_folder:f")
