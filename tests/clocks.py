"""Clocks of one module, which other threads of the process do not read, and one that does not depend on the machine."""

import sys
import time
from types import SimpleNamespace


def time_with(**functions):
    """Return what takes the place of the module `time` in another module, with some functions replaced."""
    return SimpleNamespace(**{**vars(time), **functions})


class ScriptedClock:
    """A clock that advances by sleeps, and by a microsecond with each reading: the work of a script takes no time.

    It replaces the clocks of the agent and of a module with tests, in this process only.
    """

    READING_NS = 1000

    def __init__(self, monkeypatch, tests):
        self._now_ns = 10**9
        modules = [module for name, module in sys.modules.items() if name.startswith("epochmeter.agent.")]
        for module in modules:
            if hasattr(module, "monotonic_ns"):
                monkeypatch.setattr(module, "monotonic_ns", self.monotonic_ns)
        monkeypatch.setattr(tests, "time", time_with(perf_counter=self.perf_counter, sleep=self.sleep))

    def monotonic_ns(self):
        self._now_ns += self.READING_NS
        return self._now_ns

    def perf_counter(self):
        return self.monotonic_ns() * 1e-9

    def sleep(self, seconds):
        self._now_ns += round(seconds * 1e9)
