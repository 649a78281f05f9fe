"""What is drawn of points: known answers, what is said beside a picture, and what is absent."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from sweeps import trained

from epochmeter.report.axes import shown, steady, unit_of
from epochmeter.report.charts import charts
from epochmeter.report.figures import Bars, Heatmap, Lines, Scatter
from epochmeter.report.runs.configuration import group_repeats
from epochmeter.report.runs.power import Power
from epochmeter.report.stacks import domains_of
from epochmeter.report.statistics import ratio

PARTS = {"data_stall_s": 2.0, "copy_s": 0.5, "compute_s": 7.0, "overhead_s": 0.5}


def ran(number, e2e_s, energy_j=None, *, steady=None, covers="GPUs used", **keys):
    """A run of 1000 samples that took so many seconds an epoch, and so many joules."""
    energy = {} if energy_j is None else {"energy_j": energy_j}
    found = trained(number, 1000 / e2e_s, steady={"compute_s": None, **energy, **(steady or {})}, **keys)
    return found if energy_j is None else replace(found, energy_covers=covers)


def drawn(rows, **more):
    return {chart.name: chart for chart in charts(group_repeats(rows), **more)}


def places(chart):
    return {mark.told[0]: (mark.x, mark.y) for series in chart.series for mark in series.marks}


def test_nothing_is_drawn_of_nothing():
    assert charts([]) == []


def test_time_alone_still_has_its_pictures():
    assert [*drawn([ran(0, 10.0, steady=PARTS)])] == ["epoch_parts"]


def test_energy_stands_against_time():
    chart = drawn([ran(0, 10.0, 500.0, batch=8), ran(1, 20.0, 300.0, batch=16)])["energy_by_time"]
    assert isinstance(chart, Scatter)
    assert (chart.x.title, chart.y.title) == ("Time of an epoch (s)", "Energy of an epoch (J)")
    assert places(chart) == {"batch 8": (10.0, 500.0), "batch 16": (20.0, 300.0)}
    assert [series.name for series in chart.series] == ["batch 8", "batch 16"]
    assert "told apart by batch" in chart.caption
    assert "Energy is that of: GPUs used." in chart.caption


def test_repeats_are_one_mark_whose_bars_are_their_standard_deviation():
    (series,) = drawn([ran(0, 10.0, 500.0), ran(1, 12.0, 520.0, repeat=1)])["energy_by_time"].series
    (mark,) = series.marks
    assert (mark.x, mark.y) == pytest.approx((11.0, 510.0))
    assert (*mark.x_reach, *mark.y_reach) == pytest.approx((2**0.5, 2**0.5, 200**0.5, 200**0.5))
    assert mark.told[1:] == ("time 11.0 ± 1.4 s", "energy 510 ± 14 J", "of GPUs used", "runs 0, 1")


def test_the_only_run_of_a_job_has_the_spread_of_its_epochs():
    alone = ran(0, 10.0)
    (point,) = group_repeats([replace(alone, metrics={**alone.metrics, "std/e2e_s": 0.3})])
    assert steady(point, "e2e_s") == (10.0, 0.3, "epochs")


def test_what_is_no_number_is_not_known():
    (point,) = group_repeats([ran(0, 10.0, float("nan"))])
    assert steady(point, "energy_j") is None
    assert "energy_by_time" not in drawn([ran(0, 10.0, float("inf"))])


def test_energies_of_different_things_are_told_apart_and_said_to_be_no_match():
    rows = [ran(0, 10.0, 500.0, batch=8), ran(1, 20.0, 300.0, batch=16, covers="module")]
    found = drawn(rows, pareto=group_repeats(rows))
    chart = found["energy_by_time"]
    assert [series.name for series in chart.series] == ["module", "GPUs used"]
    assert "CAUTION: the energies are of different things" in chart.caption
    assert chart.fronts == [], "none has two corners of one kind"
    assert "grid_energy" not in found


def test_a_job_whose_runs_measured_different_things_has_no_energy():
    rows = [ran(0, 10.0, 500.0, batch=8), ran(1, 10.0, 400.0, batch=8, repeat=1, covers="CPU packages"),
            ran(2, 20.0, 300.0, batch=16)]  # fmt: skip
    chart = drawn(rows)["energy_by_time"]
    assert [*places(chart)] == ["batch 16"]
    assert "1 of 2 jobs have no energy of an epoch (their runs measured different things)." in chart.caption


def test_jobs_without_energy_are_counted():
    chart = drawn([ran(0, 10.0, 500.0, batch=8), ran(1, 20.0, batch=16)])["energy_by_time"]
    assert "1 of 2 jobs have no energy of an epoch (no meter here)." in chart.caption


def test_the_front_and_what_was_chosen_are_marked():
    rows = [ran(0, 10.0, 500.0, batch=8), ran(1, 20.0, 300.0, batch=16), ran(2, 30.0, 600.0, batch=32)]
    first, second, _ = found = group_repeats(rows)
    chosen = [SimpleNamespace(name=name, point=first) for name in ("fastest", "tradeoff")]
    (chart, *_) = charts(found, chosen, [second, first])
    assert chart.fronts == [[(10.0, 500.0), (20.0, 300.0)]]
    assert chart.callouts == [("fastest, best trade-off", 10.0, 500.0)]


def test_words_of_near_places_stand_below_one_another():
    rows = [ran(n, x, 600.0 - x, batch=n + 1) for n, x in enumerate((10.0, 11.0, 12.0, 30.0))]
    chosen = [SimpleNamespace(name=f"choice {n}", point=point) for n, point in enumerate(group_repeats(rows))]
    chart = drawn(rows, choices=chosen)["energy_by_time"]
    assert [callout.text for callout in chart.callouts] == ["choice 0", "choice 1", "choice 2", "choice 3"]
    assert chart.levels == [0, 1, 2, 0]


def test_a_word_near_an_end_of_the_axis_goes_away_from_it():
    rows = [ran(n, x, 600.0 - x, batch=n + 1) for n, x in enumerate((10.0, 20.0, 30.0))]
    chosen = [SimpleNamespace(name=f"choice {n}", point=point) for n, point in enumerate(group_repeats(rows))]
    assert drawn(rows, choices=chosen)["energy_by_time"].sides == ["left", "center", "right"]
    assert drawn(rows[:1], choices=chosen[:1])["energy_by_time"].sides == ["center"]


@pytest.mark.parametrize(("joules", "below"), [((500.0, 480.0, 490.0), True), ((500.0, 20.0, 490.0), False)])
def test_words_stand_below_where_there_is_room_and_no_axis_goes_below_zero_for_them(joules, below):
    rows = [ran(n, 10.0 + n, joules[n], batch=n + 1) for n in range(3)]
    chart = drawn(rows, choices=[SimpleNamespace(name="least_energy", point=group_repeats(rows)[1])])["energy_by_time"]
    low, high = chart.limits
    assert 0 <= low < min(joules) < max(joules) < high
    assert chart.words_below is below


def test_what_is_the_best_in_all_has_one_word():
    found = group_repeats([ran(0, 10.0, 500.0, batch=8), ran(1, 20.0, 600.0, batch=16)])
    chosen = [SimpleNamespace(name=name, point=found[0]) for name in ("fastest", "least_energy", "tradeoff")]
    (chart, *_) = charts(found, chosen)
    assert [callout.text for callout in chart.callouts] == ["the best in all"]


def test_the_parts_of_an_epoch_are_stacked_the_fastest_on_top():
    slow = {name: 2 * value for name, value in PARTS.items()}
    chart = drawn([ran(0, 20.0, steady=slow, batch=8), ran(1, 10.0, steady=PARTS, batch=16)])["epoch_parts"]
    assert isinstance(chart, Bars)
    assert chart.bars == ["batch 16", "batch 8"]
    assert {stack.name: [piece.value for piece in stack.pieces] for stack in chart.stacks} == {
        "fetch stall": [2.0, 4.0],
        "copy": [0.5, 1.0],
        "compute": [7.0, 14.0],
        "overhead": [0.5, 1.0],
    }
    assert chart.stacks[0].pieces[0].told == ("batch 16", "fetch stall 2.0 s, 20 %", "in all 10.0 s", "run 1")


def test_of_many_jobs_the_fastest_have_bars_and_the_caption_says_so():
    chart = drawn([ran(n, 10.0 + n, steady=PARTS, batch=n + 1) for n in range(50)])["epoch_parts"]
    assert len(chart.bars) == 40
    assert chart.bars[0] == "batch 1"
    assert chart.caption.endswith("Here are the 40 fastest of 50 jobs.")


def test_the_fastest_are_of_those_that_have_parts_and_the_others_are_counted_apart():
    with_parts = [ran(n, 10.0 + n, steady=PARTS, batch=n + 1) for n in range(50)]
    without = [ran(50 + n, 9.0, batch=100 + n) for n in range(3)]
    chart = drawn([*without, *with_parts])["epoch_parts"]
    assert (len(chart.bars), chart.bars[0]) == (40, "batch 1")
    assert chart.caption.endswith("Here are the 40 fastest of 50 jobs. 3 of 53 jobs tell of no parts.")


def test_jobs_that_tell_of_no_parts_are_counted():
    chart = drawn([ran(0, 10.0, steady=PARTS, batch=8), ran(1, 9.0, batch=16)])["epoch_parts"]
    assert chart.bars == ["batch 8"]
    assert chart.caption.endswith("1 of 2 jobs tell of no parts.")


@pytest.mark.parametrize(
    ("total", "joules", "told"),
    [
        (["cpu0", "dram0"], {"cpu0": 60, "dram0": 40}, {"cpu0": 60, "dram0": 40}),
        (["gpu0"], {"gpu0": 100, "gpu0_sampled": 99}, {"gpu0": 100}),
        (["gpu0", "gpu1"], {"gpu0": 60, "gpu1": 40, "cpu0": 30}, {"gpu0": 60, "gpu1": 40}),
        (["VDD_IN"], {"VDD_IN": 100, "VDD_GPU": 50, "CPU": 20}, {"VDD_GPU": 50, "CPU": 20, "what else": 30}),
        (["VDD_IN"], {"VDD_IN": 100, "VDD_GPU": 150}, {}),
        (["A", "B"], {"A": 60, "B": 40}, {"A": 60, "B": 40}),
        # An AGX Orin: one of three rails feeds a fourth, which the 2 % of a sum of all four would hide.
        (["A", "B", "5V"], {"A": 40, "B": 20, "5V": 40, "VDDQ": 15}, {"A": 40, "B": 20, "5V": 40}),
        (["A", "B", "5V"], {"A": 40, "B": 20, "5V": 40, "VDDQ": 1.5}, {"A": 40, "B": 20, "5V": 40}),
        (["VDD_IN"], {"VDD_GPU": 50}, {}),
        ([], {"VDD_IN": 100}, {}),
        (["gpu0"], {}, {}),
    ],
)  # fmt: skip
def test_domains_are_counted_once(total, joules, told):
    domains = {f"energy_{name}_j": float(value) for name, value in joules.items()}
    row = ran(0, 10.0, 100.0, steady={**domains, "energy_per_sample_j": 0.1})
    (each,) = shown(group_repeats([replace(row, energy_domains=total)]))
    assert domains_of(each, 100.0) == told


def test_domains_of_repeats_whose_totals_are_made_of_others_are_not_told():
    rows = [replace(ran(n, 10.0, 100.0, repeat=n, steady={"energy_A_j": 100.0, "energy_B_j": 0.0}), energy_domains=each)
            for n, each in enumerate((["A"], ["B"]))]  # fmt: skip
    (each,) = shown(group_repeats(rows))
    assert domains_of(each, 100.0) == {}


def test_energies_of_different_things_have_pictures_of_their_own():
    rows = [
        ran(0, 10.0, 100.0, batch=8, steady={"energy_gpu0_j": 100.0}),
        ran(1, 10.0, 90.0, batch=16, covers="CPU packages", steady={"energy_cpu0_j": 90.0}),
    ]
    found = drawn([replace(row, energy_domains=[name]) for row, name in zip(rows, ("gpu0", "cpu0"), strict=True)])
    assert [name for name in found if name.startswith("energy_domains")] == ["energy_domains_0", "energy_domains_1"]
    assert found["energy_domains_0"].caption.endswith("Energy is that of: CPU packages.")


def test_two_keys_make_a_grid():
    rows = [ran(4 * i + j, 10.0 * (i + 1) + j, 100.0 - i, batch=batch, power_limit=limit)
            for i, batch in enumerate((8, 128, 16)) for j, limit in enumerate((100, 90))]  # fmt: skip
    chart = drawn(rows)["grid_time"]
    assert isinstance(chart, Heatmap)
    assert (chart.columns, chart.rows) == (["8", "16", "128"], ["90", "100"])
    assert [[cell.value for cell in row] for row in chart.cells] == [
        pytest.approx([11.0, 31.0, 21.0]),
        pytest.approx([10.0, 30.0, 20.0]),
    ]
    assert chart.title == "Time by batch and power limit"


def test_a_cell_is_the_least_over_what_else_varies_and_an_empty_one_is_absent():
    rows = [ran(0, 10.0, batch=8, workers=0, precision="fp32"), ran(1, 8.0, batch=8, workers=0, precision="bf16"),
            ran(2, 7.0, batch=16, workers=0), ran(3, 6.0, batch=16, workers=4)]  # fmt: skip
    chart = drawn(rows)["grid_time"]
    assert [[cell and cell.value for cell in row] for row in chart.cells] == [[8.0, 7.0], [None, 6.0]]
    assert "the least over precision" in chart.caption


def test_a_cell_that_is_the_least_over_hosts_says_so():
    rows = [replace(ran(4 * h + 2 * i + j, 10.0 + h, batch=batch, workers=workers), host=f"host{h}")
            for h in range(2) for i, batch in enumerate((8, 16)) for j, workers in enumerate((0, 4))]  # fmt: skip
    chart = drawn(rows)["grid_time"]
    assert [[cell.value for cell in row] for row in chart.cells] == [[10.0, 10.0], [10.0, 10.0]]
    assert chart.caption == "A steady epoch; dark is less. Each cell is the least over hosts."


def test_a_job_without_energy_leaves_its_place_in_the_grid_empty_and_the_caption_says_why():
    joules = {(8, 0): 100.0, (8, 4): 90.0, (16, 0): 80.0, (16, 4): None}
    rows = [ran(n, 10.0, energy_j, batch=batch, workers=workers)
            for n, ((batch, workers), energy_j) in enumerate(joules.items())]  # fmt: skip
    chart = drawn(rows)["grid_energy"]
    assert [[cell and cell.value for cell in row] for row in chart.cells] == [[100.0, 80.0], [90.0, None]]
    assert "What is empty was not run, or does not tell." in chart.caption
    assert "1 of 4 jobs have no energy of an epoch (no meter here)." in chart.caption


def test_energies_of_different_things_have_grids_of_their_own():
    rows = [ran(4 * c + 2 * i + j, 10.0, 100.0 - c, covers=covers, batch=8 + i, workers=j, precision=covers)
            for c, covers in enumerate(("GPUs used", "CPU packages")) for i in range(2) for j in range(2)]  # fmt: skip
    found = drawn(rows)
    values = {name: found[name].cells[0][0].value for name in found if name.startswith("grid_energy")}
    assert values == {"grid_energy_0": 99.0, "grid_energy_1": 100.0}
    assert found["grid_energy_0"].caption.endswith("Energy is that of: CPU packages.")


def test_ready_batches_are_among_the_bars_and_not_among_what_is_chosen_from():
    grid = [(batch, workers) for batch in (8, 16) for workers in (1, 4)]
    rows = [ran(n, *((10.0, 100.0) if n < 4 else (5.0, 50.0)), steady=PARTS, batch=batch, workers=workers)
            for n, (batch, workers) in enumerate(2 * grid)]  # fmt: skip
    rows = [replace(row, job={**row.job, "synthetic_batches": row.number > 3}) for row in rows]
    found = drawn(rows)
    assert len(found["epoch_parts"].bars) == 8
    assert set(places(found["energy_by_time"]).values()) == {(10.0, 100.0)}
    assert [[cell.value for cell in row] for row in found["grid_time"].cells] == [[10.0, 10.0], [10.0, 10.0]]
    assert found["grid_time"].caption == "A steady epoch; dark is less."
    assert drawn(rows[4:])["grid_time"].cells[0][0].value == 5.0, "where there is nothing else"


def test_one_key_makes_no_grid():
    assert "grid_time" not in drawn([ran(0, 10.0, batch=8), ran(1, 8.0, batch=16)])


def test_epochs_are_means_over_repeats_and_the_warm_up_is_marked():
    epochs = [[{"epoch/e2e_s": first}, {"epoch/e2e_s": 10.0}, {"epoch/e2e_s": 11.0}] for first in (15.0, 17.0)]
    chart = drawn([ran(n, 10.0, repeat=n, epochs=epochs[n]) for n in range(2)])["epochs_time"]
    assert isinstance(chart, Lines)
    assert [(mark.x, mark.y) for mark in chart.series[0].marks] == [(0, 16.0), (1, 10.0), (2, 11.0)]
    assert chart.bands == [(-0.5, 0.5, "warm-up")]
    assert chart.caption == "Means over repeats. The warm-up is in no steady mean."


@pytest.mark.parametrize(
    ("runs", "warmup", "said"),
    [
        (1, 1, "The warm-up is in no steady mean."),
        (2, 0, "Means over repeats."),
        (1, 0, ""),
    ],
)
def test_a_caption_speaks_of_repeats_and_of_a_warm_up_where_there_are_any(runs, warmup, said):
    epochs = [{"epoch/e2e_s": 15.0}, {"epoch/e2e_s": 10.0}]
    rows = [ran(n, 10.0, repeat=n, epochs=epochs) for n in range(runs)]
    rows = [replace(each, job={**each.job, "warmup_epochs": warmup}) for each in rows]
    assert drawn(rows)["epochs_time"].caption == said


def test_the_fastest_that_have_epochs_are_counted_among_those_that_do():
    epochs = [{"epoch/e2e_s": 15.0}, {"epoch/e2e_s": 10.0}]
    rows = [ran(n, 10.0 + n, batch=n + 1, epochs=epochs if n else ()) for n in range(11)]
    chart = drawn(rows)["epochs_time"]
    assert [series.name for series in chart.series] == [f"batch {n}" for n in range(2, 10)]
    assert chart.caption.endswith("Here are the 8 fastest of 10 jobs.")


def test_a_job_without_energy_takes_no_epochs_of_energy_from_the_others():
    epochs = [{"epoch/e2e_s": 15.0, "epoch/energy_j": 90.0}, {"epoch/e2e_s": 10.0, "epoch/energy_j": 80.0}]
    rows = [ran(0, 10.0, 80.0, batch=8, epochs=epochs), ran(1, 10.0, batch=16)]
    chart = drawn(rows)["epochs_energy"]
    assert [[mark.y for mark in series.marks] for series in chart.series] == [[90.0, 80.0]]
    assert chart.caption.endswith("Energy is that of: GPUs used.")


def test_power_is_drawn_in_the_unit_that_suits_it():
    one = ran(0, 10.0, 500.0)
    chart = drawn([one], powers=[Power(one, [0.0, 1.0], [0.02, 0.05], 0.0)])["power"]
    assert chart.y.title == "Power (mW)"
    assert [mark.y for mark in chart.series[0].marks] == pytest.approx([20.0, 50.0])


def target(number, seconds=None, joules=None, **keys):
    total = {"time_to_target_s": seconds, "energy_to_target_j": joules}
    known = {name: value for name, value in total.items() if value is not None}
    return ran(number, 10.0, 100.0 if joules else None, total=known, target_accuracy=0.9, **keys)


def test_what_reached_its_target_stands_by_time_and_energy_to_it():
    chart = drawn([target(0, 100.0, 50.0, batch=8), target(1, 50.0, 80.0, batch=16), target(2, batch=32)])["target"]
    assert places(chart) == {"batch 8": (100.0, 50.0), "batch 16": (50.0, 80.0)}
    assert chart.fronts == [[(50.0, 80.0), (100.0, 50.0)]]
    assert "1 of 3 jobs never reached it." in chart.caption


def test_time_to_a_target_stands_alone_where_there_is_no_energy():
    chart = drawn([target(0, 100.0, batch=8), target(1, 50.0, batch=16)])["target"]
    assert isinstance(chart, Bars)
    assert chart.bars == ["batch 16", "batch 8"]


def test_a_job_that_reached_its_target_in_some_of_its_runs_says_so_and_is_on_no_front():
    rows = [target(0, 100.0, 50.0, batch=8), target(1, 50.0, 20.0, batch=16, repeat=0), target(2, batch=16, repeat=1)]
    chart = drawn(rows)["target"]
    assert places(chart) == {"batch 8": (100.0, 50.0), "batch 16, reached by 1 of 2 runs": (50.0, 20.0)}
    assert chart.fronts == []
    assert "1 did in some of their runs: the mean of those is on no front." in chart.caption


def test_a_target_that_none_reached_has_no_picture():
    assert "target" not in drawn([target(0)])


def test_scaling_efficiency_is_a_share_of_as_fast_as_so_many():
    rows = [trained(0, 100.0), trained(1, 190.0, strategy="ddp", ranks=2), trained(2, 360.0, strategy="ddp", ranks=4)]
    chart = drawn(rows)["scaling"]
    assert chart.level.y == 100
    (series,) = chart.series
    assert {mark.x: mark.y for mark in series.marks} == pytest.approx({2: 95.0, 4: 90.0})


def test_the_efficiencies_of_several_hosts_are_lines_of_their_own():
    rows = [replace(trained(0, speed, strategy=strategy, ranks=ranks), host=host) for host in ("h1", "h2")
            for strategy, ranks, speed in (("single", 1, 100.0), ("ddp", 2, 190.0), ("ddp", 4, 360.0))]  # fmt: skip
    chart = drawn(rows)["scaling"]
    assert [len(series.marks) for series in chart.series] == [2, 2]
    assert ["h1" in series.name for series in chart.series] == [True, False]


def test_the_interval_of_an_efficiency_reaches_further_up_than_down_and_its_mark_opens_its_run():
    link = "http://127.0.0.1:5000/#/experiments/1/runs/abc"
    ones = [trained(n, speed, repeat=n) for n, speed in enumerate((90.0, 110.0))]
    twos = [replace(trained(2 + n, speed, strategy="ddp", ranks=2, repeat=n), link=link)
            for n, speed in enumerate((170.0, 210.0))]  # fmt: skip
    chart = drawn([*ones, *twos])["scaling"]
    (mark,) = chart.series[0].marks
    expected = ratio([170.0, 210.0], [90.0, 110.0]).scaled(50)
    assert (mark.y - mark.y_reach.below, mark.y + mark.y_reach.above) == pytest.approx((expected.low, expected.high))
    assert mark.y_reach.above > 1.5 * mark.y_reach.below
    assert mark.link == link
    assert chart.caption.endswith("Bars are 95 % intervals of repeats.")


def test_an_efficiency_of_one_run_each_has_no_bar():
    chart = drawn([trained(0, 100.0), trained(1, 190.0, strategy="ddp", ranks=2)])["scaling"]
    assert chart.series[0].marks[0].y_reach is None
    assert chart.caption == "Speed-up by the number of devices."


@pytest.mark.parametrize(("largest", "unit"), [(0.05, "ms"), (0.1, "s"), (10_000.0, "s"), (20_000.0, "h"), (0.0, "ms")])
def test_a_unit_suits_the_largest_value(largest, unit):
    assert unit_of([largest / 2, largest], "s").name == unit


def test_values_that_are_far_apart_are_drawn_by_decades():
    chart = drawn([ran(0, 1.0, 500.0, batch=8), ran(1, 100.0, 600.0, batch=16)])["energy_by_time"]
    assert (chart.x.log, chart.y.log) == (True, False)
