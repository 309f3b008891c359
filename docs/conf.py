"""Sphinx with MyST. `make docs` builds strictly: a warning is an error.

The pages under reference/ hold a mark in place of their content, which is made from the code at every build.
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from generated import PAGES

project = "AstraFlow"
author = "The AstraFlow contributors"
release = metadata.version("astraflow")
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"AstraFlow {release}"
html_copy_source = False
myst_heading_anchors = 3
nitpicky = True
smartquotes = False  # keys and values are copied from these pages


def setup(app: Any) -> None:
    """Fill in the generated pages."""
    app.connect("source-read", _fill)
    app.connect("env-get-outdated", lambda *_: list(PAGES))


def _fill(app: Any, docname: str, source: list[str]) -> None:
    if docname in PAGES:
        mark, page = PAGES[docname]
        assert mark in source[0], f"{docname} lacks the mark {mark}"
        source[0] = source[0].replace(mark, page())
