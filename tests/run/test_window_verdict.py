"""Every energy that is absent or doubtful has a code, and each code of the list is found from its cause."""

from array import array
from pathlib import Path
from unittest.mock import Mock

import pytest
from default_jobs import job_of
from metadata import run_info
from project import ROOT

from epochmeter.config.suggestions import option_content
from epochmeter.machine.cpu_load import CpuUse
from epochmeter.machine.energy_codes import Effect, EnergyCode, Finding, UncountedError, judge
from epochmeter.power.cross_checks import CrossCheck
from epochmeter.power.instrument import Domain, Instrument
from epochmeter.power.meter import EnergyMeter, NullMeter, open_meter
from epochmeter.power.meters import rapl
from epochmeter.power.meters.gpu import BOARD_SCOPE, COVERS, MODULE_SCOPE, GpuInstruments, gpu_meter
from epochmeter.power.meters.nvml import open_nvml
from epochmeter.power.meters.rails import rails_meter
from epochmeter.power.meters.rapl import open_estimate, open_rapl
from epochmeter.power.meters.sum import open_sum
from epochmeter.power.power_series import PowerSamples, Sampling
from epochmeter.power.uncertainty import NONE, Response
from epochmeter.power.window_energy import IdlePower, Reading
from epochmeter.results.energy_verdict import energy_verdicts
from epochmeter.run.instruments import WindowInstruments
from epochmeter.run.recovery import KILLED, _no_instruments
from epochmeter.run.window_record import build_window
from epochmeter.run.window_verdict import with_changed_settings
from epochmeter.shared.problem import Problem
from epochmeter.shared.protocol import NodeWindow, RankWindow, WindowMeasured, WindowOpening
from epochmeter.shared.record import Record

SECOND = 1_000_000_000
OPENED = WindowOpening("epoch", 3, 2)
PARTS = {"e2e_s": 4.0, "data_stall_s": 1.0, "clock_residual_s": 0.0, "steps": 2, "samples": 20}
RANK = RankWindow(100 * SECOND, 104 * SECOND, 0, PARTS, [], False, 20, 14, 16)
SHORT = RANK._replace(closed_ns=round(100.4 * SECOND), parts={**PARTS, "e2e_s": 0.4})
IDLE = IdlePower(2.0, 0.1)
SAMPLING = Sampling(samples=90, gap_max_s=0.1, failed=0, unavailable={}, peak_w=9.0, half_width_j=0.1,
                    samples_per_domain={"gpu0": 90})  # fmt: skip


def counter(*names, period_s=0.1, covers=COVERS[BOARD_SCOPE], **options):
    parts = {name: Instrument(Domain("counter", period_s, name), float) for name in names}
    return EnergyMeter(counters=parts, total=names[:1], covers=covers, **options)


def sampled(response=NONE, **changed):
    """A meter of sampled power with these statistics."""
    watts = array("d", [5.0])
    powers = Mock(
        domains={"gpu0": Domain("sampled", 0.01, "gpu0", response=response)},
        sampling=lambda *_: SAMPLING._replace(**changed),
        drain=lambda before_ns: PowerSamples(array("q", [101 * SECOND]), {"gpu0": watts}, watts),
    )
    return EnergyMeter(powers=powers, total=["gpu0"], covers=COVERS[BOARD_SCOPE])


GPU, CPU = counter("gpu0"), counter("cpu0", covers="CPU packages")
BEFORE, AFTER = {"gpu0": 10.0, "cpu0": 10.0}, {"gpu0": 50.0, "cpu0": 50.0}
STALE = {"gpu0": Finding(EnergyCode.STALE, "gpu0 was not renewed")}
CONTRADICTED = counter("gpu0", "part", period_s=0.001, cross_checks=[CrossCheck(("part",), "at most", ("gpu0",))])
PART_TIME = Response(0.025, 0.0, 0.1)
NODE = NodeWindow("n1", {}, {}, {}, "no RAPL", [], [], ["no_sensor"])
WINDOWS = {
    "window_too_short": {"rank": SHORT, "seconds": 0.4},
    "too_few_samples": {"meter": sampled(samples_per_domain={"gpu0": 2})},
    "sensor_lost": {"meter": sampled(unavailable={"gpu0": "no reading for 3.0 s"})},
    "not_read": {"after": {}},
    "counter_stopped": {"after": BEFORE},
    "counter_reset": {"before": AFTER, "after": BEFORE},
    "stale": {"after": {}, "failures": STALE},
    "read_apart": {"seconds": 700.0},
    "other_node": {"nodes": [NODE]},
    "counters_disagree": {"meter": CONTRADICTED, "before": {**BEFORE, "part": 0.0}, "after": {**AFTER, "part": 90.0}},
    "shared_gpu": {"gpu_processes": ["2 processes compute on gpu0, 1 more than this run's own; their IDs are hidden"]},
    "shared_cpu": {"meter": CPU, "cpu": CpuUse(other_fraction=0.6, is_contended=True)},
    "may_overlap": {"meter": counter("gpu0", codes=[EnergyCode.MAY_OVERLAP], reason="the sum may count a rail twice")},
    "suspended": {"suspended_s": 3.0},
    "settings_changed": {"conditions": {"generation": "2"}},
    "in_step": {"meter": sampled(PART_TIME, in_step_j=9.0)},
    "in_step_unknown": {"meter": sampled(PART_TIME, in_step_j=None)},
    "gaps_bridged": {"meter": sampled(failed=3)},
    "no_idle_power": {"idle": None},
    "no_phases": {"meter": sampled()},
}  # fmt: skip
INVALID = {code.value for code in EnergyCode if code.effect is Effect.INVALID}
ABSENT = {code.value for code in EnergyCode if code.effect is Effect.ABSENT}


@pytest.fixture
def line(tmp_path):
    """line(**how) -> a window of 4 s and 40 J, changed by what a case does."""

    def build(
        meter=GPU, before=BEFORE, after=AFTER, seconds=4.0, *, rank=RANK, nodes=(), gpu_processes=(), cpu=None,
        suspended_s=0.0, failures=None, conditions=None, idle=IDLE, are_identified=False,
    ):  # fmt: skip
        (record := Record(tmp_path)).append_steps(array("f", [0, 0, 0, 1, 1, 1, 1, 1]))
        borders = (
            Reading(100 * SECOND, before, conditions={"generation": "1"}),
            Reading(
                round((100 + seconds) * SECOND), after, suspended_s=suspended_s, failures=failures or {},
                conditions=conditions or {"generation": "1"},
            ),
        )  # fmt: skip
        load = Mock(window=lambda *_: cpu or CpuUse())
        instruments = WindowInstruments(
            meter, Mock(window=lambda *_: {}, throttled=lambda *_: []), Mock(window=lambda *_: {}, medium="nvme"),
            load, idle, Mock(drain=lambda: [*gpu_processes], are_identified=are_identified),
        )  # fmt: skip
        return build_window(OPENED, WindowMeasured([rank], [*nodes]), *borders, instruments, record).line

    return build


def codes_of(fields):
    return {reason["code"] for reason in fields.get("energy_reasons", [])}


def test_window_whose_energy_holds_has_no_reason(line):
    fields = line()
    assert (fields["metrics"]["epoch/energy_j"], fields["energy_valid"], codes_of(fields)) == (40.0, True, set())


@pytest.mark.parametrize(("code", "how"), WINDOWS.items(), ids=WINDOWS)
def test_window_has_the_code_of_what_happened_to_its_energy(line, code, how):
    fields = line(**how)
    has_energy, codes = "epoch/energy_j" in fields["metrics"], codes_of(fields)
    assert code in codes
    assert has_energy == (code not in ABSENT)
    assert fields["energy_valid"] == (has_energy and code not in INVALID)
    assert codes <= {code, "no_phases", "no_sensor"}, "and no other code"
    assert all(reason["text"] for reason in fields["energy_reasons"])


def test_energy_is_absent_if_a_known_process_computed_on_the_gpu_but_not_that_of_the_processor(line):
    shared = {"gpu_processes": ["process 7 (python) also computes on gpu0: 3.0 GiB"], "are_identified": True}
    fields = line(**shared)
    assert not [name for name in fields["metrics"] if "energy" in name]
    assert (fields["energy_valid"], codes_of(fields), fields["energy"]["term"]) == (False, {"shared_gpu"}, {})
    short = line(**shared, rank=SHORT, seconds=0.4)
    assert short["energy"]["term"] == {}, "it is no part of the total either"
    of_processor = line(CPU, **shared)
    assert of_processor["metrics"]["epoch/energy_j"] == 40.0


def test_setting_that_another_program_changed_makes_the_energy_invalid(line):
    fields = line(meter=sampled(failed=3))
    assert with_changed_settings(fields, []) == {}
    changed = {**fields, **with_changed_settings(fields, ["NVML was set to 250 W, but something changed it to 200 W."])}
    assert changed["energy_valid"] is False
    assert codes_of(changed) == {"settings_changed", *codes_of(fields)}


def modules(monkeypatch):
    """Two GPUs whose energy is that of a module, on boards that are not known."""
    power = Instrument(Domain("sampled", 0.05, MODULE_SCOPE), float)
    return gpu_meter([GpuInstruments(f"gpu{i}", None, power, None) for i in (0, 1)], period_s=1, cross_check=True)


def mig_slice(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-cccc")
    return open_nvml(gpus=[], root=ROOT)


def in_shared_job(monkeypatch):
    monkeypatch.setattr(
        rapl, "sharing_problem", lambda: Problem("Slurm job 7 shares its node", "", EnergyCode.SHARED_NODE.value)
    )
    return open_rapl(gpus=[], root=ROOT)


def hidden_counter(monkeypatch):
    def refuse(root):
        raise rapl.MachineError(rapl.energy_problem(EnergyCode.NO_PERMISSION, "Only root may read it"))

    monkeypatch.setattr(rapl, "find_zones", refuse)
    return open_rapl(gpus=[], root=ROOT)


def estimated(monkeypatch):
    return open_estimate(gpus=[], root=Path("/"), tdp_w=65.0)


def without_machine(monkeypatch):
    """A sum whose second part does not measure."""
    parts = ({"_target_": "epochmeter.power.meters.rapl.open_rapl"}, {"_target_": "epochmeter.power.meter.NullMeter"})
    opened = iter([counter("cpu0", covers="CPU packages"), NullMeter("there is none")])
    monkeypatch.setattr("epochmeter.power.meters.sum.open_meter", lambda *_, **__: next(opened))
    return open_sum(gpus=[], root=ROOT, parts=parts)


def rails_without_table(monkeypatch):
    return rails_meter(dict.fromkeys("ab", Instrument(Domain("sampled", 1, ""), float)), None, 1.0)


METERS = {
    "not_requested": lambda monkeypatch: open_meter(option_content("meter", "none"), gpus=[]),
    "not_configured": lambda monkeypatch: open_estimate(gpus=[], root=ROOT),
    "no_controller": lambda monkeypatch: _no_instruments(job_of(), KILLED).meter,
    "no_sensor": lambda monkeypatch: open_rapl(gpus=[], root=ROOT),
    "no_permission": hidden_counter,
    "shared_node": in_shared_job,
    "partitioned_gpu": mig_slice,
    "estimated": estimated,
    "part_absent": without_machine,
    "may_overlap": rails_without_table,
}  # fmt: skip


@pytest.mark.parametrize(("code", "open_one"), METERS.items(), ids=METERS)
def test_meter_has_the_code_of_why_it_measures_nothing_or_less(line, code, open_one, monkeypatch):
    meter = open_one(monkeypatch)
    try:
        assert code in meter.energy["codes"]
        assert meter.energy["reason"]
        fields = line(NullMeter(meter.energy["reason"], code=code) if code not in ("part_absent",) else meter)
    finally:
        meter.close()
    assert code in codes_of(fields)
    assert fields["energy_valid"] == (code == "part_absent")


def test_scope_of_modules_that_may_be_the_same_is_unknown(monkeypatch):
    with pytest.raises(rapl.MachineError) as refused:
        modules(monkeypatch)
    assert refused.value.problems[0].code == "scope_unknown"


RUNS = {
    "concurrent": ({"flags": {"concurrent_training": "another thread trained"}}, [True, True], False),
    "shared_gpu": ({"flags": {"gpu_shared": "the GPU was busy before training"}}, [True, True], False),
    "other_window": ({}, [True, False], False),
}


@pytest.mark.parametrize(("code", "case"), RUNS.items(), ids=RUNS)
def test_run_has_the_codes_of_its_flags_and_of_the_windows_that_lack_an_energy(code, case):
    run, have_energy, is_valid = case
    term = {"energy_j": 5.0, "energy_uncertainty_j": 0.1}
    windows = [
        {"window": "epoch", "epoch": epoch,
         "metrics": {"epoch/e2e_s": 1.0} | ({"epoch/energy_j": 5.0} if known else {}),
         "energy": {"opened_ns": 0, "closed_ns": SECOND, "term": term if known else {}}, "energy_valid": known}
        for epoch, known in enumerate(have_energy)
    ]  # fmt: skip
    metrics = {"steady/energy_j": 5.0, "total/energy_j": 10.0} if all(have_energy) else {}
    verdicts = energy_verdicts(windows, run_info(energy={"source": "counter", "reason": None}, **run), metrics, 0)
    assert {section for section, verdict in verdicts.items() if code in codes_of(verdict)} >= {"total"}
    assert verdicts["total"]["energy_valid"] == is_valid


def test_flag_of_a_warm_up_epoch_is_no_reason_of_the_mean_epoch():
    term = {"energy_j": 5.0, "energy_uncertainty_j": 0.1}
    shared = {"energy_valid": False, "energy_reasons": [{"code": "shared_gpu", "text": "process 7"}],
              "flags": {"gpu_shared": "process 7"}}  # fmt: skip
    windows = [
        {"window": "epoch", "epoch": epoch, "metrics": {"epoch/e2e_s": 1.0, "epoch/energy_j": 5.0},
         "energy": {"opened_ns": 0, "closed_ns": SECOND, "term": term}, "energy_valid": True, **more}
        for epoch, more in enumerate((shared, {}))
    ]  # fmt: skip
    run = run_info(energy={"source": "counter", "reason": None}, flags={"gpu_shared": "process 7"})
    verdicts = energy_verdicts(windows, run, {"steady/energy_j": 5.0, "total/energy_j": 10.0}, 1)
    assert [(verdict["energy_valid"], codes_of(verdict)) for verdict in verdicts.values()] == [
        (True, set()),
        (False, {"shared_gpu"}),
    ]


def test_run_without_windows_has_the_codes_of_its_meter():
    run = run_info(energy={"source": "none", "reason": "no RAPL", "codes": ["no_sensor"]})
    for verdict in energy_verdicts([], run, {}, 1).values():
        assert verdict["energy_valid"] is False
        assert codes_of(verdict) == {"no_sensor", "other_window"}


def test_every_code_has_a_cause_in_these_tests():
    tested = {*WINDOWS, *METERS, *RUNS, "scope_unknown"}
    assert {code.value for code in EnergyCode} == tested


def test_counter_that_fails_for_a_reason_of_its_own_keeps_its_code():
    def fail():
        raise UncountedError(EnergyCode.STALE, "not renewed")

    meter = EnergyMeter(counters={"node": Instrument(Domain("counter", 0.1, "node"), fail)}, total=["node"], covers="x")
    assert meter.read() == {}
    assert meter.failures == {"node": Finding(EnergyCode.STALE, "not renewed")}


def test_verdict_names_each_finding_once():
    finding = Finding(EnergyCode.STALE, "a")
    assert judge([finding, finding], has_energy=False).findings == [finding]
