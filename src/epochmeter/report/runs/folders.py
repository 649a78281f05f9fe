"""Find the folders of sweeps and runs."""

import os
from collections.abc import Iterable
from glob import glob
from pathlib import Path

from epochmeter.results.reuse import is_run
from epochmeter.results.sweep_order import start_key
from epochmeter.shared.problem import input_error
from epochmeter.shared.record import JOB_FILE


def run_folders(folder: Path) -> list[Path]:
    """Return the run folders with a record, by number."""
    if is_run(folder):
        return [folder]
    names = os.listdir(folder) if folder.is_dir() else []
    return [folder / name for name in sorted(filter(str.isdecimal, names), key=int) if is_run(folder / name)]


def has_runs(folder: Path) -> bool:
    """Whether a folder is a run's or has any, without looking at all of them."""
    names = os.listdir(folder) if folder.is_dir() else []
    return is_run(folder) or any(name.isdecimal() and is_run(folder / name) for name in names)


def sweep_folders(multirun: Path) -> list[Path]:
    """Return the folders with runs, the newest last, without those that may not be read."""
    folders = multirun.iterdir() if multirun.is_dir() else []
    return _with_runs(folder for folder in folders if os.access(folder, os.R_OK | os.X_OK))


def matching_folders(sweep: str | Path, multirun: Path) -> list[Path]:
    """Return the folders with runs of a sweep, the newest last; InputError without any.

    Args:
        sweep: A name in `multirun`, the path of a folder of runs or of sweeps, or a pattern of either.
    """
    for root in (multirun, Path()):
        if matching := _with_runs(root / name for name in glob(str(sweep), root_dir=root) or [str(sweep)]):
            return [folder.absolute() for folder in matching]
    if contained := sweep_folders(Path(sweep)):  # a folder of sweeps, such as multirun itself
        return [folder.absolute() for folder in contained]
    last = sweep_folders(multirun)[-1:]
    raise input_error(
        f"no runs in `{sweep}`: there is no {JOB_FILE} in it or in its numbered folders",
        f"the last sweep with runs is {last[0].name}" if last else "run `python src/train.py` first",
    )


def _with_runs(folders: Iterable[Path]) -> list[Path]:
    return sorted(filter(has_runs, folders), key=lambda folder: (start_key(folder), folder.name))
