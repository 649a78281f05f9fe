"""The commands: `epochmeter train` of an installed package, and `python src/train.py` of a checkout.

This module must be readable by Python 3.6, the default `python3` of older Jetsons.
"""

import atexit
import gc
import io
import os
import signal
import sys
from importlib import import_module

from epochmeter.config import interpreter

COMMANDS = {
    "run": ("measure", "measure your own training script"),
    "train": ("train", "train models as configured, once or in a sweep"),
    "watch": ("watch", "watch a run or a sweep while it runs"),
    "report": ("report", "compare the runs of a sweep"),
    "doctor": ("doctor", "list what this machine can measure and set"),
    "publish": ("publish", "publish runs to MLflow"),
}
"""Name of a command -> its module in `epochmeter.commands`, and its line in the list of commands."""


def main() -> None:
    """Run a command of the program `epochmeter`: `sys.argv` has its name, then its arguments."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in COMMANDS:
        sys.argv = ["epochmeter " + name, *arguments]
        start(COMMANDS[name][0])
    elif name == "--version":
        print(import_module("importlib.metadata").version("epochmeter"))
    else:
        print("usage: epochmeter COMMAND [ARGUMENTS]\n")
        print(*(f"  {command:9}{summary}" for command, (_, summary) in COMMANDS.items()), sep="\n")
        print("\n`epochmeter COMMAND --help` lists the arguments of a command.")
        if name not in ("--help", "-h"):
            sys.exit("error: `{}` is not a command\n  hint: give one of {}".format(name, ", ".join(COMMANDS)))


def start(module: str) -> None:
    """Run a module of `epochmeter.commands` with the arguments in `sys.argv`, and end with its exit code."""
    if interpreter.missing_requirements():
        sys.exit(interpreter.missing_requirements())
    from epochmeter.machine import signals

    gc.set_threshold(50_000)  # imports create no garbage; searching for it takes a fifth of MLflow's import
    atexit.register(gc.freeze)  # otherwise Python searches all modules for garbage, for half a second
    if isinstance(sys.stdout, io.TextIOWrapper):  # None if it is closed
        sys.stdout.reconfigure(errors="replace")  # the locale may lack characters
    signals.Stop().install()
    try:
        with signals.prefer_stop():
            code = import_module("epochmeter.commands." + module).main()
        print(end="", flush=True)
    except BrokenPipeError:  # the reader of the output has ended, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    signals.end_at_once(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
