"""Two traces compared: what changed, what only one has, and what else differs between them."""

import json
import random

import pytest
from kineto import Kineto
from sweeps import trained, write

from epochmeter.report.analyses.trace_changes import analyze, find_source, read_times
from epochmeter.report.charts.changes import trace_changes
from epochmeter.report.render import Page, page_markdown
from epochmeter.shared.problem import InputError

OPERATORS = {"aten::mm": 200.0, "aten::conv2d": 500.0, "aten::relu": 20.0, "aten::add_": 60.0}


def kineto(operators=OPERATORS, steps=10, seed=0, noise=0.01, calls=1, on_device=False, **properties):
    """A trace whose operators take these times per step, in us; each is part of the module `layer`."""
    chance, trace, at_us = random.Random(seed), Kineto(**properties), 0.0
    for step in range(steps):
        begun_us = at_us
        at_us += 2
        for name, time_us in operators.items():
            for _ in range(calls):
                lasts_us = round(time_us / calls * chance.lognormvariate(0, noise), 3)
                trace.host(name, round(at_us, 3), lasts_us, **{"Input Dims": [[calls, 4]]})
                if on_device:
                    trace.launch(f"kernel of {name}", round(at_us + 0.5, 3), lasts_us, launched=round(at_us + 0.1, 3))
                at_us += lasts_us + 3
        layer_us = round(begun_us + 1, 3), round(at_us - begun_us - 2, 3)
        trace.host("module: layer (Layer)", *layer_us, cat="user_annotation")
        trace.step(step, round(begun_us, 3), round(at_us - begun_us, 3))
        at_us += 1
    return trace


def source(tmp_path, name, trace):
    return find_source(str(trace.write(tmp_path / f"{name}.json")), tmp_path)


@pytest.fixture
def compare(tmp_path):
    """compare(before, after) -> the comparison of two traces."""

    def act(before, after):
        sides = {"before": before, "after": after}
        return analyze(*(read_times(source(tmp_path, name, trace)) for name, trace in sides.items()))

    return act


def verdicts(table):
    return {change.difference.title: change.verdict for change in table.changes}


def test_slower_operator_is_found_with_its_module_and_others_have_no_difference(compare):
    changes = compare(kineto(), kineto({**OPERATORS, "aten::conv2d": 550.0}, seed=1))
    (found,) = changes.tables["operators"].found
    assert (found.difference.title, found.calls, found.shapes) == ("aten::conv2d", (1, 1), None)
    assert found.difference.ratio.low < 1.1 < found.difference.ratio.high
    assert found.change_s == pytest.approx(50e-6, rel=0.1)
    others = {name: verdict for name, verdict in verdicts(changes.tables["operators"]).items() if name in OPERATORS}
    assert others == {**dict.fromkeys(OPERATORS, "no difference"), "aten::conv2d": "differs"}
    assert verdicts(changes.tables["modules"])["layer"] == "differs"
    assert changes.step.ratio.value == pytest.approx(1 + 50 / 798, rel=0.01)
    assert (changes.steps, changes.bases, "kernels" in changes.tables) == ((10, 10), ("host", "host"), False)
    charts = trace_changes(changes)
    assert [chart.name for chart in charts] == ["trace_modules", "trace_operators"]


def test_change_below_two_percent_is_no_difference_however_certain_it_is(compare):
    changes = compare(kineto(noise=0.0001), kineto({**OPERATORS, "aten::mm": 201.0}, noise=0.0001, seed=1))
    (change,) = [each for each in changes.tables["operators"].changes if each.difference.title == "aten::mm"]
    assert (change.verdict, change.difference.q_value < 0.001) == ("no difference", True)


def test_names_of_one_trace_and_operators_that_do_not_run_in_each_step_are_listed(compare):
    before, after = kineto({**OPERATORS, "aten::old": 10.0}), kineto({**OPERATORS, "aten::new": 30.0})
    for trace in (before, after):
        trace.host("aten::rare", 1.5, 0.25)
    table = compare(before, after).tables["operators"]
    only = [{name: round(time_s * 1e6) for name, time_s in side.items()} for side in table.only]
    assert only == [{"aten::old": 10}, {"aten::new": 30}]
    assert table.irregular == {"aten::rare": pytest.approx((0.025e-6, 0.025e-6))}
    assert "aten::rare" not in verdicts(table)


def test_kernels_are_compared_and_other_shapes_and_calls_are_stated(compare):
    changes = compare(kineto(on_device=True), kineto(on_device=True, calls=2, seed=1))
    kernels = changes.tables["kernels"]
    assert {change.difference.title for change in kernels.changes} == {f"kernel of {name}" for name in OPERATORS}
    assert {change.calls for change in kernels.changes} == {(1, 2)}
    shapes = {change.shapes for change in changes.tables["operators"].changes if change.difference.title in OPERATORS}
    assert shapes == {("1x4", "2x4")}


def test_traces_of_a_cpu_and_a_gpu_are_compared_and_said_to_be_of_different_times(compare):
    changes = compare(kineto(), kineto(on_device=True, name="H100"))
    text = page_markdown(Page("trace_changes", changes), is_plain=True)
    assert changes.bases == ("host", "device")
    assert "Times before are of the thread that trains, after of kernels of the device." in text
    assert changes.tables["kernels"].only[1].keys() == {f"kernel of {name}" for name in OPERATORS}


def test_single_steps_have_ratios_without_verdicts(compare):
    changes = compare(kineto(steps=1), kineto({**OPERATORS, "aten::mm": 400.0}, steps=1))
    assert {change.difference.basis for change in changes.tables["operators"].changes} == {"one each"}
    assert changes.tables["operators"].found == []
    assert "profiler.steps=10" in page_markdown(Page("trace_changes", changes), is_plain=True)


def test_context_of_files_is_what_both_state(compare):
    changes = compare(kineto(name="A100", id=0), kineto(name="H100"))
    assert changes.context == {"trace device": (["A100"], ["H100"])}


def test_context_of_runs_has_their_configurations_and_versions(tmp_path):
    sides = []
    for number, (batch, torch) in enumerate([(8, "2.1"), (16, "2.2")]):
        record = write(tmp_path / "sweep", trained(number, 100.0, batch=batch))
        run = record.run()
        record.describe(record.job(), {**run, "training": {"torch": torch}})
        kineto().write(record.folder / "trace.json.gz")
        sides.append(read_times(find_source(str(record.folder), tmp_path)))
    changes = analyze(*sides)
    assert changes.names == ("sweep/0", "sweep/1")
    assert {"batch": (["8"], ["16"]), "torch": (["2.1"], ["2.2"])}.items() <= changes.context.items()
    assert "trace device" not in changes.context
    file = source(tmp_path, "file", kineto(name="H100"))
    assert analyze(sides[0], read_times(file)).context == {}


def test_names_that_command_a_terminal_are_shown_as_text(compare):
    changes = compare(kineto({"aten::\x1b[2J": 10.0}), kineto({"aten::\x1b[2J": 10.0}))
    assert "\x1b" not in json.dumps(changes.values, ensure_ascii=False)


def test_trace_without_steps_is_refused(tmp_path):
    trace = Kineto()
    trace.host("aten::mm", 0, 10)
    with pytest.raises(InputError, match="has no training steps"):
        read_times(source(tmp_path, "file", trace))


def test_file_that_is_a_link_is_refused(tmp_path):
    kineto().write(tmp_path / "real.json")
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    with pytest.raises(InputError, match="is not read: it is a link"):
        find_source(str(tmp_path / "link.json"), tmp_path)
    with pytest.raises(ValueError, match="the run `0` is not found"):
        find_source(0, tmp_path)
