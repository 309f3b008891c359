"""Ids as fields of what travels."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from astraflow.core.config.ids import EMPTY_OR_ID_PATTERN, ID_PATTERN, MAX_ID

Id = Annotated[str, Meta(min_length=1, max_length=MAX_ID, pattern=ID_PATTERN)]
"""1 to 128 printable ASCII characters: see core.config.ids."""

OptionalId = Annotated[str, Meta(max_length=MAX_ID, pattern=EMPTY_OR_ID_PATTERN)]
"""Likewise, or empty."""
