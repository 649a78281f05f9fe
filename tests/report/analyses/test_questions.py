"""Questions on strategies, models and batch sizes, against known answers."""

from dataclasses import replace

import pytest
from golden import assert_golden
from sweeps import ddp, trained

from epochmeter.report.analyses.questions import analyze


def epoch(e2e_s, **parts):
    return {"epoch/e2e_s": e2e_s, **{f"epoch/{name}": value for name, value in parts.items()}}


FIRST = epoch(10.0, data_stall_s=2.5, loader_start_s=2.0, copy_s=0.5, compute_s=6.0, overhead_s=1.0)
LATER = epoch(6.0, data_stall_s=0.5, loader_start_s=0.4, copy_s=0.5, compute_s=4.5, overhead_s=0.5)


def using(number, memory_mb=None, busy=None, speed=100.0, flops=1.0, epochs=(), **keys):
    steady = {"gpu_memory_peak_bytes": memory_mb and 1e6 * memory_mb, "gpu_utilization": busy, "power_mean_w": 200.0}
    for name, value in (epochs[-1] if epochs else {}).items():
        steady[name.removeprefix("epoch/")] = value
    run = trained(number, speed, steady=steady, epochs=epochs, **keys)
    return replace(run, metrics={**run.metrics, "model/flops_per_sample": flops})


def dp(number, speed=150.0, **keys):
    return trained(number, speed, strategy="dp", ranks=2, **keys)


def answers(*runs):
    """Return the answers of runs that are part of the study."""
    return analyze([replace(run, keys={**run.keys, "experiment": "lumi/resnet152_cifar100"}) for run in runs])


def test_batches_are_compared_with_the_next_smaller_on_one_device_of_the_same_host():
    several = [ddp(3), ddp(4, 220.0, batch=128)]
    found = answers(trained(0, 130.0, batch=256), trained(1, 100.0), trained(2, 120.0, batch=128), *several)
    assert [(effect.base, effect.value, effect.speed.value) for effect in found.batches] == [
        ("batch 64", "batch 128", pytest.approx(1.2)), ("batch 128", "batch 256", pytest.approx(130 / 120))
    ]  # fmt: skip
    assert [(effect.base, effect.value) for effect in answers(*several).batches] == [("batch 64", "batch 128")]
    unknown = replace(trained(6, 90.0, model="resnet50"), metrics={"steady/samples_per_s": 90.0, "steady/e2e_s": 11.0})
    assert answers(trained(0, 130.0), unknown).models == [], "without numbers of parameters"
    runs = [replace(trained(n, 100.0 + n, batch=64 * (1 + n % 2)), host=f"h{n // 2}") for n in range(4)]
    assert [effect.title for effect in answers(*runs).batches] == ["resnet152, h0", "resnet152, h1"]


def test_text_of_all_answers():
    epochs = [FIRST, LATER]
    assert_golden("questions", analyze([
        using(0, 4000, 0.9, flops=2.8, epochs=epochs),
        using(1, 7000, 0.95, 106.0, flops=2.8, batch=128, epochs=epochs),
        using(2, 3000, 0.8, 150.0, model="resnet50", epochs=[LATER, LATER]),
        using(3, 4400, 0.9, 188.0, strategy="ddp", ranks=2),
        using(4, 4100, 0.9, 120.0, strategy="dp", ranks=2, batch=128),
    ]))  # fmt: skip


def test_text_of_unanswered_questions_has_commands():
    assert_golden("questions", analyze([trained(0, 100.0), ddp(1)]), "unanswered")
    assert analyze([trained(0, 100.0), trained(1, 110.0, batch=128)]) is None, "a plain sweep has no questions"
    assert analyze([]) is None
    assert answers(ddp(0)).steps == [], "steps are compared with one device"
    runs = [trained(0, 100.0, repeat=0), trained(1, 101.0, repeat=1), ddp(2, repeat=0), ddp(3, repeat=1)]
    assert (answers(*runs[:3]).has_single_runs, answers(*runs).has_single_runs) == (True, False)


def test_device_use_is_absent_without_driver_metrics():
    on_cpu = trained(2, 9.0, batch=9, steady={"cpu_utilization": 1})
    found = answers(using(0, 8000, 0.9), trained(1, 9.0, batch=8), on_cpu)
    uses = [(use.numbers, use.utilized, use.utilization, use.memory_bytes) for use in found.devices]
    assert uses == [([0], "GPU", 0.9, 8e9), ([2], "CPU", 1, None)]
    assert answers(using(0, 4000), using(1, 4040, batch=128)).memory == [], "less than 2 % more"


def test_first_epoch_is_compared_if_it_is_a_warm_up_with_a_time():
    cases = [({0: FIRST}, 1), ({0: FIRST}, 0), ({0: {"epoch/compute_s": 6.0}}, 1), ({1: LATER}, 1)]
    runs = [replace(using(0, epochs=[LATER], warmup_epochs=warmup), epochs=epochs) for epochs, warmup in cases]
    assert [[result.later_s for result in answers(run).first_epochs] for run in runs] == [[6.0], [], [], []]
    runs = [using(n, epochs=[epoch(first_s), epoch(6.0)], repeat=n) for n, first_s in enumerate((9.0, 4.0))]
    (result,) = answers(*runs).first_epochs
    assert (result.more_s.value, result.is_slower, result.largest_part) == (pytest.approx(0.5), False, "")


def test_dp_and_ddp_are_compared_at_the_same_global_batch_if_possible():
    (effect,) = answers(dp(0, 100.0, batch=128), ddp(1, 160.0), ddp(2, 170.0, batch=128)).dp
    assert (effect.base, effect.value, effect.same_work) == ("dp x 2, batch 128", "ddp x 2, batch 64", True)
    assert effect.speed.value == pytest.approx(1.6)
    (effect,) = answers(dp(0, 100.0), ddp(1, 160.0)).dp
    assert (effect.base, effect.value, effect.same_work) == ("dp x 2, batch 64", "ddp x 2, batch 64", False)
    assert answers(dp(0, 100.0), trained(1, 160.0, strategy="ddp", ranks=4)).dp == []
