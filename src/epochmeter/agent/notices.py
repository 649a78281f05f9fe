"""What the agent tells the user of a script."""

import sys

from epochmeter.agent.frames import Suppressed


def notice(text: str) -> None:
    """Print a line to stderr; nothing if the script has closed it: `print` would use stdout without a stderr."""
    if sys.stderr is not None:
        with Suppressed(Exception):
            print("epochmeter: " + text, file=sys.stderr)
