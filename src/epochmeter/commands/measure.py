"""Measure your own training script, unchanged: the time of each epoch by part, and its energy.

    python src/measure.py train.py --lr 0.1                      a script with its own arguments
    python src/measure.py meter=estimate meter.tdp_w=65 train.py keys of this command come before the script
    python src/measure.py -- -m package.train                    a module

Each pass over a torch DataLoader with optimizer steps is an epoch; a pass without is an evaluation. The output of the
script is not changed; this command prints to stderr. docs/scripts.md lists the measured quantities.

Exit code: that of the script, or 128 + n if signal n ended it; 1 if it could not be started.
"""

import os
import signal
import sys
from collections.abc import Sequence
from datetime import datetime
from functools import partial

from omegaconf import DictConfig

from epochmeter.config import app, errors, job
from epochmeter.config.secrets import redact
from epochmeter.machine import signals
from epochmeter.run import nodes
from epochmeter.sweep import sweep_folder
from epochmeter.sweep.compose import device_of

KEYS = (
    *("device", "meter", "tracking", "machine", "measure", "power_limit", "clocks", "fan"),
    *("warmup_epochs", "rehearse", "repeat", "sweep", "hydra"),
)
"""Keys and groups that apply to a script; all others configure the training of this project."""


def main() -> int:
    arguments = sys.argv[1:]
    overrides, command = split_arguments(arguments)
    codes: list[int] = []

    def task(config: DictConfig) -> None:
        # Imported late, so that --help and --cfg are fast.
        from epochmeter.console.console import ScriptTerminal
        from epochmeter.run import experiment

        sys.argv[1:] = arguments
        try:
            check_keys(overrides)
            request = job.current_request(config).for_script(find_script(command))
        except ValueError as error:
            sys.exit(errors.format_error(redact(str(error))))
        outcome = experiment.run(request, ScriptTerminal())
        code = outcome.exit_code
        codes.append(1 if code is None else code if code >= 0 else 128 - code)
        if outcome.stop and code is None:
            raise outcome.stop

    signals.Stop().install()
    create_folder = partial(sweep_folder.open_sweep_folder, job.ROOT / "multirun", datetime.now())
    job.register(nodes.run_folder_factory(create_folder, os.environ), device_of)
    sys.argv[1:] = overrides
    try:
        app.run("train", task, __doc__)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        sweep_folder.remove_empty()
    return codes[0] if codes else 0


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides, and the script with its arguments: from the first argument that is no key=value."""
    if "--" in arguments:
        end = arguments.index("--")
        return [*arguments[:end]], [*arguments[end + 1 :]]
    for end, argument in enumerate(arguments):
        if "=" not in argument and not argument.startswith("-") and arguments[end - 1] not in ("--cfg", "-c"):
            return [*arguments[:end]], [*arguments[end:]]
    return [*arguments], []


def check_keys(overrides: Sequence[str]) -> None:
    """Refuse sweeps, and keys that a script does not read; InputError."""
    for override in overrides:
        key = override.partition("=")[0].lstrip("+~")
        if key in app.MULTIRUN:
            raise errors.input_error("`-m` does not apply to a script", "start one command per run")
        if not key.startswith("-") and key.replace("/", ".").partition(".")[0] not in KEYS:
            hint = f"set it in the script; keys that apply: {', '.join(KEYS)}"
            raise errors.input_error(f"`{key}=` has no effect on a script", hint)


def find_script(command: Sequence[str]) -> Sequence[str]:
    """Return the command if it is a Python file or module; InputError if not."""
    hint = "give it after the keys: `python src/measure.py train.py --its --own arguments`"
    if not command:
        raise errors.input_error("there is no script to measure", hint)
    if command[0] != "-m" and not os.path.isfile(command[0]):
        raise errors.input_error(f"`{command[0]}` is not a file", hint)
    if command[0] != "-m" and not command[0].endswith(".py"):
        raise errors.input_error(
            f"`{command[0]}` is not a Python script", "torchrun and other launchers do not work yet"
        )
    return command
