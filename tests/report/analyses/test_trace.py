import os
import re
import shutil
from pathlib import Path

import pytest
from kineto import Kineto
from metadata import RUN

from epochmeter.report.analyses.trace import analyze, find_traced_run, group_modules
from epochmeter.report.charts.trace import module_bars
from epochmeter.report.render import Page, page_markdown
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.record import Record
from epochmeter.trace.analysis import analyze_run

DATA = Path(__file__).parents[2] / "data/traces"
A100 = DATA / "benchmark_result_2869224_1695835535_trace.json.gz"
MI250 = DATA / "mi250_minitoy_train_ROCm6_2_kineto.json.gz"


@pytest.fixture
def record(tmp_path):
    """A run with the trace of an MI250."""
    shutil.copy(MI250, tmp_path / "trace.json.gz")
    Record(tmp_path).describe({}, RUN)
    return Record(tmp_path)


def test_the_traced_run_is_found_or_any_run_if_no_trace_is_needed(tmp_path):
    for number in range(2):
        (tmp_path / "sweep" / str(number)).mkdir(parents=True)
        (tmp_path / "sweep" / str(number) / "job.json").write_text("{}")
    shutil.copy(MI250, tmp_path / "sweep/0/trace.json.gz")
    cases = {(None, True): 0, ("sweep", True): 0, ("sweep/0", True): 0, ("sweep/1", False): 1, ("sweep", False): 0}
    for (name, needs_trace), number in cases.items():
        assert find_traced_run(name, tmp_path, needs_trace).folder == tmp_path / f"sweep/{number}"
    shutil.copytree(tmp_path / "sweep/0", tmp_path / "both/0")
    shutil.copytree(tmp_path / "sweep/0", tmp_path / "both/1")
    causes = {"sweep/1": "has no trace", "other": "is not found", "both": r"2 runs\n.*both/0, both/1"}
    for name, cause in causes.items():
        with pytest.raises(ValueError, match=cause):
            find_traced_run(name, tmp_path)
    (tmp_path / "untraced/0").mkdir(parents=True)
    (tmp_path / "untraced/0/job.json").write_text("{}")
    with pytest.raises(ValueError, match="`untraced` has no trace"):
        find_traced_run(None, tmp_path)


def test_a_trace_that_is_a_link_or_a_pipe_is_named_and_not_read(tmp_path):
    for make in (lambda path: path.symlink_to(MI250), os.mkfifo):
        folder = tmp_path / make.__name__ / "0"
        folder.mkdir(parents=True)
        (folder / "job.json").write_text("{}")
        make(folder / "trace.json.gz")
        with pytest.raises(ValueError, match=r"trace\.json\.gz is not read: it is (a link|not a regular file)"):
            find_traced_run(str(folder), tmp_path)


def page_of(record):
    return page_markdown(Page("trace", analyze(record)), is_plain=True)


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        (MI250, ["The GPU ran kernels in 1.2 %", "| aten::addmm |", "| (optimizer) |", "| fp32 | yes |"]),
        (A100, ["idle: the host launches too slowly | 99.3 %", "has no ProfilerStep"]),
    ],
    ids=["MI250", "A100 without steps"],
)
def test_a_page_has_the_tables_of_its_trace(record, trace, words):
    shutil.copy(trace, record.folder / "trace.json.gz")
    text, result = page_of(record), analyze(record)
    assert [word for word in words if word not in text] == []
    assert len(module_bars(result)) == (result["attribution"] is not None)


def test_steps_without_operators_or_kernels_belong_to_the_training_loop(record):
    trace = Kineto()
    trace.step(0, 0, 0)
    trace.step(1, 0, 100)
    trace.launch("kernel", 20, 0, launched=10)
    for cells in (["A traced step takes 0.100 ms", "| (training loop) | | - | - | 0.100 ms | 100.0 % |"],
                  ["ran operators in 20.0 % of", "| (training loop) | | - | - | 0.0800 ms | 80.0 % |"]):  # fmt: skip
        trace.write(record.folder / "trace.json.gz")
        (record.folder / "trace_analysis.json").unlink(missing_ok=True)
        text = page_of(record)
        assert [cell for cell in cells if cell not in text] == []
        trace.host("aten::mm", 5, 20, **{"Input Dims": [[2, 3], [3, 4]]})


def test_a_page_has_joules_and_flop_rates(record):
    result = analyze_run(record.folder)
    energy = {"energy_j": 3.0, "energy_half_width_j": 0.3}
    result["attribution"]["operators"][1].update(energy_j=0.2, energy_half_width_j=0.4)
    result["attribution"]["operators"][0].update(name="aten::cudnn_convolution", total_s=0.5, **energy)
    write_json(record.folder / "trace_analysis.json", result)
    counted = {"aten::convolution": {"flops": 5e11}, "aten::mm": {"flops": 0}, "aten::bmm": {"flops": 1}}
    training = {"operators": counted, "peaks": {"flop_per_s": 4e12}}  # of `aten::bmm`, the trace has no time
    training["gpu"] = {"name": "AMD MI250"}
    record.describe({}, {**RUN, "training": training})
    cells = ["**AMD MI250 ran kernels in ", "| fraction | FLOP/s | of peak | most frequent shapes | energy per step |",
             "| 2.00 TFLOP/s | 50.0 % |", "| aten::mm | 0.500 | 0.00632 ms | 11.4 % | - | - |", "| 1.50 J ± 10 % |",
             "| at most 0.300 J |", "| 13.0 GFLOP/s | 0.3 % | fp32 |"]  # fmt: skip
    text = page_of(record)
    assert [cell for cell in cells if cell not in text] == []
    assert {row["flops"] for row in result["attribution"]["kernels"]} == {None, 2 * 128 * 5 * 128}


def test_a_page_has_the_pipes_of_nsight_compute(record, tmp_path):
    shutil.copy(DATA.parent / "nsight/columns.csv", tmp_path / "ncu.csv")
    text = page_of(record)
    assert "| **mean, weighted by time** | | | 2.7 % | 5.1 % | 0.0 % | 68.2 % | 0.8 % |" in text
    assert "| 2 | 98.3 % | 2.5 % | 5.0 % | 0.0 % | 69.3 % | 0.0 % |" in text
    unknown = (tmp_path / "ncu.csv").read_text().replace('"60.00"', '"n/a"')
    for content, reason in ((unknown, "the pipe tensor: "), ("==ERROR== No metric", "pipes: No metric")):
        (tmp_path / "trace_analysis.json").unlink()
        (tmp_path / "ncu.csv").write_text(content)
        assert f"- no utilization of {reason}" in page_of(record)


def test_a_page_has_the_memory_of_a_step_next_to_the_estimates(record, tmp_path):
    kinds = {"weights": 4000, "activations": 2000, "temporary": 500}
    write_json(tmp_path / "memory.json", {"peak_bytes": 6500, "kinds": kinds, "modules": {"1 (Linear)": 1500}})
    record.describe({}, {**RUN, "model": {"weight_bytes": 4000, "activation_bytes": 3000}})
    text = page_of(record)
    cells = ["peak, 6.50 kB", "| weights | 4.00 kB | 4.00 kB |", "| activations | 2.00 kB | 3.00 kB |",
             "| temporary | 500 B | - |", "| 1 (Linear) | 1.50 kB |"]  # fmt: skip
    assert [cell for cell in cells if cell not in text] == []


def test_fractions_by_precision_are_of_the_time_without_communication(record):
    trace = Kineto()
    trace.step(0, 0, 100)
    for start, name in ((10, "volta_sgemm"), (20, "volta_h884gemm"), (30, "ncclDevKernel_AllReduce")):
        trace.launch(name, start, 10, launched=1)
    trace.write(record.folder / "trace.json.gz")
    text = page_of(record)
    cells = [f"| time {what} | 50.0 % |" for what in ("with tensor cores", "in fp32", "in fp16")]
    assert [cell for cell in cells if cell not in text] == []


def test_a_page_has_the_five_longest_kernels_on_each_side_of_the_mean_occupancy(record):
    trace = Kineto()
    trace.step(0, 0, 1000)
    for number in range(15):
        occupancy = {} if number == 14 else {"est. achieved occupancy %": 90 if number % 2 else 10}
        trace.launch(f"kernel{number:02}", 50 * number + 20, 40 - number, launched=number, **occupancy)
    trace.write(record.folder / "trace.json.gz")
    _, above, below = page_of(record).split("The longest kernels ")
    numbers = [[int(number) for number in re.findall(r"kernel(\d+)", text)] for text in (above, below)]
    assert numbers == [[1, 3, 5, 7, 9], [0, 2, 4, 6, 8]]


def test_modules_are_grouped_by_the_beginning_of_their_names():
    names = [f"layer{layer}.{block}.conv{number}" for layer in (1, 2) for block in range(8) for number in (1, 2)]
    modules = [{"name": name, "phases_s": {"forward": 1.0, "backward": 2.0}} for name in ["conv", *names]]
    sums_s = {name: sum(phases_s.values()) for name, phases_s in group_modules(modules).items()}
    assert sums_s == {"layer1": 48, "layer2": 48, "conv": 3}
    assert len(group_modules(modules[:9])) == 9, "all names if they are few"
    assert group_modules([]) == {}


def test_a_page_warns_of_traced_steps_that_are_much_longer_than_untraced_ones(record):
    result = analyze_run(record.folder)
    for traced_s, is_noted in ((0.4, True), (0.2, False)):
        result["metrics"] |= {"traced_step_s": traced_s, "untraced_step_s": 0.2}
        write_json(record.folder / "trace_analysis.json", result)
        assert ("slowed the traced steps" in page_of(record)) == is_noted
