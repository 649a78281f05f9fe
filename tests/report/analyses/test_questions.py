"""Questions on strategies, models and batch sizes, against known answers."""

from dataclasses import replace

from golden import assert_golden
from sweeps import ddp, trained

from epochmeter.report.analyses import questions, scaling
from epochmeter.report.runs.configuration import group_repeats


def analyze(runs):
    every = group_repeats(runs)
    return questions.analyze(every, scaling.analyze(every))


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


def test_text_of_all_answers():
    epochs = [FIRST, LATER]
    assert_golden("questions", analyze([
        using(0, 4000, 0.9, flops=2.8, epochs=epochs),
        using(1, 7000, 0.95, 106.0, flops=2.8, batch=128, epochs=epochs),
        using(2, 3000, 0.8, 150.0, model="resnet50", epochs=[LATER, LATER]),
        using(3, 4400, 0.9, 188.0, strategy="ddp", ranks=2),
        using(4, 4100, 0.9, 120.0, strategy="dp", ranks=2, batch=128),
    ]))  # fmt: skip


SEVERAL = [ddp(3), ddp(4, 220.0, batch=128)]
UNKNOWN = replace(trained(6, 90.0, model="resnet50"), metrics={"steady/samples_per_s": 90.0, "steady/e2e_s": 11.0})
ON_CPU = trained(2, 9.0, batch=9, steady={"cpu_utilization": 1})
FIRST_EPOCHS = {
    "first of a warm-up": ({0: FIRST}, 1), "no warm-up": ({0: FIRST}, 0),
    "no time": ({0: {"epoch/compute_s": 6.0}}, 1), "second only": ({1: LATER}, 1),
}  # fmt: skip
HOSTS = {
    "next smaller batch": [trained(0, 130.0, batch=256), trained(1, 100.0), trained(2, 120.0, batch=128), *SEVERAL],
    "unknown parameters": [trained(0, 130.0), UNKNOWN],
    "one batch here": [trained(0, 100.0)], "another there": [trained(1, 101.0, batch=128)],
    "no driver": [using(0, 8000, 0.9), trained(1, 9.0, batch=8), ON_CPU],
    "1 % more memory": [using(0, 4000), using(1, 4040, batch=128)],
    **{name: [replace(using(0, epochs=[LATER], warmup_epochs=warmup), epochs=epochs)]
       for name, (epochs, warmup) in FIRST_EPOCHS.items()},
    "slower by chance": [using(n, epochs=[epoch(at_s), epoch(6.0)], repeat=n) for n, at_s in enumerate((9.0, 4.0))],
    "the same global batch": [dp(0, 100.0, batch=128), ddp(1, 160.0), ddp(2, 170.0, batch=128)],
    "other global batches": [dp(0, 100.0), ddp(1, 160.0)],
    "other numbers of devices": [dp(0, 100.0), trained(1, 160.0, strategy="ddp", ranks=4)],
}  # fmt: skip


def test_text_of_each_host_and_of_unanswered_questions():
    def of_study(run, host=""):
        return replace(run, host=host, keys={**run.keys, "experiment": "lumi/resnet152_cifar100"})

    assert_golden("questions", analyze([of_study(run, host) for host, own in HOSTS.items() for run in own]), "hosts")
    (batches,) = analyze([*map(of_study, SEVERAL)]).batches
    assert (batches.base, batches.value) == ("batch 64", "batch 128"), "on several devices if there is no single one"
    assert_golden("questions", analyze([trained(0, 100.0), ddp(1)]), "unanswered")
    assert analyze([trained(0, 100.0), trained(1, 110.0, batch=128)]) is None, "a plain sweep has no questions"
    assert analyze([]) is None
    script = trained(1, 160.0, strategy="script", ranks=2)
    script.job.pop("batch")  # unknown for a measured script
    assert analyze([trained(0, 100.0), script]) is None
    assert analyze([trained(0, 100.0), script, ddp(2)]).batches == []
    runs = [trained(0, 100.0, repeat=0), trained(1, 101.0, repeat=1), ddp(2, repeat=0), ddp(3, repeat=1)]
    assert [analyze(some).has_single_runs for some in (runs[:3], runs)] == [True, False]
