"""Print the versions of Python and torch as JSON: `python -m epochmeter.worker.interpreter`.

torch is located and not imported, which would take seconds. This file runs on Python 2.7 and newer.
"""

import json
import os
import re
import sys


def torch_version():
    """Return the version of the installed torch; None if there is none, empty if it is unknown."""
    from importlib.util import find_spec

    spec = find_spec("torch")
    # A folder named torch without code is a namespace package, whose origin is "namespace" in Python 3.6.
    if spec is None or spec.origin in (None, "namespace"):
        return None
    try:
        with open(os.path.join(os.path.dirname(spec.origin), "version.py")) as file:
            version = re.search(r"^__version__ = '([^']+)'", file.read(), re.MULTILINE)
    except OSError:
        return ""
    return version.group(1) if version else ""


def main():
    """Print the versions as JSON."""
    python = sys.version_info[:2]
    print(json.dumps({"python": python, "torch": torch_version() if python >= (3, 4) else None}))


if __name__ == "__main__":
    main()
