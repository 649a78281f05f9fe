"""Draw charts as SVG and PNG, in a process of its own: this takes as long as the rest of a report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from epochmeter.report.charts.vega import Chart, Spec, theme

PAGE_NEEDS = ("vl_convert", "itables")  # packages of the extra `report`
WIDTH_PX = 680
SCALE = 2.0  # pixels of a PNG image per pixel of the chart


def missing_packages() -> list[str]:
    """Return the packages for the page and the charts that are not installed."""
    return [name for name in PAGE_NEEDS if find_spec(name) is None]


class Artist:
    """A process that draws charts while the report is built; it starts at once, as loading Vega takes half a second."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", __name__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, env=environment)

    def draw(self, charts: Sequence[Chart]) -> None:
        self._send({chart.name: {**chart.spec, "title": chart.title} for chart in charts})

    def write(self, folder: Path) -> None:
        """Write the images into a folder; OSError if that fails."""
        self._send(str(folder.absolute()))
        if self._process.wait():
            raise OSError(f"the charts could not be drawn in {folder}")

    def _send(self, value: Any) -> None:
        assert self._process.stdin
        with suppress(BrokenPipeError):  # `write` reports that the process has ended
            self._process.stdin.write(f"{json.dumps(value)}\n")
            self._process.stdin.flush()


def to_svg(spec: Spec) -> str:
    """Draw a chart as SVG in the light theme, with its title and a fixed width."""
    title = {"text": spec["title"], "anchor": "start", "fontSize": 14, "offset": 12}
    spec = {**spec, "title": title, "padding": 12}
    if columns := spec["usermeta"]["columns"]:
        spec |= {"columns": columns[0], "spec": {**spec["spec"], "width": WIDTH_PX / columns[0] - 60}}
    else:
        spec["width"] = WIDTH_PX
    import vl_convert

    return vl_convert.vegalite_to_svg(spec, config=theme())


def to_png(svg: str) -> bytes:
    """Convert an SVG image to PNG; this is faster than drawing the chart again."""
    import vl_convert

    return vl_convert.svg_to_png(svg, scale=SCALE)


def main() -> None:
    """Draw the charts of the first line of the standard input, and write them to the folder of the second one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the report ended, which closed the input
    to_svg({"data": {"values": []}, "mark": "point", "title": "", "usermeta": {"columns": []}})  # loads Vega
    images: dict[str, str] = {name: to_svg(spec) for name, spec in json.loads(sys.stdin.readline() or "{}").items()}
    pictures = {name: to_png(svg) for name, svg in images.items()}
    if folder := json.loads(sys.stdin.readline() or "null"):
        for name, svg in images.items():
            Path(folder, f"{name}.svg").write_text(svg, encoding="utf-8")
            Path(folder, f"{name}.png").write_bytes(pictures[name])


if __name__ == "__main__":
    main()
