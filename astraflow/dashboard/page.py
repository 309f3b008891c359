"""Everything that a page shows becomes HTML. What comes from a run is escaped: Jinja's autoescape for markup, and no
"<" in the JSON that charts and episodes are drawn from. A content security policy forbids every request.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from astraflow.core.config import to_yaml
from astraflow.dashboard import curves
from astraflow.dashboard.charts import ACTIVITY_COLOURS, Item, bokeh_script, gantt, line_chart, stacked_bars
from astraflow.dashboard.comparison import difference_rows, summary_rows
from astraflow.dashboard.curves import Chart
from astraflow.dashboard.recording import Recording
from astraflow.dashboard.timeline import timeline

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Figure:
    """A chart's place in the page."""

    key: str
    item: Item | None
    """None where the run recorded nothing to draw."""
    title: str


@dataclass(frozen=True)
class Section:
    """Charts under one heading."""

    key: str
    heading: str
    text: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class Fact:
    """One figure at the top of the page."""

    label: str
    value: str
    detail: str = ""


def run_page(run: Recording) -> str:
    """The page of one run."""
    spans = timeline(run.spans)
    drops = curves.drops(run)
    sections = [
        *_curve_sections([run]),
        Section(
            "drops",
            "Dropped groups",
            "Groups that were sampled and did not train, by reason. A group whose rewards are all equal teaches "
            "nothing (zero advantage); a stale one exceeded the bound.",
            (Figure("drops", stacked_bars(drops) if drops.parts else None, drops.title),),
        ),
    ]
    return _render(
        "run.html.jinja",
        title=run.name,
        run=run,
        facts=_facts(run),
        sections=sections,
        health=_section("health", "Learning health", _HEALTH_TEXT, curves.health([run]), [run.name]),
        timeline=spans,
        gantt=Figure("gantt", gantt(spans) if spans.bars else None, "Timeline"),
        activities=ACTIVITY_COLOURS,
        episodes=_script(run.episodes),
        config=to_yaml(run.config),
    )


def comparison_page(runs: Sequence[Recording]) -> str:
    """The page of several runs; charts call them A, B, … in the order given."""
    letters = [_letter(number) for number in range(len(runs))]
    health = _section("health", "Learning health", _HEALTH_TEXT, curves.health(runs), letters)
    return _render(
        "comparison.html.jinja",
        title=f"{len(runs)} runs",
        runs=list(zip(letters, runs, strict=True)),
        letters=letters,
        summaries=summary_rows([run.summary for run in runs]),
        differences=difference_rows([run.config for run in runs]),
        sections=[*_curve_sections(runs, letters), health],
    )


_HEALTH_TEXT = (
    "Entropy that falls to 0 early, a gradient norm that jumps, or ratios far from 1 tell of trouble. On the same "
    "weights, engine and trainer must agree up to rounding."
)


def _curve_sections(runs: Sequence[Recording], names: Sequence[str] | None = None) -> list[Section]:
    names = names or [run.name for run in runs]
    return [
        _section(
            "reward",
            "Reward",
            "Mean over all samples that finished since the last batch, whatever became of their groups.",
            curves.reward(runs),
            names,
        ),
        _section(
            "accuracy",
            "Accuracy",
            "Share of held-out problems answered rightly, at a pinned version. Bars are 95% intervals, from a "
            "bootstrap over problems.",
            curves.accuracy(runs),
            names,
        ),
        _section(
            "staleness",
            "Staleness",
            "Training steps between the version that sampled a token and the step that trained it. It never exceeds η.",
            curves.staleness(runs),
            names,
        ),
        _section(
            "throughput",
            "Throughput",
            "Tokens sampled per second of wall time, and tokens through forward and backward per second of training.",
            curves.throughput(runs),
            names,
        ),
        _section(
            "lengths",
            "Lengths",
            "Sampled tokens of a trajectory, and the share that was cut by the limit instead of ending by itself.",
            curves.lengths(runs),
            names,
        ),
    ]


def _section(key: str, heading: str, text: str, charts: Sequence[Chart], names: Sequence[str]) -> Section:
    figures = [Figure(c.key, line_chart(c, names) if c.curves else None, c.title) for c in charts]
    return Section(key, heading, text, tuple(figures))


def _facts(run: Recording) -> list[Fact]:
    """What a reader wants first; from summary.json where the run finished."""
    summary, steps = run.summary, run.steps
    if not summary:
        last = steps[-1].get("rollout/reward_mean") if steps else None
        return [
            Fact("training steps", str(len(steps)), "the run did not finish"),
            Fact("last reward", "—" if last is None else f"{last:.3f}"),
        ]
    interval = summary.get("accuracy_after_interval")
    before, after = summary.get("accuracy_before") or {}, summary.get("accuracy_after") or {}
    return [
        Fact(
            "sampled accuracy",
            f"{_percent(before.get('sampled'))} → {_percent(after.get('sampled'))}",
            f"95% interval {_percent(interval[0])} to {_percent(interval[1])}" if interval else "",
        ),
        Fact("greedy accuracy", f"{_percent(before.get('greedy'))} → {_percent(after.get('greedy'))}"),
        Fact("training steps", f"{summary['rl_steps']:,}", f"{summary['steps_per_min']:,.1f} a minute"),
        Fact("wall time", _duration(summary["wall_s"]), "base model included"),
        Fact(
            "oldest trained token",
            f"{summary['max_trained_staleness']} steps",
            f"bound η = {summary['staleness_bound']}",
        ),
        Fact(
            "tokens a second",
            f"{summary['rollout_tokens_per_s']:,.0f}",
            f"sampled; {summary['train_tokens_per_s']:,.0f} while training",
        ),
        Fact(
            "dropped groups",
            f"{sum(summary['dropped'].values()):,}",
            f"{summary['dropped'].get('zero_advantage', 0):,} of them taught nothing",
        ),
        Fact(
            "versions",
            f"{summary['weight_updates']:,}",
            f"{summary['trajectories_with_two_versions']:,} trajectories crossed a swap",
        ),
    ]


def _render(template: str, **values: Any) -> str:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["script"] = _script
    environment.filters["percent"] = _percent
    parts = {name: Markup((_TEMPLATES / name).read_text("utf-8")) for name in ("page.css", "page.js")}
    page = environment.get_template(template)
    return page.render(**values, css=parts["page.css"], js=parts["page.js"], bokeh=Markup(bokeh_script()))


def _script(value: Any) -> Markup:
    """JSON for a <script type="application/json">, which ends at the first "</script": there is no "<" in it."""
    text = json.dumps(msgspec.to_builtins(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))


def _letter(number: int) -> str:
    """0 → A, 25 → Z, 26 → R27."""
    return chr(ord("A") + number) if number < 26 else f"R{number + 1}"


def _percent(share: float | None) -> str:
    return "—" if share is None else f"{share:.1%}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d} min"
