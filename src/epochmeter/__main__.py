"""The commands: `epochmeter train` of an installed package, and `python src/train.py` of a checkout.

This module must be readable by Python 3.6, the default `python3` of older Jetsons.
"""

import atexit
import gc
import sys
from importlib import import_module

from epochmeter.config import interpreter, standard_streams
from epochmeter.shared.problem import Problem, format_problem

COMMANDS = {
    "run": ("measure", "measure your own training script"),
    "train": ("train", "train models as configured, once or in a sweep"),
    "watch": ("watch", "watch a run or a sweep while it runs"),
    "report": ("report", "compare the runs of a sweep"),
    "doctor": ("doctor", "list what this machine can measure and set"),
    "validate": ("validate", "validate this machine: what it measures, compared with what is known"),
    "publish": ("publish", "publish runs to MLflow"),
}
"""Name of a command -> its module in `epochmeter.commands`, and its line in the list of commands."""


def main() -> None:
    """Run a command of the program `epochmeter`: `sys.argv` has its name, then its arguments."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in COMMANDS:
        sys.argv = ["epochmeter " + name, *arguments]
        start(COMMANDS[name][0])
        return
    standard_streams.install()
    try:
        print(import_module("importlib.metadata").version("epochmeter") if name == "--version" else usage(), flush=True)
    except BrokenPipeError:
        standard_streams.end_without_reader()
    if name not in ("--version", "--help", "-h"):
        hint = "give one of " + ", ".join(COMMANDS)
        sys.exit(format_problem(Problem(f"`{name}` is not a command", hint), "error"))
    sys.exit(standard_streams.write_problem() or 0)


def usage() -> str:
    """Return the list of commands."""
    lines = [f"  {command:9}{summary}" for command, (_, summary) in COMMANDS.items()]
    last = "`epochmeter COMMAND --help` lists the arguments of a command."
    return "\n".join(["usage: epochmeter COMMAND [ARGUMENTS]\n", *lines, "", last])


def start(module: str) -> None:
    """Run a module of `epochmeter.commands` with the arguments in `sys.argv`, and end with its exit code."""
    standard_streams.install()
    missing = interpreter.missing_folder() or interpreter.missing_requirements()
    if missing:
        sys.exit(missing)
    from epochmeter.machine import platforms, signals

    unsupported = platforms.unsupported(module, sys.argv[1:])
    if unsupported:
        sys.exit(format_problem(unsupported, "error"))
    gc.set_threshold(200_000)  # most of the objects are of imports: see shared/garbage.py
    atexit.register(gc.freeze)  # otherwise Python searches all modules for garbage, for half a second
    signals.Stop().install()
    try:
        try:
            with signals.prefer_stop():
                code = run_command(module)
        except SystemExit as end:
            if end.code:
                raise
            code = 0  # of argparse, after its help
        problem = standard_streams.write_problem()
    except BrokenPipeError:
        standard_streams.end_without_reader()
    signals.end_at_once(code)
    if problem:
        print(problem, file=sys.stderr)
    sys.exit(code or int(bool(problem)))


def run_command(module: str) -> int:
    """Run a module of `epochmeter.commands`; with `format=json`, it prints one document. Return the exit code."""
    command = import_module("epochmeter.commands." + module)
    arguments = sys.argv[1:]
    if module == "measure":
        arguments, _ = command.split_arguments(arguments)
    if any(argument.startswith("format=") for argument in arguments):
        from epochmeter.config import json_output

        if json_output.is_requested(arguments):
            return json_output.run(module, command.main, keeps_stdout=module == "measure")
    return command.main() or 0


if __name__ == "__main__":
    main()
