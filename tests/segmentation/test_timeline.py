"""The parts of a pass in order of time, and the energies by phase that follow from them and from power samples."""

from array import array

import numpy as np
import pytest
from scripted import EVALUATION, MILLISECOND, Script, windows_of

from epochmeter.power.phases.phase_energy import phase_energy
from epochmeter.power.power_series import PowerSamples
from epochmeter.power.uncertainty import Response

WATTS = {"overhead": 9.0, "stall": 5.0, "compute": 15.0}
SAMPLE_S = 0.001


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


def epoch(*, ahead=0, evaluates=False, steps=60):
    """Return the window of an epoch, and its script."""
    script = Metered()
    script.begin(1, steps)
    for _ in range(ahead):
        script.fetch(1, 20)
    for number in range(steps):
        if number + ahead < steps:
            script.fetch(1, 20)
        elif number + ahead == steps:
            script.end(1)
        if evaluates and number % 5 == 2:
            script.spend("compute", 10)
            script.evaluate_within(100 + number)
        script.compute(60)
        script.spend("overhead", 8)
    if not ahead:
        script.end(1)
    (window,) = windows_of(script).windows
    return window, script


def energies(window, script):
    """Return the energy by phase of a window by its timeline, and the true one."""
    generator = np.random.default_rng(0)
    window_s = (window.closed_ns - window.opened_ns) * 1e-9
    times_ns = np.cumsum(generator.uniform(0.5, 1.5, round(window_s / SAMPLE_S)) * SAMPLE_S * 1e9).astype(np.int64)
    times_ns = times_ns[times_ns < window.closed_ns - window.opened_ns] + window.opened_ns
    begins = np.array([begun_ns for _, begun_ns, _ in script.stretches])
    place = np.searchsorted(begins, times_ns, side="right") - 1
    watts = np.array([WATTS[phase] for phase, _, _ in script.stretches])[place] + generator.normal(0, 0.1, len(place))
    true = {
        name: sum(
            watts * max(0, min(ended_ns, window.closed_ns) - max(begun_ns, window.opened_ns)) * 1e-9
            for phase, begun_ns, ended_ns in script.stretches
            if phase == name
        )
        for name, watts in WATTS.items()
    }
    powers = PowerSamples(array("q", times_ns.tobytes()), {}, array("d", watts.tobytes()), Response(0.0005, 0.0))
    found = phase_energy(window.timeline, window.opened_ns, window.closed_ns, powers, sum(true.values()))
    assert found.reason is None
    return found.energy_j, true


@pytest.mark.parametrize("how", [{}, {"evaluates": True}, {"ahead": 1}, {"ahead": 2, "evaluates": True}])
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
