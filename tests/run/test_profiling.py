"""Traces and their power, and training under Nsight with programs in place of Nsight and of the training process."""

import itertools
import shutil
import sys
from array import array
from pathlib import Path
from types import SimpleNamespace

import pytest
from cases import case, cases
from default_jobs import job_of
from kineto import traced_record
from metadata import run_info
from stub import executable

from epochmeter.power.power_series import PowerSamples
from epochmeter.power.uncertainty import Response
from epochmeter.run.profiling import finish_trace, nsight_command, profile_steps, traced_power
from epochmeter.run.trace_analysis import TraceAnalysis
from epochmeter.run.worker_process import worker_error
from epochmeter.shared.problem import Problem
from epochmeter.shared.protocol import Traced, TraceFailed
from epochmeter.shared.record import Record
from epochmeter.trace.nsight import PIPE_METRICS

DATA = Path(__file__).parents[1] / "data/nsight"
TRAINING = f"""#!{sys.executable}
import os, sys, time
from epochmeter.shared.protocol import Finished, Progress
from epochmeter.worker.connection import ControllerConnection
connection = ControllerConnection(os.environ["EPOCHMETER_SOCKET"])
connection.progress(1, time.monotonic_ns())
print("arguments", *sys.argv[1:])
connection.send(Finished())
"""
STAND_IN = f"""#!{sys.executable}
import os, shutil, signal, subprocess, sys, time
options, training = sys.argv[1:], []
while "-m" in options[1:]:
    training.insert(0, options.pop())
training.insert(0, options.pop())
option = lambda name: options[options.index(name) + 1]
def train():
    subprocess.run(training, check=True)
def log(text):
    open(option("--log-file"), "w").write(text)
"""
WRITES = f"train(); log(open('{DATA / 'columns.csv'}').read())"
REPORT = """
output = next(item for item in options if item.startswith("--output="))
assert options[0] == "profile" and "--capture-range=cudaProfilerApi" in options
train(); open(output[9:] + ".nsys-rep", "w").write("report")
"""


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """plan(lines, **profiler) -> a plan whose Nsight program runs these lines."""

    def make(lines, accelerator="cuda", strategy=None, name="ncu", **profiler):
        for program, text in (("training", TRAINING), (name, STAND_IN + lines)):
            executable(tmp_path / program, text)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        profiler = {"name": name, "program": name, "start": 1, "stop": 10, "timeout_s": 30, **profiler}
        job = job_of(profiler=profiler, device={"python": str(tmp_path / "training")}, strategy=strategy or {})
        (tmp_path / "run").mkdir()
        run = run_info(training={"accelerator": accelerator})
        return SimpleNamespace(job=job, record=Record(tmp_path / "run"), gpus=(), run=run)

    return make


def test_marked_steps_are_trained_again_under_nsight_compute_for_all_metrics(plan, tmp_path, monkeypatch):
    planned = plan(WRITES)
    assert profile_steps(planned) == []
    folder = planned.record.folder
    assert (folder / "ncu.csv").read_bytes() == (DATA / "columns.csv").read_bytes()
    assert (folder / "nsight.log").read_text() == f"arguments -m epochmeter.worker {folder} nsight\n"
    assert not (folder / "worker.log").exists()
    program, *options = nsight_command("ncu", planned.job.profiler.program, tmp_path)
    assert program == str(tmp_path / "ncu")
    monkeypatch.setattr(shutil, "which", lambda program, path: path)
    assert nsight_command("ncu", "ncu", tmp_path)[0].endswith(":/usr/local/cuda/bin")
    values = dict(itertools.pairwise(options))
    assert values["--profile-from-start"] == "off"
    assert values["--metrics"].split(",") == list(PIPE_METRICS)


def test_the_report_of_nsight_systems_is_kept(plan):
    planned = plan(REPORT, name="nsys")
    assert profile_steps(planned) == []
    assert (planned.record.folder / "nsight.nsys-rep").read_text() == "report"


PERMISSION = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters"


@pytest.mark.parametrize(
    ("lines", "options", "cause"),
    [
        (WRITES, {"program": "no-ncu"}, "install NVIDIA Nsight, or set `profiler.program=`"),
        ("print(\"==ERROR== unrecognised option '--page'\"); sys.exit(1)", {}, "unrecognised option '--page'"),
        ("train(); os.kill(os.getpid(), signal.SIGKILL)", {}, "was killed by SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGKILL)", {}, "was killed by SIGKILL"),
        (f"train(); log('{PERMISSION}'); sys.exit(1)", {}, "NVreg_RestrictProfilingToAdminUsers=0"),
        (f"log('{PERMISSION}'); sys.exit(1)", {}, "NVreg_RestrictProfilingToAdminUsers=0"),
        ("time.sleep(60)", {"timeout_s": 0.5}, "ncu took longer than profiler.timeout_s=0.5 and was stopped"),
        ("train(); time.sleep(60)", {"timeout_s": 1.5}, "ncu took longer than profiler.timeout_s=1.5 and was stopped"),
        (WRITES, {"accelerator": "cpu"}, "does not train on one"),
        (WRITES, {"strategy": {"name": "ddp", "ranks": 2, "launcher": "torchrun"}}, "ranks"),
        ("train()", {"name": "nsys"}, "wrote no report"),
    ],
    ids=["missing", "other version", "killed", "killed early", "permission", "permission early", "slow", "slow end",
         "CPU", "ranks", "no report"],
)  # fmt: skip
def test_without_a_result_there_is_a_note_with_the_cause(plan, lines, options, cause):
    planned = plan(lines, **options)
    (note,) = profile_steps(planned)
    assert note.startswith(("no utilization of pipes: ", "no report of Nsight Systems: "))
    assert cause in note


@pytest.fixture
def trace(tmp_path):
    return traced_record(tmp_path)


def test_failure_during_or_after_the_trace_is_only_a_note(tmp_path):
    def messages():
        yield TraceFailed(Problem("slow"))
        raise worker_error("oom", "killed")

    plan = SimpleNamespace(record=Record(tmp_path))
    assert finish_trace(messages(), plan, None) == ["slow", "no trace: killed"]
    (tmp_path / "trace.json.gz").write_bytes(b"")
    assert finish_trace(messages(), plan, None) == ["slow", "the process failed after the trace: killed"]


POWERS = PowerSamples(array("q", [1, 2]), {"gpu0": array("d", [8, 9])}, array("d", [8, 9]), Response(0.1))


@cases(
    case(measured="none", program=None, begins=True),
    case(measured="counter", program=None, begins=False),
    case(measured="none", program="ncu", begins=False),
)
def test_analysis_begins_with_the_trace_unless_something_is_measured_at_the_end(
    trace, tmp_path, measured, program, begins
):
    energy = {"source": measured, "reason": "no sensor"}
    meter = SimpleNamespace(energy=energy, sampling=lambda opened_ns, closed_ns: None, drain=lambda before_ns: POWERS)
    plan = SimpleNamespace(
        record=Record(tmp_path),
        run=run_info(energy=energy),
        ranks=1,
        node=SimpleNamespace(nodes=1),
        job=SimpleNamespace(profiler=SimpleNamespace(program=program)),
        describe=lambda durably: plan.record.describe({}, plan.run.document()),
    )
    with TraceAnalysis(tmp_path) as analysis:
        assert finish_trace(iter([Traced(1, 2, wall_offset_ns=3, loads=[])]), plan, meter, analysis) == []
        assert plan.record.run()["traced"]["reason"] == "no sensor"
        assert (analysis._process is not None) == begins
        assert analysis.notes() == []
    assert Record(tmp_path).trace_analysis()["metrics"]["steps"] == 1


PARTS_DIFFER = "the parts of the total are sampled at different times."
SAMPLED = {"unavailable": {}, "peak_w": 9.0, "half_width_j": 0.5}


@cases(
    case(
        sampling=SAMPLED,
        source="counter",
        ranks=1,
        recorded={"energy_uncertainty_j": 0.5, "response": Response(0.1)._asdict()},
    ),
    case(sampling=None, source="none", ranks=1, recorded={"reason": "no meter", "code": "no_sensor"}),
    case(
        sampling=SAMPLED,
        source="estimated",
        ranks=1,
        recorded={"reason": "energy is estimated, not measured.", "code": "estimated"},
    ),
    case(
        sampling=SAMPLED,
        source="sampled",
        ranks=2,
        recorded={
            "reason": "several ranks train, and their modules run at different times.",
            "code": "no_phases",
        },
    ),
    case(
        sampling={**SAMPLED, "unavailable": {"gpu0": "lost"}},
        source="sampled",
        ranks=1,
        recorded={"reason": "gpu0: lost", "code": "sensor_lost"},
    ),
    case(
        sampling={**SAMPLED, "peak_w": None},
        source="counter",
        ranks=1,
        recorded={"reason": PARTS_DIFFER, "code": "no_phases"},
    ),
)
def test_power_of_the_traced_steps_is_recorded_or_its_absence_has_a_reason(tmp_path, sampling, source, ranks, recorded):
    meter = SimpleNamespace(
        energy={"source": source, "reason": "no meter" if source == "none" else None},
        sampling=lambda *window_ns: sampling and SimpleNamespace(**sampling),
        drain=lambda before_ns: POWERS,
    )
    plan = SimpleNamespace(ranks=ranks, node=SimpleNamespace(nodes=1), record=Record(tmp_path))
    traced = Traced(1, 2, wall_offset_ns=3, loads=[])
    assert traced_power(traced, plan, meter) == {**traced._asdict(), **recorded}
    assert (tmp_path / "power.csv").read_text().splitlines()[1:] == ["1,8.0000,8.0000", "2,9.0000,9.0000"]
