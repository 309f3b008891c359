"""Statistics in Prometheus' text format (exposition format 0.0.4)."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping

_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_]")


def exposition(stats: Mapping[str, float], labels: Mapping[str, str] | None = None) -> str:
    """Return one line a statistic: buffer/ready becomes astraflow_buffer_ready.

    Statistics whose names differ only in signs that Prometheus does not allow are told apart by a label `metric`.
    """
    samples: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for name, value in sorted(stats.items()):
        samples[f"astraflow_{_NOT_IN_A_NAME.sub('_', name)}"].append((name, value))
    lines = []
    for metric, same in samples.items():
        for name, value in same:
            own = {**(labels or {}), **({"metric": name} if len(same) > 1 else {})}
            lines.append(f"{metric}{_labels(own)} {_number(value)}\n")
    return "".join(lines)


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return f"{value:.12g}"
