"""The energy outside of windows, by a meter of known power whose counter some readings lack."""

import pytest

from epochmeter.machine.energy_codes import EnergyCode, Finding
from epochmeter.power.instrument import Domain, Instrument
from epochmeter.power.meter import EnergyMeter, NullMeter
from epochmeter.power.uncertainty import Response
from epochmeter.power.window_energy import Reading
from epochmeter.run.stage_energy import StageMeter

POWER_W, S = 50.0, 10**9


def counter():
    instrument = Instrument(Domain("counter", 0.001, "the CPU"), lambda: 0.0)
    return EnergyMeter(total=["cpu"], covers="the CPU", counters={"cpu": instrument})


def reading(at_s, *, has_counter=True):
    return Reading(round(at_s * S), {"cpu": POWER_W * at_s} if has_counter else {})


def stages_of(meter, windows, lacking=()):
    """Return joules by stage of a process from 10 s until 60 s, with windows in seconds."""
    stages = StageMeter(meter)
    stages.begin(reading(10))
    for begin_s, end_s in windows:
        stages.add_window(reading(begin_s, has_counter=begin_s not in lacking), reading(end_s))
    stages.end(reading(60))
    return {stage: used["energy_j"] for stage, used in stages.stages.items()}


WINDOWS = [(15, 20), (20, 24), (30, 40)]


def test_stages_are_before_between_and_after_windows():
    assert stages_of(counter(), WINDOWS) == pytest.approx({"start": 250, "between": 300, "finish": 1000})
    assert stages_of(counter(), WINDOWS[:1]) == pytest.approx({"start": 250, "finish": 2000})


@pytest.mark.parametrize(("lacking", "known"), [([15], ["between", "finish"]), ([30], ["start", "finish"])])
def test_stage_with_an_energy_that_is_not_known_is_absent(lacking, known):
    assert [*stages_of(counter(), WINDOWS, lacking)] == known


def test_windows_that_overlap_have_no_energy_between_them():
    assert [*stages_of(counter(), [(15, 20), (18, 24), (30, 40)])] == ["start", "finish"]


def test_stage_that_is_not_known_has_the_codes_of_why():
    stages = StageMeter(counter())
    stages.begin(reading(10))
    for begin_s, end_s in [(15, 20), (18, 24), (30, 40)]:
        stages.add_window(reading(begin_s, has_counter=begin_s != 15), reading(end_s))
    stages.end(reading(60))
    codes = {stage: [reason["code"] for reason in reasons] for stage, reasons in stages.reasons.items()}
    assert codes == {"start": ["not_read"], "between": ["read_apart"]}
    assert [*stages.stages] == ["finish"]
    unbegun = StageMeter(counter())
    unbegun.end(reading(60), Finding(EnergyCode.NO_CONTROLLER, "it had begun before"))
    reason = [{"code": "no_controller", "text": "it had begun before"}]
    assert unbegun.reasons == dict.fromkeys(("start", "between", "finish"), reason)


def test_nothing_is_added_without_a_start_or_without_a_meter():
    assert stages_of(NullMeter("none"), WINDOWS) == {}
    stages = StageMeter(counter())
    stages.add_window(reading(15), reading(20))
    stages.end(reading(60))
    assert stages.stages == {}


@pytest.mark.parametrize(("window_s", "narrower"), [(0.998, 3), (1.031, 10)], ids=["in step", "others"])
def test_many_short_stages_are_as_uncertain_as_their_time_and_not_as_their_number(window_s, narrower):
    """A counter that is renewed every 0.1 s shows no energy, or that of 0.1 s, in pauses of 2 ms."""
    scan_s, begins_s = 0.1, [10 + (window_s + 0.002) * number for number in range(1, 40)]
    windows = [(begin_s, begin_s + window_s) for begin_s in begins_s]
    instrument = Instrument(Domain("counter", scan_s, "node", 1.0, Response(None, 0.0, scan_s)), lambda: 0.0)
    meter = EnergyMeter(total=["cpu"], covers="node", counters={"cpu": instrument})

    def scanned(at_s):
        return Reading(round(at_s * S), {"cpu": float(int(POWER_W * scan_s * int(at_s / scan_s + 1e-9)))})

    stages = StageMeter(meter)
    stages.begin(scanned(10))
    for begin_s, end_s in windows:
        stages.add_window(scanned(begin_s), scanned(end_s))
    stages.end(scanned(60))
    between = stages.stages["between"]
    assert between["energy_j"] == pytest.approx(38 * 0.002 * POWER_W, abs=between["uncertainty_j"])
    of_all_borders_j = 2 * 38 * scan_s * 2 * POWER_W
    assert 38 * 0.002 * POWER_W < between["uncertainty_j"] < of_all_borders_j / narrower


def test_stage_without_a_scan_is_not_certain():
    instrument = Instrument(Domain("counter", 0.1, "node"), lambda: 0.0)
    meter = EnergyMeter(total=["cpu"], covers="node", counters={"cpu": instrument})
    stages = StageMeter(meter)
    stages.begin(Reading(0, {"cpu": 0.0}))
    stages.add_window(Reading(2 * S, {"cpu": 100.0}), Reading(5 * S, {"cpu": 250.0}))
    stages.add_window(Reading(5 * S + S // 100, {"cpu": 250.0}), Reading(9 * S, {"cpu": 450.0}))
    stages.end(Reading(10 * S, {"cpu": 500.0}))
    between = stages.stages["between"]
    assert between["energy_j"] == 0
    assert between["uncertainty_j"] >= 0.01 * POWER_W
