"""Several runs side by side: their summaries, and what their configurations differ in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ABSENT = "—"
"""Where a run has no such value."""

_OWN_TO_EACH = ("experiment.trial_name", "experiment.fileroot")
"""Keys that name a run rather than shape it."""


@dataclass(frozen=True)
class Row:
    """One key over all runs."""

    key: str
    values: tuple[str, ...]


def summary_rows(summaries: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Every figure of summary.json, in its order."""
    return _rows([_flat(summary) for summary in summaries])


def difference_rows(configs: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The keys whose values are not the same in all configurations; names and places of the runs are left out."""
    rows = _rows([_flat(config) for config in configs])
    return [row for row in rows if len(set(row.values)) > 1 and row.key not in _OWN_TO_EACH]


def shown(value: Any) -> str:
    """A value in few characters."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value)) or "[]"
    return str(value)


def _rows(trees: Sequence[Mapping[str, Any]]) -> list[Row]:
    keys = dict.fromkeys(key for tree in trees for key in tree)
    return [Row(key, tuple(shown(tree[key]) if key in tree else ABSENT for tree in trees)) for key in keys]


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            out |= _flat(value, f"{path}.")
        else:
            out[path] = value
    return out
