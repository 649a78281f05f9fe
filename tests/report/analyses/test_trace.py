import shutil
import threading
import urllib.request
from pathlib import Path

import pytest
from kineto import Kineto

from epochmeter.report.analyses.trace import analyze, find_traced_run, group_modules
from epochmeter.report.charts.trace import module_bars
from epochmeter.report.output.render import page_markdown
from epochmeter.report.pages import Page
from epochmeter.report.perfetto import ORIGIN, serve_once
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.pipes import DURATION, PIPES
from epochmeter.shared.record import Record
from epochmeter.trace.analysis import analyze_run

DATA = Path(__file__).parents[2] / "data/traces"
A100, MI250 = (
    DATA / "benchmark_result_2869224_1695835535_trace.json.gz",
    DATA / "mi250_minitoy_train_ROCm6_2_kineto.json.gz",
)


@pytest.fixture
def multirun(tmp_path):
    """Two runs: one with the trace of an MI250, and one without a trace."""
    for number in range(2):
        (tmp_path / "sweep" / str(number)).mkdir(parents=True)
        (tmp_path / "sweep" / str(number) / "job.json").write_text("{}")
    shutil.copy(MI250, tmp_path / "sweep/0/trace.json.gz")
    return tmp_path


@pytest.mark.parametrize("name", [None, "sweep", "sweep/0"])
def test_the_traced_run_is_found(multirun, name):
    assert find_traced_run(name, multirun).folder == multirun / "sweep/0"


@pytest.mark.parametrize(("name", "cause"), [("sweep/1", "has no trace"), ("other", "is not found")])
def test_a_run_without_a_trace_is_an_error(multirun, name, cause):
    with pytest.raises(ValueError, match=cause):
        find_traced_run(name, multirun)


def test_run_without_a_trace_is_found_if_none_is_needed(multirun):
    assert find_traced_run("sweep/1", multirun, needs_trace=False).folder == multirun / "sweep/1"
    assert find_traced_run("sweep", multirun, needs_trace=False).folder == multirun / "sweep/0"


def test_several_traced_runs_are_an_error_that_names_them(multirun):
    shutil.copy(MI250, multirun / "sweep/1/trace.json.gz")
    with pytest.raises(ValueError, match=r"2 runs\n.*sweep/0, sweep/1"):
        find_traced_run("sweep", multirun)


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        (MI250, ["The GPU ran kernels in 1.2 %", "| aten::addmm |", "| (optimizer) |", "| fp32 | yes |"]),
        (A100, ["idle: the host launches too slowly | 99.3 %", "has no ProfilerStep"]),
    ],
    ids=["MI250", "A100 without steps"],
)
def test_a_page_has_the_tables_of_its_trace(tmp_path, trace, words):
    shutil.copy(trace, tmp_path / "trace.json.gz")
    page = Page("trace", analyze(Record(tmp_path)))
    text = page_markdown(page)
    assert [word for word in words if word not in text] == []
    assert (tmp_path / "trace_analysis.json").exists()
    assert len(module_bars(page.results)) == (page.results.attribution is not None)


def test_a_page_has_joules_and_flop_rates(tmp_path):
    shutil.copy(MI250, tmp_path / "trace.json.gz")
    result = analyze_run(tmp_path)
    energy = {"energy_j": 3.0, "energy_half_width_j": 0.3}
    result["attribution"]["operators"][1].update(energy_j=0.2, energy_half_width_j=0.4)
    result["attribution"]["operators"][0].update(name="aten::cudnn_convolution", total_s=0.5, **energy)
    write_json(tmp_path / "trace_analysis.json", result)
    training = {"operators": {"aten::convolution": {"flops": 5e11}}, "peaks": {"flop_per_s": 4e12}}
    training["gpu"] = {"name": "AMD MI250"}
    Record(tmp_path).describe({}, {"training": training})
    text = page_markdown(Page("trace", analyze(Record(tmp_path))))
    assert "**AMD MI250 ran kernels in " in text
    assert "| fraction | FLOP/s | of peak | most frequent shapes | energy per step |" in text
    assert "| 2.00 TFLOP/s | 50.0 % |" in text
    assert "| 1.50 J ± 10.0 % |" in text
    assert "| at most 0.300 J |" in text
    assert {row["flops"] for row in result["attribution"]["kernels"]} == {None, 2 * 128 * 5 * 128}


def test_a_page_has_the_pipes_of_nsight_compute(tmp_path):
    shutil.copy(MI250, tmp_path / "trace.json.gz")
    shutil.copy(DATA.parent / "nsight/columns.csv", tmp_path / "ncu.csv")
    text = page_markdown(Page("trace", analyze(Record(tmp_path))))
    assert "| **mean, weighted by time** | | | 2.7 % | 5.1 % | 0.0 % | 68.2 % | 0.8 % |" in text
    assert "| 2 | 98.3 % | 2.5 % | 5.0 % | 0.0 % | 69.3 % | 0.0 % |" in text
    (tmp_path / "trace_analysis.json").unlink()
    (tmp_path / "ncu.csv").write_text("==ERROR== Failed to find metric")
    assert "- no utilization of pipes: Failed to find metric" in page_markdown(Page("trace", analyze(Record(tmp_path))))


def test_a_page_has_the_pipes_that_torch_counted(tmp_path):
    shutil.copy(MI250, tmp_path / "trace.json.gz")
    trace = Kineto()
    trace.counted("gemm", **{DURATION: 1000, **dict.fromkeys(PIPES.values(), 25)})
    trace.write(tmp_path / "counters.json.gz")
    text = page_markdown(Page("trace", analyze(Record(tmp_path))))
    assert "Utilization of pipes by CUPTI" in text
    assert "| gemm | 1 | 100.0 % | 25.0 % | 25.0 % | 25.0 % | 25.0 % | 25.0 % |" in text


def test_modules_are_grouped_by_the_beginning_of_their_names():
    names = [
        "conv",
        *(f"layer{layer}.{block}.conv{number}" for layer in (1, 2) for block in range(8) for number in (1, 2)),
    ]
    groups = group_modules([{"name": name, "phases_s": {"forward": 1.0, "backward": 2.0}} for name in names])
    assert {group.name: sum(group.phases_s.values()) for group in groups} == {"layer1": 48, "layer2": 48, "conv": 3}
    assert group_modules([]) == []


def test_trace_is_served_only_to_perfetto(tmp_path, monkeypatch):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(b"trace")
    answers = []

    def read(link):
        address = link.partition("url=")[2]
        threading.Thread(target=lambda: answers.append(urllib.request.urlopen(address))).start()

    monkeypatch.setattr("webbrowser.open", read)
    said = []
    serve_once(path, said.append, port=0)
    assert said[0].startswith(f"Open {ORIGIN}/#!/?url=http://127.0.0.1:")
    assert "after 300 s" in said[1]
    while not answers:
        pass
    assert answers[0].headers["Access-Control-Allow-Origin"] == ORIGIN
    assert answers[0].read() == b"trace"


def test_waiting_for_the_browser_times_out(tmp_path, monkeypatch):
    monkeypatch.setattr("webbrowser.open", lambda link: None)
    (tmp_path / "trace.json.gz").write_bytes(b"trace")
    serve_once(tmp_path / "trace.json.gz", print, port=0, wait_s=0.05)
