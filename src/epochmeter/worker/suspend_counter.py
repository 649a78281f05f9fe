"""Detect suspensions: count how often this process was stopped and continued, as when a cluster preempts its job.

Clocks cannot show it: the suspended time is in every one of them.
"""

import signal


class SuspendCounter:
    """Count SIGCONT signals to this process."""

    def __init__(self):
        self.count = 0
        signal.signal(signal.SIGCONT, self._on_continue)
        signal.siginterrupt(signal.SIGCONT, False)  # restart interrupted system calls, as without a handler

    def _on_continue(self, number, frame):
        self.count += 1
