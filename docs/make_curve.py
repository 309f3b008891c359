"""Draw the learning curve of one or more runs as an SVG.

    python docs/make_curve.py RUN_DIRECTORY... > docs/learning-curve.svg

Shows the share of right answers: on held-out questions with 95% intervals (points), and among the samples of the
rollouts on the way (line, a reward of 0 or 1 being assumed). Several runs are drawn over each other, one colour each.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 40, 48
COLOURS = ("#0b6e99", "#c2541b", "#4b7f2b", "#7a4b9d", "#8a6d00")
WINDOW = 5
"""Steps that a point of the line is the mean of."""

Record: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """Steps and shares → pixels."""

    steps: int

    def x(self, step: float) -> float:
        return LEFT + step / max(self.steps, 1) * (WIDTH - LEFT - RIGHT)

    def y(self, share: float) -> float:
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def records(run: Path) -> list[Record]:
    """Lines of a run's metrics; of a step that was done twice, after a recovery, the later one."""
    lines = (run / "metrics.jsonl").read_text("utf-8").splitlines()
    by_step = {record["step"]: record for record in map(json.loads, lines)}
    return [by_step[step] for step in sorted(by_step)]


def drawing(runs: Sequence[Path]) -> str:
    """The SVG."""
    loaded = [records(run) for run in runs]
    scale = Scale(max(rows[-1]["step"] for rows in loaded))
    title = f"{runs[0].parent.name}: share of right answers"
    parts = [*_frame(scale, title)]
    for number, rows in enumerate(loaded):
        colour = COLOURS[number % len(COLOURS)]
        parts += [_line(scale, rows, colour), *_points(scale, rows, colour)]
        parts.append(_text(LEFT + 150 * number, HEIGHT - 6, runs[number].name, colour))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}" font-family="sans-serif" font-size="13">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _frame(scale: Scale, title: str) -> Iterator[str]:
    yield _text(LEFT, 22, title, "#222222", size=15)
    for percent in range(0, 101, 20):
        y = scale.y(percent / 100)
        yield f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>'
        yield _text(LEFT - 8, y + 4, f"{percent}%", "#555555", anchor="end")
    for fifth in range(6):
        step = round(scale.steps * fifth / 5)
        yield _text(scale.x(step), HEIGHT - BOTTOM + 18, str(step), "#555555", anchor="middle")
    yield _text(WIDTH - RIGHT, HEIGHT - 6, "training steps · line: rollouts · points: held out, 95%", "#555555", "end")


def _line(scale: Scale, rows: Sequence[Record], colour: str) -> str:
    shown = [(row["step"], row["rollout/reward_mean"]) for row in rows if row.get("rollout/samples")]
    smooth = []
    for end in range(len(shown)):
        window = shown[max(0, end - WINDOW + 1) : end + 1]
        smooth.append((shown[end][0], sum(value for _, value in window) / len(window)))
    path = "L".join(f"{scale.x(step):.1f} {scale.y(value):.1f}" for step, value in smooth)
    return f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.5" opacity="0.55"/>'


def _points(scale: Scale, rows: Sequence[Record], colour: str) -> Iterator[str]:
    for row in rows:
        for name in (name for name in row if name.startswith("eval/") and name.endswith("/avg@k")):
            x, y = scale.x(row["step"]), scale.y(row[name] / 100)
            low, high = (scale.y(row[f"{name}_{end}"] / 100) for end in ("low", "high"))
            yield f'<path d="M{x:.1f} {low:.1f}V{high:.1f}" stroke="{colour}" stroke-width="1.5"/>'
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>'


def _text(x: float, y: float, text: str, colour: str, anchor: str = "start", size: int = 13) -> str:
    style = f'fill="{colour}" text-anchor="{anchor}" font-size="{size}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'


if __name__ == "__main__":
    sys.stdout.write(drawing([Path(argument) for argument in sys.argv[1:]]))
