"""Load runs from their folders. A damaged record is reported, never fatal."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

from epochmeter.config.printable import printable
from epochmeter.report.runs.folders import matching_folders, run_folders, sweep_folders
from epochmeter.report.runs.from_record import overridden, run_of
from epochmeter.report.runs.run import Run, Sweep
from epochmeter.results.reuse import read_reference, referenced_record
from epochmeter.results.run_folder import READ_ERRORS, RunFolder, error_text
from epochmeter.shared.problem import input_error


def load_sweep(sweeps: Iterable[str | Path], multirun: Path) -> Sweep:
    """Load the runs of one or several sweeps as one; ValueError if there is no such run.

    Args:
        sweeps: Names in `multirun`, folders, or patterns of either; without any, the newest sweep.
    """
    return merge_sweeps([read_sweep(folder) for folder in find_sweeps(sweeps, multirun)], multirun)


def find_sweeps(sweeps: Iterable[str | Path], multirun: Path) -> list[Path]:
    """Return the folders of sweeps, each once; errors and arguments as those of `load_sweep`."""
    folders = [folder for sweep in sweeps for folder in matching_folders(sweep, multirun)]
    folders = folders or sweep_folders(multirun)[-1:]
    if not folders:
        raise input_error("there are no runs yet", "run `python src/train.py -m experiment=stalls` first")
    return [*dict.fromkeys(folders)]


def measured_folders(sweeps: Sequence[Path]) -> list[Path]:
    """Return the folders of the runs of sweeps, by number; of several sweeps, each measured run once."""
    paths = [path for sweep in sweeps for path in run_folders(sweep)]
    if len(sweeps) == 1:
        return paths
    references = map(read_reference, paths)
    named = [
        (reference["run"] if reference else f"{path.parent.name}/{path.name}", path, reference is None)
        for path, reference in zip(paths, references, strict=True)
    ]
    owners = {name: path for name, path, _ in named}  # of several references to a run, the last one counts
    owners |= {name: path for name, path, is_own in named if is_own}
    return [path for name, path, _ in named if owners[name] is path]


def read_sweep(folder: Path) -> Sweep:
    """Read the runs in a sweep's folder, or the single run that the folder is."""
    runs, unreadable = [], {}
    for path in run_folders(folder):
        try:
            runs.append(load_run(path))
        except READ_ERRORS as error:
            unreadable[path.name] = printable(error_text(error))
    return Sweep(folder, runs, unreadable)


def load_run(folder: Path) -> Run:
    """Load the run in a folder, or the run that it reuses under its own number; raises `READ_ERRORS`."""
    reference = read_reference(folder)
    if reference is None:
        return run_of(RunFolder(folder))
    record = referenced_record(folder)
    if record is None:
        raise ValueError(f"it reuses {reference['run']}, which is gone: the sweep's command measures it again")
    of_reference, sweep = overridden(reference["overrides"]), printable(folder.absolute().parent.name)
    return replace(
        run_of(RunFolder(record.folder)), **of_reference, number=int(folder.name), sweep=sweep, reused=reference["run"]
    )


def merge_sweeps(sweeps: Sequence[Sweep], folder: Path) -> Sweep:
    """Return several sweeps as one in their common folder, with consecutive numbers and each measured run once.

    A damaged record has a number as well, so that the numbers of the others can be known without reading it.
    """
    if len(sweeps) == 1:
        return sweeps[0]
    runs = [run for sweep in sweeps for run in sweep.runs]
    owners = {run.name: run for run in sorted(runs, key=lambda run: not run.reused)}
    places = [run for sweep in sweeps for run in _in_order(sweep) if run is None or owners[run.name] is run]
    failures = ((f"{sweep.folder.name}/{name}", why) for sweep in sweeps for name, why in sweep.unreadable.items())
    unreadable = {printable(name): why for name, why in failures}
    return Sweep(folder, [replace(run, number=place) for place, run in enumerate(places) if run], unreadable)


def _in_order(sweep: Sweep) -> list[Run | None]:
    """Return the runs of a sweep by number, with None for each damaged record."""
    damaged = [(int(name) if name.isdecimal() else 0, None) for name in sweep.unreadable]
    return [run for _, run in sorted([*((run.number, run) for run in sweep.runs), *damaged], key=itemgetter(0))]
