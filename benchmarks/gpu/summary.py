"""The results of `session.sh` in one page of Markdown: `python summary.py FOLDER WORK`."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from epochmeter.report.output.validation import row_of
from epochmeter.results.run_folder import READ_ERRORS, RunFolder
from epochmeter.results.validation import FILE, Validation, read
from epochmeter.validation.checks import CHECKS

TIMES = ("e2e_s", "data_stall_s", "copy_s", "compute_s", "forward_s", "backward_s", "optimizer_s", "overhead_s")
KINDS = ("weights", "gradients", "optimizer", "inputs", "activations", "temporary", "other")
TITLES = {check.name: check.title for check in CHECKS}


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ("---",) * len(head), *rows))


def steps(folder: Path) -> Iterator[str]:
    """Yield the steps with their times and exit codes."""
    with (folder / "steps.csv").open() as file:
        rows = [(row["step"], row["seconds"], row["code"]) for row in csv.DictReader(file)]
    yield table(("step", "s", "exit code"), rows)


def validation(folder: Path) -> Iterator[str]:
    """Yield the lines of the validation."""
    document: Validation = read(folder / "validation" / FILE)
    rows = [row_of(line, TITLES[line["check"]]) for line in document["lines"]]
    cells = [(row.title, row.subject, row.value, row.bound, row.state) for row in rows]
    yield "; ".join(f"{name} {value}" for name, value in document["versions"].items() if value)
    yield table(("line", "of", "value", "bound", "state"), cells)


def times(run: Path) -> Iterator[str]:
    """Yield the mean epoch of a run by part."""
    metrics = summary_of(run)
    yield table(
        ("part", "s"), [(name, f"{metrics[key]:.6f}") for name in TIMES if (key := f"steady/{name}") in metrics]
    )


def memory(run: Path) -> Iterator[str]:
    """Yield memory by kind, and the sum of the kinds as a fraction of PyTorch's own count."""
    metrics = summary_of(run)
    kinds = {name: metrics[f"memory/{name}_bytes"] for name in KINDS if f"memory/{name}_bytes" in metrics}
    rows = [(name, f"{value / 2**20:.2f}") for name, value in kinds.items()]
    peak = metrics.get("memory/peak_bytes")
    if peak:
        rows.append(("sum / peak of PyTorch's allocator", f"{sum(kinds.values()) / peak:.4f}"))
    allocated = metrics.get("epoch/gpu_memory_peak_bytes")
    rows += [("peak of the epochs", f"{allocated / 2**20:.2f}")] if allocated else []
    yield table(("kind", "MiB"), rows)


def summary_of(run: Path) -> Mapping[str, float]:
    """Return the metrics of a run; ValueError without them."""
    summary = RunFolder(run).summary
    if summary is None:
        raise ValueError(f"{run.parent.name} has no summary")
    return {name: value for name, value in summary["metrics"].items() if value is not None}


def main() -> None:
    folder, work = map(Path, sys.argv[1:])
    print(f"# GPU session\n\n{described(folder)}")
    parts = {
        "Steps": lambda: steps(folder),
        "Validation": lambda: validation(folder),
        "A script, measured": lambda: times(work / "script/0"),
        "A traced training": lambda: times(work / "trace/0"),
        "Memory by kind": lambda: memory(work / "trace/0"),
        "Two ranks": lambda: times(work / "ranks/0"),
    }
    for title, make in parts.items():
        print(f"\n## {title}\n")
        try:
            print("\n\n".join(make()))
        except (*READ_ERRORS, ValueError) as error:
            print(f"Not measured: {error}")


def described(folder: Path) -> str:
    """Return what the machine is."""
    try:
        document = (folder / "logs/doctor.txt").read_text().splitlines()[-1]
        rows = json.loads(document)["result"]["rows"]
        return str(next(row["covers"] for row in rows if row["quantity"] == "device"))
    except (OSError, LookupError, TypeError, ValueError, StopIteration):
        return "The doctor did not end."


if __name__ == "__main__":
    main()
