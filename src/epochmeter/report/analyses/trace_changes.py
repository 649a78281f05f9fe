"""Two traces compared: the operators, modules and kernels whose time per step changed, and what only one of them has.

The traced steps of each trace are the samples, so the intervals include the noise from step to step, but not that from
run to run. In each table, verdicts control the false discovery rate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from epochmeter.config.printable import printable, printable_tree
from epochmeter.report.analyses.comparison import (
    DIFFERS,
    NO_DIFFERENCE,
    Changes,
    Difference,
    Leaves,
    changed_keys,
    leaves_of,
    without_parts,
)
from epochmeter.report.analyses.trace import find_traced_run
from epochmeter.report.statistics import MIN_EFFECT, false_discovery_rates
from epochmeter.report.trimmed_ratios import trimmed_ratios
from epochmeter.results.run_folder import RunFolder
from epochmeter.results.run_info import platform_info
from epochmeter.shared.problem import input_error
from epochmeter.shared.record import TRACE, Record
from epochmeter.shared.record_files import refusal
from epochmeter.shared.types import Document
from epochmeter.trace.attribution import Row, attribute
from epochmeter.trace.division import StepTimes, divide, step_times
from epochmeter.trace.kineto import Floats, load, load_facts

TABLES = ("modules", "operators", "kernels")
STEP, DEVICE = "step", "trace device"
FACTS = {
    "host": "host_name",
    "shapes recorded": "record_shapes",
    "stacks recorded": "with_stack",
    "memory recorded": "profile_memory",
    "CUDA runtime": "cuda_runtime_version",
    "CUDA driver": "cuda_driver_version",
}
"""What differs for people -> its name at the beginning of a trace."""


class Source(NamedTuple):
    """A trace, and the record of the run that it is part of; None: a file of torch's profiler."""

    name: str
    path: Path
    record: Record | None = None


@dataclass(frozen=True)
class Times:
    """A trace as it is compared.

    Attributes:
        calls: Calls per step of operators and kernels, by table and name; those of modules are not known.
        shapes: The most frequent shapes of operators' inputs, by name.
        job: The configuration of its run; empty for a file.
        facts: What else the trace depends on: host, device, versions, options of the profiler.
    """

    name: str
    times: StepTimes
    calls: Mapping[str, Mapping[str, float]]
    shapes: Mapping[str, str]
    job: Leaves
    facts: Leaves

    @property
    def has_record(self) -> bool:
        return bool(self.job)


@dataclass(frozen=True, kw_only=True)
class Change:
    """The time per step of an operator, a module or a kernel in two traces.

    Attributes:
        difference: The ratio of the trimmed means over the steps, and its verdict.
        change_s: Difference of these means: what it adds to a step.
        calls: Per step, before and after; None if they are not known.
        shapes: Most frequent shapes of its inputs, before and after, if they differ.
    """

    difference: Difference
    change_s: float
    calls: tuple[float, float] | None = None
    shapes: tuple[str, str] | None = None

    @property
    def verdict(self) -> str:
        """That of the difference; `no difference` also if the whole interval is too near to 1 to matter."""
        is_negligible = self.difference.ratio.is_within(1 / (1 + MIN_EFFECT), 1 + MIN_EFFECT)
        return NO_DIFFERENCE if is_negligible else self.difference.verdict

    @property
    def differs(self) -> bool:
        return self.verdict == DIFFERS


@dataclass(frozen=True, kw_only=True)
class Table:
    """The changes in one table, the largest first.

    Attributes:
        only: Names that only the first, and only the second trace has, with their seconds per step.
        irregular: Names of both traces that do not run in each of their steps, with the mean seconds per step in each.
    """

    changes: Sequence[Change]
    only: tuple[Mapping[str, float], Mapping[str, float]]
    irregular: Mapping[str, tuple[float, float]]

    @property
    def found(self) -> list[Change]:
        """The changes whose verdict is that they differ."""
        return [change for change in self.changes if change.differs]

    @property
    def tested(self) -> int:
        """Number of names among which the false discovery rate is controlled."""
        return sum(change.difference.p_value is not None for change in self.changes)


@dataclass(frozen=True, kw_only=True)
class TraceChanges:
    """Two traces compared; see `analyze`.

    Attributes:
        bases: What the times are of: `device` for kernels, `host` for the thread that trains.
        steps: Number of steps of each trace.
        step: Change of the wall time of a traced step.
        context: What else differs between them: model, batch size, device, version, options of the profiler.
    """

    names: tuple[str, str]
    bases: tuple[str, str]
    steps: tuple[int, int]
    step: Difference
    tables: Mapping[str, Table]
    context: Changes

    @property
    def values(self) -> dict[str, object]:
        tables = {
            name: {
                "changes": [_values(change) for change in table.changes],
                "only_before": dict(table.only[0]),
                "only_after": dict(table.only[1]),
                "irregular": dict(table.irregular),
            }
            for name, table in self.tables.items()
        }
        step = {**asdict(self.step), "verdict": self.step.verdict}
        return {"before": self.names[0], "after": self.names[1], "bases": self.bases, "steps": self.steps,
                "step": step, "context": self.context, **tables}  # fmt: skip


def find_source(name: Any, multirun: Path) -> Source:
    """Return the trace of a run, found as by `find_traced_run`, or a file of torch's profiler."""
    path = Path(str(name))
    if name is None or not (path.is_file() or path.is_fifo()):
        record = find_traced_run(None if name is None else str(name), multirun)
        return Source(f"{record.folder.parent.name}/{record.folder.name}", record.folder / TRACE, record)
    if reason := refusal(path):
        raise input_error(f"{path} is not read: {reason}", "replace it by the file itself")
    return Source(f"{path.absolute().parent.name}/{path.name}", path)


def read_times(source: Source) -> Times:
    """Return the times of a trace by step; TraceError if it cannot be read, InputError without steps."""
    trace = load(source.path)
    if not len(trace.steps):
        raise input_error(
            f"{source.path} has no training steps (`ProfilerStep`)",
            "call the profiler's `step()` after each training step, or compare runs of `profiler=torch`",
        )
    division = divide(trace)
    attribution, steps = attribute(trace, division=division), len(trace.steps)
    rows: dict[str, Sequence[Row]] = {"operators": attribution.operators, "kernels": attribution.kernels}
    calls = {
        table: {printable(row.name): row.calls / steps for row in found if row.calls} for table, found in rows.items()
    }
    shapes = {printable(row.name): row.inputs for row in attribution.operators if row.inputs}
    times = step_times(trace, division)
    times = replace(
        times,
        modules=_printable(times.modules),
        operators=_printable(times.operators),
        kernels=_printable(times.kernels),
    )
    return Times(printable(source.name), times, calls, shapes, *_context(source))


def analyze(before: Times, after: Times) -> TraceChanges:
    """Compare two traces, table by table. Traces of other models, devices or versions are compared by their names."""
    tables = {name: _table(name, before, after) for name in TABLES}
    steps = {STEP: (before.times.steps.tolist(), after.times.steps.tolist())}
    (step,) = _differences(STEP, steps, _resolution_s(before, after)).values()
    return TraceChanges(
        names=(before.name, after.name),
        bases=(before.times.basis, after.times.basis),
        steps=(len(before.times.steps), len(after.times.steps)),
        step=step,
        tables={name: table for name, table in tables.items() if table.changes or any(table.only) or table.irregular},
        context=_changed_context(before, after),
    )


def _printable(times_s: Mapping[str, Floats]) -> dict[str, Floats]:
    return {printable(name): values for name, values in times_s.items()}


def _table(name: str, before: Times, after: Times) -> Table:
    sides = [{key: times.tolist() for key, times in getattr(side.times, name).items()} for side in (before, after)]
    both = {key: (values, sides[1][key]) for key, values in sides[0].items() if key in sides[1]}
    irregular = {key: pair for key, pair in both.items() if not all(map(all, pair))}
    regular = {key: pair for key, pair in both.items() if key not in irregular}
    changes = [
        Change(
            difference=difference,
            change_s=(difference.after or 0.0) - (difference.before or 0.0),
            calls=_both(before.calls.get(name, {}).get(key), after.calls.get(name, {}).get(key)),
            shapes=_differing(before.shapes.get(key), after.shapes.get(key)) if name == "operators" else None,
        )
        for key, difference in _differences(name, regular, _resolution_s(before, after)).items()
    ]
    only = [
        dict(sorted(((key, fmean(side[key])) for key in side if key not in both), key=lambda item: -item[1]))
        for side in sides
    ]
    return Table(
        changes=sorted(changes, key=lambda change: (not change.differs, -abs(change.change_s))),
        only=(only[0], only[1]),
        irregular={key: (fmean(pair[0]), fmean(pair[1])) for key, pair in irregular.items()},
    )


def _differences(
    metric: str, pairs: Mapping[str, tuple[Sequence[float], Sequence[float]]], resolution_s: float
) -> dict[str, Difference]:
    """Return the ratio of each pair of samples with its verdict, by name; of single steps, without one."""
    found = trimmed_ratios([*pairs.values()], resolution_s)
    rates = iter(false_discovery_rates([each.p_value for each in found if each.p_value is not None]))
    differences = {}
    for (key, pair), (before, after, ratio, p_value) in zip(pairs.items(), found, strict=True):
        basis, q_value = ("one each", None) if p_value is None else ("steps", next(rates))
        counts = len(pair[0]), len(pair[1])
        differences[key] = Difference(key, metric, ratio, basis, before, after, counts, p_value, q_value)
    return differences


def _context(source: Source) -> tuple[Leaves, Leaves]:
    """Return what the times of a trace depend on: the configuration of its run, and other facts."""
    stated = load_facts(source.path)
    facts = {name: str(stated[key]) for name, key in FACTS.items() if stated.get(key) not in (None, "", 0)}
    devices = {str(device["name"]) for device in _dicts(stated.get("deviceProperties")) if "name" in device}
    facts |= {DEVICE: ", ".join(sorted(devices))} if devices else {}
    facts = printable_tree(facts)
    distributed = stated.get("distributedInfo")
    if isinstance(distributed, dict) and distributed.get("world_size"):
        facts["ranks"] = str(distributed["world_size"])
    if source.record is None:
        return {}, facts
    folder = RunFolder(source.record.folder)
    return leaves_of(folder.job), facts | platform_info(folder.run.host, folder.host, folder.run.training)


def _changed_context(before: Times, after: Times) -> Changes:
    """Return what differs. A file states less than a run: of both, what only one states is not compared."""
    if before.has_record and after.has_record:
        jobs = without_parts(changed_keys([before.job], [after.job]))
        return {**jobs, **changed_keys([before.facts], [after.facts])}
    known = before.facts.keys() & after.facts.keys()
    sides = [{key: side.facts[key] for key in side.facts if key in known} for side in (before, after)]
    return changed_keys(sides[:1], sides[1:])


def _resolution_s(before: Times, after: Times) -> float:
    return max(before.times.resolution_s, after.times.resolution_s)


def _dicts(values: Any) -> list[Document]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def _both(before: float | None, after: float | None) -> tuple[float, float] | None:
    return None if before is None or after is None else (before, after)


def _differing(before: str | None, after: str | None) -> tuple[str, str] | None:
    return (before, after) if before and after and before != after else None


def _values(change: Change) -> dict[str, object]:
    fields = asdict(change)
    return {**fields.pop("difference"), "verdict": change.verdict, **fields}
