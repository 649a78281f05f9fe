import math
import time
from array import array
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from boards import write
from power.conftest import ScriptedPowers, counters

from epochmeter.power.meter import EnergyMeter
from epochmeter.power.meters.sum import SumMeter, open_gpus, open_sum
from epochmeter.power.power_series import PowerSamples, Sampling
from epochmeter.power.uncertainty import Response
from epochmeter.power.window_energy import Reading, energy_of_window, take_reading

CONF = Path(__file__).parents[3] / "conf/meter"
GPU = Sampling(90, 0.03, 1, {}, peak_w=250.0, half_width_j=2.0, samples_per_domain={"gpu0": 90})
CPU = Sampling(40, 0.09, 2, {"cpu0": "unread"}, peak_w=60.0, half_width_j=0.5, samples_per_domain={"cpu0": 40})
NONE = {"_target_": "epochmeter.power.meter.NullMeter"}
CLOSED: list[str] = []
COUNTED = {"_target_": "epochmeter.power.meters.rapl.open_rapl"}
GPUS = {"_target_": "epochmeter.power.meters.sum.open_gpus"}
ESTIMATE = {"_target_": "epochmeter.power.meters.rapl.open_estimate", "tdp_w": 65}


def scripted(name: str, sampling: Sampling, times_ns: list[int], watts: list[float]) -> EnergyMeter:
    samples = PowerSamples(array("q", times_ns), {name: array("d", watts)}, array("d", watts))
    powers = ScriptedPowers(sampling, samples, **{name: 0.0})
    return EnergyMeter(powers=powers, total=[name], covers=name, close=lambda: CLOSED.append(name))


def test_first_part_is_the_total_and_the_samples_of_all_parts_are_merged_by_time():
    both = SumMeter([scripted("gpu0", GPU, [10, 30], [200.0, 210.0]), scripted("cpu0", CPU, [20, 40], [50.0, 55.0])])
    assert both.domains.keys() == {"gpu0", "cpu0"}
    assert both.read() == {"gpu0": 100.0, "cpu0": 100.0}
    assert both.total({"gpu0": 200.0, "cpu0": 50.0}) == both.total({"gpu0": 200.0}) == 200.0
    assert both.total({"cpu0": 50.0}) is None
    machine = {"covers": "gpu0 + cpu0", "domains": ["gpu0", "cpu0"]}
    first = {"source": "sampled", "covers": "gpu0", "domains": ["gpu0"], "reason": None}
    assert both.energy == {**first, "machine": machine}
    assert both.sampling(0, 100) == GPU._replace(
        failed=3, unavailable={"cpu0": "unread"}, samples_per_domain={"gpu0": 90, "cpu0": 40}
    )
    assert both.half_width_j({"gpu0": 1.0, "cpu0": 1.0}, 4.0, both.sampling(0, 4)) == 2.0
    powers = both.drain(100)
    assert list(powers.times_ns) == [10, 20, 30, 40]
    columns = {**powers.watts, "total": powers.total_w}
    gaps = {name: ["" if math.isnan(value) else value for value in part] for name, part in columns.items()}
    assert gaps == {name: [200.0, "", 210.0, ""] for name in ("gpu0", "total")} | {"cpu0": ["", 50.0, "", 55.0]}
    assert list(both.drain(100).times_ns) == []
    CLOSED.clear()
    both.close()
    assert CLOSED == ["gpu0", "cpu0"]


def test_machine_energy_is_the_sum_of_gpu_and_cpu():
    meter = SumMeter([counters(gpu0=float), counters(period_s=0.001, cpu0=float)])
    for seconds, after, expected in (
        (2.0, {"gpu0": 401.0, "cpu0": 101.0}, {"energy_j": 400.0, "machine_energy_j": 500.0}),
        (2.0, {"gpu0": 401.0}, {"energy_j": 400.0}),
        (2.0, {"cpu0": 101.0}, {}),
        (0.5, {"gpu0": 101.0, "cpu0": 26.0}, {}),  # too short for the GPU
    ):
        before = Reading(0, {"gpu0": 1.0, "cpu0": 1.0})
        used = energy_of_window(before, Reading(round(seconds * 1e9), after), meter, seconds)
        totals = {name: used.metrics[name] for name in ("energy_j", "machine_energy_j") if name in used.metrics}
        assert totals == expected
        if seconds < 1:
            assert (used.term["energy_j"], used.term["machine_energy_j"]) == (100.0, 125.0)
        if after.keys() == {"gpu0"}:
            assert [note.partition(":")[0] for note in used.notes] == ["no energy of cpu0"]


@pytest.mark.timed
def test_cross_checks_of_all_parts_are_made_except_of_power_sampled_elsewhere(board):
    board.zone("intel-rapl:0", "package-0", 100.0)
    board.zone("intel-rapl:0:0", "core", 100.0)
    write(board.root, "orin_nano")
    table = {"total": ["VDD_IN"], "soc": "VDD_SOC"}
    rails = {"_target_": "epochmeter.power.meters.rails.open_rails", "period_s": 0.05, "rails": table}
    for parts, checked in (([COUNTED, rails], {"core0"}), ([rails, COUNTED], {"VDD_SOC", "core0"})):
        with closing(open_sum(gpus=[], root=board.root, parts=parts)) as meter:
            assert {name for check in meter.cross_checks for name in check.parts} == checked
            before = take_reading(meter)
            board.zone("intel-rapl:0", "package-0", 110.0)
            board.zone("intel-rapl:0:0", "core", 140.0)
            time.sleep(0.2)
            used = energy_of_window(before, take_reading(meter), meter, 0.2)
            assert [found.difference_j for found in used.disagreements] == pytest.approx([30.0])
            is_of_total = meter.energy["domains"] == ["cpu0"]
            assert (used.metrics["energy_uncertainty_j"] > 30.0) == is_of_total
            board.zone("intel-rapl:0", "package-0", 100.0)
            board.zone("intel-rapl:0:0", "core", 100.0)


@pytest.mark.parametrize(
    "unmeasured", [{**NONE, "reason": "RAPL is kept for root."}, ESTIMATE], ids=["absent", "estimated"]
)
def test_sum_with_an_unmeasured_part_is_the_first_part_only(board, unmeasured):
    board.zone("intel-rapl:0", "package-0", 100.0)
    board.ticks(busy=1000, idle=9000)
    made = open_sum(gpus=[], root=board.root, parts=[COUNTED, unmeasured])
    assert (made.energy["source"], made.energy["domains"], "machine" in made.energy) == ("counter", ["cpu0"], False)
    why = "RAPL is kept for root." if "reason" in unmeasured else "meter=estimate: an estimate, not a measurement."
    assert made.energy["reason"] == f"no machine_energy_j: {why}"
    made.close()
    estimate = open_sum(gpus=[], root=board.root, parts=[ESTIMATE, COUNTED])
    assert (estimate.energy["source"], estimate.domains.keys()) == ("estimated", {"cpu"})
    neither = open_sum(gpus=[], root=board.root, parts=[{**NONE, "reason": "no GPU."}, unmeasured])
    assert (neither.energy["source"], neither.energy["reason"]) == ("none", "no GPU.")


@pytest.mark.parametrize(
    ("parts", "domains", "reason"),
    [
        ([COUNTED, COUNTED], ["cpu0"], "several of meter.parts measure cpu0."),
        ([GPUS, COUNTED], ["gpu0"], "the energy of the APU (GPU and CPU) includes the CPU package."),
    ],
    ids=["one meter twice", "an APU and its CPU"],
)
def test_sum_that_would_count_an_energy_twice_is_the_first_part_only(board, parts, domains, reason):
    board.zone("intel-rapl:0", "package-0", 100.0)
    board.with_amdgpu(power1_average=40_000_000, in1_label="vddnb")
    with closing(open_sum(gpus=["0000:03:00.0"], root=board.root, parts=parts)) as meter:
        assert (meter.energy["domains"], "machine" in meter.energy) == (domains, False)
        assert meter.energy["reason"].endswith(f"no machine_energy_j: {reason}")


def test_configured_sum_has_the_gpus_of_either_vendor(board):
    board.zone("intel-rapl:0", "package-0", 100.0)
    board.with_amdgpu(power1_average=90_000_000)
    spec = yaml.safe_load((CONF / "sum.yaml").read_text())
    parts = [{key: value for key, value in part.items() if key != "sensors"} for part in spec["parts"]]
    with closing(open_sum(gpus=["0000:03:00.0"], root=board.root, parts=parts)) as meter:
        assert (meter.energy["domains"], meter.energy["machine"]["domains"]) == (["gpu0"], ["gpu0", "cpu0"])
    nvidia = open_gpus(gpus=["GPU-aaaa"], root=board.root)
    assert "NVIDIA" in nvidia.energy["reason"]


def test_measured_responses_are_those_of_the_part_that_has_the_domain():
    both = SumMeter([counters(gpu0=lambda: 1.0), counters(cpu0=lambda: 2.0)])
    assert {name: instrument.read() for name, instrument in both.instruments.items()} == {"gpu0": 1.0, "cpu0": 2.0}
    before = both.half_width_j({"gpu0": 100.0, "cpu0": 100.0}, 10.0, None, ["cpu0"])
    both.use_responses({"cpu0": Response(0.02, 0.01, 0.02)})
    assert both.domains["cpu0"].response == Response(0.02, 0.01, 0.02)
    assert (both.domains["cpu0"].period_s, both.domains["gpu0"].period_s) == (0.02, 0.1)
    assert both.half_width_j({"gpu0": 100.0, "cpu0": 100.0}, 10.0, None, ["cpu0"]) < before
