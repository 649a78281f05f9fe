"""Stacked bars of the traced time by group of modules, and by phase."""

from __future__ import annotations

from epochmeter.report.analyses.trace import PHASES, TraceView
from epochmeter.report.charts import vega
from epochmeter.report.formatting import percent, quantity

COLORS = dict(zip(PHASES, (vega.BLUE, vega.ORANGE, vega.PURPLE, vega.VERMILION, vega.GRAY), strict=True))


def module_bars(view: TraceView) -> list[vega.Chart]:
    """Draw the time of the modules per step; nothing if it is unknown."""
    if not (view.attribution and view.groups):
        return []
    steps, total_s = view.metrics["steps"], view.attribution["total_s"]
    sums_s = [sum(group.phases_s.values()) / steps for group in view.groups]
    axis = vega.make_axis("Time per step", sums_s, "s", zero=True)
    rows = []
    for bar, group in enumerate(view.groups):
        end = 0.0
        for phase in [phase for phase in PHASES if phase in group.phases_s]:
            start, end = end, end + axis.value(group.phases_s[phase] / steps)
            time = f"{quantity(group.phases_s[phase] / steps, 's')} ({percent(group.phases_s[phase] / total_s, 1)})"
            rows.append({"bar": bar, "module": group.name, "part": phase, "time": time, "start": start, "end": end})
    colors = {phase: color for phase, color in COLORS.items() if any(row["part"] == phase for row in rows)}
    names = [group.name for group in view.groups]
    spec = vega.stacked_bars(axis.title, rows, names, colors, "module", "part", "time")
    on_device = view.attribution["basis"] == "device"
    caption = {"kernel_time": on_device, "thread_time": not on_device, "module_groups": True}
    return [vega.Chart("trace_modules", "Time by module", spec, caption)]
