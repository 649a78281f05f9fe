"""Scaling over several devices, against known answers."""

from dataclasses import replace

import pytest
from golden import assert_golden
from sweeps import ddp, trained

from epochmeter.report.analyses import scaling
from epochmeter.report.runs.configuration import group_repeats


def analyze(runs):
    return scaling.analyze(group_repeats(runs))


def without_partner_of(runs):
    return scaling.without_partner(analyze(runs), group_repeats(runs))


def one(runs):
    (result,) = analyze(runs)
    return result


def test_overhead_is_the_longer_compute_time_per_step():
    # 1000 samples: 16 steps of 64 in 9 s of compute on one, 8 a rank in 4.9 s on two: 562.5 and 612.5 ms a step.
    result = one([trained(0, 100.0), ddp(1, 187.5, steady={"compute_s": 4.9})])
    assert (result.step_s, result.overhead_s.value) == pytest.approx((0.5625, 0.05))


def test_number_of_nodes_is_a_number_of_devices():
    result = one([trained(0, 100.0), ddp(1, 190.0, nodes=2)])
    assert (result.devices, result.speedup.value) == (2, pytest.approx(1.9))


def test_effects_of_rounds_cancel_in_the_overhead_and_the_speedup():
    """Each round is slower than the one before, by seconds of compute per epoch."""
    rounds = {"order": "random", "repeats": 3}
    runs = [run(n + first, speed / (1 + n), repeat=n, sweep=rounds, steady={"compute_s": (9 + 16 * n) * share})
            for first, run, speed, share in ((0, trained, 100.0, 1.0), (3, ddp, 190.0, 0.6))
            for n in range(3)]  # fmt: skip
    result = one(runs)
    assert (result.speedup.low, result.speedup.high) == pytest.approx((1.9, 1.9))
    free = one([replace(run, job={**run.job, "sweep": {}}) for run in runs])
    assert result.overhead_s.high - result.overhead_s.low < 0.5 * (free.overhead_s.high - free.overhead_s.low)


def joules(one, several, covers="GPUs used"):
    """Runs on one and on two devices, with their energies per sample."""
    single, two = (run(n, 100.0 + 90 * n, steady={"energy_per_sample_j": energy_j})
                   for n, (run, energy_j) in enumerate(((trained, one), (ddp, several))))  # fmt: skip
    return [single, replace(two, energy_covers=covers)]


DDP_ONE = trained(0, 98.0, strategy="ddp")
MEASURED = {"energy_per_sample_j": 2.0, "gpu_memory_peak_bytes": 8e9}
HOSTS = {
    "one rank is one device": [DDP_ONE, ddp(1, 196.0)],
    "one device is preferred": [DDP_ONE, ddp(1, 196.0), trained(2, 100.0)],
    "DataParallel splits its batch": [trained(0, 100.0), trained(1, 130.0, strategy="dp", ranks=2, batch=128)],
    "weak and strong": [trained(0, 100.0), trained(1, 110.0, batch=128), ddp(2, 198.0), ddp(3, 210.0, batch=128)],
    "wide interval": [trained(0, 100.0, repeat=0), trained(1, 99.0, repeat=1),
                      *(ddp(2 + n, 180.0 + 60 * n, repeat=n) for n in range(2))],
    "only two": [ddp(1, 190.0)],
    "another model": [trained(0, 100.0, model="resnet50"), ddp(1, 190.0)],
    "more energy": joules(2.0, 2.2), "energy of one": joules(2.0, None), "no joule": joules(0.0, 2.0),
    "other scopes": joules(2.0, 2.0, "module"),
}  # fmt: skip


def test_text():
    runs = [trained(n, 100.0 + n, repeat=n, steady=MEASURED) for n in range(3)]
    runs += [ddp(3 + n, 190.0 + n, repeat=n, steady=MEASURED) for n in range(3)]
    runs += [trained(6, 100.0, model="resnet50"), ddp(7, 230.0, model="resnet50"),
             ddp(8, 300.0, model="resnet50", batch=256)]  # fmt: skip
    assert_golden("scaling", analyze(runs))
    assert_golden("scaling", analyze([replace(run, host=host) for host, own in HOSTS.items() for run in own]), "hosts")
    on_one = [trained(0, 1.0), trained(1, 2.0, batch=128)]
    assert [analyze(each) for each in ([], on_one, [ddp(0, 190.0)])] == [[], [], []]
    assert analyze([on_one[0], ddp(1, 2.0, steady={"samples_per_s": None})]) == [], "without speed"


def test_unknown_numbers_of_ranks_or_samples_are_not_compared():
    single, unknown = trained(0, 100.0), replace(ddp(1, 190.0), devices=None)
    assert analyze([single, unknown]) == []
    script = trained(1, 160.0, strategy="script", ranks=2)
    script.job.pop("batch")  # unknown for a measured script
    assert analyze([single, script]) == []


def test_configurations_without_a_counterpart_on_one_device_are_named():
    alone = [ddp(1, batch=128), replace(trained(2, 100.0, strategy="script"), devices=None)]
    assert without_partner_of([trained(0, 100.0), ddp(3), *alone]) == ["ddp x 2, batch 128"]
    assert without_partner_of([trained(0, 100.0), *alone]) == []
