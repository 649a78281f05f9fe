"""Questions on strategies, models and batch sizes, against known answers."""

from dataclasses import replace

import pytest
from sweeps import trained

from epochmeter.report.analyses.effects import (
    device_uses,
    dp_vs_ddp,
    larger_batches,
    memory_growths,
    smaller_models,
    step_counts,
)
from epochmeter.report.analyses.questions import answers, page
from epochmeter.report.runs.configuration import group_repeats


def using(number, memory_mb=None, busy=None, **keys):
    steady = {"gpu_memory_peak_bytes": memory_mb and 1e6 * memory_mb, "gpu_utilization": busy}
    return trained(number, 100.0, steady=steady, **keys)


def ddp(number, speed, **keys):
    return trained(number, speed, strategy="ddp", ranks=2, **keys)


def dp(number, speed, **keys):
    return trained(number, speed, strategy="dp", ranks=2, **keys)


def sentences(found, number):
    return list(answers(found)[number - 1].sentences)


# 1. Use and memory


def test_device_use_is_absent_without_driver_metrics():
    found = group_repeats([using(0, 8000, 0.9), using(1, 9000, 0.8, batch=128), using(2, batch=256)])
    results = device_uses(found)
    assert [(each.title, each.utilized, each.utilization, each.memory_bytes) for each in results] == [
        ("resnet152, batch 64", "GPU", 0.9, 8e9),
        ("resnet152, batch 128", "GPU", 0.8, 9e9),
    ]


def test_cpu_utilization_is_named():
    (result,) = device_uses(group_repeats([trained(0, 100.0, steady={"cpu_utilization": 0.5})]))
    assert (result.utilized, result.utilization, result.memory_bytes) == ("CPU", 0.5, None)
    assert sentences([trained(0, 100.0, steady={"cpu_utilization": 0.5})], 1) == ["CPU utilization: 50.0 %."]


def test_memory_growth_is_of_configurations_that_differ_in_one_key():
    found = [using(0, 4000), using(1, 7000, batch=128), using(2, 3000, model="resnet50"),
             using(3, 4400, strategy="ddp", ranks=2)]  # fmt: skip
    results = memory_growths(group_repeats(found))
    assert [(each.key, each.least, each.most, each.least_bytes, each.most_bytes) for each in results] == [
        ("model", "resnet50", "resnet152", 3e9, 4e9),
        ("strategy", "single", "ddp x 2", 4e9, 4.4e9),
        ("batch", "64", "128", 4e9, 7e9),
    ]
    assert "batch=128 instead of 64 increases it from 4.00 GB to 7.00 GB" in sentences(found, 1)[-1]


def test_negligible_memory_growth_is_absent():
    assert memory_growths(group_repeats([using(0, 4000), using(1, 4040, batch=128)])) == []


def test_gpu_utilization_comes_with_its_limits():
    found = [trained(0, 100.0, steady={"gpu_utilization": 1.0, "power_mean_w": 300.0})]
    assert sentences(found, 1)[-1].startswith("A driver counts a GPU as busy while any kernel is resident")


# 3. Iterations


def test_each_rank_has_a_share_of_the_steps():
    found = [trained(0, 100.0, samples=50000), ddp(1, 190.0, samples=50000)]
    (result,) = step_counts(group_repeats(found))
    assert (result.one_steps, result.steps, result.expected) == (782, 391, 391)
    (text,) = sentences(found, 3)
    assert "50000 / (64 x 2) = 391, rounded up" in text


@pytest.mark.parametrize(("samples", "ranks", "steps"), [(1000, 2, 8), (1000, 3, 6), (64, 2, 1), (129, 2, 2)])
def test_steps_are_rounded_up_rank_by_rank(samples, ranks, steps):
    # 1000: 500 a rank are 7.8 batches of 64, 334 are 5.2; 129: 65 a rank are 1.02.
    found = [trained(0, 100.0, samples=samples), trained(1, 190.0, samples=samples, strategy="ddp", ranks=ranks)]
    assert step_counts(group_repeats(found))[0].expected == steps


def test_steps_are_rounded_down_if_the_last_batch_is_dropped():
    found = [trained(0, 100.0, samples=960, drop_last=True), ddp(1, 190.0, samples=960, drop_last=True)]
    assert step_counts(group_repeats(found))[0].expected == 7


def test_expected_steps_use_the_size_of_the_dataset():
    one = trained(0, 100.0, samples=1023, drop_last=True, steady={"samples": 960.0, "steps": 15.0})
    two = ddp(1, 190.0, samples=1023, drop_last=True, steady={"samples": 1024.0, "steps": 8.0})
    assert step_counts(group_repeats([one, two]))[0].expected == 8
    assert "differs from the measured" not in sentences([one, two], 3)[0]


def test_data_parallel_has_the_same_steps():
    (text,) = sentences([trained(0, 100.0), dp(1, 150.0)], 3)
    assert "dp on 2 devices: 16 steps per epoch because it splits each batch" in text


def test_equal_step_counts_are_one_sentence():
    found = [trained(0, 100.0), ddp(1, 190.0), trained(2, 100.0, model="resnet50"), ddp(3, 190.0, model="resnet50")]
    assert len(step_counts(group_repeats(found))) == 2
    assert len(sentences(found, 3)) == 1


def test_unexpected_step_count_is_stated():
    (text,) = sentences([trained(0, 100.0), ddp(1, 190.0, steady={"steps": 9.0})], 3)
    assert text.endswith("which differs from the measured number.")


def test_other_strategy_on_one_device_is_not_compared():
    alone = [trained(0, 100.0), trained(1, 100.0, strategy="dp"), trained(2, 100.0, strategy="ddp")]
    assert (step_counts(group_repeats(alone)), dp_vs_ddp(group_repeats(alone))) == ([], [])


def test_steps_need_a_run_on_one_device():
    assert step_counts(group_repeats([ddp(0, 190.0)])) == []


# 4. The overhead of DDP


def test_overhead_of_ddp_is_that_of_its_scaling():
    found = [trained(0, 100.0), ddp(1, 188.0, steady={"compute_s": 4.9})]
    (text,) = sentences(found, 4)
    assert text.startswith("resnet152 on jpeg, ddp x 2, batch 64 per rank: scaling efficiency 94.0 %.")
    assert "50.0 ms" in text
    assert sentences([trained(0, 100.0), dp(1, 150.0)], 4) == []


def test_hosts_are_compared_separately():
    found = [replace(each, host=host) for host in ("h1", "h2") for each in (trained(0, 100.0), ddp(1, 188.0))]
    assert [text.partition(": ")[0] for text in sentences(found, 4)] == [
        "resnet152 on jpeg, h1, ddp x 2, batch 64 per rank",
        "resnet152 on jpeg, h2, ddp x 2, batch 64 per rank",
    ]
    assert [each.title for each in larger_batches(group_repeats([
        replace(trained(0, 100.0 + batch, batch=batch), host=host) for host in ("h1", "h2") for batch in (64, 128)
    ]))] == ["resnet152, h1", "resnet152, h2"]  # fmt: skip


# 5. DataParallel and DistributedDataParallel


def test_dp_and_ddp_are_compared_at_the_same_global_batch():
    found = [dp(0, 100.0, batch=128), ddp(1, 160.0), ddp(2, 170.0, batch=128)]
    (result,) = dp_vs_ddp(group_repeats(found))
    assert (result.batch, result.distributed_batch, result.same_global_batch) == (128, 64, True)
    assert result.speed.value == pytest.approx(1.6)
    # 8 steps of each: 10 s and 6.25 s.
    assert (result.more_s.value, result.step_s) == pytest.approx((3.75 / 8, 6.25 / 8))
    assert "reaches 1.60 times the samples/s of dp" in sentences(found, 5)[0]


def test_dp_and_ddp_are_compared_at_the_same_configured_batch_otherwise():
    (result,) = dp_vs_ddp(group_repeats([dp(0, 100.0), ddp(1, 160.0)]))
    assert (result.same_global_batch, result.more_s) == (False, None)
    assert "batch 64 split by dp and 64 per rank of ddp" in sentences([dp(0, 100.0), ddp(1, 160.0)], 5)[0]


def test_insignificant_speed_difference_is_stated():
    found = [dp(n, 100.0 + 50 * n, batch=128, repeat=n) for n in range(2)]
    found += [ddp(2 + n, 105.0 + 50 * n, repeat=n) for n in range(2)]
    assert "no significant difference" in sentences(found, 5)[0]
    assert "A step of dp takes" not in sentences(found, 5)[0]


def test_other_numbers_of_devices_are_not_compared():
    assert dp_vs_ddp(group_repeats([dp(0, 100.0), trained(1, 160.0, strategy="ddp", ranks=4)])) == []


# 6. A smaller model


def with_flops(row, flops):
    return replace(row, metrics={**row.metrics, "model/flops_per_sample": flops})


@pytest.mark.parametrize(
    ("speed", "flops", "nearer"), [(280.0, 2.8, "FLOPs"), (240.0, 2.8, "parameters"), (240.0, 2.4, None)]
)
def test_speed_of_smaller_model_is_compared_with_its_size(speed, flops, nearer):
    found = [with_flops(trained(0, 100.0), flops), with_flops(trained(1, speed, model="resnet50"), 1.0)]
    (result,) = smaller_models(group_repeats(found))
    assert (result.small, result.large, result.parameters, result.flops) == (
        "resnet50",
        "resnet152",
        2.4,
        pytest.approx(flops),
    )
    assert (result.speed.value, result.nearer) == (pytest.approx(speed / 100), nearer)


def test_speed_below_both_ratios_is_explained():
    found = [with_flops(trained(0, 100.0), 2.8), with_flops(trained(1, 150.0, model="resnet50"), 1.0)]
    (text,) = sentences(found, 6)
    assert "1.50 times the samples/s, with 1/2.40 of the parameters and 1/2.80 of the FLOPs" in text
    assert "nearer to the ratio of parameters" in text
    assert "smaller than both ratios" in text


def test_without_flops_only_parameters_are_compared():
    (text,) = sentences([trained(0, 100.0), trained(1, 150.0, model="resnet50")], 6)
    assert text == "resnet50 instead of resnet152 reaches 1.50 times the samples/s, with 1/2.40 of the parameters."


# 7. A larger batch


def test_larger_batch_has_speed_and_memory():
    found = [using(0, 4000, 0.97), using(1, 7000, 0.98, batch=128)]
    found[1] = replace(found[1], metrics={**found[1].metrics, "steady/samples_per_s": 106.0})
    assert sentences(found, 7) == [
        "resnet152: batch 128 instead of 64 reaches 1.06 times the samples/s, with 1.75 times the memory "
        "(4.00 GB to 7.00 GB); GPU utilization: 97 % to 98 %."
    ]


def test_batches_are_compared_with_the_next_smaller_on_one_device():
    found = [trained(0, 130.0, batch=256), trained(1, 100.0), trained(2, 120.0, batch=128), ddp(3, 190.0),
             ddp(4, 220.0, batch=128)]  # fmt: skip
    results = larger_batches(group_repeats(found))
    assert [(each.less, each.more, each.speed.value) for each in results] == [
        (64, 128, pytest.approx(1.2)),
        (128, 256, pytest.approx(130 / 120)),
    ]
    assert len(larger_batches(group_repeats(found[3:]))) == 1


# The page


def test_other_sweeps_have_no_questions():
    assert page([trained(0, 100.0), trained(1, 110.0, batch=128)]) is None
    assert page([]) is None


def test_lumi_study_on_one_device_has_questions():
    epochs = [{"epoch/e2e_s": seconds} for seconds in (8.0, 6.0)]
    result = page([trained(0, 100.0, typed={"experiment": "lumi/resnet152_cifar100"}, epochs=epochs)])
    assert result.sections[0].sentences[0].startswith("2. Why is the first epoch slower?")


def test_unanswered_questions_have_a_command():
    result = page([trained(0, 100.0), ddp(1, 190.0)])
    first, *unanswered = result.sections[-2].sentences
    assert first == "Not answered by these runs:"
    assert [text[0] for text in unanswered] == ["1", "2", "5", "6", "7"]
    assert unanswered[-1].endswith("python src/train.py -m experiment=lumi/resnet152_cifar100 batch=64,128")
    assert [len(value["results"]) for value in result.values] == [0, 0, 1, 1, 0, 0, 0]


def test_configurations_that_ran_once_are_reported_without_intervals():
    found = [trained(0, 100.0, repeat=0), trained(1, 101.0, repeat=1), ddp(2, 190.0, repeat=0)]
    assert "Configurations that ran once have no intervals" in page(found).sections[-1].sentences[0]
    again = page([*found, ddp(3, 191.0, repeat=1)])
    assert "ran once" not in " ".join(text for section in again.sections for text in section.sentences)
