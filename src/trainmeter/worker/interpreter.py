"""What an interpreter has to train with, as JSON: `python -m trainmeter.worker.interpreter`.

torch is looked up and not imported, which would take seconds. Any Python from 2.7 on reads this file.
"""

import json
import os
import re
import sys


def torch_version():
    """The version of the installed torch; None where there is none, empty where it is unknown."""
    from importlib.util import find_spec

    spec = find_spec("torch")
    # A folder called torch, without any code, is no torch: a namespace, of which Python 3.6 says so as its origin.
    if spec is None or spec.origin in (None, "namespace"):
        return None
    try:
        with open(os.path.join(os.path.dirname(spec.origin), "version.py")) as file:
            version = re.search(r"^__version__ = '([^']+)'", file.read(), re.MULTILINE)
    except OSError:
        return ""
    return version.group(1) if version else ""


def main():
    python = sys.version_info[:2]
    print(json.dumps({"python": python, "torch": torch_version() if python >= (3, 4) else None}))


if __name__ == "__main__":
    main()
