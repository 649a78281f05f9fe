"""Pictures that stand still: files that can be opened, and texts that stay texts."""

import xml.etree.ElementTree as ET

import pytest
from pictures import EVERY, EVIL, HEATMAP, SCATTER
from PIL import Image

from epochmeter.report.figures import Axis, Lines, Mark, Reach, Scatter, Series
from epochmeter.report.stills import draw

pytest.importorskip("matplotlib")


@pytest.mark.parametrize("chart", EVERY, ids=lambda chart: chart.name)
def test_each_kind_is_a_png_and_an_svg(chart, tmp_path):
    png, svg = draw([chart], tmp_path / "report")
    assert (png.name, svg.name) == (f"{chart.name}.png", f"{chart.name}.svg")
    with Image.open(png) as picture:
        assert picture.size[0] == 1050
        assert len(picture.convert("RGB").getcolors(1_000_000)) > 10, "something is drawn"
    assert ET.parse(svg).getroot().tag.endswith("svg")
    text = svg.read_text(encoding="utf-8")
    assert "<script" not in text
    assert "mathdefault" not in text, "no text is read as mathematics"


def test_what_has_no_known_spread_has_no_bar_beside_what_has_one(tmp_path):
    marks = [Mark(0.0, 3.0), Mark(1.0, 2.0, y_reach=Reach(0.5, 1.0))]
    _, svg = draw([Lines("bars", "", "", Axis("x"), Axis("y"), [Series("jobs", marks)])], tmp_path)
    bars = next(group for group in ET.parse(svg).iter() if group.get("id") == "LineCollection_1")
    assert sum(bool(path.get("d")) for path in bars) == 1


def test_the_same_picture_is_the_same_file(tmp_path):
    first, again = (draw([HEATMAP], tmp_path / name) for name in ("a", "b"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]


def test_many_marks_are_dots_within_the_svg(tmp_path):
    marks = [Mark(float(n), float(n % 97), (EVIL,), None, Reach(1.0, 1.0), Reach(1.0, 1.0)) for n in range(5000)]
    chart = Scatter("many", "", "", Axis("x"), Axis("y"), [Series("jobs", marks)])
    _, svg = draw([chart], tmp_path)
    assert svg.stat().st_size < 300_000


def test_a_picture_of_an_earlier_report_is_replaced(tmp_path):
    (tmp_path / f"{SCATTER.name}.png").write_text("old")
    png, _ = draw([SCATTER], tmp_path)
    assert png.read_bytes().startswith(b"\x89PNG")
