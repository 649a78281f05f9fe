"""The next steps of a run: each rule with a run to which it applies, and with one to which it does not."""

import ast
import shlex
from dataclasses import replace

import pytest
from default_jobs import job_of
from metadata import run_info
from project import ROOT

from epochmeter.config.suggestions import check_overrides, entry_keys
from epochmeter.config.validation import check_values
from epochmeter.results.bottleneck import Bottleneck
from epochmeter.results.measured_run import Gain, Machine, MeasuredRun, half_precision
from epochmeter.results.next_step_rules import RULES
from epochmeter.results.next_steps import MAX_STEPS, MIN_GAIN, find_next_steps
from epochmeter.results.step_rule import Change, Rank, Rule

PC = Machine(cores=4, memory_bytes=16 * 2**30)
GPU = {"accelerator": "cuda:0", "torch": "2.9.0", "gpu": {"name": "NVIDIA A100-SXM4-40GB", "memory_bytes": 40 * 10**9}}
MEASURED = {"e2e_s": 10.0, "compute_s": 6.0, "copy_s": 1.0, "overhead_s": 1.0, "data_stall_s": 2.0}
IMAGES = {"layout": "files", "channels": 3, "open": {"files": {}, "memory": {}}}
DATASET = {"name": "jpeg", "digest": "d", "bytes": 1e7}
HUGE, DECODED = {**DATASET, "bytes": 1e12}, {"dataset": {**IMAGES, "layout": "memory"}}
SYNTHETIC = {"medium": "synthetic"}
WORKERS = {"workers": 2, "pin_memory": True, "persistent_workers": True, "batch": 8}
OF_TORCH = {
    "dataset": "torch.utils.data.dataset.TensorDataset",
    "sampler": "torch.utils.data.sampler.RandomSampler",
    "batch_sampler": "torch.utils.data.sampler.BatchSampler",
    "collate": "torch.utils.data._utils.collate.default_collate",
}
BY_BATCH = "BatchSampler(RandomSampler(dataset), 8, drop_last=False)"
LOADING = {"loader_fetch_s": 3.0, "loader_collate_s": 1.0, "loader_transform_s": 2.0, "loader_blocked_s": 1.5}
DELAYED = {"delays": [{"worker": 1, "blocked_s": 1.5}]}


def run(
    *parts, keys=None, machine=PC, steady=None, more=None, epochs=(), equal=True, loading=None, straggler=None, **fields
):  # fmt: skip
    """Return a run of this project whose bottleneck are these parts, compute without any.

    `keys` are of its configuration, `steady` and `more` metrics, and `fields` are those of its metadata.
    """
    metrics = {f"steady/{name}": value for name, value in {**MEASURED, **(steady or {})}.items() if value is not None}
    metrics |= {"total/epochs": 6.0, **(more or {})}
    facts = {"storage": {"medium": "nvme"}, "dataset": DATASET, "energy": {"source": "counter"}, **fields}
    job = job_of(**{"workers": 2, "dataset": IMAGES, "epochs": 6, **(keys or {})})
    bottleneck = Bottleneck(parts or ("compute",), {}, equal=equal)
    return MeasuredRun(
        job, run_info(**facts), metrics, epochs, bottleneck, machine, "multirun/sweep/0", loading or {}, straggler or {}
    )


def script(*parts, loader=None, training=None, keys=None, **options):
    """Return a run of a script, whose DataLoader has these facts."""
    keys = {"measure": {"command": ["src/train.py"]}, "dataset": {"layout": "script", "open": {}}, **(keys or {})}
    facts = {**(training or {}), **({"loaders": [loader]} if loader else {})}
    return run(*parts, keys=keys, training=facts, **{"storage": {"reason": "not known"}, "dataset": None, **options})


def slow_loading(steady=None, loader=None, **loading):
    """Return a run of a script that waits for preprocessing, with what the record has on its loader."""
    steady = {**LOADING, **(steady or {})}
    loader = {**WORKERS, "in_order": True, **(loader or {})}
    return script("prep_stall", loader=loader, steady=steady, loading=loading)


def waiting(cause, host="node2", saving_s=0.02, make=run, **options):
    """Return a run whose ranks wait for rank 3 on a host, by this cause; `make` makes it."""
    straggler = {"rank": 3, "host": host, "causes": [cause], "saving_s": saving_s, **options.pop("more_facts", {})}
    return make(steady={"steps": 100}, straggler=straggler, host="node1", **options)


def on_gpu(*parts, training=None, machine=None, **options):
    return run(*parts, training={**GPU, **(training or {})}, machine=machine or replace(PC, gpus=1), **options)


def script_on_gpu(*parts, training=None, **options):
    return script(*parts, training={**GPU, **(training or {})}, **options)


def times(count):
    return [{f"epoch/{name}": value for name, value in MEASURED.items()} for _ in range(count)]


LOW = {"lower_clock": 0.2}
CLOCKS = "nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE"
NO_CORES, NVIDIA, AMD = replace(PC, cores=1), replace(PC, gpu_vendor="nvidia"), replace(PC, gpu_vendor="amd")
FAN, TWO, METERED = replace(PC, has_fan=True), replace(PC, gpus=2), replace(PC, meters=("rapl",))
HOT, CAPPED = {"thermal_throttled_fraction": 0.2, "temperature_max_c": 91.0}, {"power_capped_fraction": 0.5}
LIMITED = {"power_limit_w": 150.0, "power_limit_max_w": 250.0}
RESTARTED = {"steady": {"loader_start_s": 0.5, "loader_stop_s": 0.3}}
LAUNCHING, SYNCING, COPYING = ({f"trace/idle_{cause}_fraction": 0.3} for cause in ("launch", "sync", "copy"))
TRACED, IN_FP32 = {"trace/steps": 5.0}, {"trace/precision_fp32_fraction": 0.9}
NOT_DIVIDED = {"overrides": ["model=resnet18", "cache=warm", "tracking.experiment='a b'"]}
NAMED = {"measure": {"command": ["src/train.py"], "data": "/usr"}}
VARYING = {"steady": {"e2e_s": 10.0}, "more": {"std/e2e_s": 3.0}}
UNMETERED = {"energy": {"source": "none", "reason": "meter=none"}}

CROWDED = {"oversubscribed": "epoch 2"}
TARGET = {"target_accuracy": 0.9}
DIVERGED, ONE_EPOCH = {"diverged": "epoch 1: the loss was nan"}, {"total/epochs": 1.0}
FIRES = {
    "end_gpu_processes": [(run(flags={"gpu_shared": "pid 7"}, machine=NVIDIA), "nvidia-smi")],
    "end_amd_gpu_processes": [(run(flags={"gpu_shared": "pid 7"}, machine=AMD), "amd-smi process")],
    "end_processes": [(run(flags={"cpu_shared": "epoch 2"}), "top"), (script(flags={"cpu_shared": "epoch 2"}), "top")],
    "fewer_threads": [
        (run(flags=CROWDED, keys={"workers": 2}, training={"threads": 4}), "threads=2"),
        (script(flags=CROWDED), "export OMP_NUM_THREADS=1"),
    ],
    "fan": [(run(steady=HOT, machine=FAN), "fan=max")],
    "cool_down": [(run(steady=HOT), "sweep.cool_below_c=71"), (script(steady=HOT), "sweep.cool_below_c=71")],
    "more_epochs": [
        (run("compute", "copy", equal=False, epochs=times(5)), "epochs=11"),
        (script("compute", "copy", equal=False, epochs=times(1)), "for epoch in range(6):"),
    ],
    "memory_growth": [
        (script(more={f"total/{name}_bytes": 1e6}), "losses.append(loss.item())  # a tensor would keep its graph")
        for name in ("memory_growth", "gpu_memory_growth")
    ],
    "lower_rate": [(run(flags=DIVERGED, keys={"optimizer": {"name": "sgd", "lr": 0.01}}), "optimizer.lr=0.001")],
    "past_warmup": [(run(keys={"epochs": 1}, more=ONE_EPOCH), "epochs=6"),
                    (script(more=ONE_EPOCH), "for epoch in range(6):")],
    "reach_target": [(run(keys=TARGET), "epochs=12")],
    "start_workers": [
        (run("prep_stall", keys={"workers": 0}), "workers=4"),
        (script("data_stall", loader={"workers": 0}),
         "DataLoader(..., num_workers=4, persistent_workers=True)"),
    ],
    "more_workers": [
        (run("prep_stall"), "workers=4"),
        (run("prep_stall", keys={"workers": 3}), "workers=4"),
        (script("data_stall", loader=WORKERS), "DataLoader(..., num_workers=4)"),
    ],
    "whole_batches": [
        (slow_loading(loader=OF_TORCH),
         f"DataLoader(dataset, batch_size=None, sampler={BY_BATCH})  # torch.utils.data"),
    ],
    "slow_worker": [
        (slow_loading(delays=[{"worker": 1, "blocked_s": 1.5}]), "DataLoader(..., in_order=False)  # worker 1 is slow"),
    ],
    "slow_transform": [
        (slow_loading(transforms={"RandomCrop": 2.0, "Normalize": 0.1}),
         "# the slowest transform of the dataset: RandomCrop"),
    ],
    "slow_collate": [
        (slow_loading(), "# much of the time to load a batch: collate_fn"),
        (slow_loading(loader={"collate": "words.pad"}), "# much of the time to load a batch: words.pad"),
    ],
    "persistent_workers": [
        (run("prep_stall", keys={"persistent_workers": False}, **RESTARTED), "persistent_workers=true"),
        (script("data_stall", loader={**WORKERS, "persistent_workers": False}, **RESTARTED),
         "DataLoader(..., persistent_workers=True)"),
    ],
    "warm_cache": [(run("fetch_stall", keys={"cache": "cold_each_epoch"}), "cache=warm")],
    "ram": [(run("fetch_stall"), "storage=ram")],
    "decoded": [(run("prep_stall"), "dataset.layout=memory")],
    "straggler_data": [
        (waiting("data_stall"), "ssh node2 top"),
        (waiting("data_stall", make=script), "# the slowest DataLoader: that of rank 3"),
    ],
    "straggler_clock": [
        (waiting("compute", more_facts=LOW, machine=NVIDIA), f"ssh node2 {CLOCKS}"),
        (waiting("compute", "node1", more_facts=LOW, machine=NVIDIA, make=script), CLOCKS),
    ],
    "straggler_compute": [(waiting("compute"), "ssh node2 top"), (waiting("overhead", "node1", make=script), "top")],
    "divide_stall": [
        (run("data_stall", **NOT_DIVIDED),
         "python src/train.py -m experiment=stalls model=resnet18 'tracking.experiment='\"'\"'a b'\"'\"''"),
        (script("data_stall", keys=NAMED, overrides=["measure.data=/usr", "cache=warm"]),
         "python src/measure.py experiment=stalls measure.data=/usr -- src/train.py"),
        (script("data_stall"), "python src/measure.py experiment=stalls measure.data=/path/of/data -- src/train.py"),
    ],
    "pin_memory": [
        (on_gpu("copy", keys={"pin_memory": False}), "pin_memory=true"),
        (script_on_gpu(loader={**WORKERS, "pin_memory": False}), "DataLoader(..., pin_memory=True)"),
    ],
    "non_blocking": [
        (script_on_gpu(loader=WORKERS, steady={"copy_s": None}, more=COPYING),
         "inputs = inputs.to(device, non_blocking=True)")
    ],
    "deferred": [(on_gpu(keys={"timing": "synchronous"}, more=SYNCING), "timing=deferred")],
    "no_loss": [(on_gpu(keys={"log_loss": True}, more=SYNCING), "log_loss=false")],
    "no_item": [(script_on_gpu(more=SYNCING), "total_loss += loss.detach()  # instead of loss.item()")],
    "compile_launches": [
        (on_gpu(more=LAUNCHING), "compile=true"),
        (script_on_gpu(more=LAUNCHING), "model = torch.compile(model)"),
    ],
    "precision": [
        (on_gpu(), "precision=bf16"),
        (on_gpu(training={"gpu": {"name": "Tesla V100-SXM2-16GB"}}), "precision=fp16"),
        (script_on_gpu(more=IN_FP32), "with torch.autocast('cuda', torch.bfloat16):"),
        (script_on_gpu(training={"step": {"precision": "tf32"}}), "with torch.autocast('cuda', torch.bfloat16):"),
    ],
    "more_gpus": [(on_gpu(machine=TWO), "strategy=ddp strategy.ranks=2")],
    "batch": [
        (on_gpu(keys={"batch": 16}, more={"memory/largest_batch": 32.0}), "batch=32"),
        (script_on_gpu(loader=WORKERS, steady={"gpu_memory_peak_bytes": 1e9}), "DataLoader(..., batch_size=16)"),
    ],
    "channels_last": [(on_gpu(keys={"precision": "bf16"}), "channels_last=true")],
    "compile": [(on_gpu(), "compile=true"), (script_on_gpu(), "model = torch.compile(model)")],
    "raise_limit": [
        (on_gpu(steady=CAPPED, **LIMITED), "power_limit=250"),
        (script_on_gpu(steady=CAPPED, **LIMITED), "power_limit=250"),
    ],
    "save_less": [(script(steady={"save_s": 1.0}), "if epoch % 5 == 4: torch.save(...)")],
    "freeze_garbage": [(script(steady={"collection_s": 1.0}), "gc.freeze()  # before the first epoch")],
    "view_trace": [
        (run(more=TRACED), "python src/report.py run=multirun/sweep/0 view=trace"),
        (script("overhead", more=TRACED), "python src/report.py run=multirun/sweep/0 view=trace"),
    ],
    "trace": [(run(), "profiler=torch"), (script(), "profiler=torch")],
    "few_epochs": [
        (run(epochs=times(2)), "epochs=6"),
        (run(epochs=times(6), **VARYING), "epochs=13"),
        (script(epochs=times(1)), "for epoch in range(6):"),
    ],
    "measure_energy": [(run(machine=METERED, **UNMETERED), "meter=rapl"),
                       (script(machine=METERED, **UNMETERED), "meter=rapl")],
}  # fmt: skip
"""Rule -> runs to which it applies, and the change that it advises."""
SILENT = {
    "end_gpu_processes": [run(machine=NVIDIA), run(flags={"gpu_shared": "pid 7"})],
    "end_amd_gpu_processes": [run(machine=AMD), run(flags={"gpu_shared": "pid 7"}, machine=NVIDIA)],
    "end_processes": [run()],
    "fewer_threads": [run(), run(flags=CROWDED, keys={"workers": 2}, training={"threads": 2})],
    "fan": [run(steady=HOT), run(machine=FAN), run(steady=HOT, machine=FAN, keys={"fan": "max"})],
    "cool_down": [run(), run(steady=HOT, machine=FAN), run(steady={**HOT, "temperature_max_c": None}),
                  run(steady=HOT, keys={"sweep": {"cool_below_c": 50.0}})],
    "more_epochs": [run("compute", "copy"), run(equal=False),
                    run("compute", "copy", equal=False, more={"total/epochs": 3.0})],
    "memory_growth": [run(more={"total/memory_growth_bytes": 1e6}), script()],
    "lower_rate": [run(keys={"optimizer": {"name": "sgd", "lr": 0.01}}), run(flags=DIVERGED), script(flags=DIVERGED)],
    "past_warmup": [run(), run(keys={"epochs": 1, "warmup_epochs": 0}, more=ONE_EPOCH), run(more=ONE_EPOCH),
                    run(keys={"epochs": 1}, more={**ONE_EPOCH, "throughput/samples_per_s": 9.0})],
    "reach_target": [run(), run(keys=TARGET, more={"total/epochs_to_target": 4.0}),
                     run(keys=TARGET, more={"total/epochs": 3.0})],
    "start_workers": [run("prep_stall"), run("prep_stall", keys={"workers": 0}, machine=NO_CORES),
                      script("data_stall"), run(keys={"workers": 0}, steady={"data_stall_s": 0.1}),
                      run(keys={"workers": 0}, storage=SYNTHETIC),
                      run(keys={"workers": 0}, steady={"data_stall_s": None})],
    "more_workers": [run("fetch_stall", storage={"medium": "hdd"}), run("prep_stall", flags=CROWDED),
                     run("prep_stall", keys={"workers": 4}), run("prep_stall", keys={"workers": 0}),
                     run("prep_stall", keys={"strategy": {"name": "ddp", "ranks": 2, "launcher": "torchrun"}}),
                     script("data_stall")],
    "whole_batches": [slow_loading(), *(slow_loading(loader={**OF_TORCH, key: "words.Own"}) for key in OF_TORCH)],
    "slow_worker": [slow_loading(), script("prep_stall", loader=WORKERS, steady=LOADING, loading=DELAYED),
                    slow_loading(**DELAYED, steady={"loader_blocked_s": 0.1})],
    "slow_transform": [slow_loading(), run("prep_stall", loading={"transforms": {"RandomCrop": 2.0}}),
                       slow_loading(transforms={"Normalize": 0.1}, steady={"loader_transform_s": 0.1})],
    "slow_collate": [slow_loading(steady={"loader_collate_s": 0.1}), slow_loading(loader=OF_TORCH),
                     run("prep_stall", steady=LOADING),
                     script("prep_stall")],
    "persistent_workers": [run("prep_stall", **RESTARTED), run("prep_stall", keys={"persistent_workers": False}),
                           run(keys={"persistent_workers": False, "workers": 0}, **RESTARTED)],
    "warm_cache": [run("fetch_stall"), run("fetch_stall", keys={"cache": "cold_each_epoch"}, dataset=HUGE)],
    "ram": [run("fetch_stall", storage={"medium": "ram"}), run("fetch_stall", dataset=HUGE),
            run("fetch_stall", machine=Machine()), run("fetch_stall", keys=DECODED)],
    "decoded": [run("prep_stall", keys=DECODED),
                run("prep_stall", keys={"dataset": {**IMAGES, "open": {"files": {}}}}),
                run("prep_stall", dataset={**DATASET, "bytes": 1e9})],
    "straggler_data": [run(), waiting("compute"), waiting("data_stall", saving_s=0.001),
                       run(straggler={"rank": 3, "causes": ["data_stall"], "saving_s": 0.02})],
    "straggler_clock": [waiting("compute", machine=NVIDIA), waiting("data_stall", more_facts=LOW, machine=NVIDIA),
                        waiting("compute", more_facts=LOW)],
    "straggler_compute": [waiting("data_stall"), waiting("compute", more_facts=LOW)],
    "divide_stall": [
        run("prep_stall"), run("data_stall", storage=SYNTHETIC), script("compute"),
        script("data_stall", overrides=["data_source=unchanged"]),
        script("data_stall", keys={"measure": {"command": ["train.py", "--key", "***01234567"]}}),
    ],
    "pin_memory": [run("copy", keys={"pin_memory": False}), on_gpu("copy"), script_on_gpu(loader={"workers": 0}),
                   on_gpu(keys={"pin_memory": False}, steady={"copy_s": 0.01})],
    "non_blocking": [script_on_gpu(loader={**WORKERS, "pin_memory": False}, more=COPYING), on_gpu(more=COPYING),
                     script_on_gpu(loader=WORKERS, steady={"copy_s": None})],
    "deferred": [on_gpu(keys={"timing": "synchronous"}), on_gpu(more=SYNCING),
                 run(keys={"timing": "synchronous"}, more=SYNCING)],
    "no_loss": [on_gpu(keys={"log_loss": True}), on_gpu(more=SYNCING)],
    "no_item": [script_on_gpu(), on_gpu(more=SYNCING), script(more=SYNCING)],
    "compile_launches": [on_gpu(), on_gpu(more=LAUNCHING, keys={"compile": True}), run(more=LAUNCHING),
                         on_gpu(more=LAUNCHING, training={"torch": "1.13.1"})],
    "precision": [run(), on_gpu("prep_stall"), on_gpu(keys={"precision": "bf16"}), script_on_gpu(),
                  script_on_gpu(more=IN_FP32, training={"step": {"precision": "bf16"}}),
                  on_gpu(keys={"strategy": {"name": "dp", "ranks": 2}})],
    "more_gpus": [on_gpu(), run(machine=TWO), on_gpu("prep_stall", machine=TWO),
                  on_gpu(machine=TWO, keys={"strategy": {"name": "ddp", "ranks": 2, "launcher": "torchrun"}})],
    "batch": [run(more={"memory/largest_batch": 99.0}), on_gpu(), on_gpu(more={"memory/largest_batch": 31.0}),
              on_gpu("prep_stall", more={"memory/largest_batch": 99.0}),
              script_on_gpu(steady={"gpu_memory_peak_bytes": 1e9})],
    "channels_last": [on_gpu(), run(keys={"precision": "bf16"}),
                      on_gpu(keys={"precision": "bf16", "channels_last": True}),
                      on_gpu(keys={"precision": "bf16", "dataset": {**IMAGES, "channels": None}})],
    "compile": [run(), on_gpu("prep_stall"), on_gpu(keys={"compile": True}), on_gpu(training={"torch": "1.13.1"})],
    "raise_limit": [on_gpu(**LIMITED), on_gpu(steady=CAPPED),
                    on_gpu(steady=CAPPED, power_limit_w=250.0, power_limit_max_w=250.0)],
    "save_less": [script(), script(steady={"save_s": 0.1}), run(steady={"save_s": 1.0})],
    "freeze_garbage": [script(), script(steady={"collection_s": 0.1})],
    "view_trace": [run(), run("prep_stall", more=TRACED)],
    "trace": [run(more=TRACED), run("prep_stall"), run(keys={"profiler": {"name": "torch"}})],
    "few_epochs": [run(), run(epochs=times(3)), run(epochs=times(2), more={"total/epochs": 3.0}),
                   run("compute", "copy", equal=False, epochs=times(2))],
    "measure_energy": [run(**UNMETERED), run(machine=METERED)],
}  # fmt: skip
"""Rule -> runs to which it does not apply."""
ROWS = {rule.name: rule for rule in RULES}
CASES = [(name, measured, change) for name, cases in FIRES.items() for measured, change in cases]


def test_each_rule_has_one_name_and_cases_for_both_outcomes_and_both_changes():
    assert list(ROWS) == [rule.name for rule in RULES] == list(FIRES) == list(SILENT)
    kinds = {name: {measured.is_script for measured, _ in cases} for name, cases in FIRES.items()}
    same = {name for name, rule in ROWS.items() if rule.own == rule.script}
    for name, rule in ROWS.items():
        defined = {is_script for is_script, change in ((False, rule.own), (True, rule.script)) if change}
        assert kinds[name] == defined or (name in same and kinds[name]), name


@pytest.mark.parametrize(("name", "measured", "change"), CASES)
def test_rule_applies_to_its_runs_and_advises_its_change(name, measured, change):
    (step,) = find_next_steps(measured, [ROWS[name]])
    assert (step.rule, step.change) == (name, change)


@pytest.mark.parametrize(("name", "measured"), [(name, measured) for name, runs in SILENT.items() for measured in runs])
def test_rule_does_not_apply_to_other_runs(name, measured):
    assert find_next_steps(measured, [ROWS[name]]) == []


@pytest.mark.parametrize(("name", "measured", "change"), CASES)
def test_each_change_is_valid(name, measured, change, order):
    (step,) = find_next_steps(measured, [ROWS[name]])
    words = shlex.split(change.replace("/path/of/data", str(ROOT)))
    if step.kind == "code":
        ast.parse(f"{change} pass" if change.endswith(":") else change)
    elif step.kind == "setting" or "src/train.py" in change:
        own = ["measure.command=[train.py]"] if measured.is_script else []
        request = order(*own, *(word for word in words if "=" in word))
        check_overrides(request.overrides, request.choices)
        check_values(request.job)
    elif "src/report.py" in change:
        options, keys = entry_keys("report")
        assert {word.partition("=")[0] for word in words[2:]} <= {*options, *keys}
    assert all((ROOT / word).exists() for word in words if word.endswith(".py") and step.kind == "command")


def test_gain_is_the_part_s_fraction_of_the_time_with_the_interval_of_the_epochs():
    """Fractions 0.3, 0.5 and 0.4: their mean is 0.4, and 4.303 x 0.1 / sqrt(3) = 0.248."""
    epochs = [{"epoch/e2e_s": 10.0, "epoch/data_stall_s": stall_s} for stall_s in (3.0, 5.0, 4.0)]
    measured = run(steady={"data_stall_s": 4.0}, epochs=epochs)
    assert measured.gain("data_stall_s") == pytest.approx(Gain(0.4, 0.1516, 0.6484), abs=1e-4)
    assert replace(measured, epochs=epochs[:1]).gain("data_stall_s") == Gain(0.4)
    assert measured.gain("data_stall_s", "unknown_s") is None
    assert run(steady={"e2e_s": None}).gain("data_stall_s") is None
    undivided = measured.stall_gain("prep_stall"), measured.stall_gain("fetch_stall")
    assert [gain.at_most for gain in undivided] == [0.4, 0.4]
    divided = run(steady={"data_stall_s": 4.0, "prep_stall_s": 3.0})
    assert (divided.stall_gain("prep_stall"), divided.stall_gain("fetch_stall")) == (Gain(0.3), None)


def row(name, part, gain, rank=Rank.SPEED):
    change = Change("setting", f"{name}=1")
    return Rule(name, "", "", lambda run: True, change, change, (part,), lambda run: gain and Gain(gain), rank)


def test_doubts_come_first_then_steps_for_the_bottleneck_by_their_gain_and_measurements_last():
    rules = [
        row("measure", "compute", 0.9, Rank.MEASURE),
        row("other", "copy", 0.8),
        row("small", "compute", 0.2),
        row("large", "compute", 0.6),
        row("doubt", "copy", 0.1, Rank.DOUBT),
        row("tiny", "compute", MIN_GAIN / 2),
        row("unknown", "compute", None),
    ]
    assert [step.rule for step in find_next_steps(run(), rules)] == ["doubt", "large", "small"]
    assert [step.rule for step in find_next_steps(run(), rules[:2])] == ["other", "measure"]
    twice = [row("a", "compute", 0.5)._replace(own=Change("setting", "same=1")) for _ in range(2)]
    assert len(find_next_steps(run(), twice)) == 1


def test_every_verdict_of_a_run_on_a_cpu_and_on_a_gpu_has_steps():
    for part in ("compute", "prep_stall", "fetch_stall", "data_stall", "copy", "overhead"):
        for measured in (run(part), script(part), on_gpu(part), script_on_gpu(part)):
            steps = find_next_steps(measured)
            assert len(steps) <= MAX_STEPS
            if part not in ("copy", "prep_stall", "fetch_stall"):  # whose steps need facts on the loader, or reads
                assert steps, (part, measured.is_script)


def test_step_as_a_document_has_its_gain_or_null():
    known, unknown = (find_next_steps(run("prep_stall"), [ROWS[name]])[0] for name in ("more_workers", "more_workers"))
    assert known.to_document()["gain"] == {"at_most": 0.2, "low": None, "high": None}
    assert unknown._replace(gain=None).to_document()["gain"] is None
    assert known.to_document().keys() == {"rule", "text", "kind", "change", "why", "gain"}


@pytest.mark.parametrize(
    ("names", "precision"),
    [
        (["NVIDIA A100-SXM4-80GB"], "bf16"),
        (["NVIDIA GeForce RTX 3090"], "bf16"),
        (["", "NVIDIA Jetson AGX Orin Developer Kit"], "bf16"),
        (["Quadro RTX 5000"], "fp16"),
        (["Tesla V100-SXM2-16GB", ""], "fp16"),
    ],
)
def test_sixteen_bit_precision_of_a_device(names, precision):
    assert half_precision(*names) == precision
