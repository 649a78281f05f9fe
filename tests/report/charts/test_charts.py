"""The rows that charts draw, their captions, and which charts there are."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from sweeps import ddp, reaching, trained

from epochmeter.report.build import all_charts
from epochmeter.report.charts.bars import energy_domains
from epochmeter.report.charts.draw import to_png, to_svg
from epochmeter.report.charts.lines import MAX_SAMPLES, power_over_time
from epochmeter.report.charts.points import Palette
from epochmeter.report.charts.vega import make_axis, small_multiples
from epochmeter.report.runs.configuration import NoEnergy, group_repeats
from epochmeter.report.statistics import fits, ratio_in_fits
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


def drawn(runs, **more):
    return {chart.name: chart for chart in all_charts(runs, **more)}


def rows(chart, dataset, *fields):
    """The rows of a dataset, or tuples of some of their fields."""
    values = chart.spec["datasets"][dataset]
    return [tuple(row.get(field) for field in fields) for row in values] if fields else values


def test_charts_without_data_are_absent():
    assert all_charts([]) == []
    assert [*drawn([ran(0, 10.0, steady=PARTS)])] == ["epoch_parts"]


def test_energy_is_drawn_against_time_with_front_and_labels():
    runs = [ran(0, 10.0, 500.0, batch=8), ran(1, 20.0, 300.0, batch=16), ran(2, 40.0, 600.0, batch=32)]
    best = [SimpleNamespace(name=name, configuration=group_repeats(runs)[0]) for name in ("fastest", "tradeoff")]
    chart, *_ = all_charts(runs, best)
    assert chart.name == "energy_by_time"
    assert rows(chart, "points", "title", "x", "y", "kind") == [
        ("batch 8", 10.0, 500.0, "batch 8"),
        ("batch 16", 20.0, 300.0, "batch 16"),
        ("batch 32", 40.0, 600.0, "batch 32"),
    ]
    assert rows(chart, "front", "x", "y") == [(10.0, 500.0), (20.0, 300.0)]
    assert rows(chart, "labels", "text") == [(["fastest", "best trade-off"],), (["batch 16"],)]
    assert chart.caption["scope"] == "GPUs used"


def test_labels_of_near_points_do_not_overlap_or_are_dropped():
    runs = [ran(n, x, 600.0 - x, batch=n + 1) for n, x in enumerate((10.0, 10.1, 10.2, 30.0))]
    below = [distance for (distance,) in rows(drawn(runs)["energy_by_time"], "labels", "dy")]
    assert (len(set(below[:3])), below[3]) == (3, 0)
    runs = [ran(n, 10 + n / 10, 600 - n, batch=n + 1) for n in range(8)]
    runs += [ran(8, 10.35, 599.0, batch=99), ran(9, 90.0, 900.0, batch=100)]
    best = SimpleNamespace(name="fastest", configuration=group_repeats(runs)[0])
    labels = rows(all_charts(runs, [best])[0], "labels")
    assert labels[0]["text"] == ["fastest"]
    assert 1 <= len(labels) < 8


def test_repeats_are_one_mark_with_their_standard_deviation_which_a_single_run_lacks():
    runs = [ran(0, 10.0, 500.0), ran(1, 12.0, 520.0, repeat=1), ran(2, 12.0, 520.0, batch=8)]
    point, single = rows(drawn(runs)["energy_by_time"], "points")
    assert (point["x"], point["y"]) == pytest.approx((11.0, 510.0))
    assert (point["x_low"], point["x_high"]) == pytest.approx((11 - 2**0.5, 11 + 2**0.5))
    assert (point["time"], point["runs"]) == ("11.0 s (SD 1.4 s)", "0, 1")
    assert "x_low" not in single


def test_configurations_without_finite_energy_are_counted():
    runs = [ran(0, 10.0, 500.0, batch=8), ran(1, 20.0, batch=16)]
    assert drawn(runs)["energy_by_time"].caption["without_energy"] == (1, 2, NoEnergy(1, 1, "no meter here"))
    assert "energy_by_time" not in drawn([ran(n, 10.0, float("inf"), batch=n + 1) for n in range(2)])
    runs = [ran(0, 10.0, 500.0, batch=8), ran(1, 10.0, 400.0, batch=8, repeat=1, covers="CPU packages"),
            ran(2, 20.0, 300.0, batch=16)]  # fmt: skip
    chart = drawn(runs)["energy_by_time"]
    assert rows(chart, "points", "title") == [("batch 16",)]
    assert chart.caption["without_energy"] == (1, 2, NoEnergy(0, 2, covers=("CPU packages", "GPUs used")))


def test_energies_of_different_scopes_are_in_charts_of_their_own():
    runs = [ran(2 * n + m, 10.0 + m, 100.0 - m, covers=covers, batch=8 + m, precision=covers,
                steady={f"energy_{domain}_j": 100.0 - m})
            for n, (covers, domain) in enumerate([("CPU packages", "cpu0"), ("GPUs used", "gpu0")])
            for m in range(2)]  # fmt: skip
    runs = [replace(run, energy_domains=["cpu0" if run.number < 2 else "gpu0"]) for run in runs]
    charts = drawn(runs)
    for name in ("energy_by_time", "energy_domains"):
        assert [each for each in charts if each.startswith(name)] == [f"{name}_0", f"{name}_1"]
        assert charts[f"{name}_0"].caption["scope"] == "CPU packages"


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


def test_parts_of_an_epoch_are_stacked_with_the_fastest_on_top():
    slow = {name: 2 * value for name, value in PARTS.items()}
    chart = drawn([ran(0, 20.0, steady=slow, batch=8), ran(1, 10.0, steady=PARTS, batch=16)])["epoch_parts"]
    assert rows(chart, "bars", "name") == [("batch 16",), ("batch 8",)]
    assert rows(chart, "parts", "bar", "part", "start", "end")[:4] == [
        (0, "data stall", 0.0, 2.0),
        (0, "copy", 2.0, 2.5),
        (0, "compute", 2.5, 9.5),
        (0, "overhead", 9.5, 10.0),
    ]
    assert rows(chart, "parts", "value", "total", "runs")[0] == ("2.0 s (20 %)", "10.0 s", "1")


def test_many_bars_are_folded_and_configurations_without_parts_are_counted():
    runs = [ran(n, 10.0 + n, steady=PARTS, batch=n + 1) for n in range(50)]
    charts = drawn([*runs, *(ran(50 + n, 9.0, batch=100 + n) for n in range(3))])
    first, more = charts["epoch_parts"], charts["epoch_parts_more"]
    assert [len(rows(chart, "bars")) for chart in (first, more)] == [15, 35]
    assert (first.is_folded, more.is_folded) == (False, True)
    assert rows(first, "bars", "name")[0] == ("batch 1",)
    assert (first.caption["fastest_of"], first.caption["unknown_parts"]) == ((15, 50), (3, 53))


def domains_of(*runs):
    (configuration,) = group_repeats([replace(run, energy_domains=domains) for run, domains in runs])
    return energy_domains(configuration, 100.0)


@pytest.mark.parametrize(
    ("total", "joules", "parts"),
    [
        (["cpu0", "dram0"], {"cpu0": 60, "dram0": 40}, {"cpu0": 60, "dram0": 40}),
        (["gpu0"], {"gpu0": 100, "gpu0_sampled": 99}, {"gpu0": 100}),
        (["gpu0", "gpu1"], {"gpu0": 60, "gpu1": 40, "cpu0": 30}, {"gpu0": 60, "gpu1": 40}),
        (["VDD_IN"], {"VDD_IN": 100, "VDD_GPU": 50, "CPU": 20}, {"VDD_GPU": 50, "CPU": 20, "rest": 30}),
        (["VDD_IN"], {"VDD_IN": 100, "VDD_GPU": 150}, {}),
        (["A", "B"], {"A": 60, "B": 40}, {"A": 60, "B": 40}),
        # An AGX Orin: one of three rails feeds a fourth, which a tolerance of 2 % of the sum of all four would hide.
        (["A", "B", "5V"], {"A": 40, "B": 20, "5V": 40, "VDDQ": 15}, {"A": 40, "B": 20, "5V": 40}),
        (["A", "B", "5V"], {"A": 40, "B": 20, "5V": 40, "VDDQ": 1.5}, {"A": 40, "B": 20, "5V": 40}),
        (["VDD_IN"], {"VDD_GPU": 50}, {}),
        ([], {"VDD_IN": 100}, {}),
        (["gpu0"], {}, {}),
    ],
)  # fmt: skip
def test_energy_domains_are_counted_once(total, joules, parts):
    domains = {f"energy_{name}_j": float(value) for name, value in joules.items()}
    run = ran(0, 10.0, 100.0, steady={**domains, "energy_per_sample_j": 0.1})
    assert domains_of((run, total)) == parts
    assert parts == {} or domains_of((run, total), (replace(run, number=1), [*total, "X"])) == {}, "different totals"


def gridded(first, second, **more):
    """Runs of each pair of values; the values of `more` are by run."""
    (key, values), (other, others) = first, second
    return [ran(n, 10.0 + n, **{key: a, other: b}, **{name: by_run[n] for name, by_run in more.items()})
            for n, (a, b) in enumerate((a, b) for a in values for b in others)]  # fmt: skip


def test_two_keys_make_a_heatmap_in_natural_order():
    chart = drawn(gridded(("batch", (8, 128, 16)), ("power_limit", (100, 90))))["grid_time"]
    encoding = chart.spec["layer"][0]["encoding"]
    assert (encoding["x"]["sort"], encoding["y"]["sort"]) == (["8", "16", "128"], ["100", "90"])
    cells = {(column, row): cell for column, row, cell in rows(chart, "values", "column", "row", "cell")}
    keys = [(column, row) for column in ("8", "128", "16") for row in ("100", "90")]
    assert cells == {key: pytest.approx(10.0 + number) for number, key in enumerate(keys)}
    assert chart.title == "Time per epoch by batch and power limit"
    assert "grid_time" not in drawn([ran(0, 10.0, batch=8), ran(1, 8.0, batch=16)])


def test_a_third_key_makes_small_multiples_and_further_ones_a_note():
    runs = [run for n, precision in enumerate(("fp32", "bf16"))
            for run in gridded(("batch", (8, 16)), ("workers", (0, 4)), precision=[precision] * 4)]  # fmt: skip
    runs = [replace(run, number=number) for number, run in enumerate(runs)]
    chart = drawn(runs)["grid_time"]
    assert len(rows(chart, "values")) == 8
    assert {panel for (panel,) in rows(chart, "values", "panel")} == {"precision fp32", "precision bf16"}
    slower = {run.number: {**run.metrics, "steady/e2e_s": 99.0} for run in runs}
    hosts = [replace(run, number=8 + run.number, host="h1", metrics=slower[run.number]) for run in runs]
    best = drawn([*(replace(run, host="h0") for run in runs), *hosts])["grid_time"]
    assert best.caption["best_over"] == "hosts"
    assert sorted(rows(best, "values", "cell")) == sorted(rows(chart, "values", "cell"))


def test_empty_cells_are_noted():
    chart = drawn(gridded(("batch", (8, 16)), ("workers", (0, 4)), energy_j=[100.0, 90.0, 80.0, None]))["grid_energy"]
    assert len(rows(chart, "values")) == 3
    assert chart.caption["empty_cells"]
    assert chart.caption["without_energy"] == (1, 4, NoEnergy(1, 1, "no meter here"))


def test_synthetic_batches_are_shown_by_part_but_are_none_to_choose_from():
    real = gridded(("batch", (8, 16)), ("workers", (1, 4)), energy_j=[100.0] * 4, steady=[PARTS] * 4)
    synthetic = [replace(run, number=4 + run.number, job={**run.job, "synthetic_batches": True},
                         metrics={**run.metrics, "steady/e2e_s": 5.0}) for run in real]  # fmt: skip
    charts = drawn([*real, *synthetic])
    times = {10.0, 11.0, 12.0, 13.0}
    assert len(rows(charts["epoch_parts"], "bars")) == 8
    assert {x for (x,) in rows(charts["energy_by_time"], "points", "x")} == times
    assert {cell for (cell,) in rows(charts["grid_time"], "values", "cell")} == times


def test_epochs_count_from_one_with_the_warm_up_marked():
    epochs = [[{"epoch/e2e_s": first}, {"epoch/e2e_s": 10.0}, {"epoch/e2e_s": 11.0}] for first in (15.0, 17.0)]
    epochs[0].append({"epoch/e2e_s": 12.0})  # which the other run lacks
    chart = drawn([ran(n, 10.0, repeat=n, epochs=epochs[n]) for n in range(2)])["epochs_time"]
    assert rows(chart, "values", "x", "y", "is_warm_up") == [(1, 16.0, True), (2, 10.0, False), (3, 11.0, False)]
    assert chart.caption["over_repeats"]


def test_the_fastest_with_several_epochs_are_drawn():
    runs = [ran(n, 10.0 + n, batch=n + 1, epochs=[{"epoch/e2e_s": 10.0}] * (20 if n else 0)) for n in range(11)]
    chart = drawn(runs)["epochs_time"]
    panels = dict.fromkeys(panel for (panel,) in rows(chart, "values", "panel"))
    assert ([*panels], chart.caption["fastest"]) == ([f"batch {n}" for n in range(2, 8)], 6)
    assert small_multiples({}, [{"panel": name} for name in "abcde"], 3)["usermeta"]["columns"] == [3, 2, 1]


def sampled(folder, number, watts):
    """A run whose power was sampled once per second."""
    (folder / str(number)).mkdir()
    Record(folder / str(number)).append_power([(7 + index) * 10**9 for index in range(len(watts))], {"total": watts})
    return replace(ran(number, 10.0, 500.0, batch=number + 1), folder=folder / str(number))


def test_power_of_the_best_is_drawn_from_the_first_sample_on_in_a_readable_unit(tmp_path):
    watts = [0.02, 0.05, 0.03], [*map(float, range(2400))]
    few, many = (sampled(tmp_path, number, values) for number, values in enumerate(watts))
    best = [SimpleNamespace(name="fastest", configuration=entry) for entry in group_repeats([few])]
    chart = {chart.name: chart for chart in all_charts([few, many], best)}["power"]
    assert rows(chart, "values", "x", "y") == [(0.0, 20.0), (1.0, 50.0), (2.0, 30.0)]
    assert chart.spec["spec"]["layer"][0]["encoding"]["y"]["title"] == "Power (mW)"
    chart = power_over_time(group_repeats([many]), Palette.of([]))
    places = rows(chart, "values", "x", "y")
    assert (len(places), chart.caption["mean_of"]) == (MAX_SAMPLES, "4.00 s")
    assert [1000 * y for _, y in places] == pytest.approx([60 * x for x, _ in places], abs=2.1), "kW and minutes"


@pytest.mark.parametrize("text", ["", "monotonic_ns,total_w\n", "monotonic_ns,total_w\n1,2.0\n", "no,power\n1,2\n",
                                  "monotonic_ns,total_w\none,two\n"])  # fmt: skip
def test_record_without_readable_power_is_not_drawn(tmp_path, text):
    run = replace(ran(0, 10.0), folder=tmp_path)
    assert power_over_time(group_repeats([run]), Palette.of([])) is None
    (tmp_path / "power.csv").write_text(text)
    assert power_over_time(group_repeats([run]), Palette.of([])) is None


def test_time_and_energy_to_a_target_come_first():
    runs = [reached(0, 100.0, 50.0, batch=8), reached(1, 50.0, 80.0, batch=16), reached(2, batch=32)]
    name, chart = next(iter(drawn(runs).items()))
    assert (name, chart.caption["never_reached"]) == ("target", (1, 3))
    assert rows(chart, "points", "title", "x", "y") == [("batch 8", 100.0, 50.0), ("batch 16", 50.0, 80.0)]
    assert sorted(rows(chart, "front", "x", "y")) == [(50.0, 80.0), (100.0, 50.0)]
    assert "target" not in drawn([reached(0)])
    timed = drawn([reached(0, 100.0, batch=8), reached(1, 50.0, batch=16)])["target"]
    assert rows(timed, "bars", "name") == [("batch 16",), ("batch 8",)], "bars, as nothing measured the energy"


def test_with_a_target_the_best_are_named_there_and_costs_per_epoch_come_last_and_folded():
    """One run reached its target within the warm-up, so that it has no time per epoch."""
    runs = [reached(n, 100.0 - n, 50.0 + n, batch=8 + n, steady={**PARTS, "energy_j": 9.0}) for n in range(2)]
    runs.append(reaching(2, 60.0, 80.0, batch=32, steady={"e2e_s": None}))
    best = [SimpleNamespace(name="fastest", configuration=group_repeats(runs)[2])]
    charts = all_charts(runs, best)
    assert [(chart.name, chart.is_folded) for chart in charts] == [
        ("target", False),
        ("epoch_parts", False),
        ("energy_by_time", True),
    ]
    assert rows(charts[0], "points", "x") == [(100.0,), (99.0,), (60.0,)]
    assert ["fastest"] in [text for (text,) in rows(charts[0], "labels", "text")]
    assert ["fastest"] not in [text for (text,) in rows(charts[-1], "labels", "text")]


def test_heatmaps_of_configurations_with_a_target_are_of_time_to_it():
    runs = [reached(2 * i + j, 100.0 + 10 * i + j, 50.0, batch=batch, workers=workers)
            for i, batch in enumerate((8, 16)) for j, workers in enumerate((0, 4))]  # fmt: skip
    chart = drawn(runs)["grid_time"]
    assert (chart.title, chart.caption["steady_epoch"]) == ("Time to the target by batch and workers", False)
    assert sorted(cell for (cell,) in rows(chart, "values", "cell")) == [100.0, 101.0, 110.0, 111.0]
    assert {cell for (cell,) in rows(drawn(runs)["grid_energy"], "values", "cell")} == {50.0}


def test_a_target_reached_in_some_runs_only_is_shown_but_not_on_the_front():
    runs = [reached(0, 100.0, 50.0, batch=8), reached(1, 50.0, 20.0, batch=16), reached(2, batch=16, repeat=1)]
    chart = drawn(runs)["target"]
    assert rows(chart, "points", "title", "x") == [("batch 8", 100.0), ("batch 16, reached by 1 of 2 runs", 50.0)]
    assert rows(chart, "front", "x") == [(100.0,)]


def test_scaling_efficiency_has_the_interval_of_a_ratio_and_one_line_per_host():
    ones = [trained(n, speed, repeat=n) for n, speed in enumerate((90.0, 110.0))]
    twos = [replace(ddp(2 + n, speed, repeat=n), link=LINK)
            for n, speed in enumerate((170.0, 210.0))]  # fmt: skip
    (row,) = rows(drawn([*ones, *twos])["efficiency"], "results")
    logs = [[math.log(value) for value in values] for values in ([90.0, 110.0], [170.0, 210.0])]
    expected = ratio_in_fits(fits(logs), 1, 0).scaled(50)
    assert (row["y"], row["y_low"], row["y_high"]) == pytest.approx((expected.value, expected.low, expected.high))
    assert row["link"] == LINK
    runs = [replace(trained(0, speed, strategy=strategy, ranks=ranks), host=host) for host in ("h1", "h2")
            for strategy, ranks, speed in (("single", 1, 100.0), ("ddp", 2, 190.0), ("ddp", 4, 360.0))]  # fmt: skip
    values = rows(drawn(runs)["efficiency"], "results", "line", "devices", "y", "y_low")
    assert len({line for line, *_ in values}) == 2
    assert [value[1:] for value in values] == [(2, pytest.approx(95.0), None), (4, pytest.approx(90.0), None)] * 2


def test_axis_suits_its_values():
    largest = {0.05: "ms", 0.1: "s", 599.0: "s", 600.0: "min", 20_000.0: "h"}
    assert {value: make_axis("Time", [value / 2, value], "s").unit.name for value in largest} == largest
    assert make_axis("Time", [1.0, 100.0], "s").scale == "log"
    assert make_axis("Time", [1.0, 100.0], "s", zero=True).scale == "linear"
    assert make_axis("Time", [1.0, 1.0], "s").domain[0] >= 0


def test_png_and_svg_have_the_title_and_only_links_to_web_pages_and_names_stay_text():
    run = replace(ran(0, 10.0, 500.0, batch=8, steady=PARTS), link=LINK)
    runs = [replace(run, job={**run.job, "model": {"name": EVIL}}), ran(1, 20.0, 300.0, batch=16, steady=PARTS)]
    chart = drawn(runs)["epoch_parts"]
    svg = to_svg({**chart.spec, "title": chart.title})
    assert ">Time per epoch by part</text>" in svg
    assert "&lt;script&gt;alert(1)" in svg
    assert "<script" not in svg
    assert f'xlink:href="{LINK}"' in svg
    assert to_png(svg).startswith(b"\x89PNG")
    runs = [replace(run, link="javascript:alert(1)") for run in runs]
    assert "link" not in rows(drawn(runs)["energy_by_time"], "points")[0]
