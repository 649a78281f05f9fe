"""Allowed values: one rule per key, and rules for combinations of keys."""

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
from epochmeter.config.suggestions import TOP_LEVEL_KEYS, unknown_key_problem

STORAGE_MEDIA = ("nvme", "ssd", "ssd_usb", "hdd", "hdd_usb", "sd", "emmc", "ram", "network", "virtual", "unknown")
"""Kinds of storage devices that `machine.disk.Disk` can have."""
PREPROCESSING = ("resize", "crop", "pad")
ABSENT = object()
"""Value of a key that does not exist."""
MAX_INTEGER = 10**9
"""Largest count: more is a typing error, and exceeds the 32-bit integers in PyTorch."""
MAX_SEED = 2**32 - 1
"""Largest seed of NumPy's generators."""
ABSOLUTE_ZERO_C = -273.15


class Rule(NamedTuple):
    """The allowed values of a key.

    Attributes:
        allowed: Description of the allowed values, which follows "give" in a hint.
        fits: Returns whether a value is allowed.
    """

    allowed: str
    is_allowed: Callable[[Any], bool]


def whole_number(low: int, high: int | None = None) -> Rule:
    """Return the rule for integers from `low` to `high`, or without an upper bound."""
    words = f"{low} or more" + ("" if high is None else f", at most {high:,}")
    return Rule(
        f"a whole number, {words}",
        lambda value: type(value) is int and low <= value <= (math.inf if high is None else high),
    )


def finite_number(
    low: float = -math.inf, high: float = math.inf, unit: str = "a number", *, above: bool = False
) -> Rule:
    """Return the rule for finite numbers from `low` to `high`; with `above`, greater than `low`."""
    words = f"above {low:g}" if above else f"{low:g} or more"
    words = "" if low == -math.inf else f", {words}" + ("" if high == math.inf else f", and at most {high:g}")

    def fits(value: Any) -> bool:
        is_number = type(value) in (int, float) and math.isfinite(value)
        return is_number and (low < value if above else low <= value) and value <= high

    return Rule(f"{unit}{words}", fits)


def one_of(*choices: str) -> Rule:
    """Return the rule for a set of words, such as `true` and `false`."""
    return Rule(f"one of {', '.join(choices)}", lambda value: format_value(value) in choices)


def or_null(rule: Rule, meaning: str = "") -> Rule:
    """Return a rule that also allows null, with `meaning` as the meaning of null."""
    return Rule(
        f"{rule.allowed}, or null{meaning and f' for {meaning}'}", lambda value: value is None or rule.is_allowed(value)
    )


FLAG = one_of("true", "false")
TEXT = Rule("a non-empty text", lambda value: isinstance(value, str) and bool(value.strip()))
FOLDER = Rule("an existing folder", lambda value: isinstance(value, str) and Path(value).is_dir())
FILE = Rule("an existing file", lambda value: isinstance(value, str) and Path(value).is_file())
MAPPING = Rule("a mapping, {key: value}", lambda value: isinstance(value, Mapping))
WRITABLE = Rule("a writable folder", lambda value: isinstance(value, str) and is_writable(Path(value)))
SECONDS = finite_number(0, unit="seconds")
LIMIT_S = or_null(finite_number(0, unit="seconds", above=True), "no limit")
FRACTION = finite_number(0, 1, "a fraction")

RULES = {
    "batch": whole_number(1, MAX_INTEGER),
    "epochs": whole_number(1, MAX_INTEGER),
    "seed": whole_number(0, MAX_SEED),
    "repeat": whole_number(0, MAX_INTEGER),
    "workers": Rule(
        "auto, or a whole number, 0 or more", lambda value: value == "auto" or whole_number(0).is_allowed(value)
    ),
    "prefetch": whole_number(1, MAX_INTEGER),
    "warmup_epochs": whole_number(0),
    "lr_batch": whole_number(1),
    "pin_memory": one_of("auto", "true", "false"),
    "rehearse": one_of("auto", "true", "false"),
    "power_limit": or_null(
        Rule(
            "watts above 0, a power mode such as MAXN",
            lambda value: TEXT.is_allowed(value) or finite_number(0, above=True).is_allowed(value),
        )
    ),
    "target_accuracy": or_null(finite_number(0, 1, "a fraction", above=True)),
    "target_loss": or_null(finite_number(0, unit="a loss", above=True)),
    "checkpoint.every": or_null(whole_number(1), "no checkpoint"),
    "throughput.start": or_null(whole_number(0)),
    "throughput.stop": or_null(whole_number(1)),
    "sweep.sample": or_null(whole_number(1), "the complete grid"),
    "sweep.repeats": or_null(whole_number(1, 1000), "one run"),
    "sweep.seed": whole_number(0, MAX_SEED),
    "sweep.cooldown_s": SECONDS,
    "sweep.cool_wait_s": SECONDS,
    "sweep.cool_below_c": or_null(finite_number(ABSOLUTE_ZERO_C, unit="degrees Celsius", above=True)),
    "sweep.max_failures": or_null(whole_number(1), "no limit"),
    "sweep.timeout_s": LIMIT_S,
    "sweep.hung_after_s": LIMIT_S,
    "machine.root": FOLDER,
    "machine.lock_dir": or_null(WRITABLE),
    "machine.state_dir": or_null(WRITABLE),
    "device.accelerator": one_of("auto", "cpu", "cuda"),
    "device.python": or_null(TEXT, "the Python of this command"),
    "dataset.root": or_null(TEXT),
    "dataset.on_bad": one_of("error", "skip"),
    "dataset.count": whole_number(1),
    "dataset.classes": or_null(whole_number(1)),
    "dataset.channels": whole_number(1),
    "dataset.size": whole_number(1),
    "dataset.features": whole_number(1),
    "dataset.normalize": Rule(
        "mean and std as lists of numbers, with std above 0, such as {mean: [0.5], std: [0.5]}",
        lambda value: is_normalization(value),
    ),
    "dataset.words": whole_number(5, 10**6),  # including four special tokens
    "dataset.pixels": whole_number(32, 4096),
    "dataset.length": whole_number(2),
    "dataset.held_out": whole_number(2),
    "dataset.seed": whole_number(0, MAX_SEED),
    "dataset.file_bytes": or_null(whole_number(1)),
    "dataset.space_bytes": or_null(whole_number(0)),
    "storage.root": TEXT,
    "storage.medium": or_null(one_of(*STORAGE_MEDIA), "any"),
    "storage.reread": FLAG,
    "optimizer.lr": finite_number(0),
    "optimizer.momentum": finite_number(0),
    "optimizer.weight_decay": finite_number(0),
    "scheduler.step_size": whole_number(1),
    "scheduler.T_max": whole_number(1),
    "scheduler.gamma": finite_number(0, above=True),
    "scheduler.eta_min": finite_number(0),
    "strategy.timeout_s": finite_number(0, unit="seconds", above=True),
    "model.name": Rule("the name of a model, such as resnet34", lambda value: TEXT.is_allowed(value)),
    "model.channels": whole_number(1),
    "model.classes": or_null(whole_number(1)),
    "model.features": whole_number(1),
    "model.words": whole_number(1),
    "model.length": whole_number(1),
    "model.dropout": FRACTION,
    "model.width": whole_number(1),
    "model.layers": whole_number(1),
    "model.heads": whole_number(1),
    "model.hidden": whole_number(1),
    "task.auxiliary": finite_number(0),
    "meter.period_s": finite_number(0, unit="seconds", above=True),
    "meter.idle_s": SECONDS,
    "meter.tdp_w": or_null(finite_number(0, unit="watts", above=True)),
    "meter.cross_check": FLAG,
    "meter.file": or_null(FILE),
    "meter.rails": or_null(MAPPING),
    "device.rails": or_null(MAPPING),
    "device.match": or_null(MAPPING),
    "profiler.warmup_steps": whole_number(0),
    "profiler.steps": whole_number(1, MAX_INTEGER),
    "tracking.experiment": TEXT,
    "tracking.uri": or_null(TEXT),
    "tracking.tensorboard": FLAG,
    "format": one_of("table", "json"),
    "out": or_null(TEXT),
    "source": TEXT,
    "report.eta": finite_number(0, 1),
    "report.max_slowdown": finite_number(1, unit="a multiple of the shortest time"),
    "report.power_budget": or_null(finite_number(0, unit="watts", above=True)),
    "report.deadline": or_null(finite_number(0, unit="seconds", above=True)),
    "report.predict": FLAG,
}
"""Allowed values by key, for all commands. A rule for a key of a group applies to all options with this key."""
REQUIRED = required_keys(Job)
"""Keys that must exist; keys of a group in each of its options."""


def check_keys(keys: Mapping[str, Any]) -> None:
    """Refuse unknown keys, and an option of a group that lacks a required key; raises InputError."""
    if extra := sorted(set(keys) - TOP_LEVEL_KEYS):
        raise InputError(unknown_key_problem(extra[0]))
    if missing := [key for key in REQUIRED if value_of(keys, key) is ABSENT]:
        raise InputError(*(Problem(f"`{key}` is missing", f"set it: `{key}=` (docs/extending.md)") for key in missing))


def check_values(job: Job) -> None:
    """Check all values of a training configuration.

    Raises:
        InputError: With one problem and the allowed values for each invalid value.
    """
    check_all_values(job.to_dict())
    if wrong := list(combination_problems(job)):
        raise InputError(*wrong)


def check_all_values(keys: Mapping[str, Any]) -> None:
    """Check the values of any command by the rules for single keys; raises InputError."""
    wrong = [problem for key in RULES for problem in problems_of(key, value_of(keys, key))]
    # Keys without a rule often refer to keys with one, as `model.architecture` to `model.name`.
    wrong = wrong or [
        Problem(f"`{key}={format_value(value)}` is not valid", "give a finite number, a non-empty text, or null")
        for key, value in iter_leaves(keys)
        if key not in RULES and is_empty_or_not_finite(value)
    ]
    if wrong:
        raise InputError(*wrong)


def problems_of(key: str, value: Any, rule: Rule | None = None) -> list[Problem]:
    """Return the problem of a value by its rule; an empty list if the value is allowed or absent."""
    rule = rule or RULES[key]
    if value is ABSENT or rule.is_allowed(value):
        return []
    return [Problem(f"`{key}={format_value(value)}` is not valid", f"give {rule.allowed}")]


def value_of(job: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key, or ABSENT."""
    value: Any = job
    for name in key.split("."):
        value = value.get(name, ABSENT) if isinstance(value, Mapping) else ABSENT
    return value


def iter_leaves(tree: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all values in nested mappings and lists, with their dotted keys."""
    parts = tree.items() if isinstance(tree, Mapping) else enumerate(tree) if isinstance(tree, list) else ()
    if not isinstance(tree, Mapping | list):
        yield key, tree
    for name, value in parts:
        yield from iter_leaves(value, f"{key}.{name}" if key else str(name))


def is_empty_or_not_finite(value: Any) -> bool:
    """Return whether a value is a non-finite number or an empty text, which are invalid for every key."""
    return value == "" or (isinstance(value, float) and not math.isfinite(value))


def is_normalization(value: Any) -> bool:
    """Return whether a value has lists of numbers `mean` and `std`, by which samples can be normalized."""
    rules = {"mean": finite_number(), "std": finite_number(0, above=True)}
    parts = [(value.get(name), rule) for name, rule in rules.items()] if isinstance(value, Mapping) else []
    return bool(parts) and all(
        isinstance(part, list) and part and all(map(rule.is_allowed, part)) for part, rule in parts
    )


def is_writable(folder: Path) -> bool:
    """Return whether a file can be created in a folder, or in its nearest existing parent folder."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path))
    try:
        with tempfile.TemporaryFile(dir=existing):
            return True
    except OSError:
        return False


def combination_problems(job: Job) -> Iterator[Problem]:
    """Yield problems of combinations of values that are valid by themselves."""
    dataset, strategy = job.dataset, job.strategy
    yield from problems_of("dataset.layout", dataset.layout, one_of(*allowed_layouts(dataset)))
    preprocess = dataset.preprocess
    if not isinstance(preprocess, str) or (preprocess not in PREPROCESSING and "." not in preprocess):
        allowed = f"one of {', '.join(PREPROCESSING)}, or the dotted path of a function"
        yield Problem(f"`dataset.preprocess={format_value(preprocess)}` is not valid", f"give {allowed}")
    yield from rank_problems(strategy, dataset)
    yield from throughput_problems(job.throughput)
    if job.throughput.exit and dataset.on_bad == "skip":
        yield Problem("`throughput.exit=true` needs every sample, but `dataset.on_bad=skip` skips samples",
                      "give `dataset.on_bad=error`")  # fmt: skip
    if strategy.name == "dp" and job.precision in (Precision.bf16, Precision.fp16):
        yield Problem(f"`precision={job.precision}` has no effect in the threads of strategy=dp", "give `strategy=ddp`")
    if job.deterministic and job.cudnn_benchmark:
        yield Problem("`cudnn_benchmark=true` may select other algorithms in each run; `deterministic=true` forbids it",
                      "give `cudnn_benchmark=false` or `deterministic=false`")  # fmt: skip
    if job.target_accuracy is not None and job.task.name == "regression":
        yield Problem(f"`target_accuracy={job.target_accuracy}` is not valid: task=regression has no accuracy",
                      "give a loss in place of it: `target_loss=`")  # fmt: skip


def rank_problems(strategy: Strategy, dataset: Dataset) -> Iterator[Problem]:
    """Yield problems of the number of ranks, and of settings that several ranks do not support."""
    name, ranks = strategy.name, strategy.ranks
    rule = whole_number(1) if strategy.has_processes else or_null(whole_number(1), "all GPUs")
    if name == "single" and ranks != 1:
        value = format_value(ranks)
        yield Problem(
            f"`strategy.ranks={value}` is not valid: strategy=single has one rank",
            f"for several ranks: `strategy=ddp strategy.ranks={value}`, or strategy=dp",
        )
    elif problems := problems_of("strategy.ranks", ranks, rule):
        yield from problems
    elif strategy.has_processes and dataset.on_bad == "skip":
        yield Problem(f"`dataset.on_bad=skip` is not valid: all ranks of strategy={name} need the same number of steps",
                      "give `dataset.on_bad=error`")  # fmt: skip


def throughput_problems(throughput: Throughput) -> Iterator[Problem]:
    """Yield problems of the interval of steps for `throughput`."""
    start, stop = throughput.start, throughput.stop
    if stop is None and start is None:
        if throughput.exit:
            yield Problem(
                "`throughput.exit=true` needs a step to end at", "give `throughput.start=` and `throughput.stop=`"
            )
    elif start is None or stop is None:
        missing, given = ("start", "stop") if start is None else ("stop", "start")
        yield Problem(
            f"`throughput.{given}={start if stop is None else stop}` is only one end of an interval",
            f"also give `throughput.{missing}=`",
        )
    elif start >= stop:
        yield Problem(
            f"`throughput.start={start}` is not below throughput.stop={stop}", "give a smaller `throughput.start=`"
        )


def allowed_layouts(dataset: Dataset) -> Sequence[str]:
    """Return the allowed layouts of a dataset: the keys of `dataset.open`, or the only one."""
    opened = dataset.open
    if not opened:
        return ["tensors"]
    return [dataset.layout] if "_target_" in opened else list(opened)


def format_value(value: Any) -> str:
    """Return a value as it is written in an override."""
    return value if isinstance(value, str) else json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")
