"""A process that was stopped knows it once it goes on."""

import os
import signal
import time
from contextlib import closing

from trainmeter.pauses import Pauses, Unpaused


def test_a_pause_is_of_the_stretch_in_which_it_ended():
    with closing(Pauses()) as pauses:
        opened_ns = time.monotonic_ns()
        os.kill(os.getpid(), signal.SIGCONT)
        closed_ns = time.monotonic_ns()
        assert pauses.count(opened_ns, closed_ns) == 1
        assert pauses.count(closed_ns + 1, time.monotonic_ns()) == 0
        assert pauses.count(0, opened_ns) == 0


def test_nothing_is_left_behind():
    before = signal.getsignal(signal.SIGCONT)
    Pauses().close()
    assert signal.getsignal(signal.SIGCONT) == before


def test_where_nobody_watches_nothing_is_known():
    assert Unpaused().count(0, time.monotonic_ns()) == 0
