"""Allowed values: one rule per key, and rules for combinations of keys."""

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from epochmeter.config.errors import InputError, Problem
from epochmeter.config.schema import Dataset, Job, Strategy, Throughput

STORAGE_MEDIA = ("nvme", "ssd", "ssd_usb", "hdd", "hdd_usb", "sd", "emmc", "ram", "network", "virtual", "unknown")
"""Kinds of storage devices that `machine.disk.Disk` can have."""
PREPROCESSING = ("resize", "crop", "pad")
ABSENT = object()  # value of a key that does not exist
MAX_INTEGER = 10**9  # largest count: more is a typing error, and exceeds the 32-bit integers in PyTorch
MAX_SEED = 2**32 - 1  # largest seed of NumPy's generators
ABSOLUTE_ZERO_C = -273.15
MAX_NAME_BYTES = 255  # longest name of a file in all common file systems
UNMEASURED_THROUGHPUT = Throughput(start=None, stop=None, exit=False)


class Rule(NamedTuple):
    """The allowed values of a key; `allowed` describes them and follows "give" in a hint."""

    allowed: str
    is_allowed: Callable[[object], bool]


def whole_number(low: int, high: float = math.inf) -> Rule:
    most = "" if high == math.inf else f", at most {high:,}"
    return Rule(f"a whole number, {low} or more{most}", lambda value: type(value) is int and low <= value <= high)


def finite_number(low: float = -math.inf, high: float = math.inf, unit: str = "a number", above: bool = False) -> Rule:
    """Return the rule for finite numbers from `low`, or above it, to `high`."""
    least = "" if low == -math.inf else f", above {low:g}" if above else f", {low:g} or more"
    most = "" if high == math.inf else f", and at most {high:g}"

    def is_allowed(value: Any) -> bool:
        return is_finite(value) and low <= value <= high and not (above and value == low)

    return Rule(f"{unit}{least}{most}", is_allowed)


def positive(unit: str = "a number", high: float = math.inf) -> Rule:
    return finite_number(0, high, unit, above=True)


def one_of(*words: str) -> Rule:
    return Rule(f"one of {', '.join(words)}", lambda value: format_value(value) in words)


def or_null(rule: Rule) -> Rule:
    return Rule(f"{rule.allowed}, or null", lambda value: value is None or rule.is_allowed(value))


def either(allowed: str, *rules: Rule) -> Rule:
    return Rule(allowed, lambda value: any(rule.is_allowed(value) for rule in rules))


def is_finite(value: object) -> bool:
    """Return whether a value is a number that a float can hold; true and false are not numbers."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def is_patterns(value: object) -> bool:
    """Return whether a value is a mapping whose values are valid regular expressions."""
    try:
        return isinstance(value, Mapping) and all(map(re.compile, value.values()))
    except (re.error, TypeError):
        return False


def is_location(value: object) -> bool:
    """Return whether a value can be a path: `~` is the home of an existing user, and no name is too long for a file."""
    path = os.path.expanduser(value) if isinstance(value, str) else ""
    has_valid_names = all(len(os.fsencode(name)) <= MAX_NAME_BYTES for name in path.split("/"))
    return bool(path.strip()) and not path.startswith("~") and has_valid_names


def is_sensor(value: object) -> bool:
    """Return whether a value is the response of a power sensor, in seconds; null, also in a field, means unknown."""
    return value is None or (
        isinstance(value, Mapping)
        and value.keys() <= SENSOR_FIELDS
        and all(NOT_NEGATIVE.is_allowed(part) or (part is None and key != "lag_s") for key, part in value.items())
    )


def is_normalization(value: object) -> bool:
    """Return whether a value has lists of numbers `mean` and `std`, by which samples can be normalized."""
    lists = [value.get(name, []) for name in ("mean", "std")] if isinstance(value, Mapping) else [[]]
    has_numbers = all(isinstance(part, list) and part and all(map(is_finite, part)) for part in lists)
    return has_numbers and min(lists[-1]) > 0


COUNT, POSITIVE_COUNT = whole_number(0), whole_number(1)
NOT_NEGATIVE = finite_number(0)
FLAG = Rule("one of true, false", lambda value: isinstance(value, bool))
TEXT = Rule("a non-empty text", lambda value: isinstance(value, str) and bool(value.strip()))
LOCATION = Rule("the path of a folder, with names of up to 255 bytes, in which ~ is the home of a user", is_location)
FOLDER = Rule("an existing folder", lambda value: isinstance(value, str) and os.path.isdir(value))
PRIOR = Rule(
    "folders of sweeps, such as multirun/SWEEP or [multirun/A,multirun/B]",
    lambda value: all(map(FOLDER.is_allowed, value if isinstance(value, list) and value else [value])),
)
PATH = Rule("an existing file or folder", lambda value: isinstance(value, str) and os.path.exists(value))
MAPPING = Rule("a mapping, {key: value}", lambda value: isinstance(value, Mapping))
PATTERNS = Rule("host facts with valid regular expressions, {model: Jetson}", is_patterns)
SENSOR_FIELDS = {"averaging_s", "lag_s", "renewal_s"}
SENSORS = Rule(
    "seconds by sensor, {ina3221: {averaging_s: 0.1, lag_s: 0, renewal_s: 0.1}}",
    lambda value: isinstance(value, Mapping) and all(map(is_sensor, value.values())),
)
NORMALIZATION = Rule("mean and std, {mean: [0.5], std: [0.5]}, with std above 0", is_normalization)
NAMES = Rule("a list of names, [a,b]", lambda value: isinstance(value, list) and all(map(TEXT.is_allowed, value)))
METERS = Rule(
    "a list of meters, [{_target_: ...}]",
    lambda value: isinstance(value, list) and all(isinstance(part, Mapping) and "_target_" in part for part in value),
)
WATTS_OR_MODE = either("watts above 0, a power mode such as MAXN, auto", TEXT, positive())
INTENSITY = either("grams of CO2e per kWh, 0 or more, a country such as FRA, or a CSV file", TEXT, NOT_NEGATIVE)
SECONDS = finite_number(0, unit="seconds")
ANY_VALUE = Rule(
    "a finite number, a non-empty text, or null",
    lambda value: value != "" and not (isinstance(value, float) and not math.isfinite(value)),
)

RULE_TABLE = (
    ("batch epochs prefetch profiler.steps measure.steps_per_window", whole_number(1, MAX_INTEGER)),
    ("seed sweep.seed dataset.seed", whole_number(0, MAX_SEED)),
    ("repeat", whole_number(0, MAX_INTEGER)),
    ("warmup_epochs profiler.warmup_steps profiler.start", COUNT),
    ("lr_batch scheduler.step_size scheduler.T_max profiler.stop", POSITIVE_COUNT),
    ("dataset.count dataset.channels dataset.size dataset.features", POSITIVE_COUNT),
    ("model.channels model.words model.length", POSITIVE_COUNT),
    ("model.width model.layers model.heads model.hidden", POSITIVE_COUNT),
    ("dataset.classes dataset.file_bytes model.classes throughput.stop", or_null(POSITIVE_COUNT)),
    ("auto.recheck_epochs checkpoint.every sweep.sample", or_null(POSITIVE_COUNT)),
    ("sweep.repeats", or_null(whole_number(1, 1000))),
    ("dataset.space_bytes throughput.start", or_null(COUNT)),
    ("dataset.length dataset.held_out", whole_number(2)),
    ("dataset.words", whole_number(6, 10**6)),  # including four special tokens and a comma
    ("dataset.pixels", whole_number(32, 4096)),
    ("report.next", whole_number(0, 100)),
    ("port", or_null(whole_number(0, 65_535))),
    ("workers", either("auto, or a whole number, 0 or more", one_of("auto"), COUNT)),
    ("pin_memory rehearse", one_of("auto", "true", "false")),
    ("meter.cross_check tracking.tensorboard", FLAG),
    ("report.predict footprint.export once page metrics", FLAG),
    ("compile evaluate deterministic cudnn_benchmark channels_last persistent_workers synthetic_batches", FLAG),
    ("drop_caches drop_last log_loss save_model throughput.exit sweep.again sweep.resume measure.lock", FLAG),
    ("model.name profiler.program tracking.experiment", TEXT),
    ("storage.root", LOCATION),
    ("dataset.root machine.lock_dir machine.state_dir", or_null(LOCATION)),
    ("tracking.uri out", or_null(TEXT)),
    ("footprint.currency host token device.python device.slurm.python", or_null(TEXT)),
    ("device.accelerator", one_of("auto", "cpu", "cuda")),
    ("dataset.on_bad", one_of("error", "skip")),
    ("storage.medium", or_null(one_of(*STORAGE_MEDIA))),
    ("format", one_of("table", "json")),
    ("source", one_of("records", "mlflow")),
    ("where", or_null(MAPPING)),
    ("report.baseline", or_null(either("{key: value}, defaults", one_of("defaults"), MAPPING))),
    ("view", or_null(one_of("trace", "perfetto"))),
    ("machine.root", FOLDER),
    ("sweep.prior", or_null(PRIOR)),
    ("measure.data", or_null(PATH)),
    ("dataset.normalize", NORMALIZATION),
    ("meter.rails device.rails device.slurm", or_null(MAPPING)),
    ("meter.sensors device.sensors", or_null(SENSORS)),
    ("device.match", or_null(PATTERNS)),
    ("meter.rails.total device.rails.total", NAMES),
    ("meter.parts", METERS),
    ("sweep.cool_wait_s meter.idle_s", SECONDS),
    ("strategy.timeout_s profiler.timeout_s meter.period_s", positive("seconds")),
    ("sweep.timeout_s sweep.hung_after_s machine.gauges_period_s report.deadline", or_null(positive("seconds"))),
    ("optimizer.lr optimizer.momentum optimizer.weight_decay", NOT_NEGATIVE),
    ("scheduler.eta_min task.auxiliary", NOT_NEGATIVE),
    ("scheduler.gamma", positive()),
    ("model.dropout auto.eta report.eta", finite_number(0, 1)),
    ("footprint.price footprint.embodied_g", or_null(NOT_NEGATIVE)),
    ("footprint.intensity", or_null(INTENSITY)),
    ("footprint.pue", or_null(finite_number(1, unit="a ratio"))),
    ("power_limit", or_null(WATTS_OR_MODE)),
    ("auto.max_slowdown", or_null(finite_number(1, unit="a multiple of the time without a new limit"))),
    ("report.max_slowdown", finite_number(1, unit="a multiple of the shortest time")),
    ("auto.confidence", finite_number(0.5, 0.999, "a probability")),
    ("meter.tdp_w auto.power_budget report.power_budget", or_null(positive("watts"))),
    ("target_accuracy", or_null(positive("a fraction", 1))),
    ("target_loss", or_null(positive("a loss"))),
    ("sweep.cool_below_c", or_null(finite_number(ABSOLUTE_ZERO_C, unit="degrees Celsius", above=True))),
    ("gate.time gate.energy", or_null(positive("a ratio"))),
)
RULES = {key: rule for keys, rule in RULE_TABLE for key in keys.split()}
"""Allowed values by key, for all commands. A rule for a key of a group applies to all options with this key."""


def check_values(job: Job) -> None:
    """Check all values of a training configuration; raises InputError with one problem per invalid value."""
    check_all_values(job.to_dict())
    if problems := list(combination_problems(job)):
        raise InputError(*problems)


def check_all_values(keys: Mapping[str, object]) -> None:
    """Check the values of any command by the rules for single keys; raises InputError."""
    problems = [problem for key in RULES for problem in problems_of(key, value_of(keys, key))]
    if not problems:  # keys without a rule often refer to keys with one, as `model.architecture` to `model.name`
        for key, value in flatten(keys, lists=True):
            if key not in RULES and not key.startswith("measure.command."):
                problems += problems_of(key, value, ANY_VALUE)
    if problems:
        raise InputError(*problems)


def problems_of(key: str, value: object, rule: Rule | None = None) -> list[Problem]:
    """Return the problem of a value by its rule; an empty list if the value is allowed or absent."""
    rule = rule or RULES[key]
    if value is ABSENT or rule.is_allowed(value):
        return []
    return [Problem(f"`{key}={format_value(value)}` is not valid", f"give {rule.allowed}")]


def value_of(keys: object, key: str) -> object:
    """Return the value of a dotted key (empty: all keys), or ABSENT."""
    for name in filter(None, key.split(".")):
        keys = keys.get(name, ABSENT) if isinstance(keys, Mapping) else ABSENT
    return keys


def flatten(tree: Mapping[Any, Any], prefix: str = "", lists: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the (dotted key, value) pairs of nested mappings, and of lists in them if `lists` is set."""
    for name, value in tree.items():
        node = dict(enumerate(value)) if lists and isinstance(value, list) else value
        if isinstance(node, Mapping) and node:
            yield from flatten(node, f"{prefix}{name}.", lists)
        else:
            yield f"{prefix}{name}", value


def combination_problems(job: Job) -> Iterator[Problem]:
    """Yield problems of combinations of values that are valid by themselves."""
    dataset, preprocess = job.dataset, job.dataset.preprocess
    opened = dataset.open or {"tensors": None}
    layouts = [dataset.layout] if "_target_" in opened else opened
    yield from problems_of("dataset.layout", dataset.layout, one_of(*layouts))
    if not isinstance(preprocess, str) or "." not in preprocess:
        named = one_of(*PREPROCESSING)
        rule = Rule(f"{named.allowed}, or the dotted path of a function", named.is_allowed)
        yield from problems_of("dataset.preprocess", preprocess, rule)
    yield from rank_problems(job.strategy, dataset)
    start, stop = job.throughput.start, job.throughput.stop
    if not (start is not None and stop is not None and start < stop) and job.throughput != UNMEASURED_THROUGHPUT:
        yield Problem(f"`throughput={{start: {format_value(start)}, stop: {format_value(stop)}}}` is not an interval",
                      "give `throughput.start=` and `throughput.stop=`")  # fmt: skip
    if job.profiler.start >= job.profiler.stop:
        yield Problem(f"`profiler.start={job.profiler.start} profiler.stop={job.profiler.stop}` is not an interval",
                      "give a `profiler.stop=` above `profiler.start=`")  # fmt: skip
    if job.strategy.name == "dp" and job.precision in ("bf16", "fp16"):
        yield Problem(f"`precision={job.precision}` has no effect in the threads of strategy=dp", "give `strategy=ddp`")
    if job.deterministic and job.cudnn_benchmark:
        yield Problem("`cudnn_benchmark=true` may select other algorithms in each run; `deterministic=true` forbids it",
                      "give `cudnn_benchmark=false` or `deterministic=false`")  # fmt: skip
    if job.power_limit == "auto" and job.clocks == "locked":
        yield Problem("`clocks=locked` forbids `power_limit=auto`: a power mode cannot change while clocks are locked",
                      "give `clocks=keep`, or name a power mode: `power_limit=`")  # fmt: skip


def rank_problems(strategy: Strategy, dataset: Dataset) -> Iterator[Problem]:
    name, ranks = strategy.name, strategy.ranks
    if name == "single" and ranks != 1:
        value = format_value(ranks)
        yield Problem(f"`strategy.ranks={value}` is not valid: strategy=single has one rank",
                      f"for several ranks: `strategy=ddp strategy.ranks={value}`, or strategy=dp")  # fmt: skip
        return
    rule = POSITIVE_COUNT if strategy.has_processes else or_null(POSITIVE_COUNT)
    yield from problems_of("strategy.ranks", ranks, rule)
    if strategy.has_processes and dataset.on_bad == "skip":
        yield Problem(f"`dataset.on_bad=skip` is not valid: all ranks of strategy={name} need the same number of steps",
                      "give `dataset.on_bad=error`")  # fmt: skip


def format_value(value: object) -> str:
    """Return a value as it is written in an override."""
    return value if isinstance(value, str) else json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")
