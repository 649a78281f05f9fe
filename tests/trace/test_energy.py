"""Energy by module and operator of generated traces, recorded while a simulated sensor reads known power."""

from array import array

import numpy as np
import pytest
from kineto import Kineto
from metadata import RUN
from power.known_phases import Sensor, epoch, facts

from epochmeter.power.power_series import PowerSamples
from epochmeter.power.uncertainty import Response
from epochmeter.shared.record import Record
from epochmeter.trace.analysis import analyze_run
from epochmeter.trace.energy import TracedPower, read_power

RESOLVED, SLOW = Sensor(averaging_s=0.01, noise_w=0.02), Sensor(averaging_s=1.0, lag_s=0.05)


def traced(known, on_gpu):
    """The trace of an epoch: its stalls are the module `low`, its computations the module `high`."""
    trace = Kineto()
    at_us = 0.0
    steps = np.frombuffer(known.rows, np.float32).reshape(-1, 4).astype(float) * 1e6
    for number, (gap_us, low_us, copy_us, high_us) in enumerate(steps):
        is_last = number == len(steps) - 1
        end_us = (known.closed_ns - known.opened_ns) / 1e3 if is_last else at_us + gap_us + copy_us + high_us
        trace.step(number, at_us, end_us - at_us - 1)
        starts = {"low": (at_us + gap_us - low_us, low_us), "high": (at_us + gap_us + copy_us, high_us)}
        for name, (start_us, lasts_us) in starts.items():
            host_us = 5 if on_gpu else lasts_us
            trace.host(f"module: {name} (Linear)", start_us, host_us, cat="user_annotation")
            trace.host(f"aten::{name}", start_us, host_us)
            if on_gpu:
                trace.launch(f"{name}_kernel", start_us, lasts_us, launched=start_us + 1)
        at_us = end_us
    return trace


def analyzed(folder, known, sensor, *, on_gpu=False, **changed):
    """Analyze a run of this trace and these samples."""
    window = {"opened_ns": known.opened_ns, "closed_ns": known.closed_ns}
    power = {**window, "energy_uncertainty_j": 0.0, "response": facts(sensor, 1)._asdict(), **changed}
    record = Record(folder)
    record.describe({}, {**RUN, "traced": power})
    early_ns = [known.opened_ns - 10**12 + 10**6 * number for number in range(30_000)]
    record.append_power(early_ns, {"rail": [1.0] * len(early_ns), "total": [1.0] * len(early_ns)})
    record.append_power(known.times_ns, {"rail": known.watts, "total": known.watts})
    traced(known, on_gpu).write(folder / "trace.json.gz")
    return analyze_run(folder)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_joules_of_modules_with_different_power_are_within_their_uncertainty(tmp_path, on_gpu):
    known = epoch(seed=3, window_s=30, step_s=0.6, sensor=RESOLVED)
    result = analyzed(tmp_path, known, RESOLVED, on_gpu=on_gpu)
    for table, prefix in (("modules", ""), ("operators", "aten::")):
        rows = {row["name"]: row for row in result["attribution"][table]}
        for name, phase in (("low", "stall"), ("high", "compute")):
            row, true_j = rows[prefix + name], known.known_j[phase]
            assert abs(row["energy_j"] - true_j) <= row["energy_half_width_j"] < 0.2 * true_j
    if not on_gpu:
        joules = [row["energy_j"] for row in result["attribution"]["modules"]]
        assert sum(joules) == pytest.approx(known.gross_j, rel=0.005)


@pytest.mark.parametrize(
    ("sensor", "changed", "reason"),
    [
        (SLOW, {}, "no energy of modules: all phases are too short for a sensor with an averaging time"),
        (RESOLVED._replace(period_s=0.5), {}, "no energy of modules: 30 power samples in half of the window"),
        (RESOLVED, {"closed_ns": 40_000_000_000}, "no energy of modules: the duration of the steps differs"),
        (RESOLVED, {"opened_ns": 1, "closed_ns": 30_615_143_926}, "no energy of modules: no power was sampled at"),
    ],
)
def test_unresolved_modules_have_no_energy_but_a_reason(tmp_path, sensor, changed, reason):
    known = epoch(seed=3, window_s=30, step_s=0.6, sensor=sensor)
    result = analyzed(tmp_path, known, sensor, **changed)
    assert {row["energy_j"] for row in result["attribution"]["modules"]} == {None}
    assert [text for text in result["missing"] if text.startswith(reason)]


def test_kernels_at_the_same_time_and_runs_without_samples_have_no_energy(tmp_path):
    known, absent = epoch(seed=3, window_s=10, step_s=0.6, sensor=RESOLVED), "no energy of modules and operators: "
    analyzed(tmp_path, known, RESOLVED)
    samples = read_power(Record(tmp_path)).samples
    assert samples.response == facts(RESOLVED, 1)
    assert known.opened_ns - samples.times_ns[0] <= 10**10, "samples of the run before are left out"
    trace = traced(known, on_gpu=True)
    trace.launch("other_kernel", 1000, 1_000_000, stream=20, launched=900)
    trace.write(tmp_path / "trace.json.gz")
    assert absent + "several kernels ran at the same time" in analyze_run(tmp_path)["missing"]
    (tmp_path / "power.csv").write_text("time,watts\n1,2\n")
    assert any(reason.startswith(absent + "the power samples") for reason in analyze_run(tmp_path)["missing"])
    for run, reason in (({"traced": {"reason": "power is not sampled. Two sentences."}},
                         "power is not sampled. Two sentences"),
                        ({}, "power was not sampled while the steps were traced")):  # fmt: skip
        Record(tmp_path).describe({}, {**RUN, **run})
        assert absent + reason in analyze_run(tmp_path)["missing"]


def test_energy_of_the_steps_is_integrated_as_late_as_the_sensor_reports_it():
    times_s = np.arange(-2, 14, 0.7)
    samples = PowerSamples(array("q", [round(at_s * 1e9) for at_s in times_s]), {}, array("d", times_s + 2))
    assert TracedPower(0, 10**10, samples, 0.0).gross_j == pytest.approx(5 * 10 + 2 * 10)
    late = samples._replace(response=Response(0.5, 0.75))
    assert TracedPower(0, 10**10, late, 0.0).gross_j == pytest.approx(6 * 10 + 2 * 10)
