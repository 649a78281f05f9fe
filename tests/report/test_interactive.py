"""Pictures as plotly takes them: the values are those of the description, and no text of ours is markup."""

import json

import pytest
from pictures import BARS, EVERY, EVIL, HEATMAP, LINES, LINK, SCATTER

from epochmeter.report.figures import Axis, Mark, Reach, Scatter, Series
from epochmeter.report.interactive import drawn, escaped, pointed, script

pytest.importorskip("plotly")
SAFE = "&lt;script&gt;alert(1)&lt;/script&gt; &amp; $x_1$"


def figure(chart):
    return json.loads(drawn(chart))


def test_marks_stand_where_they_are_said_to():
    front, first, second = figure(SCATTER)["data"]
    assert (first["x"], first["y"], first["error_x"]["array"]) == ([1.0], [200.0], [0.1])
    assert (first["error_y"]["arrayminus"], first["error_y"]["array"]) == ([4.0], [5.0])
    assert "error_x" not in second, "nothing is known of its spread"
    assert (front["x"], front["y"], front["line"]["shape"]) == ([1.0, 2.0], [200.0, 3.0], "hv")
    assert first["marker"]["symbol"] != second["marker"]["symbol"], "told apart without color too"


def test_what_has_no_known_spread_has_no_bar_beside_what_has_one():
    (trace,) = figure(LINES)["data"]
    assert (trace["error_y"]["array"], trace["error_y"]["arrayminus"]) == (["-", 0.1], ["-", 0.1])


def test_every_axis_has_its_unit():
    layouts = {chart.name: figure(chart)["layout"] for chart in EVERY}
    titles = {name: [layout[axis].get("title", {}).get("text") for axis in ("xaxis", "yaxis")]
              for name, layout in layouts.items()}  # fmt: skip
    assert titles == {
        "energy_by_time": ["Time of an epoch (s)", "Energy of an epoch (J)"],
        "epochs_time": ["Epoch", "Time (s)"],
        "epoch_parts": ["Time of an epoch (s)", None],
        "grid_time": ["Batch", "Power limit (W or mode)"],
    }


def test_a_logarithmic_axis_leaves_room_below_what_is_called_out():
    layout = figure(SCATTER)["layout"]
    assert layout["yaxis"]["type"] == "log"
    low, high = layout["yaxis"]["range"]
    assert 10**low < 3.0
    assert 10**high > 205.0
    assert layout["annotations"][0]["y"] == pytest.approx(2.301, abs=1e-3), "in decades, as plotly wants it"


def test_stacked_pieces_are_those_of_the_bars():
    stall, compute = figure(BARS)["data"]
    assert (stall["x"], compute["x"]) == ([1.0, 2.0], [3.0, None])
    assert stall["marker"]["pattern"]["shape"] == "/"
    assert figure(BARS)["layout"]["yaxis"]["ticktext"] == ["batch 8", SAFE]


def test_cells_are_colored_by_decades_where_they_are_far_apart():
    (cells,) = figure(HEATMAP)["data"]
    assert cells["z"] == [[0.0, None], [2.0, 1.0]]
    assert cells["text"] == [["1.0", ""], ["100", "10.0"]]
    assert cells["colorbar"]["ticktext"] == ["1", "2", "5", "10", "20", "50", "100"]


def test_the_warm_up_and_a_level_are_drawn():
    layout = figure(LINES)["layout"]
    assert [(shape["type"], shape["x0"]) for shape in layout["shapes"]] == [("rect", -0.5), ("line", 0)]
    assert [note["text"] for note in layout["annotations"]] == ["warm-up", "as asked"]
    assert layout["xaxis"]["tickvals"] == [0, 1]


@pytest.mark.parametrize("chart", EVERY, ids=lambda chart: chart.name)
def test_no_text_is_markup(chart):
    assert "<script" not in drawn(chart).replace("\\u003c", "<")
    assert SAFE in json.dumps(figure(chart))


def test_what_is_told_has_its_title_first_and_its_lines_escaped():
    told, link = pointed(["batch 8", "1 < 2"], LINK)
    assert told.startswith("<b>batch 8</b><br>1 &lt; 2<br>")
    assert link == LINK
    assert escaped(EVIL) == SAFE


@pytest.mark.parametrize("link", [None, "", "javascript:alert(1)", "file:///etc/passwd", "data:text/html,x"])
def test_a_click_opens_a_web_page_or_nothing(link):
    assert pointed(["a"], link) == ["<b>a</b>", ""]


def test_many_marks_are_drawn_by_the_graphics_card_and_without_bars():
    marks = [Mark(float(n), float(n), (str(n),), None, Reach(1.0, 1.0), Reach(1.0, 1.0)) for n in range(1500)]
    chart = Scatter("many", "", "", Axis("x"), Axis("y"), [Series("jobs", marks)])
    (trace,) = figure(chart)["data"]
    assert trace["type"] == "scattergl"
    assert "error_x" not in trace


def test_plotly_comes_as_source():
    assert "plotly.js v" in script()[:500]
