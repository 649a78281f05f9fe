"""The values that a job's keys may have: one rule per key, and combinations of keys that are not allowed."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from epochmeter.config.errors import InputError, Problem
from epochmeter.config.schema import Dataset, Job, Precision, Strategy, Throughput, required_keys
from epochmeter.config.suggestions import KNOWN, unknown

MEDIA = ("nvme", "ssd", "ssd_usb", "hdd", "hdd_usb", "sd", "emmc", "ram", "network", "virtual", "unknown")
"""Kinds of storage devices, as `machine.disk.Disk` has them."""
PREPROCESSING = ("resize", "crop", "pad")
ABSENT = object()
LARGEST = 10**9
"""More is a slip of the keyboard, and does not fit the numbers that torch counts by."""
LARGEST_SEED = 2**32 - 1
"""Largest seed of NumPy's generators."""
ABSOLUTE_ZERO_C = -273.15


class Rule(NamedTuple):
    """The allowed values of a key: in words, as they follow "give", and as a test."""

    allowed: str
    fits: Callable[[Any], bool]


def whole(low: int, high: int | None = None) -> Rule:
    """Whole numbers from `low` to `high`, or without an upper bound."""
    words = f"{low} or more" + ("" if high is None else f", at most {high:,}")
    return Rule(
        f"a whole number, {words}",
        lambda value: type(value) is int and low <= value <= (math.inf if high is None else high),
    )


def number(low: float = -math.inf, high: float = math.inf, unit: str = "a number", *, above: bool = False) -> Rule:
    """Finite numbers from `low` to `high`; with `above`, greater than `low`."""
    words = f"above {low:g}" if above else f"{low:g} or more"
    words = "" if low == -math.inf else f", {words}" + ("" if high == math.inf else f", and at most {high:g}")

    def fits(value: Any) -> bool:
        is_number = type(value) in (int, float) and math.isfinite(value)
        return is_number and (low < value if above else low <= value) and value <= high

    return Rule(f"{unit}{words}", fits)


def one_of(*choices: str) -> Rule:
    """A few words, or `true` and `false`, as they are typed."""
    return Rule(f"one of {', '.join(choices)}", lambda value: typed(value) in choices)


def or_null(rule: Rule, meaning: str = "") -> Rule:
    """A rule whose key may also be null; `meaning` is the meaning of null."""
    return Rule(
        f"{rule.allowed}, or null{meaning and f' for {meaning}'}", lambda value: value is None or rule.fits(value)
    )


FLAG = one_of("true", "false")
TEXT = Rule("a text that is not empty", lambda value: isinstance(value, str) and bool(value.strip()))
FOLDER = Rule("a folder that exists", lambda value: isinstance(value, str) and Path(value).is_dir())
FILE = Rule("a file that exists", lambda value: isinstance(value, str) and Path(value).is_file())
MAPPING = Rule("a mapping, {key: value}", lambda value: isinstance(value, Mapping))
WRITABLE = Rule("a folder that can be written", lambda value: isinstance(value, str) and is_writable(Path(value)))
SECONDS = number(0, unit="seconds")
LIMIT_S = or_null(number(0, unit="seconds", above=True), "no limit")
SHARE = number(0, 1, "a number")

RULES = {
    "batch": whole(1, LARGEST),
    "epochs": whole(1, LARGEST),
    "seed": whole(0, LARGEST_SEED),
    "repeat": whole(0, LARGEST),
    "workers": Rule("auto, or a whole number, 0 or more", lambda value: value == "auto" or whole(0).fits(value)),
    "prefetch": whole(1, LARGEST),
    "warmup_epochs": whole(0),
    "lr_batch": whole(1),
    "pin_memory": one_of("auto", "true", "false"),
    "rehearse": one_of("auto", "true", "false"),
    "power_limit": or_null(
        Rule("watts above 0, a power mode", lambda value: TEXT.fits(value) or number(0, above=True).fits(value))
    ),
    "target_accuracy": or_null(number(0, 1, "a fraction", above=True)),
    "target_loss": or_null(number(0, unit="a loss", above=True)),
    "checkpoint.every": or_null(whole(1), "no checkpoint"),
    "throughput.start": or_null(whole(0)),
    "throughput.stop": or_null(whole(1)),
    "sweep.sample": or_null(whole(1), "the whole grid"),
    "sweep.repeats": or_null(whole(1, 1000), "one run"),
    "sweep.seed": whole(0, LARGEST_SEED),
    "sweep.cooldown_s": SECONDS,
    "sweep.cool_wait_s": SECONDS,
    "sweep.cool_below_c": or_null(number(ABSOLUTE_ZERO_C, unit="degrees Celsius", above=True)),
    "sweep.max_failures": or_null(whole(1), "no limit"),
    "sweep.timeout_s": LIMIT_S,
    "sweep.hung_after_s": LIMIT_S,
    "machine.root": FOLDER,
    "machine.lock_dir": or_null(WRITABLE),
    "machine.state_dir": or_null(WRITABLE),
    "device.accelerator": one_of("auto", "cpu", "cuda"),
    "device.python": or_null(TEXT, "the Python of this command"),
    "dataset.root": or_null(TEXT),
    "dataset.on_bad": one_of("error", "skip"),
    "dataset.count": whole(1),
    "dataset.classes": or_null(whole(1)),
    "dataset.channels": whole(1),
    "dataset.size": whole(1),
    "dataset.features": whole(1),
    "dataset.normalize": Rule(
        "mean and std, each a list of numbers, those of std above 0", lambda value: is_scale(value)
    ),
    "dataset.words": whole(5, 10**6),  # four are marks
    "dataset.pixels": whole(32, 4096),
    "dataset.length": whole(2),
    "dataset.held_out": whole(2),
    "dataset.seed": whole(0, LARGEST_SEED),
    "dataset.file_bytes": or_null(whole(1)),
    "dataset.space_bytes": or_null(whole(0)),
    "storage.root": TEXT,
    "storage.medium": or_null(one_of(*MEDIA), "any"),
    "storage.reread": FLAG,
    "optimizer.lr": number(0),
    "optimizer.momentum": number(0),
    "optimizer.weight_decay": number(0),
    "scheduler.step_size": whole(1),
    "scheduler.T_max": whole(1),
    "scheduler.gamma": number(0, above=True),
    "scheduler.eta_min": number(0),
    "strategy.timeout_s": number(0, unit="seconds", above=True),
    "model.channels": whole(1),
    "model.classes": or_null(whole(1)),
    "model.features": whole(1),
    "model.words": whole(1),
    "model.length": whole(1),
    "model.dropout": SHARE,
    "model.width": whole(1),
    "model.layers": whole(1),
    "model.heads": whole(1),
    "model.hidden": whole(1),
    "task.auxiliary": number(0),
    "meter.period_s": number(0, unit="seconds", above=True),
    "meter.idle_s": SECONDS,
    "meter.tdp_w": or_null(number(0, unit="watts", above=True)),
    "meter.cross_check": FLAG,
    "meter.file": or_null(FILE),
    "meter.rails": or_null(MAPPING),
    "device.rails": or_null(MAPPING),
    "device.match": or_null(MAPPING),
    "profiler.warmup_steps": whole(0),
    "profiler.steps": whole(1, LARGEST),
    "tracking.experiment": TEXT,
    "tracking.uri": or_null(TEXT),
    "tracking.tensorboard": FLAG,
    "format": one_of("table", "json"),
    "out": or_null(TEXT),
    "source": TEXT,
    "report.eta": number(0, 1),
    "report.max_slowdown": number(1, unit="a multiple of the fastest's time"),
    "report.power_budget": or_null(number(0, unit="watts", above=True)),
    "report.deadline": or_null(number(0, unit="seconds", above=True)),
    "report.predict": FLAG,
}
"""The allowed values of each key of all commands. The rule of a group's key holds for each choice with this key."""
REQUIRED = required_keys(Job)
"""Keys that must be there: those of a group, in every choice of it."""


def check_keys(keys: Mapping[str, Any]) -> None:
    """Refuse unknown keys, and a choice of a group that lacks a required one; InputError."""
    if strangers := sorted(set(keys) - KNOWN):
        raise InputError(unknown(strangers[0]))
    if lacking := [key for key in REQUIRED if value_of(keys, key) is ABSENT]:
        raise InputError(*(Problem(f"`{key}` is missing", f"set it: `{key}=` (docs/extending.md)") for key in lacking))


def check(job: Job) -> None:
    """Refuse invalid values, each with the allowed values.

    Raises:
        InputError: with one problem for each value.
    """
    check_each(job.to_dict())
    if wrong := list(incompatible(job)):
        raise InputError(*wrong)


def check_each(keys: Mapping[str, Any]) -> None:
    """Refuse invalid values of any command, each with the allowed values; InputError."""
    wrong = [problem for key in RULES for problem in problems_of(key, value_of(keys, key))]
    wrong += [Problem(f"`{key}={typed(value)}` is not valid", "give a finite number that is not empty, or null")
              for key, value in leaves(keys) if key not in RULES and is_nothing(value)]  # fmt: skip
    if wrong:
        raise InputError(*wrong)


def problems_of(key: str, value: Any, rule: Rule | None = None) -> list[Problem]:
    """The problem with a value that its rule does not allow; none for an absent key."""
    rule = rule or RULES[key]
    if value is ABSENT or rule.fits(value):
        return []
    return [Problem(f"`{key}={typed(value)}` is not valid", f"give {rule.allowed}")]


def value_of(job: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key, or ABSENT."""
    value: Any = job
    for name in key.split("."):
        value = value.get(name, ABSENT) if isinstance(value, Mapping) else ABSENT
    return value


def leaves(tree: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a tree of mappings and lists, with its dotted key."""
    parts = tree.items() if isinstance(tree, Mapping) else enumerate(tree) if isinstance(tree, list) else ()
    if not isinstance(tree, Mapping | list):
        yield key, tree
    for name, value in parts:
        yield from leaves(value, f"{key}.{name}" if key else str(name))


def is_nothing(value: Any) -> bool:
    """Whether a value is a number that is not finite, or an empty text: both are invalid for every key."""
    return value == "" or (isinstance(value, float) and not math.isfinite(value))


def is_scale(value: Any) -> bool:
    """Whether samples can be normalized by a value: by lists of numbers, the mean and the standard deviation."""
    rules = {"mean": number(), "std": number(0, above=True)}
    parts = [(value.get(name), rule) for name, rule in rules.items()] if isinstance(value, Mapping) else []
    return bool(parts) and all(isinstance(part, list) and part and all(map(rule.fits, part)) for part, rule in parts)


def is_writable(folder: Path) -> bool:
    """Whether a file can be created in a folder, or in its nearest existing parent folder."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path))
    try:
        with tempfile.TemporaryFile(dir=there):
            return True
    except OSError:
        return False


def incompatible(job: Job) -> Iterator[Problem]:
    """Problems with combinations of values that are each valid."""
    dataset, strategy = job.dataset, job.strategy
    yield from problems_of("dataset.layout", dataset.layout, one_of(*layouts(dataset)))
    preprocess = dataset.preprocess
    if not isinstance(preprocess, str) or (preprocess not in PREPROCESSING and "." not in preprocess):
        how = f"give one of {', '.join(PREPROCESSING)}, or the dotted path of a function"
        yield Problem(f"`dataset.preprocess={typed(preprocess)}` is not valid", how)
    yield from wrong_ranks(strategy, dataset)
    yield from wrong_steps(job.throughput)
    if job.throughput.exit and dataset.on_bad == "skip":
        yield Problem("`throughput.exit=true` needs every sample, and `dataset.on_bad=skip` skips some",
                      "give dataset.on_bad=error")  # fmt: skip
    if strategy.name == "dp" and job.precision in (Precision.bf16, Precision.fp16):
        yield Problem(f"`precision={job.precision}` has no effect in the threads of strategy=dp", "give strategy=ddp")
    if job.deterministic and job.cudnn_benchmark:
        yield Problem("`cudnn_benchmark=true` may choose different algorithms in each run", "give deterministic=false")
    if job.target_accuracy is not None and job.task.name == "regression":
        yield Problem(f"`target_accuracy={job.target_accuracy}`: task=regression has no accuracy", "give target_loss=")


def wrong_ranks(strategy: Strategy, dataset: Dataset) -> Iterator[Problem]:
    """What is wrong with the ranks asked for, and with what they cannot do together."""
    name, ranks = strategy.name, strategy.ranks
    rule = whole(1) if strategy.has_processes else or_null(whole(1), "all GPUs")
    if name == "single" and ranks != 1:
        yield Problem(f"`strategy.ranks={typed(ranks)}`: strategy=single is one rank",
                      f"add strategy=ddp or strategy=dp: strategy=ddp strategy.ranks={typed(ranks)}")  # fmt: skip
    elif problems := problems_of("strategy.ranks", ranks, rule):
        yield from problems
    elif strategy.has_processes and dataset.on_bad == "skip":
        yield Problem(f"`dataset.on_bad=skip`: the ranks of strategy={name} all take the same number of steps",
                      "give dataset.on_bad=error")  # fmt: skip


def wrong_steps(throughput: Throughput) -> Iterator[Problem]:
    """What is wrong with the steps between which throughput is asked for."""
    start, stop = throughput.start, throughput.stop
    if stop is None and start is None:
        if throughput.exit:
            yield Problem(
                "`throughput.exit=true` needs a step to end at", "give throughput.start= and throughput.stop="
            )
    elif start is None or stop is None:
        missing, there = ("start", "stop") if start is None else ("stop", "start")
        yield Problem(
            f"`throughput.{there}={start if stop is None else stop}` is only one end of an interval",
            f"give throughput.{missing}= too",
        )
    elif start >= stop:
        yield Problem(f"`throughput.start={start}` is not below throughput.stop={stop}", "give a smaller start")


def layouts(dataset: Dataset) -> Sequence[str]:
    """What a dataset's layout may be: those that it says how to open; with but one way to, what it is said to be."""
    opened = dataset.open
    if not opened:
        return ["tensors"]
    return [dataset.layout] if "_target_" in opened else list(opened)


def typed(value: Any) -> str:
    """A value as one types it."""
    return value if isinstance(value, str) else json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")
