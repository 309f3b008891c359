from typing import Literal

import msgspec
import pytest
from pydantic import Field

from astraflow.core.config import Section, struct_field
from astraflow.core.config.reference import Key, attribute_docstrings, keys, value_text


class Sampling(msgspec.Struct, frozen=True):
    """A record."""

    temperature: float = 1.0
    """Divides the logits."""
    stop: tuple[str, ...] = ()


class Inner(Section):
    """The inner section.

    More about it.
    """

    rate: float = Field(default=0.5, gt=0, le=1)
    mode: Literal["drop", "mask"] = "drop"


class Outer(Section):
    """A section."""

    name: str = Field(min_length=1)
    """Two lines
    of words."""
    limit: int | None = Field(default=None, ge=1)
    tuned: Inner = Inner(rate=0.25)
    maybe: Inner | None = None
    many: dict[str, Inner] = {}
    sampling: struct_field(Sampling) = Sampling()  # type: ignore[valid-type]


KEYS = {key.path: key for key in keys(Outer, "top.")}


def test_the_order_is_the_sources_and_sections_come_before_what_is_in_them() -> None:
    assert list(KEYS)[:5] == ["top.name", "top.limit", "top.tuned", "top.tuned.rate", "top.tuned.mode"]


@pytest.mark.parametrize(
    ("path", "kind", "default", "doc"),
    [
        ("top.name", "str (not empty)", "required", "Two lines\nof words."),
        ("top.limit", "int ≥ 1 or null", "null", ""),
        ("top.tuned", "section", "", "The inner section."),
        ("top.tuned.rate", "float > 0, ≤ 1", "0.25", ""),  # of the section's default, not of its class
        ("top.maybe", "section", "null", "The inner section."),
        ("top.maybe.rate", "float > 0, ≤ 1", "0.5", ""),
        ("top.many", "sections by name", "", "The inner section."),
        ("top.many.<name>.mode", "'drop' or 'mask'", "drop", ""),
        ("top.sampling.temperature", "float", "1", "Divides the logits."),
        ("top.sampling.stop", "list[str]", "[]", ""),
    ],
)
def test_each_key_says_type_default_and_docstring(path: str, kind: str, default: str, doc: str) -> None:
    key = KEYS[path]
    assert (key.type, key.default, key.doc) == (kind, default, doc)


def test_a_path_with_a_users_name_matches_its_key() -> None:
    key = KEYS["top.many.<name>.mode"]
    assert key.matches("top.many.held_out.mode")
    assert not key.matches("top.many.a.b.mode")
    assert not key.matches("topXmany.a.mode")
    assert Key("trainer_<name>.lr", Inner, "lr", "", "", "").matches("trainer_model0.lr")


def test_values_are_written_as_yaml_says_them() -> None:
    value = {"a": [None, True, 1e-6], "b": "x", "c": 1200.0}
    assert value_text(value) == "{a: [null, true, 1e-06], b: x, c: 1200}"


def test_docstrings_belong_to_the_field_above_them() -> None:
    assert attribute_docstrings(Sampling) == {"temperature": "Divides the logits."}
