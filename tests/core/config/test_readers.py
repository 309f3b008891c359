from pathlib import Path

import pytest

from astraflow.core.config import Section
from astraflow.core.config.readers import Readers

CONFIG = """\
class Inner(Section):
    rate: float = 1.0
    mode: str = "a"

class Outer(Section):
    inner: Inner = Inner()
    many: dict[str, Inner] = {}

    def check(self): return self.inner.rate
"""

READS = {
    "parameter": "from pkg.config import Inner\ndef use(c: Inner): return c.rate",
    "attribute": (
        "class A:\n    def __init__(self, c: Outer):\n        self._c = c\n    def go(self): return self._c.inner.rate"
    ),
    "item": "def use(c: Outer): return c.many['x'].rate",
    "loop": "def use(c: Outer):\n    for name, one in c.many.items():\n        yield name, one.rate",
    "comprehension": "def use(c: Outer): return [one.rate for one in c.many.values()]",
    "closure": "def use(c: 'Inner'):\n    return lambda: c.rate",
    "returned": "def make() -> Inner: ...\ndef use(): return make().rate",
    "either": "def use(c: Inner | None, d: Inner): return (c or d).rate",
    "property": "class A:\n    @property\n    def c(self) -> Inner: ...\ndef use(a: A): return a.c.rate",
    "other class": "class Other:\n    rate: int\ndef use(c: Other): return c.rate",
    "other name": "def use(c: Inner): return c.mode",
    "written": "def use(c: Inner): c.rate = 2",
}


class Inner(Section):
    """As the package of the test declares it."""

    rate: float = 1.0
    mode: str = "a"


@pytest.mark.parametrize("name", READS)
def test_reads_are_found_by_annotations(name: str, tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "config.py").write_text(CONFIG)
    (package / "reads.py").write_text(READS[name] + "\n")
    expected = [] if name in ("other class", "other name", "written") else ["pkg.reads"]
    assert Readers(package).of(Inner, "rate") == expected


def test_a_key_of_a_base_is_read_where_the_base_is(tmp_path: Path) -> None:
    class Derived(Inner):
        """With keys of its own."""

    package = tmp_path / "pkg"
    package.mkdir()
    (package / "config.py").write_text(CONFIG + "class Derived(Inner): pass\n")
    (package / "reads.py").write_text("def use(c: Inner): return c.rate\n")
    assert Readers(package).of(Derived, "rate") == ["pkg.reads"]
