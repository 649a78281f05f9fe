"""Stacked bars of the traced time by group of modules, and by phase."""

from __future__ import annotations

from epochmeter.report.analyses.trace import PHASES, TraceView
from epochmeter.report.charts.chart import (
    BLUE,
    GRAY,
    ORANGE,
    PURPLE,
    VERMILION,
    Chart,
    channel,
    layer,
    make_axis,
    make_spec,
    tooltips,
)
from epochmeter.report.formatting import percent, quantity

COLORS = dict(zip(PHASES, (BLUE, ORANGE, PURPLE, VERMILION, GRAY), strict=True))
STEP_PX = 22


def module_bars(view: TraceView) -> list[Chart]:
    """Draw the time of the modules per step; nothing if it is unknown."""
    if not (view.attribution and view.groups):
        return []
    steps, total_s = view.metrics["steps"], view.attribution["total_s"]
    axis = make_axis("Time per step", [sum(group.phases_s.values()) / steps for group in view.groups], "s", zero=True)
    rows = []
    for group in view.groups:
        end = 0.0
        for phase in [phase for phase in PHASES if phase in group.phases_s]:
            start, end = end, end + axis.value(group.phases_s[phase] / steps)
            time = f"{quantity(group.phases_s[phase] / steps, 's')} ({percent(group.phases_s[phase] / total_s, 1)})"
            rows.append({"module": group.name, "phase": phase, "time": time, "start": start, "end": end})
    phases = [phase for phase in PHASES if any(row["phase"] == phase for row in rows)]
    scale = {"domain": phases, "range": [COLORS[phase] for phase in phases]}
    encoding = {
        "x": channel("start:Q", title=axis.title, scale={"zero": True}),
        "x2": {"field": "end"},
        "y": channel("module:N", title=None, sort=[group.name for group in view.groups]),
        "color": channel("phase:N", scale=scale, legend={"title": None}),
        "tooltip": tooltips("module", "phase", "time"),
    }
    what = "kernels" if view.attribution["basis"] == "device" else "the training thread"
    caption = f"Time of {what}. A group contains modules with the same beginning of their names."
    spec = make_spec({**layer("modules", "bar", encoding), "height": {"step": STEP_PX}}, {"modules": rows})
    return [Chart("trace_modules", "Time by module", caption, spec)]
