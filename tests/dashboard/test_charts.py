import json

from astraflow.dashboard.charts import bokeh_script, gantt, line_chart, plain, stacked_bars
from astraflow.dashboard.curves import Chart, Curve, Look, Stack
from astraflow.dashboard.timeline import timeline


def test_formulas_are_plain_text() -> None:
    assert plain("$$x$$ \\(y\\) \\[z\\] $1") == "$ $x$ $ \\ (y\\) \\ [z\\] $1"


def test_the_library_is_small_and_whole() -> None:
    script = bokeh_script()
    assert 500_000 < len(script) < 2_000_000
    assert "</script" not in script
    assert "set_log_level" in script


def test_texts_of_a_run_reach_a_chart_as_plain_text() -> None:
    name = "$$x$$"
    curve = Curve(name, [1.0, 2.0], [0.0, 1.0], Look.MARKED, low=[0.0, 0.5], high=[0.5, 1.0])
    items = [
        line_chart(Chart("a", "t", "u", (curve, curve), percent=True), ["run"]),
        line_chart(Chart("a", "t", "u", (curve,)), [name, name]),
        stacked_bars(Stack("a", "t", "u", [1.0], 0.9, {name: [1.0]})),
        gantt(timeline([{"name": name, "process": name, "start": 0.0, "seconds": 1.0, "k": name}])),
    ]
    for item in items:
        assert "$ $x$ $" in json.dumps(item)
        assert "$$" not in json.dumps(item)


def test_a_chart_of_one_value_is_drawn() -> None:
    chart = Chart("a", "t", "u", (Curve("x", [1.0], [2.0]),), log=True)
    assert '"Scatter"' in json.dumps(line_chart(chart, ["run"]))
