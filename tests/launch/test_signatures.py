import textwrap
from pathlib import Path
from typing import Any, Literal

import pytest

from astraflow.launch.signatures import Signature, signature_of

SOURCE = """
from dataclasses import dataclass
from typing import Literal, Optional
from signed_base import Base, helper as renamed
import numpy as np

Split = Literal["train", "test"]

def plain(a, b: int, c: "float" = 1.0, *, d: str | None = None, e: Split = "train", f: np.ndarray = None): ...
def open_ended(a: int = 1, **rest): ...

class Inherits(Base):
    pass

class Bare:
    pass

@dataclass
class Settings:
    size: int
    seed: Optional[int] = None
    weights: dict[str, float] = None
"""

BASE = """
class Base:
    def __init__(self, x: bool): ...
def helper(y=2): ...
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "signed.py").write_text(textwrap.dedent(SOURCE))
    (tmp_path / "signed_base.py").write_text(
        "class Base:\n    def __init__(self, x: bool): ...\ndef helper(y=2): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    signature_of.cache_clear()


def of(name: str) -> Signature:
    found = signature_of(f"signed:{name}")
    assert found is not None
    return found


def test_types_defaults_and_what_is_required_are_read() -> None:
    signature = of("plain")
    assert signature.types == {
        "a": Any,
        "b": int,
        "c": float,
        "d": str | None,
        "e": Literal["train", "test"],
        "f": Any,
    }
    assert signature.required == {"a", "b"}
    assert signature.defaults == {"c": 1.0, "d": None, "e": "train", "f": None}
    assert not signature.open


def test_inherited_constructors_and_reexports_are_followed() -> None:
    assert of("Inherits").types == {"x": bool}
    assert of("renamed").types == {"y": Any}
    assert of("Bare").types == {}


def test_a_dataclass_takes_its_fields() -> None:
    signature = of("Settings")
    assert signature.types == {"size": int, "seed": int | None, "weights": dict}
    assert signature.required == {"size"}


def test_what_cannot_be_read_is_none() -> None:
    assert signature_of("signed:nothing") is None
    assert signature_of("math:sqrt") is None
    assert signature_of("no_such_module:x") is None


def test_complaints_name_the_key() -> None:
    wrong = of("plain").complaints({"b": "x", "e": "dev", "g": 1}, frozenset(), "dataset d")
    assert set(wrong) == {"a", "b", "e", "g"}
    assert wrong["a"] == "a value is required by dataset d"
    assert "Expected `int`" in wrong["b"]
    assert "unknown key" in wrong["g"]
    assert "known: " in wrong["e"]
    assert of("open_ended").complaints({"anything": 1}, frozenset(), "w") == {}


def test_what_the_system_passes_is_neither_missing_nor_offered() -> None:
    wrong = of("plain").complaints({"g": 1}, frozenset({"a", "b"}), "w")
    assert wrong == {"g": "unknown key; w takes: c, d, e, f"}
