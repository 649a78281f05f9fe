"""Times of modules, operators and kernels in each traced step, against known ones."""

import pytest
from kineto import Kineto

from epochmeter.trace.attribution import attribute
from epochmeter.trace.division import PYTHON, divide, step_times

US = 1e-6


def times_of(kineto, tmp_path):
    trace = kineto.load(tmp_path)
    division = divide(trace)
    return trace, division, step_times(trace, division)


def in_us(times_s):
    return {name: [round(each / US, 6) for each in values] for name, values in times_s.items()}


@pytest.fixture
def on_host():
    """Two steps of 100 and 120 us; the convolution takes 30 and 50 us, and the loss runs in the first only."""
    trace = Kineto()
    for number, (start, lasts, convolution) in enumerate([(0, 100, 30), (200, 120, 50)]):
        trace.step(number, start, lasts)
        trace.host("module: conv (Conv2d)", start + 10, convolution + 20, cat="user_annotation")
        trace.host("aten::conv2d", start + 15, convolution + 10)
        trace.host("aten::_convolution", start + 20, convolution)
    trace.host("aten::mse_loss", 80, 5.5)
    return trace


def test_instants_of_each_step_belong_to_the_innermost_event(on_host, tmp_path):
    trace, division, times = times_of(on_host, tmp_path)
    assert (times.basis, (times.steps / US).tolist(), times.kernels) == ("host", pytest.approx([100, 120]), {})
    assert in_us(times.modules) == {
        "conv": [50, 70], "(training loop)": [44.5, 50], "(outside modules)": [5.5, 0],
    }  # fmt: skip
    assert in_us(times.operators) == {
        "aten::conv2d": [10, 10], "aten::_convolution": [30, 50], "aten::mse_loss": [5.5, 0], PYTHON: [54.5, 60],
    }  # fmt: skip
    totals = {row.name: row.total_s for row in attribute(trace, division=division).operators}
    assert {name: values.sum() for name, values in times.operators.items()} == pytest.approx(totals)


def test_kernels_belong_to_the_step_that_launched_them(tmp_path):
    trace = Kineto()
    for number, start in enumerate((0, 100)):
        trace.step(number, start, 50)
        trace.host("aten::mm", start + 10, 20)
        trace.launch("gemm", start + 90, 5 + number, launched=start + 15)  # after the end of its step
    trace.launch("unlaunched", 20, 3)
    *_, times = times_of(trace, tmp_path)
    assert times.basis == "device"
    assert in_us(times.kernels) == {"gemm": [5, 6], "unlaunched": [3, 0]}
    assert in_us(times.operators) == {"aten::mm": [5, 6], PYTHON: [3, 0]}


@pytest.mark.parametrize(("duration", "resolution_s"), [(30, 1e-6), (30.5, 1e-9)])
def test_whole_microseconds_are_the_resolution_of_older_traces(tmp_path, duration, resolution_s):
    trace = Kineto()
    trace.step(0, 0, 100)
    trace.host("aten::mm", 10, duration)
    assert times_of(trace, tmp_path)[-1].resolution_s == pytest.approx(resolution_s)
