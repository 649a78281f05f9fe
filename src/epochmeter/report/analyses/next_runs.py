"""Suggest the next runs: commands that change the bottleneck of the best configurations and were not run yet."""

import itertools
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from epochmeter.config.installation import with_own_commands
from epochmeter.report.analyses.best import Best
from epochmeter.report.runs.configuration import DATA_PARALLEL, Configuration
from epochmeter.report.runs.costs import LIMIT, costs, positive_values
from epochmeter.report.runs.data_source import FROM_STORAGE, by_stall_analysis
from epochmeter.report.runs.run import REPEATED
from epochmeter.results.bottleneck import COMPUTE, FETCH_STALL, PREP_STALL, STALLS, Bottleneck
from epochmeter.results.measured_run import half_precision, more_workers
from epochmeter.results.next_step_rules import WHY

OWN = (*REPEATED, "tracking", "sweep", "hydra")  # overrides that are not part of the configuration
MAX_COMMANDS = 4  # half of them for time and half for energy
LOWER = 0.75  # the next power limit, as a fraction of the lowest power or limit so far
RULES = {
    "batch": "batch",
    "cache": "warm_cache",
    "compile": "compile",
    "dataset.layout": "decoded",
    "persistent_workers": "persistent_workers",
    "precision": "precision",
    "workers": "more_workers",
}
"""Key -> the rule for the next steps of a run that changes it, whose reason holds here too."""


@dataclass(frozen=True)
class Suggestion:
    """A command whose run may be better than the best so far, since it changes a `key`.

    Attributes:
        rule: The rule for the next steps of a run whose reason holds here too, if it is not that of the key.
    """

    command: str
    key: str
    bottleneck: Bottleneck
    has_limits: bool = False
    rule: str = ""

    @property
    def why(self) -> str:
        """Why the change may help; empty for changes that only a sweep can judge."""
        return WHY.get(self.rule or RULES.get(self.key, ""), "")


def suggest_runs(
    configurations: Sequence[Configuration], choices: Sequence[Best], bottlenecks: Mapping[Configuration, Bottleneck]
) -> list[Suggestion]:
    """Suggest runs that may be faster, then some that may need less energy; none for scripts of unknown keys.

    Args:
        configurations: All configurations that were started, including those that failed or are not candidates.
    """
    if any(map(command_of, configurations)):
        return []
    best = {choice.name: choice for choice in reversed(choices)}
    suggestions: dict[str, Suggestion] = {}
    for name, ways in (("fastest", _faster), ("least_energy", _save_energy)):
        if name not in best or (bottleneck := bottlenecks.get(configuration := best[name].configuration)) is None:
            continue
        tried = [other for other in configurations if other.value("model") == configuration.value("model")]
        has_limits = any(positive_values(other, LIMIT) for other in tried)
        changes = ways(configuration, bottleneck.parts[0], tried)
        new = ((key, value) for key, value in changes if value not in _values(key, tried))
        for key, value in itertools.islice(new, MAX_COMMANDS // 2):
            command = command_line(configuration, {key: value})
            rule = "start_workers" if key == "workers" and not configuration.job.get("workers") else ""
            suggestions.setdefault(command, Suggestion(command, key, bottleneck, has_limits, rule))
    return [*suggestions.values()]


def command_line(configuration: Configuration, changed: Mapping[str, str]) -> str:
    """Return the shell command of a configuration, or of a measured script, with some keys changed."""
    added = {key.lstrip("+"): key for key in configuration.runs[0].added}
    overrides = configuration.runs[0].keys.items()
    keys = {**{key: value for key, value in overrides if key.partition(".")[0] not in OWN}, **changed}
    words = [shlex.quote(f"{added.get(key, key)}={value}") for key, value in keys.items()]
    script = command_of(configuration)
    program = with_own_commands("python src/measure.py" if script else "python src/train.py")
    return " ".join([program, *words, *(["--", *map(shlex.quote, script)] if script else [])])


def command_of(configuration: Configuration) -> Sequence[str]:
    """Return the command of a measured script; empty for a training of this project."""
    return configuration.job.get("measure", {}).get("command") or ()


def _faster(configuration: Configuration, largest: str, tried: Sequence[Configuration]) -> Iterator[tuple[str, str]]:
    """Yield a key and its new value, the most promising first, by the largest part of the epoch."""
    job, ran_on = configuration.job, configuration.runs[0].platform
    if largest in STALLS:
        analyses = by_stall_analysis([run for other in tried for run in other.runs])
        # A stall analysis predicts the effect of such changes.
        if not any(run in configuration.runs for sources in analyses for run in sources[FROM_STORAGE]):
            yield from _faster_data(configuration, largest)
        return
    accelerated = (job.get("device") or {}).get("accelerator", "cpu") != "cpu"
    may_autocast = job.get("precision") == "fp32" and configuration.strategy != DATA_PARALLEL
    if largest == COMPUTE and accelerated and may_autocast:
        yield "precision", half_precision(ran_on.get("GPU", ""), ran_on.get("board", ""))
    batch = job.get("batch")  # unknown for a measured script
    if batch and batch == max(other.job.get("batch") or 0 for other in tried):  # else larger batches were slower
        yield "batch", str(2 * batch)
    if largest == COMPUTE and not job.get("compile", True) and ran_on.get("torch", "") >= "2":
        yield "compile", "true"


def _faster_data(configuration: Configuration, stall: str) -> Iterator[tuple[str, str]]:
    """Yield changes that shorten the data stalls, of which `stall` is the larger one."""
    job = configuration.job
    stall_s, start_s = (configuration.mean(f"steady/{name}_s") or 0.0 for name in ("data_stall", "loader_start"))
    if not job.get("persistent_workers", True) and start_s > stall_s / 2:
        yield "persistent_workers", "true"
    in_files = (job.get("dataset") or {}).get("layout") == "files"
    if stall == FETCH_STALL and in_files:
        if job.get("cache"):
            yield "cache", "warm"
        yield "storage", "nvme"
    workers, cores = job.get("workers"), configuration.runs[0].cores
    most = math.inf if cores is None else cores // configuration.ranks
    if isinstance(workers, int) and workers < most:
        yield "workers", str(more_workers(workers, most))
    if stall == PREP_STALL and in_files:
        yield "dataset.layout", "memory"
    if workers:
        yield "prefetch", str(2 * job.get("prefetch", 2))


def _save_energy(configuration: Configuration, _: str, tried: Sequence[Configuration]) -> Iterator[tuple[str, str]]:
    """Yield a lower power limit if the least energy was at the lowest, or on a GPU without a limit."""
    device = configuration.job.get("device") or {}
    limits = [limit_w for other in tried for limit_w in positive_values(other, LIMIT)]
    powers_w = [min(limits)] if limits and min(limits) in positive_values(configuration, LIMIT) else []
    if not limits and device.get("accelerator", "cpu") != "cpu" and not device.get("rails"):  # a board has modes
        powers_w = [cost.power_w / (configuration.devices or 1) for cost in costs([configuration]) if cost.power_w]
    for power_w in powers_w:
        yield "power_limit", str(10 * max(1, math.floor(LOWER * power_w / 10)))


def _values(key: str, configurations: Sequence[Configuration]) -> set[str]:
    top, _, below = key.partition(".")
    values = [(other.job.get(top) or {}).get(below) if below else other.value(top) for other in configurations]
    return {str(value).strip('"') for value in values}
