"""What the agent tells the user of a script."""

import contextlib
import sys


def notice(text: str) -> None:
    """Print a line to stderr; nothing if the script has closed it: `print` would use stdout without a stderr."""
    if sys.stderr is not None:
        with contextlib.suppress(Exception):
            print("epochmeter: " + text, file=sys.stderr)
