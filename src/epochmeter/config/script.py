"""A measured script as a configuration: its command, the values of its placeholders, its code and its ranks."""

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from epochmeter.config.arguments import HIDE_KEY, PLACEHOLDER, conceal_command, secret_placeholders
from epochmeter.config.interpreter import active_environment
from epochmeter.config.schema import SCRIPT, Dataset, Group, Job, Profiler, Strategy
from epochmeter.config.secrets import conceal, conceal_argument, conceal_tree, reveal
from epochmeter.config.validation import format_value
from epochmeter.shared.problem import input_error

ATTACHED = "EPOCHMETER_ATTACHED"
"""Environment variable of a process that measures the script that started it: the pipe to the script."""
RANKS = re.compile(r"--(?:nproc[-_]per[-_]node|num[-_]processes|num[-_](?:gpus|accelerators))[= ]([1-9]\d*)\b")
"""Options for the number of ranks: of torchrun, accelerate and deepspeed, or of a script that starts them itself."""
RANKS_HINT = "give the launcher the number of ranks, as in `torchrun --nproc_per_node=2`, or set CUDA_VISIBLE_DEVICES"


def check_placeholders(command: Sequence[str], keys: Sequence[str]) -> None:
    """Refuse a placeholder of the command without a value, and a `script.` key without a placeholder; InputError."""
    given = {key.partition(".")[2] for key in keys if key.startswith("script.")}
    used = {name for argument in command for name in PLACEHOLDER.findall(argument)}
    for name in sorted(used - given):
        raise input_error(f"`{{script.{name}}}` has no value", f"give it before the script: `script.{name}=0.1`")
    for name in sorted(given - used):
        where = f"`--{name} {{script.{name}}}` after the script"
        raise input_error(f"`script.{name}=` is not used by the command", f"write its placeholder, such as {where}")


def filled_command(job: Job) -> list[str]:
    """Return the command of a measured script to start, with the values of its placeholders and with its secrets."""
    return _filled(reveal(job.measure.command or []), reveal(job.script))


def recorded_command(job: Job) -> list[str]:
    """Return the command of a measured script with the values of its placeholders, to record and to print."""
    return _filled(job.measure.command or [], job.script)


def _filled(command: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    return [PLACEHOLDER.sub(lambda match: format_value(values[match[1]]), argument) for argument in command]


def is_program(command: Sequence[str] | None) -> bool:
    """Return whether a command is a program such as torchrun, not a Python file or module."""
    return command is not None and command[0] != "-m" and not command[0].endswith(".py")


def find_program(name: str) -> str | None:
    """Return the path of a program: on PATH, else in the active environment, else in this Python's own; None without.

    Of another environment than the active one, a launcher would start the script with other packages.
    """
    environment = active_environment()
    folder = os.path.join(environment, "bin") if environment else os.path.dirname(sys.executable)
    return shutil.which(name) or shutil.which(name, path=folder)


def script_job(job: Job, overrides: Sequence[str]) -> Job:
    """Return the job that measures a script; it is traced only if an override requests it, by `profiler=torch`."""
    of_script = Group(spec={"name": SCRIPT}, name=SCRIPT)
    is_traced = job.profiler.name != "none" and any(item.startswith("profiler") for item in overrides)
    if is_traced and job.profiler.name != "torch":
        raise input_error(f"`profiler={job.profiler.name}` cannot trace a script", "give `profiler=torch`")
    strategy, command = job.strategy, job.measure.command or []
    if ranks := RANKS.search(" ".join(filled_command(job))):
        strategy = Strategy.from_dict({"name": SCRIPT, "launcher": SCRIPT, "ranks": int(ranks[1])})
    if job.measure.hide_arguments and conceal_command(command, hides_all=True) != command:
        raise input_error(f"`{HIDE_KEY}=` is in a file", f"give it on the command line: `{HIDE_KEY}=true`")
    is_running = job.measure.pid is not None
    return replace(
        job,
        meter=replace(job.meter, idle_s=0.0) if is_running else job.meter,  # it is not idle
        script=concealed_values(job),
        model=of_script,
        optimizer=of_script,
        scheduler=of_script,
        task=of_script,
        profiler=job.profiler if is_traced else Profiler(spec=of_script.spec, name=of_script.name),
        dataset=Dataset.from_dict({"name": SCRIPT, "layout": SCRIPT, "open": {SCRIPT: None}}),
        strategy=strategy,
        measure=replace(job.measure, digest=code_digest(reveal(command))),
    )


def concealed_values(job: Job) -> dict[str, object]:
    """Return the values of a command's placeholders, with secrets concealed by their names, their use or their form."""
    secret = job.script if job.measure.hide_arguments else secret_placeholders(job.measure.command or [])

    def concealed(name: str, value: Any) -> Any:
        if name in secret:
            return conceal(value)
        return conceal_argument(value, name) if isinstance(value, str) else conceal_tree(value, name)

    return {name: concealed(name, value) for name, value in job.script.items()}


def code_digest(command: Sequence[str]) -> str:
    """Return the hash of the Python files that a command names, without their imports, and of the working directory."""
    modules = [name.replace(".", "/") for option, name in pairwise(command) if option == "-m"]
    paths = [*command, *(f"{module}{end}" for module in modules for end in (".py", "/__main__.py"))]
    files = [Path(path) for path in paths if path.endswith(".py") and os.path.isfile(path)]
    code = [os.getcwd().encode(), *(hashlib.sha256(file.read_bytes()).digest() for file in files)]
    return hashlib.sha256(b"\0".join(code)).hexdigest()[:16]
