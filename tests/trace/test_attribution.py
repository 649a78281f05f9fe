from collections import defaultdict
from pathlib import Path

import pytest
from kineto import Kineto

from epochmeter.trace.attribution import attribute
from epochmeter.trace.kineto import load
from epochmeter.trace.owners import find_owners

DATA = Path(__file__).parents[1] / "data/traces"
US = 1e-6
NODE = "autograd::engine::evaluate_function: "


def step(trace, start):
    """Add a step of 100 us: data, a convolution, an addition as loss, their backward nodes, and the optimizer."""
    number = start
    trace.step(number, start, 100)
    trace.host("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", start, 8)
    trace.host("module:  (Net)", start + 10, 30, cat="user_annotation")
    trace.host("module: conv (Conv2d)", start + 12, 20, cat="user_annotation")
    inputs = {"Input Dims": [[2, 3, 8, 8], [4, 3, 3, 3], []]}
    trace.host("aten::conv2d", start + 15, 15, **{"Sequence number": number + 1}, **inputs)
    trace.host("aten::mkldnn_convolution", start + 17, 10, **{"Sequence number": -1}, **inputs)
    trace.host("aten::add", start + 41, 4, **{"Sequence number": number + 2})
    trace.host(NODE + "AddBackward0", start + 46, 4, **{"Sequence number": number + 2, "Fwd thread id": 1})
    trace.host(NODE + "ConvolutionBackward0", start + 52, 20, **{"Sequence number": number + 1, "Fwd thread id": 1})
    trace.host("aten::convolution_backward", start + 55, 10)
    trace.host(NODE + "torch::autograd::AccumulateGrad", start + 72, 3)
    trace.host("Optimizer.step#SGD.step", start + 77, 13, cat="user_annotation")
    trace.host("aten::add_", start + 80, 5)


@pytest.fixture
def kineto():
    trace = Kineto()
    for start in (0, 100):
        step(trace, start)
    return trace


def by_module(result):
    return {
        row.name: {phase: round(seconds / US / 2, 6) for phase, seconds in row.phases_s.items()}
        for row in result.modules
    }


def test_the_time_of_a_cpu_step_is_divided_completely(kineto, tmp_path):
    result = attribute(kineto.load(tmp_path))
    assert by_module(result) == {
        "(model)": {"forward": 10},
        "conv": {"forward": 20, "backward": 25},  # with the engine before its node, and the gradient's accumulation
        "(outside modules)": {"forward": 4, "backward": 5},
        "(optimizer)": {"optimizer": 13},
        "(data)": {"data": 8},
        "(training loop)": {"loop": 15},
    }
    assert (result.basis, result.explained_fraction) == ("host", pytest.approx(0.85))
    for rows in ([result], result.operators, result.modules):
        assert sum(row.total_s for row in rows) == pytest.approx(200 * US)
    for event in kineto.events:
        event["cat"] = "Operator"  # old torch lists ranges as operators
    old = attribute(kineto.load(tmp_path))
    assert (old.modules, old.operators, old.threads) == (result.modules, result.operators, result.threads)


def test_a_backward_pass_includes_its_start_and_its_end(kineto, tmp_path):
    for start in (0, 100):
        kineto.host("Tensor.backward", start + 45, 31, cat="user_annotation")
        kineto.host("a range in the script", start + 92, 2, cat="user_annotation")
        kineto.host("aten::mm", start + 68, 1, tid=2)  # before a node, which has no sequence number either
    result = attribute(kineto.load(tmp_path))
    modules = by_module(result)
    assert modules["(outside modules)"] == {"forward": 4, "backward": 6}  # 1 us before the first node, 1 us at the end
    assert (modules["conv"], modules["(training loop)"]) == ({"forward": 20, "backward": 25}, {"loop": 14})


def test_operators_have_their_own_time_within_their_caller_and_threads_a_fraction(kineto, tmp_path):
    step(kineto, 300)
    kineto.host("aten::late", 395, 20, **{"Input Dims": [[[2, 3], [4, 3]], [5], []]})
    kineto.host("aten::mm", 20, 60, tid=2)
    kineto.host("aten::mm", 385, 200, tid=3)  # goes on after the steps
    result = attribute(kineto.load(tmp_path))
    operators = {row.name: row for row in result.operators}
    names = ("aten::late", "aten::mkldnn_convolution", "aten::conv2d")
    assert [operators[name].total_s / US for name in names] == pytest.approx([5, 30, 15])
    assert [operators[name].calls for name in names] == [1, 3, 3]
    inputs = operators["aten::conv2d"].inputs, operators["aten::late"].inputs
    assert inputs == ("2x3x8x8, 4x3x3x3", "[2 tensors], 5")
    assert sum(row.total_s for row in result.operators) == pytest.approx(result.total_s) == pytest.approx(300 * US)
    assert [result.threads[thread] for thread in ("2", "3")] == pytest.approx([0.2, 0.05])


def test_kernels_belong_to_the_module_and_operator_that_launched_them(kineto, tmp_path):
    for name, start, lasts, launched, percent in (
        ("sgemm_forward", 30, 50, 18, 60), ("sgemm_forward", 30, 0, 20, 60), ("sgemm_backward", 80, 30, 60, 20),
        ("elementwise", 110, 10, 81, 40), ("ampere_dgemm", 120, 10, None, 10),  # whose launch is not in the trace
    ):  # fmt: skip
        kineto.launch(name, start, lasts, launched=launched, **{"est. achieved occupancy %": percent})
    kineto.host("cudaDeviceSynchronize", 19, 1, cat="cuda_runtime")
    result = attribute(kineto.load(tmp_path))
    assert (result.basis, result.energy_reasons) == ("device", [])
    assert by_module(result) == {
        "conv": {"forward": 25, "backward": 15},
        "(optimizer)": {"optimizer": 5},
        "(training loop)": {"loop": 5},
    }
    first, second, *_ = result.kernels
    assert (first.name, first.calls, first.inputs, first.precision) == ("sgemm_forward", 2, "2x3x8x8, 4x3x3x3", "fp32")
    assert {row.name: row.calls for row in result.operators}["aten::mkldnn_convolution"] == 1
    assert second.utilization == pytest.approx(0.2)


def test_kernels_have_the_flops_of_their_operator_if_its_shapes_determine_them(kineto, tmp_path):
    image, filters, gradient = [2, 3, 8, 8], [4, 3, 3, 3], [2, 4, 6, 6]
    kineto.host("aten::convolution_backward", 56, 2, **{"Input Dims": [gradient, image, filters, []]})
    kineto.launch("forward", 30, 10, launched=18)  # by aten::mkldnn_convolution
    for number, (name, shapes, flops) in enumerate([
        ("aten::bmm", [[5, 2, 3], [5, 3, 4]], 2 * 5 * 2 * 3 * 4),
        ("aten::addmm", [[4], [2, 3], [3, 4]], 2 * 2 * 3 * 4),
        ("aten::baddbmm", [[4], [5, 2, 3], [5, 3, 4]], 2 * 5 * 2 * 3 * 4),
        ("aten::mm", [[[2, 3]], []], None),
        ("aten::relu", [[2, 3]], None),
        ("aten::mkldnn_convolution", [[1, 1, 4, 4], [1, 1, 3, 3]], None),  # without a backward pass
    ]):  # fmt: skip
        kineto.host(name, 91 + number, 0.9, **{"Input Dims": shapes})
        kineto.launch(f"{name} {flops}", 200 + number, 1, launched=91.1 + number)
    kineto.host("aten::mm", 97, 2, **{"Input Dims": [[2, 2], [2, 2]]})
    for at in (97.1, 97.3):
        kineto.launch("one of two", 100 + at, 0.1, launched=at)
    kineto.launch("without a launch", 150, 1)
    kineto.host("aten::mm", 500, 2, **{"Input Dims": [[2, 2], [2, 2]]})
    kernels = {row.name: row.flops for row in attribute(kineto.load(tmp_path)).kernels}
    assert kernels.pop("forward") == 2 * (2 * 4 * 6 * 6) * (3 * 3 * 3)
    assert (kernels.pop("one of two"), kernels.pop("without a launch")) == (None, None)
    assert {f"{name.split()[0]} {flops and round(flops)}" for name, flops in kernels.items()} == set(kernels)


def test_backward_nodes_belong_to_the_modules_of_their_forward_operators():
    trace = load(DATA / "cpu/threads.json.gz")
    owners = find_owners(trace)
    nodes = defaultdict(list)
    for event, name in enumerate(trace.name):
        if trace.names[name].startswith(NODE) and trace.sequence[event] >= 0:
            nodes[owners.modules[owners.module[event]][0]].append(trace.names[name].removeprefix(NODE))
    linear = ["AddmmBackward0", "TBackward0"]
    branch = {"0": linear, "1": ["CheckpointFunctionBackward"], "1.0": linear, "1.1": ["TanhBackward0"], "2": linear}
    assert nodes == {
        "(model)": ["CatBackward0"],
        "(outside modules)": ["MeanBackward0", "PowBackward0"],
        "head": linear,
        **{f"{name}.{part}": nodes for name in ("left", "right.1") for part, nodes in branch.items()},
    }


def test_a_node_of_a_thread_that_is_not_traced_belongs_to_no_module(kineto, tmp_path):
    kineto.host(NODE + "TanhBackward0", 75, 2, **{"Sequence number": 1, "Fwd thread id": 2})  # the convolution's number
    for phase, number, at in (("f", 1, 52), ("s", 1, 15), ("f", 2, 75)):  # ends of links; the last has no other end
        kineto.events.append({"ph": phase, "cat": "fwdbwd", "id": number, "pid": 1, "tid": 1, "ts": at})
    modules = by_module(attribute(kineto.load(tmp_path)))
    assert (modules["conv"], modules["(outside modules)"]) == (
        {"forward": 20, "backward": 25},
        {"forward": 4, "backward": 6},
    )
