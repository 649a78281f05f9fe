"""Start a command of `epochmeter.commands`.

This module must be readable by Python 3.6, the default `python3` of older Jetsons.
"""

import sys
from importlib import import_module

from epochmeter.config import interpreter


def start(module: str) -> None:
    """Run a module of `epochmeter.commands` with the arguments in `sys.argv`, and end with its exit code."""
    if interpreter.missing_requirements():
        sys.exit(interpreter.missing_requirements())
    code = import_module("epochmeter.commands." + module).main()
    from epochmeter.machine import signals

    signals.restore_defaults()
    sys.exit(code)
