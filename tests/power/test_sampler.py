import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice

import pytest

from epochmeter.machine import periodic_thread
from epochmeter.machine.periodic_thread import pauses
from epochmeter.power import sampler
from epochmeter.power.meter import Domain, Instruments, Power
from epochmeter.power.sampler import Sampler
from epochmeter.power.window_energy import consumption, reading

S = 1_000_000_000
SELDOM_S = 60.0  # what is sampled so seldom is sampled at borders alone


class Rail:
    """A power that tests set, and that fails, or hangs, as they say."""

    def __init__(self, watts: float = 10.0) -> None:
        self.watts = watts
        self.error: Exception | None = None
        self.reads = 0
        self.free = threading.Event()
        self.free.set()

    def read(self) -> float:
        self.reads += 1
        self.free.wait()
        if self.error:
            raise self.error
        return self.watts


@pytest.fixture
def rail() -> Iterator[Rail]:
    made = Rail()
    yield made
    made.free.set()


@pytest.fixture
def quick(monkeypatch) -> None:
    """What is lost is known sooner than in a second."""
    monkeypatch.setattr(sampler, "LONGEST_SILENCE_S", 0.2)
    monkeypatch.setattr(sampler, "PATIENCE_S", 0.1)


def sampling(period_s: float, **rails: Rail):
    powers = {name: Power(Domain("sampled", period_s, name), rail.read) for name, rail in rails.items()}
    return closing(Sampler(powers, total=list(rails), period_s=period_s))


def until(true: Callable[[], object], limit_s: float = 5.0) -> None:
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end, f"not within {limit_s} s"
        time.sleep(0.002)


def test_pauses_are_uneven_and_the_period_on_average():
    some = list(islice(pauses(0.02, random.Random(1)), 10_000))
    assert statistics.mean(some) == pytest.approx(0.02, rel=0.01)
    assert statistics.pstdev(some) > 0.02 / 5
    assert all(0 < pause <= 0.03 for pause in some)


@pytest.mark.parametrize("multiple", [3, 4, 5, 6])
def test_a_load_as_periodic_as_the_sampling_is_met_at_all_its_phases(multiple):
    """At an even pace of 0.02 s a cycle of five samples would be high in three of them for ever, or in two."""
    cycle_s, at_s, phases = multiple * 0.02, 0.0, []
    for pause_s in islice(pauses(0.02, random.Random(1)), 5_000):
        at_s += pause_s
        phases.append(at_s % cycle_s < cycle_s / 2)
    assert statistics.mean(phases) == pytest.approx(0.5, abs=0.02)


def test_a_border_has_a_sample_of_its_own_however_seldom_it_is_sampled(rail):
    with sampling(SELDOM_S, VDD_IN=rail) as made:
        before_ns = time.monotonic_ns()
        made.joules()
        rail.watts = 20.0
        made.joules()
        after_ns = time.monotonic_ns()
        powers = made.drain(after_ns)
        assert list(powers.total_w)[-2:] == [10.0, 20.0]
        assert before_ns <= powers.times_ns[-2] < powers.times_ns[-1] <= after_ns
        assert after_ns - before_ns < S


def test_what_is_slow_to_read_is_known_from_the_first_without_a_sample_of_its_own(rail):
    rail.free.clear()
    threading.Timer(0.05, rail.free.set).start()
    with sampling(SELDOM_S, VDD_IN=rail) as made:
        assert made.joules(fresh=False).keys() == {"VDD_IN"}


def test_joules_are_the_power_times_what_passed_between_two_readings(rail):
    with sampling(0.005, VDD_IN=rail) as made:
        begun_ns = time.monotonic_ns()
        before = made.joules()["VDD_IN"]
        opened_ns = time.monotonic_ns()
        time.sleep(0.05)
        closed_ns = time.monotonic_ns()
        after = made.joules()["VDD_IN"]
        ended_ns = time.monotonic_ns()
        assert 10 * (closed_ns - opened_ns) / S <= after - before <= 10 * (ended_ns - begun_ns) / S
        assert made.sampling(begun_ns, ended_ns).samples >= 3


def test_a_read_that_fails_is_counted_and_bridged(rail, caplog):
    with sampling(0.005, VDD_IN=rail) as made:
        made.joules()
        opened_ns = time.monotonic_ns()
        rail.error = OSError("Remote I/O error")
        reads = rail.reads
        until(lambda: rail.reads > reads + 3)
        rail.error = None
        joules = made.joules()
        stretch = made.sampling(opened_ns, time.monotonic_ns())
        assert stretch.failed >= 2
        assert stretch.lost == {}
        assert joules["VDD_IN"] > 0
    assert not caplog.records


@pytest.mark.parametrize("error", [OSError("No such device"), ValueError("in1_input holds '', no number")], ids=repr)
def test_a_power_that_is_gone_is_told_once_and_its_stretch_has_no_energy_while_others_have(quick, rail, error, caplog):
    with sampling(0.005, VDD_IN=rail, VDD_SOC=Rail(1.0)) as made:
        made.joules()
        opened_ns = time.monotonic_ns()
        rail.error = error
        until(lambda: caplog.records)
        assert time.monotonic_ns() - opened_ns < S
        reads = rail.reads
        until(lambda: rail.reads > reads + 3)
        assert made.joules().keys() == {"VDD_SOC"}
        assert str(error) in made.sampling(opened_ns, time.monotonic_ns()).lost["VDD_IN"]
        rail.error = None
        assert made.joules().keys() == {"VDD_IN", "VDD_SOC"}
    assert [record.getMessage() for record in caplog.records] == [
        f"The power of VDD_IN cannot be read any more: {error}"
    ]


def test_what_is_dear_to_read_is_read_seldom_and_not_taken_for_lost(rail, monkeypatch, caplog):
    """A look takes 0.2 ms of a core and may take a thousandth: it pauses for 0.2 s, where 0.05 s would be a loss."""
    monkeypatch.setattr(sampler, "LONGEST_SILENCE_S", 0.05)
    monkeypatch.setattr(sampler, "LOOK_S", 0.01)
    monkeypatch.setattr(periodic_thread, "MOST", 0.001)
    read = rail.read

    def dear() -> float:
        until_s = time.thread_time() + 0.0002
        while time.thread_time() < until_s:
            pass
        return read()

    rail.read = dear
    with sampling(0.005, VDD_IN=rail) as made:
        begun_ns = time.monotonic_ns()
        until(lambda: made.sampling(begun_ns, time.monotonic_ns()).gap_max_s > 0.15, limit_s=20)
        caplog.clear()
        opened_ns = time.monotonic_ns()
        until(lambda: made.sampling(opened_ns, time.monotonic_ns()).samples > 5, limit_s=20)
        assert made.sampling(opened_ns, time.monotonic_ns()).lost == {}
    assert not caplog.records


def test_a_blink_of_full_load_between_two_idle_borders_has_no_energy(rail):
    with sampling(SELDOM_S, gpu0=rail) as made:
        meter = Instruments(powers=made, total=["gpu0"], covers="GPU board")
        before = reading(meter)
        rail.watts = 180.0
        time.sleep(0.03)
        rail.watts = 10.0
        after = reading(meter)
        assert consumption(before, after, meter, 0.03).metrics == {}


def test_three_tenths_of_a_second_are_bridged_and_what_lasts_is_known_within_a_second():
    assert 0.3 + 2 * 0.1 < sampler.LONGEST_SILENCE_S < 1 - 0.1  # at 10 Hz, the slowest that a board is sampled


def test_an_instrument_that_hangs_costs_a_border_its_patience_once_and_is_lost(quick, rail):
    with sampling(0.005, VDD_IN=rail) as made:
        made.joules()
        opened_ns = time.monotonic_ns()
        rail.free.clear()
        reads = rail.reads
        until(lambda: rail.reads > reads)
        waits_s = []
        for _ in range(3):
            begun_s = time.monotonic()
            made.joules()
            waits_s.append(time.monotonic() - begun_s)
        until(lambda: made.joules() == {})
        assert waits_s[0] >= sampler.PATIENCE_S > 2 * max(waits_s[1:])
        assert made.sampling(opened_ns, time.monotonic_ns()).lost["VDD_IN"].endswith("no sample was taken")


def test_closing_ends_its_threads_even_in_a_long_pause():
    before = set(threading.enumerate())
    with sampling(SELDOM_S, VDD_IN=Rail()):
        assert set(threading.enumerate()) - before
    assert not set(threading.enumerate()) - before


def test_an_instrument_that_hangs_is_told_though_nobody_asks_for_a_sample(quick, rail, caplog):
    with sampling(0.01, VDD_IN=rail):
        until(lambda: rail.reads > 1)
        rail.free.clear()
        until(lambda: caplog.records)
        assert caplog.messages == ["The power of VDD_IN cannot be read any more: no sample was taken"]
        rail.free.set()


def test_a_reading_that_took_so_long_that_it_tells_of_no_moment_is_none(quick, rail):
    with sampling(SELDOM_S, VDD_IN=rail) as slow:
        slow.joules()
        rail.free.clear()
        opened_ns = time.monotonic_ns()
        slow.joules()
        time.sleep(sampler.LONGEST_SILENCE_S)
        rail.free.set()
        until(lambda: slow.sampling(opened_ns, time.monotonic_ns()).failed)
        told = slow.sampling(opened_ns, time.monotonic_ns())
        assert told.samples == 0
        assert "a reading took 0." in told.lost["VDD_IN"]


def test_closing_waits_no_longer_for_an_instrument_that_hangs_than_a_border_does(quick, rail):
    rail.free.clear()
    begun_s = time.monotonic()
    with sampling(SELDOM_S, VDD_IN=rail):
        pass
    assert time.monotonic() - begun_s < 0.5
