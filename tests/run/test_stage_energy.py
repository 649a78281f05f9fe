"""The energy outside of windows, by a meter of known power whose counter some readings lack."""

import pytest

from epochmeter.machine.energy_codes import EnergyCode, Finding
from epochmeter.power.instrument import Domain, Instrument
from epochmeter.power.meter import EnergyMeter, NullMeter
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
