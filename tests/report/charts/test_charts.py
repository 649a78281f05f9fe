"""The rows that charts draw, their captions, and which charts there are."""

import json
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from golden import FOLDER, assert_text, json_line
from metadata import RUN
from sweeps import ddp, reaching, trained

from epochmeter.report.analyses import scaling
from epochmeter.report.analyses.comparison import analyze
from epochmeter.report.build import all_charts
from epochmeter.report.charts.bars import energy_domains
from epochmeter.report.charts.changes import changes
from epochmeter.report.charts.lines import MAX_SAMPLES, power_over_time
from epochmeter.report.charts.points import Palette
from epochmeter.report.charts.trace import roofline
from epochmeter.report.charts.vega import GRAY, GREEN, VERMILION, make_axis, small_multiples, to_svg
from epochmeter.report.runs.configuration import group_repeats
from epochmeter.report.runs.filter import Selection
from epochmeter.report.statistics import fits, ratio_in_fits
from epochmeter.report.subject import subject_of
from epochmeter.shared.phases import PHASES
from epochmeter.shared.record import Record

pytest.importorskip("vl_convert")
PARTS = {"data_stall_s": 2.0, "copy_s": 0.5, "compute_s": 7.0, "overhead_s": 0.5}
LINK = "http://127.0.0.1:5000/#/experiments/1/runs/abc"
EVIL = "<script>alert(1)</script> & $x_1$"


def ran(number, e2e_s, energy_j=None, *, steady=None, covers="GPUs used", **keys):
    """A run of 1000 samples with this time and energy per epoch."""
    run = trained(number, 1000 / e2e_s, steady={"compute_s": None, "energy_j": energy_j, **(steady or {})}, **keys)
    return run if energy_j is None else replace(run, energy_covers=covers)


def reached(number, seconds=None, joules=None, **keys):
    return reaching(number, seconds, joules, **{"steady": {"energy_j": joules and 100.0}, **keys})


def subject_and_scaling(runs):
    subject = subject_of(Selection(runs, [], {}))
    return subject, scaling.analyze(subject.timed)


def drawn(runs, *best):
    """The charts by name; `best` are criteria and numbers of configurations."""
    entries = group_repeats(runs)
    choices = [SimpleNamespace(name=name, configuration=entries[number]) for name, number in best]
    return {chart.name: chart for chart in all_charts(*subject_and_scaling(runs), choices)}


def rows(chart, dataset, *fields):
    """The values of a field in the rows of a dataset, or tuples of several."""
    values = [tuple(row.get(field) for field in fields) for row in chart.spec["datasets"][dataset]]
    return [value for (value,) in values] if len(fields) == 1 else values


def test_charts_without_data_are_absent():
    assert all_charts(*subject_and_scaling([])) == []
    assert [*drawn([ran(0, 10.0, steady=PARTS)])] == ["epoch_parts"]
    assert "target" not in drawn([reached(0)])
    assert drawn([ran(0, 10.0, batch=8), ran(1, 8.0, batch=16)]) == {}, "one key makes no grid"


def test_parts_of_a_script_are_drawn_without_the_copies_that_are_part_of_its_compute():
    parts = {name: value for name, value in PARTS.items() if name != "copy_s"}
    chart = drawn([ran(0, 9.5, steady=parts)])["epoch_parts"]
    assert rows(chart, "parts", "part") == ["data stall", "compute", "overhead"]


def test_phases_of_compute_are_drawn_if_all_are_known():
    phases = {phase: 1.0 + number for number, phase in enumerate(PHASES)}
    runs = [
        ran(0, 30.0, steady={"compute_s": 21.0, **phases}, batch=8),
        ran(1, 20.0, steady={"compute_s": 9.0, "backward_s": 4.0, "other_compute_s": 5.0}, batch=16),
    ]
    chart = drawn(runs)["compute_phases"]
    assert rows(chart, "parts", "part", "start", "end") == [
        ("preparation", 0, 1), ("forward", 1, 3), ("loss", 3, 6), ("backward", 6, 10), ("optimizer", 10, 15),
        ("other compute", 15, 21),
    ]  # fmt: skip
    assert chart.caption["unknown_parts"] == (1, 2)


def test_a_value_of_the_key_has_one_color_in_all_charts_if_there_are_few():
    epochs = [{"epoch/e2e_s": 15.0}, {"epoch/e2e_s": 10.0}]
    charts = drawn([ran(n, 30.0 - n, 500.0, batch=2**n, epochs=epochs) for n in range(4)])
    layers = [layer["encoding"] for layer in charts["energy_by_time"].spec["layer"]]
    scale = next(encoding["color"]["scale"] for encoding in layers if "shape" in encoding)
    colors = dict(zip(scale["domain"], scale["range"], strict=True))
    assert [*colors] == ["batch 1", "batch 2", "batch 4", "batch 8"]
    assert set(rows(charts["epochs_time"], "values", "panel", "color")) == set(colors.items())
    many = group_repeats([ran(n, 10.0, batch=n + 1) for n in range(9)])
    assert (Palette.of(many).key, len({Palette.of(many).color(each) for each in many})) == ("", 1)


def test_bars_of_epochs_begin_with_the_fastest_and_many_are_folded():
    runs = [ran(n, 10.0 * 2**n, steady={name: value * 2**n for name, value in PARTS.items()}, batch=16 - n)
            for n in (1, 0)]  # fmt: skip
    runs += [ran(2 + n, 100.0 + n, steady=PARTS, batch=100 + n) for n in range(48)]
    charts = drawn([*runs, *(ran(50 + n, 9.0, batch=200 + n) for n in range(3))])
    first, more = charts["epoch_parts"], charts["epoch_parts_more"]
    assert rows(first, "bars", "name")[:3] == ["batch 16", "batch 15", "batch 100"]
    shown = [(len(rows(chart, "bars", "name")), chart.is_folded) for chart in (first, more)]
    assert shown == [(15, False), (35, True)]
    assert (first.caption["fastest_of"], first.caption["unknown_parts"]) == ((15, 50), (3, 53))


@pytest.mark.parametrize(
    ("total", "joules", "parts"),
    [
        (["cpu0", "dram0"], {"cpu0": 60, "dram0": 40}, {"cpu0": 60, "dram0": 40}),
        (["gpu0"], {"gpu0": 100, "gpu0_sampled": 99}, {"gpu0": 100}),
        (["cpu0"], {"cpu0": 100, "core0": 60, "uncore0": 9, "psys": 150}, {"cpu0": 100}),
        (["gpu0", "gpu1"], {"gpu0": 60, "gpu1": 40, "cpu0": 30}, {"gpu0": 60, "gpu1": 40}),
        (["VDD_IN"], {"VDD_IN": 100, "VDD_GPU": 50, "CPU": 20}, {"VDD_GPU": 50, "CPU": 20, "rest": 30}),
        (["VDD_IN"], {"VDD_IN": 100, "VDD_GPU": 150}, {}),
        # An AGX Orin: one of three rails feeds a fourth, which a tolerance of 2 % of the sum of all four would hide.
        (["A", "B", "5V"], {"A": 40, "B": 20, "5V": 40, "VDDQ": 15}, {"A": 40, "B": 20, "5V": 40}),
        (["A", "B", "5V"], {"A": 40, "B": 20, "5V": 40, "VDDQ": 1.5}, {"A": 40, "B": 20, "5V": 40}),
        (["VDD_IN"], {"VDD_GPU": 50}, {}),
        ([], {"VDD_IN": 100}, {}),
    ],
)  # fmt: skip
def test_energy_domains_are_counted_once(total, joules, parts):
    domains = {f"energy_{name}_j": float(value) for name, value in joules.items()}
    run = replace(
        ran(0, 10.0, 100.0, steady={**domains, "energy_per_sample_j": 0.1, "energy_per_gflop_j": 9.0}),
        energy_domains=total,
    )
    other = replace(run, number=1, energy_domains=[*total, "X"])
    assert energy_domains(*group_repeats([run]), 100.0) == parts
    assert parts == {} or energy_domains(*group_repeats([run, other]), 100.0) == {}, "different totals"


def gridded(first, second, **more):
    """Runs of each pair of values; the values of `more` are by run."""
    (key, values), (other, others) = first, second
    return [ran(n, 10.0 + n, **{key: a, other: b}, **{name: by_run[n] for name, by_run in more.items()})
            for n, (a, b) in enumerate((a, b) for a in values for b in others)]  # fmt: skip


def changed(runs, seconds, host="", **keys):
    """Copies of runs with new numbers, other keys and another time per epoch."""
    return [replace(run, number=run.number + len(runs), host=host, job={**run.job, **keys},
                    metrics={**run.metrics, "steady/e2e_s": seconds}) for run in runs]  # fmt: skip


SCOPES = [ran(2 * n + m, 10.0 + m, 100.0 - m, covers=covers, batch=8 + m, precision=covers,
              steady={f"energy_{domain}_j": 100.0 - m})
          for n, (covers, domain) in enumerate([("CPU packages", "cpu0"), ("GPUs used", "gpu0")])
          for m in range(2)]  # fmt: skip
GRID = gridded(("batch", (8, 128, 16)), ("power_limit", (100, 90)), energy_j=[*[9.0] * 5, None])
CUBE = [replace(run, number=4 * n + run.number) for n, precision in enumerate(("fp32", "bf16"))
        for run in gridded(("batch", (8, 16)), ("workers", (0, 4)), precision=[precision] * 4)]  # fmt: skip
REAL = gridded(("batch", (8, 16)), ("workers", (1, 4)), energy_j=[100.0] * 4, steady=[PARTS] * 4)
EPOCHS = [[{"epoch/e2e_s": first}, {"epoch/e2e_s": 10.0}, {"epoch/e2e_s": 11.0}] for first in (15.0, 17.0)]
EPOCHS[0].append({"epoch/e2e_s": 12.0})  # which the other run lacks
TARGET = [reached(n, 100.0 - n, 50.0 + n, batch=8 + n, steady={**PARTS, "energy_j": 9.0}) for n in range(2)]
CASES = {
    "energy": ([ran(0, 10.0, 500.0, batch=8), ran(1, 12.0, 520.0, batch=8, repeat=1), ran(2, 20.0, 300.0, batch=16),
                ran(3, 40.0, 600.0, batch=32)], [("fastest", 0), ("tradeoff", 0)]),
    "near_points": ([ran(n, x, 600.0 - x, batch=n + 1) for n, x in enumerate((10.0, 10.1, 10.2, 30.0))], []),
    "many_points": ([*(ran(n, 10 + n / 10, 600 - n, batch=n + 1) for n in range(8)), ran(8, 10.35, 599.0, batch=99),
                     ran(9, 90.0, 900.0, batch=100)], [("fastest", 0)]),
    "without_energy": ([ran(0, 10.0, 500.0, batch=8), ran(1, 20.0, batch=16), ran(2, 30.0, 400.0, batch=32)], []),
    "mixed_scopes": ([ran(0, 10.0, 500.0, batch=8), ran(1, 10.0, 400.0, batch=8, repeat=1, covers="CPU packages"),
                      ran(2, 20.0, 300.0, batch=16), ran(3, 25.0, 280.0, batch=32)], []),
    "single_energy": ([ran(0, 10.0, 500.0, batch=8), ran(1, 20.0, batch=16)], []),
    "scopes": ([replace(run, energy_domains=["cpu0" if run.number < 2 else "gpu0"]) for run in SCOPES], []),
    "grid": (GRID, []),
    "three_keys": (CUBE, []),
    "hosts": ([*(replace(run, host="h0") for run in CUBE), *changed(CUBE, 99.0, "h1")], []),
    "synthetic": ([*REAL, *changed(REAL, 5.0, synthetic_batches=True)], []),
    "epochs": ([ran(n, 10.0, repeat=n, epochs=EPOCHS[n]) for n in range(2)], []),
    "many_epochs": ([ran(n, 10.0 + n, batch=n + 1, epochs=[{"epoch/e2e_s": 10.0}] * (2 if n else 0))
                     for n in range(11)], []),
    # One run reached its target within the warm-up, so that it has no time per epoch.
    "target": ([*TARGET, reaching(2, 60.0, 80.0, batch=32, steady={"e2e_s": None}), reached(3, batch=64)],
               [("fastest", 2)]),
    "target_without_energy": ([reached(0, 100.0, batch=8), reached(1, 50.0, batch=16)], []),
    "target_grid": ([reached(2 * i + j, 100.0 + 10 * i + j, 50.0, batch=batch, workers=workers)
                     for i, batch in enumerate((8, 16)) for j, workers in enumerate((0, 4))], []),
    "target_partly": ([reached(0, 100.0, 50.0, batch=8), reached(1, 50.0, 20.0, batch=16),
                       reached(2, batch=16, repeat=1)], []),
}  # fmt: skip
"""Runs, and the best configuration by criterion, as its number."""


@pytest.mark.parametrize("case", CASES)
def test_charts_have_the_rows_and_captions_of_their_golden_files(case):
    runs, best = CASES[case]
    lines = []
    for name, chart in drawn(runs, *best).items():
        caption = {key: str(value) for key, value in chart.caption.items() if value}
        lines += [f"{name}: {chart.title}{' (folded)' * chart.is_folded}", json.dumps(caption)]
        for dataset, values in chart.spec["datasets"].items():
            lines += [dataset, *(f"    {json_line(row)}" for row in values)]
    assert_text(FOLDER / f"charts_{case}.txt", "\n".join([*lines, ""]))


def test_error_bar_that_ends_below_zero_is_within_the_axis_and_its_label_clear():
    repeats = [ran(n, time_s, 100.0 * time_s, batch=8, repeat=n) for n, time_s in enumerate((1.0, 41.0))]
    chart = drawn([*repeats, ran(2, 30.0, 3000.0, batch=16)], ("fastest", 0))["energy_by_time"]
    low = chart.spec["layer"][0]["encoding"]["x"]["scale"]["domain"][0]
    assert 0 < low < 21.0
    assert rows(chart, "points", "x_low") == [low, None]
    assert abs(*rows(chart, "labels", "dy")) > 10


def compared(*factors):
    """The changes of three repeats of each configuration, whose times of about 10 s are multiplied by a factor."""
    before, after = (
        [ran(3 * n + m, time_s * (factor if is_after else 1.0), batch=n + 1, repeat=m)
         for n, factor in enumerate(factors) for m, time_s in enumerate((9.9, 10.0, 10.1))]
        for is_after in (False, True)
    )  # fmt: skip
    return changes(analyze(group_repeats(before), group_repeats(after)))


def test_changes_have_intervals_and_the_color_of_their_verdict():
    (chart,) = compared(1.2, 1.0, 0.9)
    colors = {"All 3 configurations": GRAY, "batch 1": VERMILION, "batch 3": GREEN, "batch 2": GRAY}
    assert rows(chart, "points", "title", "color") == [*colors.items()]
    (_, low, high, text), *_ = rows(chart, "points", "row", "x_low", "x_high", "ratio")
    assert text == f"{(1.2 * 0.9) ** (1 / 3):.2f} ({low:.2f} to {high:.2f})"
    assert [len(rows(*compared(*[1.2] * count), "points")) for count in (2, 20)] == [2, 15]
    assert compared() == []


def test_long_interval_of_a_change_is_cut():
    runs = [ran(n, time_s, batch=1, repeat=n) for n, time_s in enumerate((5.0, 20.0))]
    (chart,) = changes(analyze(group_repeats(runs), group_repeats(runs)))
    assert rows(chart, "points", "x", "x_low", "x_high") == [(1.0, 0.5, 2.0)]


def test_label_is_clear_of_a_mark_that_only_a_wide_chart_has_below_it():
    runs = [ran(0, 10.0, 600.0, batch=1), ran(1, 10.3, 601.0, batch=2), ran(2, 30.0, 300.0, batch=4)]
    labels = rows(drawn(runs)["energy_by_time"], "labels", "text", "dx", "dy")
    assert [(text, abs(dx), dy != 0) for text, dx, dy in labels] == [(["batch 1"], 12, True), (["batch 4"], 12, False)]


def test_epochs_are_those_of_the_fastest_only_if_more_configurations_have_several():
    runs = [ran(n, 10.0 + n, batch=n + 1, epochs=[{"epoch/e2e_s": 10.0}] * (n % 4)) for n in range(15)]
    assert [drawn(runs[:count])["epochs_time"].caption["fastest"] for count in (12, 15)] == [False, 6]


def test_keys_of_a_heatmap_are_in_natural_order():
    encoding = drawn(GRID)["grid_time"].spec["layer"][0]["encoding"]
    assert (encoding["x"]["sort"], encoding["y"]["sort"]) == (["8", "16", "128"], ["100", "90"])
    assert small_multiples({}, [{"panel": name} for name in "abcde"], 3)["usermeta"]["columns"] == [3, 2, 1]


def sampled(folder, number, watts):
    """A run whose power was sampled once per second."""
    (folder / str(number)).mkdir()
    Record(folder / str(number)).append_power([(7 + index) * 10**9 for index in range(len(watts))], {"total": watts})
    return replace(ran(number, 10.0, 500.0, batch=number + 1), folder=folder / str(number))


def test_power_of_the_best_is_drawn_from_the_first_sample_on_in_a_readable_unit(tmp_path):
    watts = [0.02, 0.05, 0.03], [*map(float, range(2400))]
    few, many = (sampled(tmp_path, number, values) for number, values in enumerate(watts))
    chart = drawn([few, many], ("fastest", 0))["power"]
    assert rows(chart, "values", "x", "y") == [(0.0, 20.0), (1.0, 50.0), (2.0, 30.0)]
    assert chart.spec["spec"]["layer"][0]["encoding"]["y"]["title"] == "Power (mW)"
    (chart,) = power_over_time(group_repeats([many]), Palette.of([]))
    places = rows(chart, "values", "x", "y")
    assert (len(places), chart.caption["mean_of"]) == (MAX_SAMPLES, "4.00 s")
    assert [1000 * y for _, y in places] == pytest.approx([60 * x for x, _ in places], abs=2.1), "kW and minutes"


def test_record_without_readable_power_is_not_drawn(tmp_path):
    entries = group_repeats([replace(ran(0, 10.0), folder=tmp_path)])
    for text in (None, "", "monotonic_ns,total_w\n", "monotonic_ns,total_w\n1,2.0\n", "no,power\n1,2\n",
                 "monotonic_ns,total_w\none,two\n"):  # fmt: skip
        if text is not None:
            (tmp_path / "power.csv").write_text(text)
        assert power_over_time(entries, Palette.of([])) == []


def test_scaling_efficiency_has_the_interval_of_a_ratio_and_one_line_per_host():
    ones = [trained(n, speed, repeat=n) for n, speed in enumerate((90.0, 110.0))]
    twos = [replace(ddp(2 + n, speed, repeat=n), link=LINK) for n, speed in enumerate((170.0, 210.0))]
    ((*values, link),) = rows(drawn([*ones, *twos])["efficiency"], "results", "y", "y_low", "y_high", "link")
    logs = [[math.log(value) for value in values] for values in ([90.0, 110.0], [170.0, 210.0])]
    expected = ratio_in_fits(fits(logs), 1, 0).map(lambda ratio: 50 * ratio)
    assert (values, link) == (pytest.approx([expected.value, expected.low, expected.high]), LINK)
    runs = [replace(trained(0, speed, strategy=strategy, ranks=ranks), host=host) for host in ("h1", "h2")
            for strategy, ranks, speed in (("single", 1, 100.0), ("ddp", 2, 190.0), ("ddp", 4, 360.0))]  # fmt: skip
    values = rows(drawn(runs)["efficiency"], "results", "line", "devices", "y", "y_low")
    assert len({line for line, *_ in values}) == 2
    assert [value[1:] for value in values] == [(2, pytest.approx(95.0), None), (4, pytest.approx(90.0), None)] * 2


def test_roofline_has_the_run_and_operators_with_a_known_time_below_the_line(tmp_path):
    peaks = {"roofline/peak_flop_per_s": 1e11, "roofline/peak_bytes_per_s": 1e10}
    metrics = {**peaks, "roofline/flop_per_byte": 4.0, "steady/hfu": 0.2}
    operators = {"aten::convolution": {"calls": 2, "flops": 4e9, "bytes": 2e8},
                 "aten::mm": {"calls": 1, "flops": 1, "bytes": 1}}  # fmt: skip
    training = {"operators": operators, "peaks": {"flop_per_s": 5e10}}  # of one of two devices
    (tmp_path / "job.json").write_text(json.dumps({"job": {}, "run": {**RUN, "training": training}}))
    view, record = {"flop_per_s": {"aten::convolution": 2e10}}, Record(tmp_path)
    assert roofline(record, view) == []
    (tmp_path / "summary.json").write_text(json.dumps({"metrics": {"steady/hfu": 0.2}}))
    assert roofline(record, view) == []
    (tmp_path / "summary.json").write_text(json.dumps({"metrics": metrics}))
    (chart,) = roofline(record, view)
    points = [(name, x, round(y), text) for name, x, y, text in rows(chart, "points", "name", "x", "y", "of_roof")]
    assert points == [("mean epoch", 4.0, 20, "50 % of the line"), ("convolution", 20.0, 40, "40 % of the line")]
    assert rows(chart, "labels", "text") == [["mean epoch"], ["convolution"]]
    assert max(rows(chart, "roof", "y")) == 100
    assert "datasheet" not in chart.spec["datasets"]
    assert "convolution" in to_svg(chart)


def test_axis_suits_its_values():
    largest = {0.05: "ms", 0.1: "s", 179.0: "s", 180.0: "min", 20_000.0: "h"}
    assert {value: make_axis("Time", [value / 2, value], "s").unit.name for value in largest} == largest
    assert make_axis("Time", [1.0, 100.0], "s").scale == "log"
    assert make_axis("Time", [1.0, 100.0], "s", zero=True).scale == "linear"
    assert make_axis("Time", [1.0, 1.0], "s").domain[0] >= 0


def test_images_have_the_title_and_only_links_to_web_pages_and_names_stay_text():
    run = replace(ran(0, 10.0, 500.0, batch=8, steady=PARTS), link=LINK)
    runs = [replace(run, job={**run.job, "model": {"name": EVIL}}), ran(1, 20.0, 300.0, batch=16, steady=PARTS)]
    svg = to_svg(drawn(runs)["epoch_parts"])
    assert ">Time per epoch by part</text>" in svg
    assert "&lt;script&gt;alert(1)" in svg
    assert "<script" not in svg
    assert {*re.findall(r'href="(.*?)"', svg)} == {LINK}, "the other run has no page"
    runs = [replace(run, link="javascript:alert(1)") for run in runs]
    assert rows(drawn(runs)["energy_by_time"], "points", "link") == [None, None]
