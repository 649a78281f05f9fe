"""The parts of a pass in order of time, and the energies by phase that follow from them and from power samples."""

from array import array

import numpy as np
import pytest
from scripted import EVALUATION, MILLISECOND, Script, windows_of

from epochmeter.power.phases.phase_energy import PhaseEnergy, phase_energy, stretch_energy
from epochmeter.power.power_series import PowerSamples
from epochmeter.power.uncertainty import Response
from epochmeter.shared import events

WATTS = {"overhead": 9.0, "stall": 5.0, "compute": 15.0}
OF_COMPUTE_W = {
    "preparation": 7.0, "forward": 12.0, "loss": 8.0, "backward": 20.0, "other_compute": 6.0, "optimizer": 10.0,
}  # fmt: skip
OF_COMPUTE_MS = {"preparation": 12, "forward": 20, "loss": 9, "backward": 40, "other_compute": 6, "optimizer": 15}
EVENTS = {"forward": events.FORWARD_ENDED, "backward": events.BACKWARD, "optimizer": events.STEP}
ALL_W = {**WATTS, **OF_COMPUTE_W}
SAMPLE_S = 0.001
FAST, SLOW = Response(0.0005, 0.0), Response(0.1, 0.0)
HOWS = [{}, {"evaluates": True}, {"ahead": 1}, {"ahead": 2, "evaluates": True}]


class Metered(Script):
    """Notes which phase each stretch of time belongs to."""

    def __init__(self):
        super().__init__()
        self.stretches = []

    def spend(self, phase, ms):
        self.stretches.append((phase, self.now_ns, self.now_ns + round(ms * MILLISECOND)))
        self.now_ns = self.stretches[-1][2]

    def fetch(self, number, ms=1):
        self.spend("stall", ms)
        self.now_ns -= round(ms * MILLISECOND)
        super().fetch(number, ms)

    def compute(self, ms):
        begun_ns = self.now_ns
        self.spend("compute", ms)
        self.now_ns = begun_ns
        self.train(ms)

    def compute_in_phases(self):
        for phase, ms in OF_COMPUTE_MS.items():
            begun_ns = self.now_ns
            self.spend(phase, ms)
            if phase in EVENTS:
                self.now_ns = begun_ns
                self.write(EVENTS[phase], ms, 0.1, 9 if phase == "optimizer" else 0)

    def evaluate_within(self, number):
        self.begin(number, 3, EVALUATION)
        for _ in range(3):
            super().fetch(number, 0)
            self.spend("overhead", 40)
        super().end(number)

    def end(self, number):
        self.spend("overhead", 1)
        self.now_ns -= MILLISECOND
        super().end(number)


def epoch(*, ahead=0, evaluates=False, steps=60, in_phases=False, untimed=0):
    """Return the window of an epoch, and its script; the phases of the last `untimed` steps are not timed."""
    script = Metered()
    script.begin(1, steps)
    for _ in range(ahead):
        script.fetch(1, 20)
    for number in range(steps):
        if number + ahead < steps:
            script.fetch(1, 20)
            if number >= steps - untimed:
                script.events[-1] = script.events[-1]._replace(flags=events.UNTIMED)
        elif number + ahead == steps:
            script.end(1)
        if evaluates and number % 5 == 2:
            if not in_phases:
                script.spend("compute", 10)
            script.evaluate_within(100 + number)
        if in_phases:
            script.compute_in_phases()
        else:
            script.compute(60)
        script.spend("overhead", 8)
    if not ahead:
        script.end(1)
    (window,) = windows_of(script).windows
    return window, script


def power(window, script, response):
    """Return what a sensor reads in a window, and the true energy by phase."""
    generator = np.random.default_rng(0)
    window_s = (window.closed_ns - window.opened_ns) * 1e-9
    times_ns = np.cumsum(generator.uniform(0.5, 1.5, round(window_s / SAMPLE_S)) * SAMPLE_S * 1e9).astype(np.int64)
    times_ns = times_ns[times_ns < window.closed_ns - window.opened_ns] + window.opened_ns
    edges_ns = np.array([0, *(ended_ns for _, _, ended_ns in script.stretches)])
    used_j = np.cumsum([0, *(ALL_W[phase] * (ended - begun) * 1e-9 for phase, begun, ended in script.stretches)])
    earlier_ns = times_ns - response.averaging_s * 1e9
    watts = (np.interp(times_ns, edges_ns, used_j) - np.interp(earlier_ns, edges_ns, used_j)) / response.averaging_s
    watts += generator.normal(0, 0.1, len(watts))
    true = {
        name: sum(
            watts * max(0, min(ended_ns, window.closed_ns) - max(begun_ns, window.opened_ns)) * 1e-9
            for phase, begun_ns, ended_ns in script.stretches
            if phase == name
        )
        for name, watts in ALL_W.items()
    }
    return PowerSamples(array("q", times_ns.tobytes()), {}, array("d", watts.tobytes()), response), true


def energies(window, script):
    """Return the energy by phase of a window by its timeline, and the true one."""
    powers, true = power(window, script, FAST)
    found = phase_energy(window.timeline, window.opened_ns, window.closed_ns, powers, sum(true.values()))
    assert found.reason is None
    return found.energy_j, {name: true[name] for name in WATTS}


def energies_of_compute(window, script, response):
    """Return the energy of the phases of compute of a window by its stretches, and the true ones."""
    powers, true = power(window, script, response)
    names, phases, lasts_s, of_compute = window.stretches
    refined = stretch_energy(names, phases, lasts_s, window.opened_ns, powers, sum(true.values()))
    return PhaseEnergy().with_parts(refined, of_compute), {name: true[name] for name in OF_COMPUTE_W}


@pytest.mark.parametrize("how", HOWS)
def test_energies_are_those_of_the_phases_also_with_evaluations_within_steps_and_batches_in_advance(how):
    window, script = epoch(**how)
    found, true = energies(window, script)
    assert {phase: found[phase] for phase in WATTS} == pytest.approx(true, rel=0.02)


def test_rows_are_those_of_the_steps_without_such_loops_and_add_up_to_the_time_until_the_last_step_ends_with_them():
    plain, _ = epoch()
    assert plain.timeline == plain.rows
    window, script = epoch(evaluates=True)
    gaps, _, _, computes = np.array(window.timeline).reshape(-1, 4).T
    assert len(gaps) == 60 + 12
    tail_s = 0.008 + 0.001  # after the last step
    assert sum(gaps + computes) == pytest.approx(window.parts["e2e_s"] - tail_s, rel=1e-5)
    assert sum(computes) == pytest.approx(window.parts["compute_s"], rel=1e-5)
    assert script.now_ns == window.closed_ns


@pytest.mark.parametrize("how", HOWS)
def test_stretches_last_as_long_as_the_phases_and_add_up_to_the_window(how):
    window, _ = epoch(in_phases=True, **how)
    names, phases, lasts_s, of_compute = window.stretches
    assert set(of_compute) == set(OF_COMPUTE_MS)
    assert sum(lasts_s) == pytest.approx(window.parts["e2e_s"], rel=1e-9)
    found_s = dict.fromkeys(names, 0.0)
    for phase, last_s in zip(phases, lasts_s, strict=True):
        found_s[names[phase]] += last_s
    assert {phase: found_s[phase] for phase in of_compute} == pytest.approx(
        {phase: window.parts[f"{phase}_s"] for phase in of_compute}, rel=1e-6
    )
    assert found_s["stall"] == pytest.approx(window.parts["data_stall_s"], rel=1e-6)
    assert found_s["overhead"] == pytest.approx(window.parts["overhead_s"], rel=1e-6)
    if not how:
        assert found_s["backward"] == pytest.approx(60 * 0.040)


def test_backward_pass_that_begins_with_the_end_of_the_forward_pass_keeps_its_time(monkeypatch):
    monkeypatch.setitem(OF_COMPUTE_MS, "loss", 0)
    monkeypatch.setitem(OF_COMPUTE_MS, "preparation", 0)
    window, _ = epoch(in_phases=True)
    names, phases, lasts_s, _ = window.stretches
    found_s = dict.fromkeys(names, 0.0)
    for phase, last_s in zip(phases, lasts_s, strict=True):
        found_s[names[phase]] += last_s
    for phase in ("forward", "backward", "optimizer"):
        assert found_s[phase] == pytest.approx(60 * OF_COMPUTE_MS[phase] / 1000, rel=1e-6)


@pytest.mark.parametrize("how", HOWS)
def test_energies_of_the_phases_of_compute_are_those_of_known_power(how):
    found, true = energies_of_compute(*epoch(in_phases=True, **how), FAST)
    assert found.reason is None
    assert found.energy_j == pytest.approx(true, rel=0.1)
    errors_j = {phase: abs(found.energy_j[phase] - joules) for phase, joules in true.items()}
    # Of two batches in advance, the last step follows another one without a batch between them.
    allowed = 0.01 if how.get("ahead") != 2 else 0.05
    assert all(errors_j[phase] <= found.half_width_j[phase] + allowed * true[phase] for phase in true)


def test_phases_that_a_slow_sensor_does_not_resolve_have_no_energy_but_a_reason():
    found, _ = energies_of_compute(*epoch(in_phases=True), SLOW)
    assert found.energy_j == {}
    assert found.reason.startswith("phases of compute: all phases are too short")


def test_phases_are_not_known_at_each_moment_if_some_steps_were_not_timed():
    window, _ = epoch(in_phases=True, steps=60, untimed=20)
    assert "forward_s" in window.parts
    assert window.stretches is None
