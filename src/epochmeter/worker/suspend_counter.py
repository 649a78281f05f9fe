"""Whether this process was stopped and went on, as where a cluster lends its node to another job.

No clock can tell: the time that passed meanwhile is in every one of them.
"""

import signal


class Pauses:
    """How often this process was let go on (SIGCONT), since it is watched."""

    def __init__(self):
        self.count = 0
        signal.signal(signal.SIGCONT, self._went_on)
        signal.siginterrupt(signal.SIGCONT, False)  # libraries that wait for something go on waiting, as without it

    def _went_on(self, number, frame):
        self.count += 1
