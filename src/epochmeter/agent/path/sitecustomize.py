"""Python imports this module at its start, in a measured script and its child processes: it prepares the agent.

The folder of this file is on the PYTHONPATH of these processes. Another `sitecustomize` is imported as well.
"""

import contextlib
import importlib
import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(FOLDER)))


def import_other_sitecustomize():
    """Import the `sitecustomize` that this module hides, if there is one."""
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != FOLDER]
    own = sys.modules.pop("sitecustomize")
    try:
        with contextlib.suppress(ImportError):
            importlib.import_module(own.__name__)
    finally:
        sys.modules.setdefault("sitecustomize", own)


import_other_sitecustomize()
if "EPOCHMETER_AGENT" in os.environ:
    sys.path.insert(0, SOURCE)  # only for these imports: the script must not find other modules than without the agent
    try:
        from epochmeter.agent.hooks import install_with_torch

        install_with_torch()
    except Exception as problem:
        print("epochmeter: not measured: {}".format(problem), file=sys.stderr)
    finally:
        sys.path.remove(SOURCE)
