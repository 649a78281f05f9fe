"""Check the values of a configuration: by the rule of each key, and by rules for combinations of keys."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from epochmeter.config import rules
from epochmeter.config.entries import COMMANDS
from epochmeter.config.rules import Rule, one_of, or_null
from epochmeter.config.schema import RULES_OF_OPTIONS, Dataset, Job, Strategy, Throughput, rules_of
from epochmeter.shared.problem import InputError, Place, Problem

PREPROCESSING = ("resize", "crop", "pad")
ABSENT = object()  # value of a key that does not exist


@cache
def key_rules(command: str = "train") -> Mapping[str, Rule]:
    """Return the rules of a command's keys, by their dotted names; those of a group apply to all of its options."""
    return {
        **dict(rules_of(COMMANDS[command])),
        **{key: rule for keys, rule in RULES_OF_OPTIONS for key in keys.split()},
    }


def check_values(job: Job) -> None:
    """Check all values of a training configuration; raises InputError with one problem per invalid value."""
    check_all_values(job.to_dict())
    if problems := list(combination_problems(job)):
        raise InputError(*problems)


def check_all_values(keys: Mapping[str, object], command: str = "train") -> None:
    """Check the values of a command by the rules for single keys; raises InputError."""
    rule_by_key = key_rules(command)
    problems = [problem for key, rule in rule_by_key.items() for problem in problems_of(key, value_of(keys, key), rule)]
    if not problems:  # keys without a rule often refer to keys with one, as `model.architecture` to `model.name`
        for key, value in flatten(keys, lists=True):
            if key not in rule_by_key and not key.startswith("measure.command."):
                problems += problems_of(key, value, default_rule(key))
    if problems:
        raise InputError(*problems)


def default_rule(key: str) -> Rule:
    """Return the rule for a key without one of its own."""
    *sections, name = key.split(".")
    if rules.TARGET_KEY in sections:
        return rules.TARGET._replace(is_allowed=lambda value: False)
    return rules.TARGET if name == rules.TARGET_KEY else rules.ANY_VALUE


def problems_of(key: str, value: object, rule: Rule | None = None) -> list[Problem]:
    """Return the problem of a value by its rule, or by that in training; empty if the value is allowed or absent."""
    rule = rule or key_rules()[key]
    if value is ABSENT or rule.is_allowed(value):
        return []
    message = f"`{key}={format_value(value)}` is not valid"
    return [Problem(message, f"give {rule.allowed}", where=Place(key=key))]


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
    if not (start is not None and stop is not None and start < stop) and job.throughput != Throughput():
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
    if job.power_limit == job.gpu_clock == "auto":
        yield Problem("`power_limit=auto` and `gpu_clock=auto` are two searches, and a run can do one of them",
                      "give a value for one of them, or leave it out")  # fmt: skip
    if job.gpu_clock == "auto" and job.auto.objective == "eta":
        yield Problem("`auto.objective=eta` needs a limit in watts, which `gpu_clock=auto` does not have",
                      "give `auto.objective=energy`, `time` or `edp`")  # fmt: skip


def rank_problems(strategy: Strategy, dataset: Dataset) -> Iterator[Problem]:
    name, ranks = strategy.name, strategy.ranks
    if name == "single" and ranks != 1:
        value = format_value(ranks)
        yield Problem(f"`strategy.ranks={value}` is not valid: strategy=single has one rank",
                      f"for several ranks: `strategy=ddp strategy.ranks={value}`")  # fmt: skip
        return
    rule = rules.POSITIVE_COUNT if strategy.has_processes else or_null(rules.POSITIVE_COUNT)
    yield from problems_of("strategy.ranks", ranks, rule)
    if strategy.has_processes and dataset.on_bad == "skip":
        yield Problem(f"`dataset.on_bad=skip` is not valid: all ranks of strategy={name} need the same number of steps",
                      "give `dataset.on_bad=error`")  # fmt: skip


def format_value(value: object) -> str:
    """Return a value as it is written in an override."""
    return value if isinstance(value, str) else json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")
