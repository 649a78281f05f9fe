"""The next runs: commands that change the bottleneck of the best, were not run yet, and are valid in Hydra."""

import shlex
from dataclasses import replace

import pytest
from golden import assert_golden
from sweeps import trained

from epochmeter.report.analyses.best import find_best
from epochmeter.report.analyses.bottleneck import epoch_bottlenecks
from epochmeter.report.analyses.next_runs import command_line, suggest_runs
from epochmeter.report.runs.configuration import Configuration, group_repeats
from epochmeter.report.runs.costs import ranked_costs

CPU = {"name": "cpu", "accelerator": "cpu", "rails": None}
GPU = {"name": "cuda", "accelerator": "cuda", "rails": None}
BOARD = {"name": "nano", "accelerator": "cuda", "rails": {"total": ["VDD_IN"]}}
USUAL = {"device": CPU, "workers": 2, "prefetch": 2, "persistent_workers": True, "precision": "fp32", "compile": False}


def run(number, e2e_s=10.0, cores=8, limit_w=None, energy_j=None, parts=None, on=None, **keys):
    shares = {"compute": 0.0, "copy": 0.0, "overhead": 0.0, "data_stall": 0.0, **(parts or {"compute": 1.0})}
    steady = {f"{part}_s": share * e2e_s for part, share in shares.items()}
    total = {} if limit_w is None else {"power_limit_w": limit_w}
    result = trained(number, 100.0, steady={"e2e_s": e2e_s, "energy_j": energy_j, **steady}, total=total,
                   **{**USUAL, **keys})  # fmt: skip
    typed_keys = {key: str(result.job[key]) for key in ("batch", "workers")}
    return replace(result, cores=cores, keys=typed_keys, platform={"torch": "2.9.0+cpu", **(on or {})})


def waiting(number, read_s, preprocess_s, **more):
    parts = {"data_stall": 0.8, "compute": 0.2, "loader_read": read_s, "loader_preprocess": preprocess_s,
             "loader_decode": 0.0}  # fmt: skip
    return run(number, parts=parts, **more)


MIXED = {"compute": 0.4, "data_stall": 0.6, "loader_read": 9.0, "loader_preprocess": 11.0, "loader_decode": 0.0}


def suggested(*runs):
    configurations = group_repeats(list(runs))
    return suggest_runs(configurations, find_best(ranked_costs(configurations)), epoch_bottlenecks(configurations))


def changes(*runs):
    """The overrides of each command that the first run does not have."""
    kept = {f"{key}={value}" for key, value in runs[0].keys.items()}
    commands = [suggestion.command for suggestion in suggested(*runs)]
    return [" ".join(word for word in shlex.split(command)[2:] if word not in kept) for command in commands]


def test_suggestions_follow_the_bottleneck_of_the_fastest():
    for of, expected in (
        (waiting(0, 1.0, 9.0), ["workers=4", "dataset.layout=memory"]),
        (waiting(0, 1.0, 9.0, cores=3), ["workers=3", "dataset.layout=memory"]),
        (waiting(0, 1.0, 9.0, cores=2), ["dataset.layout=memory", "prefetch=4"]),
        (waiting(0, 1.0, 9.0, workers=0), ["workers=4", "dataset.layout=memory"]),
        (waiting(0, 1.0, 9.0, cores=0, workers=0), ["dataset.layout=memory"]),  # nothing to keep batches ready
        (waiting(0, 1.0, 9.0, cores=None), ["workers=4", "dataset.layout=memory"]),
        # The DataLoader workers of all ranks share the cores.
        (waiting(0, 1.0, 9.0, strategy="ddp", ranks=2, workers=4), ["dataset.layout=memory", "prefetch=4"]),
        (waiting(0, 9.0, 1.0), ["cache=warm", "storage=nvme"]),
        (waiting(0, 9.0, 1.0, storage={"name": "nvme"}), ["cache=warm", "workers=4"]),
        # Compute is the largest part, but data stalls together take longer: 40, 33 and 27 %.
        (run(0, parts=MIXED), ["workers=4", "dataset.layout=memory"]),
        (run(0), ["batch=128", "compile=true"]),
        (run(0, on={"torch": "1.10.0"}), ["batch=128"]),  # JetPack 4's
        (run(0, device=GPU), ["precision=fp16", "batch=128"]),
        (run(0, device=GPU, on={"GPU": "NVIDIA A100-SXM4-80GB"}), ["precision=bf16", "batch=128"]),
        (run(0, device=GPU, on={"GPU": "NVIDIA GeForce RTX 3090"}), ["precision=bf16", "batch=128"]),
        (run(0, device=GPU, on={"board": "NVIDIA Jetson AGX Orin Developer Kit"}), ["precision=bf16", "batch=128"]),
        (run(0, device=GPU, on={"GPU": "Quadro RTX 5000"}), ["precision=fp16", "batch=128"]),
        (run(0, device=GPU, on={"GPU": "Tesla V100-SXM2-16GB"}), ["precision=fp16", "batch=128"]),
        (run(0, device=GPU, on={"board": "NVIDIA Jetson Nano Developer Kit"}), ["precision=fp16", "batch=128"]),
        (run(0, device=GPU, strategy="dp", ranks=2), ["batch=128", "compile=true"]),
        (run(0, device=GPU, precision="bf16", compile=True), ["batch=128"]),
        (run(0, parts={"copy": 1.0}), ["batch=128"]),
    ):
        assert changes(of) == expected


RESTARTED = waiting(0, 1.0, 9.0, persistent_workers=False)
SLOW_START = replace(RESTARTED, metrics={**RESTARTED.metrics, "steady/loader_start_s": 7.0})


def test_persistent_workers_and_values_that_were_not_tried_are_suggested():
    assert changes(SLOW_START)[0] == "persistent_workers=true"
    assert changes(RESTARTED)[0] == "workers=4"
    assert changes(waiting(0, 1.0, 9.0), waiting(1, 1.0, 9.0, e2e_s=11.0, workers=4))[0] == "dataset.layout=memory"
    assert changes(run(0), run(1, e2e_s=8.0, batch=256))[0] == "batch=512"
    assert changes(run(0), run(1, e2e_s=12.0, batch=256)) == ["compile=true"], "the larger batch was slower"
    assert suggested(trained(0, 100.0, steady={"compute_s": None})) == [], "of an unknown bottleneck"
    assert suggest_runs([], [], []) == []


def test_lower_power_limit_is_suggested_if_limits_are_in_watts():
    for runs, expected in (
        ([run(0, energy_j=900.0, limit_w=100.0)], ["power_limit=70"]),
        ([run(0, energy_j=900.0, limit_w=100.0), run(1, 9.9, energy_j=990.0, limit_w=150.0, batch=32)],
         ["power_limit=70"]),
        ([run(0, energy_j=900.0, limit_w=150.0), run(1, 9.9, energy_j=990.0, limit_w=100.0, batch=32)], []),
        ([run(0, energy_j=2000.0, device=GPU)], ["power_limit=150"]),
        ([run(0, energy_j=4000.0, device=GPU, strategy="ddp", ranks=2)], ["power_limit=150"]),
        ([run(0, energy_j=50.0, device=BOARD)], []),  # its modes have names
        ([run(0, energy_j=900.0)], []),  # no limit is known to be there
        ([run(0, device=GPU)], []),
    ):  # fmt: skip
        assert [each for each in changes(*runs) if "power_limit" in each] == expected


@pytest.mark.parametrize("value", ["it's in my folder", "a;b $HOME", "{a: 1}"])
def test_command_has_the_overrides_of_the_configuration_quoted_for_the_shell(value):
    typed = {"dataset.root": value, "note": "mine", "repeat": "2", "tracking": "none"}
    (point,) = group_repeats([replace(trained(0, 100.0, typed=typed), added=["++note"])])
    words = shlex.split(command_line(point, {"workers": "4"}))
    assert words == ["python", "src/train.py", "strategy=single", f"dataset.root={value}", "++note=mine", "workers=4"]
    job = {**point.job, "measure": {"command": ["-m", "train", "--lr", "{script.lr}"]}}
    words = shlex.split(command_line(Configuration([replace(point.runs[0], job=job)]), {"script.lr": "0.1"}))
    assert (words[1], words[-6:]) == ("src/measure.py", ["script.lr=0.1", "--", *job["measure"]["command"]])


CASES = [
    waiting(0, 1.0, 9.0),
    waiting(0, 9.0, 1.0),
    run(0, device=GPU, energy_j=2000.0),
    run(0, parts={"overhead": 1.0}),
    SLOW_START,
    run(0, energy_j=900.0, limit_w=100.0, parts={"copy": 1.0}),
]


def test_commands_are_valid_in_hydra_and_have_reasons(composed):
    results = [suggestion for of in CASES for suggestion in suggested(of)]
    assert_golden("next_runs", results)
    for suggestion in results:
        assert composed(*shlex.split(suggestion.command)[2:]).batch
