"""Measure your own training script, unchanged: the time of each epoch by part, and its energy.

    python src/measure.py train.py --lr 0.1                                a script, its arguments
    python src/measure.py meter=estimate meter.tdp_w=65 train.py           with keys of this command
    python src/measure.py -- -m package.train                              a module
    python src/measure.py torchrun --nproc_per_node=2 train.py             a launcher, all its ranks
    python src/measure.py -m script.lr=0.1,0.01 train.py --lr {script.lr}  a sweep
    python src/measure.py experiment=stalls train.py                       the causes of its data stalls
    python src/measure.py measure.events=FOLDER                            a script that ran without this command
    python src/measure.py pid=1234 duration_s=600                          a process that runs already

Keys of this command come before the script, the script's own arguments after it. Each pass over a
torch DataLoader with optimizer steps is an epoch; a pass without is an evaluation. The output of
the script is not changed; this command prints to stderr. docs/scripts.md lists the measured
quantities. Keys of the training configuration, such as `batch`, have no effect on a script.

Exit code: that of the script, or 128 + n if signal n ended it; 1 if it could not be started. Of a
sweep: 0 if every run was completed, 1 if one failed, 128 + n if signal n stopped it.
"""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path

from epochmeter.commands.train import run_all
from epochmeter.config import app, errors
from epochmeter.config.arguments import (
    HIDE_KEY,
    PLACEHOLDER,
    conceal_command,
    conceal_override,
    secret_placeholders,
    with_current_names,
)
from epochmeter.config.installation import ROOT
from epochmeter.config.interpreter import active_environment
from epochmeter.config.script import ATTACHED, check_placeholders, find_program
from epochmeter.config.secrets import CONCEALED
from epochmeter.run.interpreters import probe_early
from epochmeter.run.nodes import script_node
from epochmeter.shared.problem import input_error
from epochmeter.sweep.sweep_folder import key_of

KEYS = (
    *("device", "meter", "tracking", "machine", "script", "measure"),
    *("power_limit", "gpu_clock", "memory_clock", "auto", "clocks", "fan"),
    *("profiler", "cache", "drop_caches", "warmup_epochs", "footprint", "roofline", "budget", "rehearse", "repeat"),
    *("sweep", "hydra", "data_source", "experiment", "nodes", "format"),
)
"""Keys and groups that apply to a script; all others configure the training of this project."""
CHOICES = {"experiment": ("stalls",), "data_source": ("replay", "cached", "storage", "unchanged")}
"""Options of these groups that apply to a script."""
OF_FILES = ("cache=", "drop_caches=", "data_source=cached", "data_source=storage")
"""Keys, and options, that need the script's files."""
OF_COMMAND = ("experiment", "data_source", "measure.replay", "measure.pid", "measure.duration_s")
"""Keys of this command only, not of a `Meter`."""
SHORT = {"pid": "measure.pid", "duration_s": "measure.duration_s"}
"""Short names of keys of this command."""
OF_PROCESS = ("device", "meter", "tracking", "machine", "measure", "footprint", "format", "hydra")
"""Keys and groups that apply to a process that runs already."""
WITH_VALUE = ("--cfg", "-c", "--package", "-p", "--config-dir", "-cd", "--config-name", "-cn", "--config-path", "-cp")
"""Options of Hydra that are followed by a value."""
LOCAL_RANKS = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
"""Variables with the number of processes on this node: of torchrun and accelerate, DeepSpeed, Open MPI and MPICH."""


def main() -> int:
    overrides, command = split_arguments(sys.argv[1:])
    try:
        overrides = with_current_names([long_name(override) for override in overrides])
        if folder := value_of("measure.events", overrides):
            overrides, command = unattended_arguments(folder, overrides, command)
        elif pid := value_of("measure.pid", overrides):
            command = process_command(pid, overrides, command)
        elif value_of("measure.duration_s", overrides):
            raise input_error(
                "`duration_s=` is for a process that runs already", "give `measure.pid=1234` in place of a script"
            )
        elif command or not any(option.startswith("-") and option not in app.MULTIRUN for option in overrides):
            check_keys(overrides)
            if ATTACHED not in os.environ:
                check_command(command)
                probe_early(command)
                overrides = overrides_of_node(overrides)
                check_placeholders(command, [key_of(override) for override in overrides])
        sys.argv[1:], command = concealed_arguments(overrides, command)
    except ValueError as error:
        errors.refuse(error)
    with redirect_stdout(sys.stderr if command else sys.stdout):  # not that of the script's process
        results, code = run_all(__doc__, KEYS.__contains__, command)
    exit_code = results[0].exit_code if results and not results[0].of_sweep else None
    if exit_code is None:
        return code
    return exit_code if exit_code >= 0 else 128 - exit_code


def overrides_of_node(overrides: Sequence[str]) -> list[str]:
    """Return the overrides on this node: those other than the first publish nothing."""
    if script_node(os.environ, ROOT / "multirun").is_first:
        return [*overrides]
    return [*(override for override in overrides if not key_of(override).startswith("tracking")), "tracking=none"]


def value_of(key: str, overrides: Sequence[str]) -> str:
    """Return the text of a key; empty if it is not given, or null."""
    texts = [override.partition("=")[2].strip("'\"") for override in overrides if key_of(override) == key]
    return texts[-1] if texts and texts[-1] != "null" else ""


def unattended_arguments(folder: str, overrides: Sequence[str], command: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides, and the command, of a script that has left its events in a folder; InputError."""
    from epochmeter.run.unattended import kept_overrides, read_script

    check_keys(overrides)
    if command:
        raise input_error("`measure.events=` is for a script that has run", f"leave out `{shlex.join(command)}`")
    if {*app.MULTIRUN} & {*overrides}:
        raise input_error("`measure.events=` is for one run", "leave out `-m`")
    script = read_script(Path(folder))
    return [*kept_overrides(script, overrides), *overrides], script["command"]


def long_name(override: str) -> str:
    """Return an override with the full name of its key."""
    name, separator, value = override.partition("=")
    return f"{SHORT[name]}{separator}{value}" if separator and name in SHORT else override


def process_command(pid: str, overrides: Sequence[str], command: Sequence[str]) -> list[str]:
    """Return the command line of a running process, in which nothing is a placeholder; InputError."""
    from epochmeter.machine.running_process import find_earlier_process

    check_keys(overrides)
    if command:
        raise input_error("`pid=` is for a process that runs already", f"leave out `{shlex.join(command)}`")
    if {*app.MULTIRUN} & {*overrides}:
        raise input_error("`pid=` is for one run", "leave out `-m`")
    for key in map(key_of, (override for override in overrides if app.is_override(override))):
        if key.lstrip("+~").replace("/", ".").partition(".")[0] not in OF_PROCESS:
            hint = f"leave it out; keys that apply: {', '.join(OF_PROCESS)}"
            raise input_error(f"`{key}=` has no effect on a process that runs already", hint)
    if not pid.isdecimal() or int(pid) == 0:
        raise input_error(f"`pid={pid}` is not the number of a process", "`pgrep -af python` lists those of Python")
    if int(pid) == os.getpid():
        raise input_error(f"process {pid} is this command itself", "`pgrep -af python` lists those of Python")
    return [PLACEHOLDER.sub(r"(script.\1)", word) for word in find_earlier_process(int(pid)).command]


def concealed_arguments(overrides: Sequence[str], command: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides and the script's command without their secrets, or without any of its arguments."""
    if mask := CONCEALED.search(" ".join([*overrides, *command])):
        raise input_error(f"`{mask[0]}` is the mask of a secret in a record", "give the secret in its place")
    settings = dict(override.lstrip("+").partition("=")[::2] for override in overrides)
    hides_all = settings.get(HIDE_KEY, "").lower() == "true"
    secret_keys = {f"script.{name}" for name in secret_placeholders(command)}
    if hides_all:
        secret_keys |= {key for key in settings if key.startswith("script.")}
    concealed = [conceal_override(item, secret_keys) if app.is_override(item) else item for item in overrides]
    return concealed, conceal_command(command, hides_all=hides_all)


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides, and the script's command: after `--`, or from the first argument that is not an option."""
    for end, argument in enumerate(arguments):
        if argument == "--":
            return [*arguments[:end]], [*arguments[end + 1 :]]
        is_override = "=" in argument and not os.path.isfile(argument)
        is_option = is_override or argument.startswith(("-", "~"))
        is_value = end > 0 and arguments[end - 1] in WITH_VALUE
        if not (is_option or is_value):
            return [*arguments[:end]], [*arguments[end:]]
    return [*arguments], []


def check_keys(overrides: Sequence[str]) -> None:
    """Refuse keys that a script does not read; InputError."""
    keys = [override for override in overrides if not override.startswith("-")]
    for override in keys:
        key = key_of(override)
        if key.lstrip("+~").replace("/", ".").partition(".")[0] not in KEYS:
            hint = f"set it in the script; keys that apply: {', '.join(KEYS)}"
            raise input_error(f"`{key}=` has no effect on a script", hint)
        if ATTACHED in os.environ and key in OF_COMMAND:
            hint = f"leave it out, and start the script by `python src/measure.py {override} train.py`"
            raise input_error(f"`{key}=` ends or repeats a script, which has started already", hint)
        for name in override.partition("=")[2].split(",") if key in CHOICES else [""]:
            check_choice(key, name, has_files="measure.data" in map(key_of, keys))


def check_choice(key: str, name: str, *, has_files: bool) -> None:
    """Refuse an option of a group that does not apply to scripts, and what needs files that are not known; InputError.

    `name` is empty for a key.
    """
    if name and name not in CHOICES[key]:
        choices = ", ".join(f"`{key}={choice}`" for choice in CHOICES[key])
        raise input_error(f"`{key}={name}` does not apply to a script", f"give {choices}")
    if f"{key}={name}" in OF_FILES and not has_files:
        raise input_error(f"`{key}={name}` needs the script's files", "give `measure.data=/path`")


def check_command(command: Sequence[str]) -> None:
    """Refuse a command that is not a Python file, module or program; InputError."""
    if not command:
        hint = "give it after the keys: `python src/measure.py train.py --its --own arguments`"
        raise input_error("there is no script to measure", hint)
    program = command[0]
    if program.endswith(".py") and not os.path.isfile(program):
        raise input_error(f"`{program}` is not a file", "give the path of the script")
    if program != "-m" and not program.endswith(".py") and not find_program(program):
        if shutil.which(program, path=os.path.dirname(sys.executable)):
            problem = f"`{program}` is not installed in the active environment, {active_environment()}"
            raise input_error(problem, "install it there, or deactivate the environment")
        raise input_error(
            f"`{program}` is not a Python script, nor a program such as torchrun",
            "for a module: `python src/measure.py -- -m package.train`",
        )
    if is_one_of_several(os.environ):
        raise input_error(
            "a launcher started this command in each rank", "start it once: `python src/measure.py torchrun ...`"
        )


def is_one_of_several(environment: Mapping[str, str]) -> bool:
    """Return whether a launcher, MPI or srun has started several processes of this command on this node."""
    tasks, nodes = (int(environment.get(f"SLURM_STEP_NUM_{name}", 1)) for name in ("TASKS", "NODES"))
    return tasks > nodes or any(int(environment.get(name, 1)) > 1 for name in LOCAL_RANKS)
