"""Draw charts as SVG and PNG: `python -m epochmeter.report.charts.draw FOLDER < charts.json`.

This takes as long as the rest of a report, so it has a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from epochmeter.report.charts.chart import Chart, Spec, theme

WIDTH_PX = 680
SCALE = 2.0
"""Pixels of a PNG image per pixel of the chart."""


@contextmanager
def drawing(charts: Sequence[Chart], folder: Path) -> Iterator[list[Path]]:
    """Draw charts by a second process, which ends with the context; yield the images, or raise OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    specs = {chart.name: {**chart.spec, "title": chart.title} for chart in charts}
    command = [sys.executable, "-m", __name__, str(folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with TemporaryFile("w+") as content:
        json.dump(specs, content)
        content.seek(0)
        process = subprocess.Popen(command, stdin=content, env=environment)
    with process:
        yield [folder / f"{chart.name}.{suffix}" for chart in charts for suffix in ("png", "svg")]
    if process.returncode:
        raise OSError(f"the charts could not be drawn in {folder}")


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
    folder = Path(sys.argv[1])
    for name, spec in json.load(sys.stdin).items():
        svg = to_svg(spec)
        (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
        (folder / f"{name}.png").write_bytes(to_png(svg))


if __name__ == "__main__":
    main()
