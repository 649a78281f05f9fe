"""The contract of meters finds each way to break it."""

import math
import threading
from itertools import count

import pytest
from cases import case, cases

from epochmeter.power.instrument import Domain, Instrument
from epochmeter.power.meter import EnergyMeter, NullMeter
from epochmeter.testing import check_absent_meter, check_meter


class Socket:
    """A simulated instrument: its joules, and whether it can be read."""

    def __init__(self, joules=(), error=None, after_error=None):
        self._joules, self._after_error = iter(joules or count(10)), after_error
        self._error = error or OSError("gone")
        self.is_broken = False

    def read(self):
        if not self.is_broken:
            return float(next(self._joules))
        if self._after_error is None:
            raise self._error
        return self._after_error

    def fail(self):
        self.is_broken = True


def opened(socket, name="socket", source="counter", covers="the machine", **how):
    domain = Domain(source, 0.1, covers, **how)
    return EnergyMeter(counters={name: Instrument(domain, socket.read)}, total=[name], covers=covers)


def test_meter_that_counts_and_fails_as_it_should_passes():
    socket = Socket()
    check_meter(lambda: opened(socket), use=lambda: None, fail=socket.fail)


@cases(
    case(before=5, after=4, reason="socket runs backwards: 5.0 J, then 4.0 J"),
    case(before=5, after=math.nan, reason="socket: nan is not a number of joules"),
    case(before=5, after=5, reason="the total has not grown"),
    case(before=0, after=65_000, reason="the total grew by 65000, more than 20000 W: are these joules"),
)
def test_joules_that_cannot_be_right_are_found(before, after, reason):
    with pytest.raises(AssertionError, match=reason):
        check_meter(lambda: opened(Socket([before, after])), use=lambda: None)


@cases(
    case(how={"name": "gpu 0"}, reason="'gpu 0' cannot be a part of the name of a metric"),
    case(how={"covers": ""}, reason="`covers` does not state"),
    case(how={"step": -1.0}, reason="the step is below 0"),
)
def test_incomplete_description_is_found(how, reason):
    with pytest.raises(AssertionError, match=reason):
        check_meter(lambda: opened(Socket(), **how))


@cases(
    case(socket=lambda: Socket(after_error=0.0), reason="cannot be read, but the total is 0.0 J"),
    case(socket=lambda: Socket(error=RuntimeError("no")), reason=r"reading raises RuntimeError\('no'\)"),
)
def test_instrument_that_hides_its_error_is_found(socket, reason):
    made = socket()
    with pytest.raises(AssertionError, match=reason):
        check_meter(lambda: opened(made), fail=made.fail)


def test_instrument_that_two_threads_cannot_read_is_found():
    is_read = threading.Event()

    def read():
        if is_read.is_set() and threading.current_thread() is not threading.main_thread():
            raise RuntimeError("another thread reads it")
        is_read.set()
        return 1.0

    socket = Socket()
    socket.read = read
    with pytest.raises(AssertionError, match=r"threads at once.*another thread reads it"):
        check_meter(lambda: opened(socket))


def test_thread_that_runs_after_the_end_is_found(monkeypatch):
    monkeypatch.setattr("epochmeter.testing.meters.LIMIT_S", 0.2)
    stop = threading.Event()

    def open_meter():
        threading.Thread(target=stop.wait, name="left").start()
        return opened(Socket())

    try:
        with pytest.raises(AssertionError, match=r"threads run after `close`: \['left'\]"):
            check_meter(open_meter)
    finally:
        stop.set()


def test_meter_without_energy_needs_a_reason_and_no_total():
    check_absent_meter(lambda: NullMeter("there is none"))
    with pytest.raises(AssertionError, match=r"source.* is 'counter'"):
        check_absent_meter(lambda: opened(Socket()))
    with pytest.raises(AssertionError, match="does not state why"):
        check_absent_meter(lambda: EnergyMeter(total=(), covers=None))
    with pytest.raises(AssertionError, match="no domain is in the total"):
        check_meter(lambda: NullMeter("there is none"))
