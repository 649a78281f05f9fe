"""The values of a job, held against what they may be, each by itself and with those that it goes with."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from trainmeter.hints import KNOWN, unknown

PREPROCESSING = ("resize", "crop", "pad")


def check(job: Mapping[str, Any]) -> None:
    """Refuses values out of range, each with what would be in it; ValueError."""
    least = {"batch": 1, "epochs": 1, "workers": 0, "prefetch": 1, "warmup_epochs": 0, "repeat": 0, "seed": 0,
             "lr_batch": 1}  # fmt: skip
    dataset = job["dataset"]
    strangers = sorted(set(job) - KNOWN)
    if strangers:
        raise ValueError(unknown(strangers[0]))
    wrong = [f"{key}={job[key]}: give {low} or more" for key, low in least.items() if job[key] < low]
    choices = {
        "pin_memory": (job["pin_memory"], ["auto", "true", "false"]),
        "rehearse": (job["rehearse"], ["auto", "true", "false"]),
        "device.accelerator": (job["device"]["accelerator"], ["auto", "cpu", "cuda"]),
        "dataset.layout": (dataset["layout"], layouts(dataset)),
        "dataset.on_bad": (dataset.get("on_bad", "error"), ["error", "skip"]),
    }
    wrong += [
        f"{key}={typed(value)}: give one of {', '.join(known)}"
        for key, (value, known) in choices.items()
        if typed(value) not in known
    ]
    preprocess = dataset.get("preprocess", "resize")
    if not isinstance(preprocess, str) or (preprocess not in PREPROCESSING and "." not in preprocess):
        known = ", ".join(PREPROCESSING)
        wrong.append(f"dataset.preprocess={typed(preprocess)}: give one of {known}, or the dotted path of a function")
    every = job["checkpoint"]["every"]
    if every is not None and every < 1:
        wrong.append(f"checkpoint.every={every}: give 1 or more, or null for none")
    wrong += wrong_ranks(job["strategy"], dataset) + wrong_steps(job["throughput"]) + wrong_pauses(job["sweep"])
    if job["throughput"]["exit"] and dataset.get("on_bad") == "skip":
        wrong.append("throughput.exit=true: give dataset.on_bad=error, since a batch that is skipped is no step")
    if job["strategy"]["name"] == "dp" and job["precision"] in ("bf16", "fp16"):
        wrong.append(f"precision={job['precision']}: the threads of strategy=dp do not take it up: give strategy=ddp")
    if job["deterministic"] and job["cudnn_benchmark"]:
        wrong.append("cudnn_benchmark=true: the algorithms it picks may change, so give deterministic=false")
    watts, accuracy, loss = job["power_limit"], job["target_accuracy"], job["target_loss"]
    if watts is not None and not isinstance(watts, str) and (isinstance(watts, bool) or not 0 < watts < math.inf):
        wrong.append(f"power_limit={typed(watts)}: give watts above 0, a power mode, or null")
    if accuracy is not None and not 0 < accuracy <= 1:
        wrong.append(f"target_accuracy={accuracy}: give a share above 0 and up to 1")
    if accuracy is not None and job["task"]["name"] == "regression":
        wrong.append(f"target_accuracy={accuracy}: task=regression knows no right and wrong: give target_loss")
    if loss is not None and not 0 < loss < math.inf:
        wrong.append(f"target_loss={loss}: give a loss above 0")
    if wrong:
        raise ValueError("; ".join(wrong) + ".")


def wrong_ranks(strategy: Mapping[str, Any], dataset: Mapping[str, Any]) -> list[str]:
    """What is wrong with the ranks asked for, and with what they cannot do together."""
    name, ranks = strategy["name"], strategy["ranks"]
    processes = "launcher" in strategy
    if name == "single" and ranks != 1:
        return [f"strategy.ranks={ranks}: strategy=single is one rank; give strategy=ddp or strategy=dp beside it"]
    if not (ranks is None and not processes) and (isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1):
        return [f"strategy.ranks={typed(ranks)}: give 1 or more" + ("" if processes else ", or null for all GPUs")]
    if processes and dataset.get("on_bad") == "skip":
        return [f"dataset.on_bad=skip: the ranks of strategy={name} all take as many steps; give error"]
    return []


def wrong_steps(throughput: Mapping[str, Any]) -> list[str]:
    """What is wrong with the steps between which throughput is asked for."""
    start, stop = throughput["start"], throughput["stop"]
    if stop is None and throughput["exit"]:
        return ["throughput.exit=true: give throughput.start and throughput.stop, where the run is to end"]
    if (start is None) != (stop is None):
        missing, there = ("start", "stop") if start is None else ("stop", "start")
        return [f"throughput.{there}={throughput[there]}: give throughput.{missing} too"]
    if start is not None and not 0 <= start < stop:
        return [f"throughput.start={start}: give 0 or more, and less than throughput.stop={stop}"]
    return []


def wrong_pauses(sweep: Mapping[str, Any]) -> list[str]:
    """What is wrong with how long the runs of a sweep may rest and take, and how many of them fail."""
    least = {"cooldown_s": 0, "cool_wait_s": 0, "max_failures": 1}
    wrong = [
        f"sweep.{key}={sweep[key]:g}: give {low} or more"
        for key, low in least.items()
        if sweep[key] is not None and not low <= sweep[key] < math.inf
    ]
    for key in ("timeout_s", "hung_after_s"):
        if sweep[key] is not None and not 0 < sweep[key] < math.inf:
            wrong.append(f"sweep.{key}={sweep[key]:g}: give seconds above 0, or null for no limit")
    below_c = sweep["cool_below_c"]
    if below_c is not None and not math.isfinite(below_c):
        wrong.append(f"sweep.cool_below_c={below_c:g}: give degrees Celsius, or null")
    return wrong


def layouts(dataset: Mapping[str, Any]) -> list[str]:
    """What a dataset's layout may be: those that it says how to open; with but one way to, what it is said to be."""
    opened = dataset["open"]
    if not opened:
        return ["tensors"]
    return [dataset["layout"]] if "_target_" in opened else list(opened)


def typed(value: Any) -> str:
    """A value as one types it."""
    return value if isinstance(value, str) else json.dumps(value)
