"""The picture of a roofline, from a scripted record."""

import json
from types import SimpleNamespace

import pytest

from epochmeter.report.charts.draw import to_svg
from epochmeter.report.charts.trace import roofline
from epochmeter.shared.record import Record

METRICS = {
    "roofline/peak_flop_per_s": 1e11,
    "roofline/peak_bytes_per_s": 1e10,
    "roofline/flop_per_byte": 4.0,
    "steady/hfu": 0.2,
}
OPERATORS = {
    "aten::convolution": {"calls": 2, "flops": 4e9, "bytes": 2e8},
    "aten::mm": {"calls": 1, "flops": 1, "bytes": 1},
}
TRAINING = {"operators": OPERATORS, "peaks": {"flop_per_s": 5e10}}  # of one of two devices
VIEW = SimpleNamespace(flop_per_s={"aten::mkldnn_convolution": 2e10})


@pytest.fixture
def record(tmp_path):
    (tmp_path / "job.json").write_text(json.dumps({"run": {"training": TRAINING}}))
    return Record(tmp_path)


def test_run_and_operators_with_a_known_time_are_points_below_the_line(record):
    (record.folder / "summary.json").write_text(json.dumps({"metrics": METRICS}))
    (chart,) = roofline(record, VIEW)
    points = chart.spec["datasets"]["points"]
    assert [(point["name"], point["x"], round(point["y"]), point["of_roof"]) for point in points] == [
        ("mean epoch", 4.0, 20, "50.0% of the line"),
        ("convolution", 20.0, 40, "40.0% of the line"),
    ]
    assert max(row["y"] for row in chart.spec["datasets"]["roof"]) == 100
    assert "datasheet" not in chart.spec["datasets"]
    assert "convolution" in to_svg({**chart.spec, "title": chart.title})


def test_without_peaks_there_is_no_picture(record):
    assert roofline(record, VIEW) == []
    (record.folder / "summary.json").write_text(json.dumps({"metrics": {"steady/hfu": 0.2}}))
    assert roofline(record, VIEW) == []
