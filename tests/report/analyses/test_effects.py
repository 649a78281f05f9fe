"""The questions of a sweep over strategies, models and batches: each by a known answer, and left out without one."""

from dataclasses import replace

import pytest
from sweeps import trained

from epochmeter.report.analyses.effects import growths, iterations, larger_batches, parallels, smaller_models, uses
from epochmeter.report.analyses.questions import answers, page
from epochmeter.report.runs.configuration import group_repeats


def using(number, memory_mb=None, busy=None, **keys):
    steady = {"gpu_memory_peak_bytes": memory_mb and 1e6 * memory_mb, "gpu_utilization": busy}
    return trained(number, 100.0, steady=steady, **keys)


def ddp(number, speed, **keys):
    return trained(number, speed, strategy="ddp", ranks=2, **keys)


def dp(number, speed, **keys):
    return trained(number, speed, strategy="dp", ranks=2, **keys)


def said(found, number):
    return list(answers(found)[number - 1].sentences)


# 1. Use and memory


def test_use_is_told_for_each_job_and_absent_where_no_driver_tells():
    found = group_repeats([using(0, 8000, 0.9), using(1, 9000, 0.8, batch=128), using(2, batch=256)])
    told = uses(found)
    assert [(each.title, each.utilized, each.utilization, each.memory_bytes) for each in told] == [
        ("resnet152, batch 64", "GPU", 0.9, 8e9),
        ("resnet152, batch 128", "GPU", 0.8, 9e9),
    ]


def test_a_cpus_utilization_is_called_that():
    (told,) = uses(group_repeats([trained(0, 100.0, steady={"cpu_utilization": 0.5})]))
    assert (told.utilized, told.utilization, told.memory_bytes) == ("CPU", 0.5, None)
    assert said([trained(0, 100.0, steady={"cpu_utilization": 0.5})], 1) == ["CPU utilization is 50.0 %."]


def test_what_raises_memory_is_what_jobs_differ_in_alone():
    found = [using(0, 4000), using(1, 7000, batch=128), using(2, 3000, model="resnet50"),
             using(3, 4400, strategy="ddp", ranks=2)]  # fmt: skip
    told = growths(group_repeats(found))
    assert [(each.key, each.least, each.most, each.least_bytes, each.most_bytes) for each in told] == [
        ("model", "resnet50", "resnet152", 3e9, 4e9),
        ("strategy", "single", "ddp x 2", 4e9, 4.4e9),
        ("batch", "64", "128", 4e9, 7e9),
    ]
    assert said(found, 1)[-1] == "batch=128 in place of 64 raises it from 4000 to 7000 MB (resnet152, single)."


def test_memory_that_hardly_differs_is_not_raised():
    assert growths(group_repeats([using(0, 4000), using(1, 4040, batch=128)])) == []


def test_a_gpus_utilization_comes_with_what_it_is_worth():
    found = [trained(0, 100.0, steady={"gpu_utilization": 1.0, "power_mean_w": 300.0})]
    assert said(found, 1)[-1].startswith("A driver counts a GPU as busy while any kernel is in it")


# 3. Iterations


def test_each_rank_has_its_share_of_the_steps():
    found = [trained(0, 100.0, samples=50000), ddp(1, 190.0, samples=50000)]
    (told,) = iterations(group_repeats(found))
    assert (told.one_steps, told.steps, told.expected) == (782, 391, 391)
    assert said(found, 3) == [
        "Batch 64: ddp on 2 ranks takes 391 steps a rank, and one device 782: each rank has its own share of the "
        "samples, and 50000 / (64 x 2) is 391, rounded up."
    ]


@pytest.mark.parametrize(("samples", "ranks", "steps"), [(1000, 2, 8), (1000, 3, 6), (64, 2, 1), (129, 2, 2)])
def test_steps_are_rounded_up_rank_by_rank(samples, ranks, steps):
    # 1000: 500 a rank are 7.8 batches of 64, 334 are 5.2; 129: 65 a rank are 1.02.
    found = [trained(0, 100.0, samples=samples), trained(1, 190.0, samples=samples, strategy="ddp", ranks=ranks)]
    assert iterations(group_repeats(found))[0].expected == steps


def test_where_the_last_batch_is_dropped_they_are_rounded_down():
    found = [trained(0, 100.0, samples=960, drop_last=True), ddp(1, 190.0, samples=960, drop_last=True)]
    assert iterations(group_repeats(found))[0].expected == 7


def test_they_go_by_the_samples_there_are_and_not_by_those_that_were_seen():
    one = trained(0, 100.0, samples=1023, drop_last=True, steady={"samples": 960.0, "steps": 15.0})
    two = ddp(1, 190.0, samples=1023, drop_last=True, steady={"samples": 1024.0, "steps": 8.0})
    assert iterations(group_repeats([one, two]))[0].expected == 8
    assert "something else differs" not in said([one, two], 3)[0]


def test_a_data_parallel_keeps_the_steps():
    assert said([trained(0, 100.0), dp(1, 150.0)], 3) == [
        "Batch 64: dp on 2 devices takes 16 steps, as it splits each batch, and one device 16."
    ]


def test_models_of_the_same_steps_are_told_once():
    found = [trained(0, 100.0), ddp(1, 190.0), trained(2, 100.0, model="resnet50"), ddp(3, 190.0, model="resnet50")]
    assert len(iterations(group_repeats(found))) == 2
    assert len(said(found, 3)) == 1


def test_steps_that_are_not_what_they_should_be_are_said():
    assert said([trained(0, 100.0), ddp(1, 190.0, steady={"steps": 9.0})], 3)[0].endswith("; something else differs.")


def test_one_device_under_another_name_has_no_more_to_tell():
    alone = [trained(0, 100.0), trained(1, 100.0, strategy="dp"), trained(2, 100.0, strategy="ddp")]
    assert (iterations(group_repeats(alone)), parallels(group_repeats(alone))) == ([], [])


def test_without_one_device_there_is_nothing_to_compare():
    assert iterations(group_repeats([ddp(0, 190.0)])) == []


# 4. The price of DDP


def test_the_price_of_ddp_is_that_of_its_scaling():
    found = [trained(0, 100.0), ddp(1, 188.0, steady={"compute_s": 4.9})]
    assert said(found, 4) == [
        "resnet152 on jpeg, ddp x 2, batch 64 each: scaling efficiency 94.0 %. Exchanging gradients, and waiting for "
        "the slowest, adds 50.0 ms of compute to each step: 8.9 % of one device's 562 ms."
    ]
    assert said([trained(0, 100.0), dp(1, 150.0)], 4) == []


def test_an_answer_of_several_hosts_is_told_of_each():
    found = [replace(each, host=host) for host in ("h1", "h2") for each in (trained(0, 100.0), ddp(1, 188.0))]
    assert [text.partition(": ")[0] for text in said(found, 4)] == [
        "resnet152 on jpeg, h1, ddp x 2, batch 64 each",
        "resnet152 on jpeg, h2, ddp x 2, batch 64 each",
    ]
    assert [each.title for each in larger_batches(group_repeats([
        replace(trained(0, 100.0 + batch, batch=batch), host=host) for host in ("h1", "h2") for batch in (64, 128)
    ]))] == ["resnet152, h1", "resnet152, h2"]  # fmt: skip


# 5. DataParallel and DistributedDataParallel


def test_the_two_are_compared_by_the_same_samples_a_step_where_they_can():
    found = [dp(0, 100.0, batch=128), ddp(1, 160.0), ddp(2, 170.0, batch=128)]
    (told,) = parallels(group_repeats(found))
    assert (told.batch, told.distributed_batch, told.alike) == (128, 64, True)
    assert told.speed.value == pytest.approx(1.6)
    # 8 steps of each: 10 s and 6.25 s.
    assert (told.more_s.value, told.step_s) == pytest.approx((3.75 / 8, 6.25 / 8))
    assert "does 1.60 times the samples/s of dp" in said(found, 5)[0]


def test_by_the_same_batch_as_typed_they_are_compared_with_that_word():
    (told,) = parallels(group_repeats([dp(0, 100.0), ddp(1, 160.0)]))
    assert (told.alike, told.more_s) == (False, None)
    assert "batch 64 split by dp and 64 for each rank of ddp" in said([dp(0, 100.0), ddp(1, 160.0)], 5)[0]


def test_a_difference_that_is_chance_is_none():
    found = [dp(n, 100.0 + 50 * n, batch=128, repeat=n) for n in range(2)]
    found += [ddp(2 + n, 105.0 + 50 * n, repeat=n) for n in range(2)]
    assert "which shows no difference" in said(found, 5)[0]
    assert "A step of dp takes" not in said(found, 5)[0]


def test_other_numbers_of_devices_are_not_compared():
    assert parallels(group_repeats([dp(0, 100.0), trained(1, 160.0, strategy="ddp", ranks=4)])) == []


# 6. A smaller model


def with_flops(row, flops):
    return replace(row, metrics={**row.metrics, "model/flops_per_sample": flops})


@pytest.mark.parametrize(
    ("speed", "flops", "nearer"), [(280.0, 2.8, "FLOPs"), (240.0, 2.8, "parameters"), (240.0, 2.4, None)]
)
def test_the_speed_of_a_smaller_model_is_held_against_its_size(speed, flops, nearer):
    found = [with_flops(trained(0, 100.0), flops), with_flops(trained(1, speed, model="resnet50"), 1.0)]
    (told,) = smaller_models(group_repeats(found))
    assert (told.small, told.large, told.parameters, told.flops) == ("resnet50", "resnet152", 2.4, pytest.approx(flops))
    assert (told.speed.value, told.nearer) == (pytest.approx(speed / 100), nearer)


def test_a_speed_that_falls_short_of_both_says_why():
    found = [with_flops(trained(0, 100.0), 2.8), with_flops(trained(1, 150.0, model="resnet50"), 1.0)]
    (text,) = said(found, 6)
    assert text.startswith(
        "resnet50 in place of resnet152 does 1.50 times the samples/s, with 1/2.40 of the parameters and 1/2.80 of the "
        "FLOPs. The speed follows the parameters more nearly."
    )
    assert text.endswith("It falls short of both: what does not shrink with the model (data, launches) takes its time.")


def test_without_flops_the_parameters_are_all_there_is():
    (text,) = said([trained(0, 100.0), trained(1, 150.0, model="resnet50")], 6)
    assert text == "resnet50 in place of resnet152 does 1.50 times the samples/s, with 1/2.40 of the parameters."


# 7. A larger batch


def test_a_larger_batch_is_told_with_its_memory():
    found = [using(0, 4000, 0.97), using(1, 7000, 0.98, batch=128)]
    found[1] = replace(found[1], metrics={**found[1].metrics, "steady/samples_per_s": 106.0})
    assert said(found, 7) == [
        "resnet152: batch 128 in place of 64 does 1.06 times the samples/s, with 1.75 times the memory (4000 to 7000 "
        "MB); the GPU is busy 97 % to 98 % of the time: memory says what fits, not how fast it goes."
    ]


def test_batches_are_compared_with_the_next_on_one_device_alone():
    found = [trained(0, 130.0, batch=256), trained(1, 100.0), trained(2, 120.0, batch=128), ddp(3, 190.0),
             ddp(4, 220.0, batch=128)]  # fmt: skip
    told = larger_batches(group_repeats(found))
    assert [(each.less, each.more, each.speed.value) for each in told] == [
        (64, 128, pytest.approx(1.2)),
        (128, 256, pytest.approx(130 / 120)),
    ]
    assert len(larger_batches(group_repeats(found[3:]))) == 1, "on several, where there is nothing else"


# The page


def test_a_sweep_of_other_things_is_asked_nothing():
    assert page([trained(0, 100.0), trained(1, 110.0, batch=128)]) is None
    assert page([]) is None


def test_the_demo_on_one_device_is_asked():
    epochs = [{"epoch/e2e_s": seconds} for seconds in (8.0, 6.0)]
    told = page([trained(0, 100.0, typed={"experiment": "lumi/resnet152_cifar100"}, epochs=epochs)])
    assert told.sections[0].sentences[0].startswith("2. Why is the first epoch slower? In 1 of 1 jobs")


def test_what_the_runs_do_not_answer_is_left_out_with_what_to_run():
    told = page([trained(0, 100.0), ddp(1, 190.0)])
    first, *lacking = told.sections[-2].sentences
    assert first == "What these runs do not answer:"
    assert [text[0] for text in lacking] == ["1", "2", "5", "6", "7"]
    assert lacking[-1].endswith("python src/train.py -m experiment=lumi/resnet152_cifar100 batch=64,128")
    assert [len(value["results"]) for value in told.values] == [0, 0, 1, 1, 0, 0, 0]


def test_configurations_that_ran_once_are_reported_without_intervals():
    found = [trained(0, 100.0, repeat=0), trained(1, 101.0, repeat=1), ddp(2, 190.0, repeat=0)]
    assert "Configurations that ran once have no intervals" in page(found).sections[-1].sentences[0]
    again = page([*found, ddp(3, 191.0, repeat=1)])
    assert "ran once" not in " ".join(text for section in again.sections for text in section.sentences)
