"""Windows of the record, from scripted messages and readings."""

import math
from array import array
from itertools import count
from pathlib import Path
from unittest.mock import Mock

import pytest
from cases import case, cases
from golden import assert_text, json_line

from epochmeter.machine.busy_processes import BusyProcess
from epochmeter.machine.cpu_load import CpuLoad, CpuUse
from epochmeter.machine.energy_codes import EnergyCode, Finding
from epochmeter.machine.nvml import POWER_LIMIT_REASON
from epochmeter.power.cross_checks import CrossCheck
from epochmeter.power.instrument import Domain, Instrument
from epochmeter.power.meter import EnergyMeter, NullMeter
from epochmeter.power.phases.phase_energy import PhaseEnergy
from epochmeter.power.power_series import PowerSamples, Sampling
from epochmeter.power.uncertainty import Response
from epochmeter.power.window_energy import IdlePower, Reading, WindowEnergy
from epochmeter.results.processor import Demand
from epochmeter.run import window_record
from epochmeter.run.instruments import WindowInstruments
from epochmeter.run.window_record import build_window, node_window, sum_nodes
from epochmeter.segmentation.windows import PhaseStretches
from epochmeter.shared.protocol import NodeWindow, RankWindow, WindowClosed, WindowMeasured, WindowOpening
from epochmeter.shared.record import Record

SECOND = 1_000_000_000
OPENED = WindowOpening("epoch", 3, 2)
PARTS = {"e2e_s": 4.0, "data_stall_s": 1.0, "clock_residual_s": -0.003, "steps": 2, "samples": 20}
MEASURED = RankWindow(
    opened_ns=100 * SECOND, closed_ns=104 * SECOND, node=0, parts=PARTS, bad=[], paused=False, weight=20, loss_sum=14,
    correct=16,
)  # fmt: skip
"""The only rank: a loss of 0.7 per sample, and an accuracy of 80 %."""


def gauges(throttled=(), **metrics):
    """Return gauges with these readings."""
    return Mock(window=lambda *_: metrics, throttled=lambda *_: [*throttled])


def data_source(**metrics):
    rates = [name for name in metrics if name.endswith("_per_s")]

    def window(name, opened_ns, closed_ns):
        seconds = (closed_ns - opened_ns) / SECOND
        return metrics | {rate: metrics[rate] / seconds for rate in rates}

    return Mock(window=window, medium="nvme")


def meter(*domains, source="counter"):
    counters = {name: Instrument(Domain(source, 0.1, name), lambda: 0.0) for name in domains}
    return EnergyMeter(counters=counters, total=list(domains), covers="everything")


def reading(seconds, **joules):
    return Reading(round(seconds * SECOND), joules)


@pytest.fixture
def record(tmp_path):
    """A record with a step of 50 s in an earlier epoch, steps of 1 s and 3 s, and a step in a later epoch."""
    record = Record(tmp_path)
    record.append_steps(array("f", [0, 0, 0, 50]))
    record.append_steps(array("f", [0, 0, 0, 1, 1, 1, 1, 1]))
    record.append_steps(array("f", [0, 0, 0, 90]))
    return record


def with_parts(bad=(), **parts):
    return MEASURED._replace(parts={**PARTS, **parts}, bad=[*bad])


NONE, GAUGES = NullMeter("none"), gauges()


@pytest.fixture
def close(record):
    """close(before, after, meter) -> the window between these readings, by default an epoch."""

    def build(before, after, meter, opened=OPENED, measured=MEASURED, gauges=None, source=None, idle=None, **more):
        instruments = WindowInstruments(meter, gauges or GAUGES, source or data_source(), CpuLoad(), idle)
        return build_window(opened, WindowMeasured([measured], []), before, after, instruments, record, 1, **more)

    return build


def test_loss_that_is_not_finite_is_absent_and_its_flag_names_the_window(close):
    def diverged(window, loss_sum, text):
        opened, measured = WindowOpening(window, 3, 2), MEASURED._replace(loss_sum=loss_sum)
        closed = close(reading(99.99), reading(104.01), NONE, measured=measured, opened=opened)
        assert closed.line["metrics"].keys().isdisjoint({"epoch/train_loss", "val/loss"})
        assert closed.flags == {"diverged": text}
        assert closed.notes == [f"{text}; the training diverged, and the mean loss is omitted."]
        return closed.line["metrics"]

    assert diverged("epoch", math.nan, "epoch 4: the loss was nan")["epoch/train_accuracy"] == 0.8
    diverged("val", math.inf, "epoch 4, evaluation: the loss was inf")
    assert close(reading(99.99), reading(104.01), NONE).flags == {}


TIMERS = {"loader_read_s": 1.0, "loader_preprocess_s": 3.0, "loader_decode_s": 2.0}


@cases(
    case(
        parts=TIMERS,
        medium="nvme",
        bottleneck="compute",
        stalls={"prep_stall_s": 0.75, "fetch_stall_s": 0.25},
        absent={},
    ),
    case(
        parts=TIMERS,
        medium="ram",
        bottleneck="compute",
        stalls={"prep_stall_s": 1.0},
        absent={"epoch/fetch_stall_s": "no storage device is read: the samples are in memory"},
    ),
    case(
        parts={"data_stall_s": 3.5, "compute_s": 0.5},
        medium=None,
        bottleneck="data_stall",
        stalls={},
        absent=dict.fromkeys(("epoch/prep_stall_s", "epoch/fetch_stall_s"), "reading and preprocessing are not timed"),
    ),
)
def test_an_epoch_has_its_bottleneck_and_stalls_as_data_and_an_evaluation_has_none(
    close, parts, medium, bottleneck, stalls, absent
):
    measured = with_parts(**{"compute_s": 3.0, "copy_s": 0.0, "overhead_s": 0.0, **parts})
    options = {"measured": measured, "source": Mock(window=lambda *_: {}, medium=medium)}
    line, notes, _, _ = close(reading(99.99), reading(104.01), NONE, **options)
    assert (line["bottleneck"], line["absent"], notes) == (bottleneck, absent, [])
    found = {name: value for name, value in line["metrics"].items() if "prep_" in name or "fetch_" in name}
    fractions = {f"{name.removesuffix('_s')}_fraction": value / 4 for name, value in stalls.items()}
    assert found == pytest.approx({f"epoch/{name}": value for name, value in {**stalls, **fractions}.items()})
    evaluation = close(reading(99.99), reading(104.01), NONE, opened=WindowOpening("val", 3, 2), **options).line
    assert evaluation.keys().isdisjoint({"bottleneck", "absent"})
    assert not [name for name in evaluation["metrics"] if "stall" in name]


HOT = gauges(throttled=["gpu0 slowed for heat"], cpu_utilization=0.5, temperature_max_c=71.0)

READ = data_source(read_bytes=80, read_bytes_per_s=80)
VAL = {"opened": WindowOpening("val", 3, 1), "idle": IdlePower(20.0, 0.5)}
SHORT = MEASURED._replace(closed_ns=round(100.5 * SECOND))
CASES = {
    "normal": {},
    "tokens and reads": {"source": READ, "measured": with_parts(tokens=300.0)},
    "partial": {"opened": OPENED._replace(partial=True, epoch_steps=9)},
    "paused": {"measured": MEASURED._replace(paused=True)},
    "suspended machine": {"suspended_s": 3.0},
    "clocks differ": {"measured": with_parts(clock_residual_s=-0.02)},
    "hot": {"gauges": HOT},
    "power limit": {"gauges": gauges(throttled=[f"gpu0 {POWER_LIMIT_REASON}"])},
    "seven skipped": {"measured": with_parts(["a.png", "b.png"], skipped_samples=7)},
    "two skipped": {"measured": with_parts(["a.png", "b.png"], skipped_samples=2)},
    "one skipped": {"measured": with_parts(["a.png"], skipped_samples=1)},
    "none skipped": {"measured": with_parts(skipped_samples=0)},
    "counter": {"meter": meter("gpu0")},
    "counter that was read late": {"meter": meter("gpu0"), "after_s": 704},
    # An evaluation without an energy of its own is a term of the total, uncertain by 0.11 s of 20 J / 4.12 s.
    "evaluation read a little late": {"meter": meter("gpu0"), "after_s": 104.11, **VAL},
    "evaluation read late": {"meter": meter("gpu0"), "after_s": 105.01, **VAL},
    "evaluation too short for the counter": {"meter": meter("gpu0"), "before_s": 100, "after_s": 100.5, **VAL,
                                             "measured": SHORT},
}  # fmt: skip


def test_windows_have_the_metrics_energies_notes_and_flags_of_the_golden_file(close):
    lines = []
    for name, changed in CASES.items():
        options = {"before_s": 99.99, "after_s": 104.01, "meter": NONE, **changed}
        before, after = reading(options.pop("before_s"), gpu0=10), reading(options.pop("after_s"), gpu0=30)
        after = after._replace(suspended_s=options.pop("suspended_s", 0.0))
        line, notes, flags, _ = close(before, after, **options)
        marks = {key: value for key, value in line.items() if value is True}
        lines.append(name)
        for part in (line["metrics"], line["energy"]["term"], {"notes": notes, "flags": flags, **marks}):
            lines.append(f"    {json_line(part)}")
    assert_text(Path(__file__).parent / "golden" / "windows.txt", "\n".join([*lines, ""]))


class LostSensor:
    """A board whose only sensor was read at the borders, but not for a while in between."""

    def __init__(self):
        self.domains = {"VDD_IN": Domain("sampled", 0.02, "module")}

    def sampling(self, opened_ns, closed_ns, borders_s):
        unavailable = {"VDD_IN": "unread for 3.0 s: gone"}
        return Sampling(samples=9, gap_max_s=3.0, failed=99, unavailable=unavailable, peak_w=9.0,
                        half_width_j=1.0, samples_per_domain={"VDD_IN": 9})  # fmt: skip

    def drain(self, before_ns):
        watts = array("d", [9.0, math.nan, 7.5])
        return PowerSamples(array("q", [5, 6, 7]), {"VDD_IN": watts}, watts)


def test_lost_sensor_leaves_no_energy_but_its_samples_and_a_flag(close, record):
    meter = EnergyMeter(powers=LostSensor(), total=["VDD_IN"], covers="module")
    found = close(reading(99.99, VDD_IN=10), reading(104.01, VDD_IN=30), meter)
    assert not [name for name in found.line["metrics"] if "energy" in name or "power" in name]
    assert found.notes[0] == "epoch 4: no energy of VDD_IN: unread for 3.0 s: gone."
    assert found.no_energy == " ".join(found.notes[:2])
    assert found.flags == {"energy_lost": "VDD_IN unread for 3.0 s: gone."}
    kept = (record.folder / "power.csv").read_text().splitlines()
    assert kept == ["monotonic_ns,VDD_IN_w,total_w", "5,9.0000,9.0000", "6,,", "7,7.5000,7.5000"]


CONTRADICTED = EnergyMeter(
    counters={name: Instrument(Domain("counter", 0.001, name), float) for name in ("cpu0", "core0")},
    total=["cpu0"], covers="CPU", cross_checks=[CrossCheck(("core0",), "at most", ("cpu0",))],
)  # fmt: skip


def test_contradictory_energies_of_this_and_of_other_nodes_are_a_flag(close, record):
    assert (
        "energy_disagrees"
        not in close(reading(100, cpu0=0, core0=0), reading(104, cpu0=30, core0=20), CONTRADICTED).flags
    )
    borders = reading(100, cpu0=0, core0=0), reading(104, cpu0=30, core0=40)
    instruments = WindowInstruments(CONTRADICTED, GAUGES, data_source(), CpuLoad())
    node = node_window("n1", WindowClosed(100 * SECOND, 104 * SECOND), *borders, instruments)
    found = build_window(OPENED, WindowMeasured([MEASURED], [node]), *borders, instruments, record)
    text = "core0 measured 40 J, at most cpu0 expected, 30 J"
    assert found.flags == {"energy_disagrees": f"epoch 4: {text}; n1: {text}"}
    assert found.line["metrics"]["epoch/energy_j"] == 60.0
    assert found.line["metrics"]["epoch/energy_uncertainty_j"] == pytest.approx(2 * 10, abs=0.1)


def test_energy_by_phase_is_recorded_with_its_uncertainty(close, monkeypatch):
    found = PhaseEnergy({"stall": 5.0, "compute": 15.0}, {"stall": 0.2, "compute": 0.1}, 0.02, 0.01, "copy: why")
    given = []
    monkeypatch.setattr(window_record, "phase_energy", lambda *arguments: given.append(arguments) or found)
    meter = EnergyMeter(powers=LostSensor(), total=["VDD_IN"], covers="module")
    meter.sampling = lambda *stretch: LostSensor().sampling(*stretch)._replace(unavailable={})
    line, notes, _, _ = close(reading(99.99, VDD_IN=10), reading(104.01, VDD_IN=30), meter)
    assert "epoch 4: no energy of some phases: copy: why" in notes
    energies = {name: line["metrics"][f"epoch/{name}_j"] for name in ("energy", "energy_uncertainty")}
    assert given[0][-2:] == (*energies.values(),)
    assert given[0][-3].response is None, "the sensor's response is not stated"
    assert (line["metrics"]["epoch/stall_energy_j"], line["metrics"]["epoch/compute_energy_j"]) == (5.0, 15.0)
    assert line["phases"] == {"averaging_s": 0.02, "lag_s": 0.01, "half_width_j": {"stall": 0.2, "compute": 0.1}}


def test_energy_by_phase_of_a_script_follows_its_timeline_and_has_no_copy(close, monkeypatch):
    found = PhaseEnergy({"stall": 5.0, "copy": 0.0, "compute": 15.0}, {"stall": 0.2, "copy": 0.0, "compute": 0.1})
    given = []
    monkeypatch.setattr(window_record, "phase_energy", lambda *arguments: given.append(arguments) or found)
    meter = EnergyMeter(powers=LostSensor(), total=["VDD_IN"], covers="module")
    meter.sampling = lambda *stretch: LostSensor().sampling(*stretch)._replace(unavailable={})
    borders = reading(99.99, VDD_IN=10), reading(104.01, VDD_IN=30), meter
    timeline = array("f", [1, 1, 0, 2])
    of_script = close(*borders, timeline=timeline).line
    of_job = close(*borders, measured=with_parts(copy_s=0.0)).line
    assert given[0][0] is timeline
    assert given[1][0] == array("f", [0, 0, 0, 1, 1, 1, 1, 1])
    assert "epoch/copy_energy_j" not in of_script["metrics"]
    assert of_script["phases"]["half_width_j"] == {"stall": 0.2, "compute": 0.1}
    assert of_job["metrics"]["epoch/copy_energy_j"] == 0.0


def test_energy_of_the_phases_of_compute_is_added_and_missing_ones_are_noted(close, monkeypatch):
    found = PhaseEnergy({"stall": 5.0, "copy": 0.0, "compute": 15.0}, {"stall": 0.2, "copy": 0.0, "compute": 0.1})
    refined = PhaseEnergy(
        {"stall": 5.1, "forward": 6.0}, {"stall": 0.2, "forward": 0.3}, reason="both",
        missing={"loss": "loss: why", "overhead": "overhead: why"},
    )  # fmt: skip
    given = []
    monkeypatch.setattr(window_record, "phase_energy", lambda *_: found)
    monkeypatch.setattr(window_record, "stretch_energy", lambda *arguments: given.append(arguments) or refined)
    meter = EnergyMeter(powers=LostSensor(), total=["VDD_IN"], covers="module")
    meter.sampling = lambda *stretch: LostSensor().sampling(*stretch)._replace(unavailable={})
    borders = reading(99.99, VDD_IN=10), reading(104.01, VDD_IN=30), meter
    stretches = PhaseStretches(
        ["forward", "loss", "stall"], array("B", [2, 0, 1]), array("d", [1, 2, 1]), ["forward", "loss"]
    )
    line, notes, _, _ = close(*borders, timeline=array("f", [1, 1, 0, 3]), stretches=stretches)
    assert given[0][:4] == (*stretches[:3], 100 * SECOND)
    energies = {
        name: value
        for name, value in line["metrics"].items()
        if name.endswith(("stall_energy_j", "forward_energy_j", "loss_energy_j", "compute_energy_j"))
    }
    assert energies == {"epoch/stall_energy_j": 5.0, "epoch/compute_energy_j": 15.0, "epoch/forward_energy_j": 6.0}
    assert line["phases"]["half_width_j"] == {"stall": 0.2, "compute": 0.1, "forward": 0.3}
    assert "epoch 4: no energy of some phases: loss: why" in notes


@pytest.mark.parametrize(
    ("in_step_j", "how", "text"),
    [
        (9.0, {}, "steps were in step"),
        (1.0, {}, None),
        (9.0, {"opened": WindowOpening("val", 3, 1)}, "if the batches were in step"),
    ],
    ids=["in step", "evenly sampled", "evaluation, whose steps are unknown"],
)
def test_part_time_sensor_has_a_note_if_it_may_have_seen_a_part_of_each_step_only(close, in_step_j, how, text):
    given = []

    def sampling(opened_ns, closed_ns, borders_s):
        given.append(borders_s)
        known_j = None if borders_s is None else in_step_j
        return LostSensor().sampling(opened_ns, closed_ns, borders_s)._replace(unavailable={}, in_step_j=known_j)

    domain = Domain("sampled", 0.05, "GPU board", response=Response(0.025, 0.0, 0.1))
    powers = Mock(domains={"VDD_IN": domain}, sampling=sampling, drain=LostSensor().drain)
    meter = EnergyMeter(powers=powers, total=["VDD_IN"], covers="GPU board")
    _, notes, _, _ = close(reading(99.99, VDD_IN=10), reading(104.01, VDD_IN=30), meter, **how)
    assert [note for note in notes if "in step" in note and (text is None or text not in note)] == []
    assert any("in step" in note for note in notes) == bool(text)
    assert given[0] is None if how else given[0].tolist() == [100.0, 101.0, 104.0]


BRIDGED = Finding(EnergyCode.GAPS_BRIDGED, "a note")


def other_node(**metrics):
    term = {name: value for name, value in metrics.items() if name == "energy_j"}
    return NodeWindow("n1", metrics, {}, term, "no RAPL", [], [], [])


def test_energy_of_several_nodes_is_their_sum_or_absent_with_the_reason_of_a_node():
    here = WindowEnergy({"gpu0": 30.0}, {"energy_j": 30.0, "power_mean_w": 3.0, "energy_gpu0_j": 30.0}, [BRIDGED], {})
    assert sum_nodes(here, []) is here
    others = [other_node(energy_j=12.0, power_mean_w=1.0), other_node(energy_j=8.0, power_mean_w=2.0)]
    with_peak = here._replace(metrics={**here.metrics, "power_peak_w": 4.0})
    assert sum_nodes(with_peak, others).metrics == {"energy_j": 50.0, "power_mean_w": 6.0, "energy_gpu0_j": 30.0}
    lacking = sum_nodes(here, [others[0], other_node()])
    assert lacking.metrics == {"energy_gpu0_j": 30.0}
    reasons = [f"no {name} of all nodes: n1 has none (no RAPL)." for name in ("energy_j", "power_mean_w")]
    assert lacking.notes == [BRIDGED.text, *reasons]
    assert [finding.code for finding in lacking.findings[1:]] == [EnergyCode.OTHER_NODE] * 2
    # Terms are added if each node has one.
    here = here._replace(term={"energy_j": 20.0, "period_s": 0.1, "shortest_s": 1.0})
    slow = other_node()._replace(term={"energy_j": 5.0, "period_s": 0.2, "shortest_s": 2.0})
    assert sum_nodes(here, [slow]).term == {"energy_j": 25.0, "period_s": 0.2, "shortest_s": 2.0}
    assert sum_nodes(here, [slow, other_node()]).term == {}


def test_window_of_another_node_is_by_its_own_clock():
    instruments = WindowInstruments(meter("cpu0"), GAUGES, data_source(), CpuLoad())
    times = WindowClosed(100 * SECOND, 104 * SECOND)
    node = node_window("n1", times, reading(99.999, cpu0=10.0), reading(104.001, cpu0=50.0), instruments)
    assert (node.node, node.joules) == ("n1", {"cpu0": 40.0})
    assert node.metrics["energy_j"] == 40.0
    late = node_window("n1", times, reading(99.0, cpu0=10.0), reading(104.001, cpu0=50.0), instruments)
    assert late.metrics == {}
    assert "the counters were read" in late.reason


def test_another_process_on_the_gpu_has_a_note_and_a_flag(record):
    looks = count()
    text = "process 7 (python) also computes on gpu0: {} GiB"
    monitor = Mock(drain=lambda: [text.format(next(looks))])
    instruments = WindowInstruments(meter("gpu0"), GAUGES, data_source(), CpuLoad(), gpu_monitor=monitor)
    borders = reading(100, gpu0=0.0), reading(104, gpu0=20.0)
    elsewhere = other_node()._replace(other_gpu_processes=["process 9 also computes on gpu1"])
    found = build_window(OPENED, WindowMeasured([MEASURED], [elsewhere]), *borders, instruments, record)
    here = text.format(0)
    assert f"epoch 4: {here}." in found.notes
    assert found.flags["gpu_shared"] == f"{here}; n1: process 9 also computes on gpu1"
    node = node_window("n1", WindowClosed(100 * SECOND, 104 * SECOND), *borders, instruments)
    assert node.other_gpu_processes == [text.format(1)]


def test_other_processes_have_a_metric_and_if_no_core_was_free_a_flag(record):
    def closed(**use):
        load = Mock(window=lambda opened_ns, closed_ns: CpuUse(**use))
        instruments = WindowInstruments(NONE, GAUGES, data_source(), load)
        return build_window(OPENED, WindowMeasured([MEASURED], []), reading(100), reading(104), instruments, record)

    others = [BusyProcess("make", 7, 0.5)]
    scarce, enough = closed(other_fraction=0.62, is_contended=True, others=others), closed(other_fraction=0.62)
    assert scarce.line["metrics"]["epoch/other_cpu_fraction"] == 0.62
    assert scarce.line["other_processes"] == [{"name": "make", "pid": 7, "fraction": 0.5}]
    used = "other processes used 62 % of the processor time, and no core was free: make (pid 7) 50 %"
    assert scarce.flags == {"cpu_shared": f"epoch 4: {used}"}
    assert (enough.line["metrics"]["epoch/other_cpu_fraction"], enough.flags) == (0.62, {})
    assert {"other_processes", "epoch/other_cpu_fraction"}.isdisjoint({*closed().line, *closed().line["metrics"]})


@cases(
    case(cores=2, wait_fraction=0.47, runnable=3.8, is_flagged=True),
    case(cores=2, wait_fraction=0.1, runnable=3.8, is_flagged=False),
    case(cores=4, wait_fraction=0.47, runnable=3.8, is_flagged=False),
    case(cores=None, wait_fraction=0.47, runnable=3.8, is_flagged=False),
    case(cores=2, wait_fraction=None, runnable=None, is_flagged=False),
)
def test_window_is_oversubscribed_if_threads_wait_that_are_more_than_the_cores(
    record, cores, wait_fraction, runnable, is_flagged
):
    load = Mock(window=lambda *_: CpuUse(wait_fraction=wait_fraction, runnable_threads=runnable))
    instruments = WindowInstruments(NONE, GAUGES, data_source(), load)
    demand = None if cores is None else Demand(2, 2, 1, cores)
    borders = reading(100), reading(104)
    window = build_window(OPENED, WindowMeasured([MEASURED], []), *borders, instruments, record, demand=demand)
    names = "epoch/run_queue_wait_fraction", "epoch/runnable_threads"
    assert tuple(map(window.line["metrics"].get, names)) == (wait_fraction, runnable)
    assert [*window.flags] == (["oversubscribed"] if is_flagged else [])
