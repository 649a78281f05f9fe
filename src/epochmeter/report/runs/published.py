"""Load the runs of an MLflow experiment, from copies of their records."""

import atexit
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import mkdtemp

from epochmeter.report.runs.folders import has_runs
from epochmeter.report.runs.load import load_sweep
from epochmeter.report.runs.run import Sweep
from epochmeter.results.run_folder import error_text
from epochmeter.results.sweep_order import sort_key
from epochmeter.shared.problem import InputError, input_error, problem_of


def load_published(sweeps: Sequence[str], multirun: Path, experiment: str, uri: str | None) -> Sweep:
    """Download the records of an MLflow experiment, and load them; ValueError if it is not there or has no such run.

    Args:
        sweeps: Names of sweeps, or patterns of names; without any, the newest sweep.
        uri: MLflow's server or database; None: MLFLOW_TRACKING_URI or the project's database.
    """
    from epochmeter.tracking.load import download_records  # imported late, as MLflow is slow

    chosen: list[str] = []

    def choose(names: Iterable[str]) -> list[str]:
        ordered = sorted(names, key=lambda name: (sort_key(name), name))
        matching = [name for name in ordered if any(fnmatchcase(name, sweep) for sweep in sweeps)]
        if sweeps and not matching:
            raise input_error(
                f"MLflow has no run of sweep={', '.join(sweeps)}", f"there are: {', '.join(ordered[-5:])}"
            )
        chosen.extend(matching or ordered[-1:])
        return chosen

    copies = Path(mkdtemp(prefix="epochmeter-"))
    atexit.register(shutil.rmtree, copies, ignore_errors=True)
    try:
        download_records(copies, choose, experiment, uri)
    except (ValueError, LookupError) as error:  # no such sweep, database or experiment
        raise InputError(problem_of(error).within("source=mlflow")) from error
    except Exception as error:  # whatever MLflow raises
        raise input_error(
            f"cannot load runs from MLflow: {error_text(error)}",
            "start MLflow, or give its address: `tracking=server tracking.uri=http://HOST:5000`",
        ) from error
    # A run that has not ended has no files in MLflow.
    sweep = load_sweep([name for name in chosen if has_runs(copies / name)] or chosen, copies)
    return replace(sweep, folder=multirun / sweep.folder.relative_to(copies))
