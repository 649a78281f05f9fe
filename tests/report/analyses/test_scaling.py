"""Scaling over several devices, against known answers."""

from dataclasses import replace

import pytest
from golden import assert_golden
from sweeps import ddp, trained

from epochmeter.report.analyses.scaling import STRONG, WEAK, analyze
from epochmeter.report.runs.configuration import NoEnergy
from epochmeter.report.statistics import Estimate


def one(runs):
    (result,) = analyze(runs).compared
    return result


def test_weak_and_strong_scaling_are_compared_with_one_device_and_one_is_described():
    runs = [trained(0, 98.0, strategy="ddp"), ddp(1, 196.0)]
    assert one(runs).speedup.value == pytest.approx(2.0), "one rank of ddp replaces a single device"
    assert one([*runs, trained(2, 100.0)]).one_numbers == [2]
    result = one([trained(0, 100.0), trained(1, 130.0, strategy="dp", ranks=2, batch=128)])
    assert (result.kind, result.device_batch) == (WEAK, 64), "DataParallel splits its batch"
    result = analyze([trained(0, 100.0), trained(1, 110.0, batch=128), ddp(2, 198.0), ddp(3, 210.0, batch=128)])
    speedups = [(each.device_batch, each.kind, each.speedup.value) for each in result.compared]
    assert speedups == [(64, WEAK, pytest.approx(1.98)), (64, STRONG, pytest.approx(1.8)),
                        (128, WEAK, pytest.approx(210 / 110))]  # fmt: skip
    assert [(each.device_batch, each.kind) for each in result.described] == [(64, WEAK), (128, WEAK)]
    assert result.compared[1].overhead_s is None, "batch sizes per device differ"


def test_superlinear_scaling_is_significant():
    assert not one([trained(0, 100.0), ddp(1, 203.0)]).is_superlinear
    noisy = [ddp(1 + n, 180.0 + 60 * n, repeat=n) for n in range(2)]
    assert not one([trained(0, 100.0, repeat=0), trained(3, 99.0, repeat=1), *noisy]).is_superlinear


def test_overhead_is_the_longer_compute_time_per_step_if_significant_by_its_interval_or_size():
    # 1000 samples: 16 steps of 64 in 9 s of compute on one, 8 a rank in 4.9 s on two: 562.5 and 612.5 ms a step.
    result = one([trained(0, 100.0), ddp(1, 187.5, steady={"compute_s": 4.9})])
    assert (result.step_s, result.overhead_s.value, result.has_overhead) == pytest.approx((0.5625, 0.05, True))
    more = [Estimate(0.001, -0.001, 0.003), Estimate(0.0015), Estimate(0.0025), Estimate(0.0015, 0.001, 0.002)]
    has_overhead = [replace(result, overhead_s=each, step_s=0.1).has_overhead for each in more]
    assert has_overhead == [False, False, True, True]


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


def test_without_one_device_on_the_same_host_there_is_no_comparison():
    runs = [trained(0, 100.0), ddp(1, 190.0), trained(2, 100.0), ddp(3, 180.0)]
    result = analyze([replace(run, host=host) for run, host in zip(runs, ("h1", "h2", "h3", "h3"), strict=True)])
    assert [each.title for each in result.unpaired] == ["resnet152 on jpeg, h2"]
    assert [(each.title, each.numbers) for each in result.compared] == [("resnet152 on jpeg, h3", [3])]
    (result,) = analyze([trained(0, 100.0, model="resnet50"), ddp(1, 190.0)]).unpaired
    assert (result.strategy, result.devices, result.batches) == ("ddp", 2, [64, 128])
    alone = [trained(0, 1.0), trained(1, 2.0, batch=128)]
    assert analyze([]) is analyze(alone) is None
    assert analyze([alone[0], ddp(1, 2.0, steady={"samples_per_s": None})]) is None, "without speed"


def test_energy_per_sample_is_a_multiple():
    gpus, module = "GPUs used", NoEnergy(0, 2, None, ("GPUs used", "module"))
    for one_j, several_j, covers, ratio, missing in (
        (2.0, 2.2, gpus, 1.1, None), (2.0, None, None, None, NoEnergy(1, 2)), (0.0, 2.0, gpus, None, None),
        (2.0, 2.0, "module", None, module),
    ):  # fmt: skip
        single, several = (trained(0, 100.0, steady={"energy_per_sample_j": one_j}),
                           ddp(1, 190.0, steady={"energy_per_sample_j": several_j}))  # fmt: skip
        result = one([single, replace(several, energy_covers=covers)])
        assert (result.energy and result.energy.value) == (ratio and pytest.approx(ratio))
        assert (result.no_energy and replace(result.no_energy, reason=None)) == missing


def test_text():
    measured = {"energy_per_sample_j": 2.0, "gpu_memory_peak_bytes": 8e9}
    runs = [trained(n, 100.0 + n, repeat=n, steady=measured) for n in range(3)]
    runs += [ddp(3 + n, 190.0 + n, repeat=n, steady=measured) for n in range(3)]
    runs += [trained(6, 100.0, model="resnet50"), ddp(7, 230.0, model="resnet50"),
             ddp(8, 300.0, model="resnet50", batch=256)]  # fmt: skip
    assert_golden("scaling", analyze(runs))
    assert_golden("scaling", analyze([ddp(0, 190.0)]), "missing")
