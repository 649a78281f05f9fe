"""The FLOPs of a script in its record, and its peaks, which a scripted Python measures."""

import json
import sys
from types import SimpleNamespace

import pytest
from default_jobs import job_of
from metadata import run_info

from epochmeter.agent.operators import FEW_STEPS
from epochmeter.config.script import ATTACHED
from epochmeter.run import script_flops
from epochmeter.run.script_flops import ENDED, NO_FLOPS, NO_PRECISION, count_flops, measure_peaks, precision_of
from epochmeter.shared.peaks_cache import cached_peaks
from epochmeter.trace.operators import THREAD, CountedStep

NO_TF32 = {"products": False, "convolutions": False}
FACTS = {"file": "step.json", "batches": 1, "tf32": NO_TF32, "cache_bytes": 0, "samples": 4.0, "threads": 2,
         "python": sys.executable, "devices": None}  # fmt: skip
PEAKS = {"flop_per_s": 1e12, "bytes_per_s": 1e11, "launch_s": 1e-6}


def entry(number, name, *shapes, output=(), schema="", kind="float"):
    """An entry of torch's file: an operator on tensors of the thread 1."""
    facts = {"seq_id": 0, "tid": 1, "fw_tid": 0, "op_schema": schema}

    def values(shapes):
        tensors = [[1, place, 0, 1, 4, "cpu"] for place, _ in enumerate(shapes)]
        return {"shapes": shapes, "values": tensors, "types": [f"Tensor({kind})"] * len(shapes)}

    return {
        "id": number, "name": name, "inputs": values(shapes), "outputs": values([output] if output else []),
        "attrs": [{"name": key, "value": value} for key, value in facts.items()],
    }  # fmt: skip


@pytest.fixture
def script(tmp_path):
    """script(*entries, **facts) -> the run and the windows of a script whose step had these operators."""

    def make(*entries, **facts):
        (tmp_path / "step.json").write_text(json.dumps({"nodes": [entry(1, THREAD), *entries]}))
        process = SimpleNamespace(operators={5: {**FACTS, **facts}})
        windows = SimpleNamespace(folder=tmp_path, main=SimpleNamespace(windows=process))
        return run_info(training={"accelerator": "cpu", "torch": "2.15.0", "threads": 2}), windows

    return make


PRODUCT = entry(2, "aten::mm", [4, 5], [5, 6], output=[4, 6], schema="aten::mm")


def test_flops_are_per_sample_and_the_file_is_deleted(script, tmp_path):
    run, windows = script(PRODUCT, entry(3, "mine::op", [4], schema="mine::op"))
    assert count_flops(run, windows)
    assert run.training["step"] == {
        "flops": 240, "recomputed_flops": 0, "samples": 4.0, "precision": "fp32", "not_counted": {"mine::op": 1},
    }  # fmt: skip
    assert (run.model["flops_per_sample"], run.training["conventions"]) == (60, {"counted": 60})
    assert run.training["operators"]["aten::mm"] == {"calls": 1, "flops": 240, "bytes": 12}
    assert not (tmp_path / "step.json").exists()


def test_flops_are_per_step_if_samples_are_unknown_and_absent_with_a_reason(script):
    run, windows = script(PRODUCT, samples=float("nan"))
    assert count_flops(run, windows)
    assert (run.model["flops_per_step"], run.training["step"]["samples"]) == (240, None)
    assert "flops_per_sample" not in run.model
    for arguments, reason in (
        ({"reason": FEW_STEPS}, FEW_STEPS),
        ({"file": "other.json"}, "its operators cannot be read"),
        ({}, NO_FLOPS),
    ):
        run, windows = script(**arguments)
        assert count_flops(run, windows)
        assert reason in run.training["step"]["reason"]
        assert not run.model


def test_flops_wait_for_the_window_of_the_step(script):
    run, windows = script(PRODUCT)
    windows.main.windows.operators[5].pop("samples")
    assert not count_flops(run, windows)
    windows.main = None
    assert not count_flops(run, windows)
    assert "step" not in run.training


def test_precision_is_that_of_most_flops():
    def precision(tf32=NO_TF32, **flops):
        names = {"fp32_conv": ("fp32", True), "other": (None, False)}
        counts = {names.get(name, (name, False)): count for name, count in flops.items()}
        step = CountedStep()
        step.precisions.update(counts)
        return precision_of(step, tf32)

    assert precision(fp32=2, bf16=3) == "bf16"
    assert precision(fp32=2, bf16=2) is None
    assert precision(other=2, fp16=1) is None
    on_gpu = {"products": False, "convolutions": True}
    assert precision(on_gpu, fp32_conv=2, fp32=1) == "tf32"
    assert precision(on_gpu, fp32_conv=1, fp32=2) == "fp32"
    assert precision({"products": None, "convolutions": None}, fp32=2) is None


@pytest.fixture
def measured(tmp_path, script, monkeypatch):
    """measured(lines of a Python program) -> the training facts, and how often others were asked for."""
    monkeypatch.delenv(ATTACHED, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def measure(*lines, entries=(PRODUCT,), **facts):
        program = tmp_path / "python"
        program.write_text("\n".join([f"#!{sys.executable}", "import json, sys, time", *lines]))
        program.chmod(0o755)
        run, windows = script(*entries, python=str(program), **facts)
        count_flops(run, windows)
        job = job_of(measure={"command": ["train.py"]})
        plan = SimpleNamespace(run=run, job=job, record=SimpleNamespace(host=dict), describe=lambda: None)
        borders = []

        def mark_others(since_ns):
            borders.append(since_ns)
            return len(borders), [] if since_ns is None else ["busy"]

        measure_peaks(plan, SimpleNamespace(own_processes=lambda pids: None, mark_others=mark_others), windows)
        return run.training, borders

    return measure


SPEAK = [
    "request = json.loads(input())",
    "def border():",
    "    print(json.dumps({'border': True}), flush=True)",
    "    return json.loads(input())",
]


def test_python_of_the_script_measures_the_peaks_and_learns_what_others_did(measured):
    peaks = f"print(json.dumps({{'peaks': {PEAKS}}}))"
    check = "assert (request['threads'], request['device'], request['job']['precision']) == (2, 'cpu', 'fp32')"
    training, borders = measured(*SPEAK, check, "assert border() == ''", "assert border() == 'busy'", peaks)
    assert training["peaks"] == PEAKS
    assert borders == [None, 1]


def test_cached_peaks_need_no_python(measured, tmp_path):
    path = tmp_path / cached_peaks(None, 2, "fp32", "2.15.0", {}, {})
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(PEAKS))
    assert measured("sys.exit(1)")[0]["peaks"] == PEAKS


def test_peaks_that_cannot_be_measured_have_a_reason(measured, monkeypatch):
    assert measured("sys.exit(1)")[0]["peaks"]["reason"] == ENDED
    monkeypatch.setattr(script_flops, "LIMIT_S", 0.2)
    assert measured("time.sleep(60)")[0]["peaks"]["reason"] == script_flops.LATE
    other = entry(2, "aten::mm", [4, 5], [5, 6], output=[4, 6], schema="aten::mm", kind="double")
    assert measured(entries=[other])[0]["peaks"]["reason"] == NO_PRECISION


def test_nothing_is_measured_without_flops_or_while_the_script_waits(measured, monkeypatch):
    assert "peaks" not in measured(reason="none")[0]
    monkeypatch.setenv(ATTACHED, "3")
    assert "peaks" not in measured("sys.exit(1)")[0]
