"""Invariant 7: every configuration field has a consumer, code outside the config files that reads it by name."""

import re
from pathlib import Path

import pytest

from astraflow.core.config import ExperimentConfig, Section
from astraflow.core.observability import config as observability_config
from astraflow.dataflow import config as dataflow_config
from astraflow.launch import config as launch_config
from astraflow.launch.explain import reference
from astraflow.raas import config as raas_config
from astraflow.train_worker import config as train_worker_config

PACKAGE = Path(__file__).parent.parent / "astraflow"
SOURCES = "\n".join(
    file.read_text("utf-8")
    for file in PACKAGE.rglob("*.py")
    if file.name != "config.py" or file.parent.name == "launch"
)


def sections() -> list[type[Section]]:
    modules = (observability_config, dataflow_config, raas_config, train_worker_config, launch_config)
    found: set[type[Section]] = {ExperimentConfig}
    for module in modules:
        found.update(
            c for c in vars(module).values() if isinstance(c, type) and issubclass(c, Section) and c is not Section
        )
    return sorted(found, key=lambda c: c.__qualname__)


FIELDS = [(section, name) for section in sections() for name in section.model_fields]


def test_every_key_says_what_it_means() -> None:
    assert [key.path for key in reference() if not key.section and not key.doc] == []


@pytest.mark.parametrize(("section", "name"), FIELDS, ids=[f"{s.__name__}.{n}" for s, n in FIELDS])
def test_every_key_has_a_consumer(section: type[Section], name: str) -> None:
    assert re.search(rf"\.{name}\b|\"{name}\"", SOURCES), f"nothing reads {section.__name__}.{name}"


@pytest.mark.parametrize("section", sections(), ids=lambda s: s.__name__)
def test_every_section_is_documented(section: type[Section]) -> None:
    assert section.__doc__
