"""Run by its path in a spawned DataLoader worker, which has no agent: makes the timed parts of the loader again.

If that fails, the worker loads its batches without being measured.
"""

import importlib
import os
import sys

PATH = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "shared", "path")

sys.path.insert(0, PATH)  # only for this import: the dataset must find the same modules as without
try:
    rebuilt = importlib.import_module("epochmeter.agent.loader_workers").rebuilt
except Exception:

    def rebuilt(part: str, original: object, further: object) -> object:
        """Return the object of the script."""
        return original

finally:
    sys.path.remove(PATH)
