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
