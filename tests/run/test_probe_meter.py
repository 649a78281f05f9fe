"""Probes of training, on a counter whose energy is known."""

from types import SimpleNamespace

import pytest
from power.conftest import counters

from epochmeter.power.window_energy import Reading
from epochmeter.run import probe_meter
from epochmeter.run.probe_meter import ProbeMeter

SECOND = 1_000_000_000
POWER_W, STEP_S, EPOCH_S, LATE_S = 150.0, 0.1, 2.0, 0.5


def test_part_of_an_epoch_is_in_one_probe_if_its_end_is_known_after_the_next_has_begun(monkeypatch):
    """The start of the next epoch is repeated after the late end, as by the loop of a script."""
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(probe_meter, "time", SimpleNamespace(monotonic_ns=lambda: round(now.s * SECOND)))

    def reading_at(at_s):
        return Reading(round(at_s * SECOND), {"gpu0": POWER_W * at_s})

    meter = ProbeMeter(counters(gpu0=float), SimpleNamespace(info=lambda *args, **keys: None))
    now.s, steps_of_epoch, probes = 102.0, round(EPOCH_S / STEP_S), []

    def note(probe):
        if probe:
            probes.append(probe)
            meter.go_on()

    def train(seconds, begun_s):
        for _ in range(round(seconds / STEP_S)):
            now.s = round(now.s + STEP_S, 6)
            note(meter.read_step(round((now.s - begun_s) / STEP_S), lambda: reading_at(now.s)))

    border_s = now.s
    meter.open_window(reading_at(border_s))
    train(LATE_S, border_s)
    for _ in range(300):  # epochs of 2 s: without samples, each piece is uncertain
        train(EPOCH_S - LATE_S, border_s)
        border_s += EPOCH_S
        meter.open_window(reading_at(border_s))
        train(LATE_S, border_s)
        note(meter.close_window(reading_at(border_s), steps_of_epoch))
        meter.open_window(reading_at(border_s))
    assert len(probes) >= 5
    assert sum(probe.seconds for probe in probes) <= now.s - 102.0 + 1e-6, "no part is in two probes"
    for probe in probes:
        assert probe.energy_j / probe.seconds == pytest.approx(POWER_W)
        assert probe.seconds / probe.steps == pytest.approx(STEP_S)
