"""Load runs from their folders. A damaged record is reported, never fatal."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
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
    return read_sweeps(find_sweeps(sweeps, multirun), multirun)


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
    names = {path: _measured_name(path) for path in paths}
    owners = {name: path for path, name in names.items()}  # of several references to a run, the last one counts
    owners |= {name: path for path, name in names.items() if name == _own_name(path)}
    return [path for path in paths if owners[names[path]] is path]


def _measured_name(folder: Path) -> str:
    """Return the name of the run that a folder has or reuses; its own name if that run is gone."""
    reference = read_reference(folder)
    return reference["run"] if reference and referenced_record(folder) else _own_name(folder)


def _own_name(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}"


def read_sweep(folder: Path) -> Sweep:
    """Read the runs in a sweep's folder, or the single run that the folder is."""
    return read_sweeps([folder], folder)


def read_sweeps(sweeps: Sequence[Path], common: Path) -> Sweep:
    """Read the runs of a sweep; those of several as one in their common folder, with consecutive numbers, each once."""
    is_merged, unreadable = len(sweeps) > 1, dict[str, str]()
    numbered = ((folder, number if is_merged else None) for number, folder in enumerate(measured_folders(sweeps)))
    runs = [run for folder, number in numbered if (run := read_run(folder, number, unreadable))]
    if not is_merged:
        return Sweep(sweeps[0], runs, unreadable)
    # A run may be there twice: in a sweep and in a renamed copy of it.
    owners = {run.name: run for run in sorted(runs, key=lambda run: not run.reused)}
    return Sweep(common, [run for run in runs if owners[run.name] is run], unreadable)


def read_run(folder: Path, number: int | None, unreadable: dict[str, str]) -> Run | None:
    """Return the run in a folder; None if its record is damaged, which is added to `unreadable`.

    Args:
        number: Its place in `measured_folders` of several sweeps, so that it is known without reading the others; None:
            its own number.
    """
    try:
        run = load_run(folder)
    except READ_ERRORS as error:
        name = folder.name if number is None else _own_name(folder)
        unreadable[printable(name)] = printable(error_text(error))
        return None
    return run if number is None else replace(run, number=number)


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
