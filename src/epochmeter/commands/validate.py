"""Validate this machine: compare what epochmeter measures here with what is known.

    python src/validate.py                       all that needs no permission, ten minutes
    python src/validate.py minutes=3             fewer windows and epochs
    python src/validate.py settings=true         also change settings, and restore them
    python src/validate.py device=cpu meter=rapl   with another meter

A load of known times shows period, averaging time and lag of each power sensor, and how many
windows are within their stated uncertainty. Scripts of known times show errors and overhead.
The same command continues: finished lines are kept in `validation.json` unless versions changed.
Later runs on this machine use the measured responses. On a busy machine, no line passes.

Exit code: 0 if no line failed; 2 if one failed; 3 if none failed, but some are to be tested again;
1 if the command is invalid.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from epochmeter.config import app, errors, json_output, validation
from epochmeter.config.entries import Trial
from epochmeter.config.installation import ROOT
from epochmeter.config.request import compose_for_device
from epochmeter.config.resolvers import value_for_board
from epochmeter.config.versions import register_resolver

if TYPE_CHECKING:
    from epochmeter.results.validation import Validation

FAILED, AGAIN = 2, 3


def main() -> int:
    register_resolver("of_board", value_for_board)
    codes: list[int] = []
    app.run("validate", lambda config: codes.append(task(config)), __doc__)
    return codes[-1] if codes else 0


def task(config: DictConfig) -> int:
    """Validate the machine, and show and write its lines; return the exit code."""
    # Imported late, so that --help and --cfg are fast.
    from epochmeter.console.plain import PlainConsole
    from epochmeter.machine.host import device_of
    from epochmeter.report.output.validation import print_validation, write_validation
    from epochmeter.results.validation import FILE
    from epochmeter.validation.checks import CHECKS
    from epochmeter.validation.this_machine import find_machine
    from epochmeter.validation.validate import validate

    console, titles = PlainConsole(stderr=True), {check.name: check.title for check in CHECKS}
    try:
        machine_keys = {"machine": app.plain_keys(config.machine), "minutes": config.minutes}
        validation.check_all_values(machine_keys, "validate")
        detected, chosen = device_of(config.machine.root), HydraConfig.get()
        if chosen.runtime.choices["device"] == "auto":
            config = compose_for_device("validate", detected, chosen.overrides.task)
        keys = app.plain_keys(config)
        validation.check_all_values(keys, "validate")
        trial = Trial.from_dict(keys)
        folder = Path(trial.out).expanduser() if trial.out else ROOT / "multirun/validation"
        folder.mkdir(parents=True, exist_ok=True)
        document = validate(find_machine(trial), folder, lambda text: console.print(text, markup=False))
        written = write_validation(document, folder, titles)
    except (OSError, ValueError, RuntimeError) as error:
        errors.refuse(error)
    paths = [str(path.absolute()) for path in (folder / FILE, *written)]
    json_output.set_result({"folder": str(folder.absolute()), "files": paths, "validation": document})
    print_validation(document, written, titles, PlainConsole())
    return exit_code(document)


def exit_code(document: "Validation") -> int:
    """Return the exit code of a validation."""
    lines = document["lines"]
    if any(line["state"] == "failed" for line in lines):
        return FAILED
    return AGAIN if any(line["again"] for line in lines) else 0
