"""Curves, stacks and bars as Bokeh figures: the only file that knows the chart library.

A figure leaves as the JSON that BokehJS embeds. Texts that come from a run pass `plain`, since BokehJS would fetch a
typesetter from the network for what looks like a formula.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from bokeh.embed import json_item
from bokeh.layouts import column
from bokeh.models import (
    BoxAnnotation,
    ColumnDataSource,
    FactorRange,
    HoverTool,
    Legend,
    NumeralTickFormatter,
    Range1d,
    RangeTool,
)
from bokeh.plotting import figure
from bokeh.resources import Resources

from astraflow.dashboard.curves import Chart, Curve, Look, Stack
from astraflow.dashboard.timeline import IDLE, Bar, Kind, Timeline

PALETTE = ("#2563eb", "#ea580c", "#059669", "#9333ea", "#dc2626", "#0891b2", "#ca8a04", "#be185d", "#4b5563")
DASHES = ("solid", "dashed", "dotdash", "dotted")
ACTIVITY_COLOURS: Mapping[str, str] = {
    "train": "#2563eb",
    "publish": "#0891b2",
    "save": "#64748b",
    "generate": "#059669",
    "evaluate": "#9333ea",
    "pull": "#ca8a04",
    "swap": "#dc2626",
    "eval": "#d8b4fe",
    "wait_batch": "#cbd5e1",
    "notify": "#bae6fd",
    "collect": "#cbd5e1",
    "hold": "#fdba74",
    IDLE: "#f1f5f9",
}
HEIGHT = 290
ROW_HEIGHT = 34
STEPS_IN_WINDOW = 8
"""Training steps of the Gantt chart that are shown at first."""
MOST_MARKS = 60
"""Values of a curve whose points are marked."""
WIDE_LABEL, ENTRY_HEIGHT = 14, 24
"""Characters that fit a legend of four columns into half a page, and pixels of one more of its rows."""
BUBBLES = (Kind.WAIT, Kind.IDLE)

_GRID, _TEXT, _AXIS = "#eef1f5", "#475569", "#cbd5e1"
_FORMULA = re.compile(r"\$\$|\\\(|\\\[")

Item = dict[str, Any]
"""What Bokeh.embed.embed_item takes."""


def bokeh_script() -> str:
    """BokehJS without the parts that no chart here uses."""
    return "\n".join(Resources(mode="inline", components=["bokeh"]).js_raw)


def plain(text: str) -> str:
    """The text, never taken for a formula."""
    return _FORMULA.sub(lambda found: f"{found[0][0]} {found[0][1]}", text)


def line_chart(chart: Chart, runs: Sequence[str]) -> Item:
    """Curves over training steps; with several runs, a colour is a run and a dash a statistic."""
    plot = _figure(chart.title, chart.unit, log=chart.log)
    plot.xaxis.axis_label = "training step"
    entries: list[tuple[str, list[Any]]] = []
    same = len({curve.label for curve in chart.curves if curve.look is not Look.FAINT}) == 1
    for curve in chart.curves:
        label = _label(curve, runs, same)
        renderers = _draw(plot, curve, _colour(curve, len(runs)), _dash(curve, len(runs)))
        if curve.look is not Look.FAINT:
            entries.append((plain(label), renderers))
    if len(entries) > 1 or len(runs) > 1:
        _legend(plot, entries)
    value = "@y{0.[00]%}" if chart.percent else "@y{0,0.[0000]}"
    lines = [r for _, renderers in entries for r in renderers if r.name == "values"]
    plot.add_tools(HoverTool(renderers=lines, tooltips=[("step", "@x{0,0}"), ("value", value)], mode="vline"))
    if chart.percent:
        plot.yaxis.formatter = NumeralTickFormatter(format="0.[00]%")
    elif not chart.log:
        plot.yaxis.formatter = NumeralTickFormatter(format="0,0.[000]")
    if all(y >= 0 for curve in chart.curves for y in curve.y) and not chart.log:
        plot.y_range.start = 0
    return _item(plot)


def stacked_bars(stack: Stack) -> Item:
    """The parts on each other at each step."""
    plot = _figure(stack.title, stack.unit)
    plot.xaxis.axis_label = "training step"
    names = list(stack.parts)
    fields = [f"part{number}" for number in range(len(names))]
    source = ColumnDataSource({"x": stack.centres, **dict(zip(fields, stack.parts.values(), strict=True))})
    bars = plot.vbar_stack(
        fields,
        x="x",
        width=stack.width,
        source=source,
        color=[PALETTE[number % len(PALETTE)] for number in range(len(names))],
        fill_alpha=0.85,
        line_alpha=0,
    )
    _legend(plot, [(plain(name), [bar]) for name, bar in zip(names, bars, strict=True)])
    shown = [(plain(name), f"@{field}{{0,0.[0]}}") for name, field in zip(names, fields, strict=True)]
    plot.add_tools(HoverTool(tooltips=[("step", "@x{0,0}"), *shown], renderers=bars[-1:]))
    plot.y_range.start = 0
    return _item(plot)


def gantt(timeline: Timeline) -> Item:
    """Bars of a window of a few steps, above the whole run with the window to move."""
    end = max(timeline.seconds, 1e-3)
    first, last = _first_window(timeline.bars, end)
    window = Range1d(start=first, end=last, bounds=(0.0, end))
    rows = [plain(row) for row in timeline.rows]
    bubbles = ColumnDataSource(_columns([bar for bar in timeline.bars if bar.kind in BUBBLES]))
    work = ColumnDataSource(_columns([bar for bar in timeline.bars if bar.kind not in BUBBLES]))
    detail = _bars(rows, window, 70 + ROW_HEIGHT * len(rows))
    bars = [_rectangles(detail, bubbles, 0.72, hatched=True), _rectangles(detail, work, 0.72)]
    tooltips = [("", "@name"), ("from", "@left{0.000} s"), ("for", "@seconds{0.000} s"), ("", "@detail")]
    detail.add_tools(HoverTool(renderers=bars, tooltips=tooltips))
    detail.xaxis.axis_label = "seconds since the first span"
    whole = _bars(rows, Range1d(start=0.0, end=end), 46 + 16 * len(rows))
    whole.toolbar_location = None
    whole.yaxis.visible = False
    for source in (bubbles, work):
        _rectangles(whole, source, 0.85)
    overlay = BoxAnnotation(fill_color="#2563eb", fill_alpha=0.12, line_color="#2563eb", line_alpha=0.7)
    whole.add_tools(RangeTool(x_range=window, overlay=overlay))
    whole.xaxis.axis_label = "the whole run: drag the window"
    return _item(column(detail, whole, sizing_mode="stretch_width"))


def _first_window(bars: Sequence[Bar], end: float) -> tuple[float, float]:
    """Seconds of the first few training steps that are drawn; the whole run where nothing was trained."""
    steps = [bar for bar in bars if bar.name == "train"][:STEPS_IN_WINDOW]
    return (steps[0].start, min(end, steps[-1].start + steps[-1].seconds)) if steps else (0.0, end)


def _figure(title: str, unit: str, log: bool = False) -> Any:
    plot = figure(
        title=title,
        height=HEIGHT,
        sizing_mode="stretch_width",
        y_axis_type="log" if log else "linear",
        tools="pan,wheel_zoom,box_zoom,reset,save",
        active_scroll=None,
    )
    plot.yaxis.axis_label = unit
    _style(plot)
    return plot


def _style(plot: Any) -> None:
    plot.toolbar.logo = None
    plot.toolbar.autohide = True
    plot.outline_line_color = None
    plot.title.text_font_size = "14px"
    plot.title.text_color = "#0f172a"
    plot.min_border_right = 14
    plot.grid.grid_line_color = _GRID
    for axis in plot.axis:
        axis.axis_line_color = axis.major_tick_line_color = _AXIS
        axis.minor_tick_line_color = None
        axis.axis_label_text_color = axis.major_label_text_color = _TEXT
        axis.axis_label_text_font_style = "normal"
        axis.axis_label_text_font_size = axis.major_label_text_font_size = "12px"
    for thing in (plot.title, *plot.axis):
        for name in ("text_font", "axis_label_text_font", "major_label_text_font"):
            if name in thing.properties():
                setattr(thing, name, "system-ui, sans-serif")


def _label(curve: Curve, runs: Sequence[str], same: bool) -> str:
    """What tells a curve from the others; `same`: all show one statistic."""
    if len(runs) == 1:
        return curve.label
    return runs[curve.run] if same else f"{runs[curve.run]} · {curve.label}"


def _colour(curve: Curve, runs: int) -> str:
    if curve.look is Look.LIMIT and runs == 1:
        return "#94a3b8"
    return PALETTE[(curve.run if runs > 1 else curve.role) % len(PALETTE)]


def _dash(curve: Curve, runs: int) -> str:
    if curve.look is Look.LIMIT:
        return "dotted"
    return DASHES[curve.role % len(DASHES)] if runs > 1 else "solid"


def _draw(plot: Any, curve: Curve, colour: str, dash: str) -> list[Any]:
    """The renderers of a curve; the one named "values" answers the pointer."""
    source = ColumnDataSource({"x": curve.x, "y": curve.y})
    if curve.look is Look.FAINT:
        return [plot.line("x", "y", source=source, color=colour, line_width=1, alpha=0.28)]
    drawn = []
    if curve.low is not None and curve.high is not None:
        band = ColumnDataSource({"x": curve.x, "low": curve.low, "high": curve.high})
        drawn.append(plot.varea("x", "low", "high", source=band, fill_color=colour, fill_alpha=0.14))
        drawn.append(plot.segment("x", "low", "x", "high", source=band, color=colour, alpha=0.5, line_width=1.5))
    width = 1.5 if curve.look is Look.LIMIT else 2
    drawn.append(plot.line("x", "y", source=source, color=colour, line_width=width, line_dash=dash, name="values"))
    if (curve.look is Look.MARKED and len(curve.x) <= MOST_MARKS) or len(curve.x) == 1:
        drawn.append(plot.scatter("x", "y", source=source, color=colour, size=6))
    return drawn


def _legend(plot: Any, entries: Sequence[tuple[str, list[Any]]]) -> None:
    legend = Legend(items=list(entries), orientation="horizontal", location="left", click_policy="hide")
    legend.border_line_color = legend.background_fill_color = None
    legend.label_text_color = _TEXT
    legend.label_text_font = "system-ui, sans-serif"
    legend.label_text_font_size = "12px"
    legend.margin = legend.padding = 0
    legend.spacing = 14
    longest = max((len(text) for text, _ in entries), default=0)
    legend.ncols = 2 if longest > WIDE_LABEL else 4
    plot.height += ENTRY_HEIGHT * ((len(entries) - 1) // legend.ncols)
    plot.add_layout(legend, "below")


def _bars(rows: list[str], x_range: Range1d, height: int) -> Any:
    plot = figure(
        height=height,
        sizing_mode="stretch_width",
        x_range=x_range,
        y_range=FactorRange(factors=rows[::-1]),
        tools="xpan,xwheel_zoom,reset,save",
        active_scroll="xwheel_zoom",
    )
    _style(plot)
    plot.ygrid.grid_line_color = None
    return plot


def _columns(bars: Sequence[Bar]) -> dict[str, list[Any]]:
    return {
        "row": [plain(bar.row) for bar in bars],
        "left": [round(bar.start, 4) for bar in bars],
        "right": [round(bar.start + bar.seconds, 4) for bar in bars],
        "seconds": [round(bar.seconds, 4) for bar in bars],
        "name": [plain(bar.name) for bar in bars],
        "detail": [plain(bar.detail) for bar in bars],
        "colour": [ACTIVITY_COLOURS.get(bar.name, "#64748b") for bar in bars],
    }


def _rectangles(plot: Any, source: ColumnDataSource, height: float, hatched: bool = False) -> Any:
    """Hatching costs much time to draw: only where it can be seen."""
    hatch = {"hatch_color": "#94a3b8", "hatch_alpha": 0.35, "hatch_scale": 8, "hatch_pattern": "right_diagonal_line"}
    return plot.hbar(
        y="row",
        left="left",
        right="right",
        height=height,
        source=source,
        fill_color="colour",
        line_color=None,
        **(hatch if hatched else {}),
    )


def _item(plot: Any) -> Item:
    return dict(json_item(plot))
