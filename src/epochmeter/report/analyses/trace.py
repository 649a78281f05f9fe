"""Trace analysis of one run: busy and idle time of the device, and time by module, operator and kernel."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from epochmeter.report.runs.folders import run_folders, sweep_folders
from epochmeter.results.memory import read_memory
from epochmeter.results.reuse import record_of
from epochmeter.results.run_folder import RunFolder
from epochmeter.shared.overrides import quoted_override
from epochmeter.shared.problem import input_error
from epochmeter.shared.record import TRACE, Record
from epochmeter.shared.record_files import refusal

MAX_GROUPS = 15
BACKEND = re.compile("(mkldnn|cudnn|miopen)_")
"""Parts of operator names that differ between backends."""
TraceView = Mapping[str, Any]
"""The analysis of a trace, as `epochmeter.trace.analysis.analyze_run` returns it, and further values of its page."""


def named_runs(name: str | None, multirun: Path) -> tuple[list[Path], list[Record]]:
    """Return the folders that a name may stand for (None: the newest sweep), and the records of the runs in them."""
    folders = [Path(name), multirun / name] if name else sweep_folders(multirun)[-1:]
    runs = [record_of(run) for folder in folders for run in run_folders(folder)]
    return folders, [*{record.folder.resolve(): record for record in runs}.values()]


def find_traced_run(name: str | None, multirun: Path, needs_trace: bool = True) -> Record:
    """Return a run by its folder, by `SWEEP/NUMBER`, or by a sweep (None: the newest) with one traced run."""
    folders, records = named_runs(name, multirun)
    for record in records:
        if reason := refusal(record.folder / TRACE):
            raise input_error(f"{record.folder / TRACE} is not read: {reason}", "replace it by the file itself")
    traced = [record for record in records if (record.folder / TRACE).exists()]
    candidates = traced if traced or needs_trace else records
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        names = ", ".join(f"{record.folder.parent.name}/{record.folder.name}" for record in candidates[:5])
        raise input_error(f"`run={name or ''}` refers to {len(candidates)} runs", f"give one of them: {names}")
    newest = folders[0].name if folders else multirun
    raise input_error(
        f"the run `{name or newest}` "
        + ("has no trace: `profiler=none`, or recording failed" if records else "is not found"),
        "give the folder of a run: `run=multirun/SWEEP/0`",
    )


def analyze(record: Record) -> TraceView:
    """Return the analysis of a run's trace; analyze it first if that has not been done, or raise TraceError.

    Further values: the `command` that opens the run's timeline, the longest `groups` of modules with their time by
    phase, `flop_per_s` of operators and kernels, `memory` of a training step, and the statistics of its `model`.
    """
    result = record.trace_analysis()
    if result is None:
        from epochmeter.trace.analysis import analyze_run

        result = analyze_run(record.folder)
    run, attribution = RunFolder(record.folder).run, result["attribution"] or {}
    return {
        "pipes": None,
        **result,
        "command": f"python src/report.py {quote(quoted_override('run', str(record.folder)))} view=perfetto",
        "device_name": run.training.get("gpu", {}).get("name"),
        "groups": group_modules(attribution.get("modules", ())),
        "flop_per_s": flop_rates(attribution, run.training.get("operators", {}), result["metrics"].get("steps", 1)),
        "peak_flop_per_s": (run.training.get("peaks") or {}).get("flop_per_s"),
        "memory": read_memory(record),
        "model": run.model,
    }


def flop_rates(
    attribution: Mapping[str, Any], counted: Mapping[str, Mapping[str, float]], steps: float
) -> dict[str, float]:
    """Return the FLOP/s of operators and kernels by name, while they run; `counted` are FLOPs of one step."""
    operators = [(row, BACKEND.sub("", row["name"])) for row in attribution.get("operators", ())]
    times_s = Counter[str]()
    for row, counted_name in operators:
        times_s[counted_name] += row["total_s"]
    rates = {name: steps * counts["flops"] / times_s[name] for name, counts in counted.items() if times_s[name]}
    timed = [row for row in attribution.get("kernels", ()) if row.get("flops") and row["total_s"]]
    by_kernel = {row["name"]: row["flops"] / row["total_s"] for row in timed}
    return {row["name"]: rates[name] for row, name in operators if rates.get(name)} | by_kernel


def group_modules(modules: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, float]]:
    """Sum the times of modules with the same beginning of their names, in at most 15 groups; the longest first."""
    names, groups = [module["name"].split(".") for module in modules], dict[str, Counter[str]]()
    for depth in range(max(map(len, names), default=0), 0, -1):
        groups = {}
        for name, module in zip(names, modules, strict=True):
            groups.setdefault(".".join(name[:depth]), Counter()).update(module["phases_s"])
        if len(groups) <= MAX_GROUPS:
            break
    longest = sorted(groups, key=lambda name: -sum(groups[name].values()))[:MAX_GROUPS]
    return {name: groups[name] for name in longest}
