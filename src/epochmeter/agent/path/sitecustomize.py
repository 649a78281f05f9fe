"""Python imports this module at its start, in a measured script and its child processes: it prepares the agent.

The folder of this file is on the PYTHONPATH of these processes. Another `sitecustomize` is imported as well.
"""

import contextlib
import importlib
import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
IMPORT_PATH = os.path.join(os.path.dirname(os.path.dirname(FOLDER)), "shared", "path")

sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != FOLDER]
this_module = sys.modules.pop("sitecustomize")
try:
    with contextlib.suppress(ImportError):
        importlib.import_module("sitecustomize")  # another `sitecustomize`, which this module hides
finally:
    sys.modules.setdefault("sitecustomize", this_module)
if "EPOCHMETER_AGENT" in os.environ:
    sys.path.insert(0, IMPORT_PATH)  # only for these imports: the script must find the same modules as without
    try:
        from epochmeter.agent.hooks import prepare

        prepare()
    except Exception as problem:
        print("epochmeter: not measured: {}".format(problem), file=sys.stderr)
    finally:
        sys.path.remove(IMPORT_PATH)
