import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from project import wait_until

from epochmeter.machine import periodic_thread
from epochmeter.power import sampler
from epochmeter.power.instrument import Domain, Instrument
from epochmeter.power.sampler import Sampler
from epochmeter.power.uncertainty import Response

S = 1_000_000_000
LONG_PERIOD_S = 60.0  # so long a period means samples at borders only


class Rail:
    """A scripted power sensor: it can fail or hang."""

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
    sampler_ = Rail()
    yield sampler_
    sampler_.free.set()


@pytest.fixture
def quick(monkeypatch) -> None:
    """Shorter time limits than the real ones."""
    monkeypatch.setattr(sampler, "MAX_SILENCE_S", 0.2)
    monkeypatch.setattr(sampler, "READ_LIMIT_S", 0.1)


def sampling(period_s: float, **rails: Rail):
    powers = {name: Instrument(Domain("sampled", period_s, name), rail.read) for name, rail in rails.items()}
    return closing(Sampler(powers, total=list(rails), period_s=period_s))


def until(condition) -> None:
    wait_until(condition, limit_s=20, pause_s=0.002)


def test_border_takes_its_own_sample(rail, monkeypatch):
    monkeypatch.setattr(sampler, "READ_LIMIT_S", LONG_PERIOD_S)
    with sampling(LONG_PERIOD_S, VDD_IN=rail) as sampler_:
        before_ns = time.monotonic_ns()
        sampler_.read()
        rail.watts = 20.0
        sampler_.read()
        after_ns = time.monotonic_ns()
        powers = sampler_.drain(after_ns)
        assert list(powers.total_w)[-2:] == [10.0, 20.0]
        assert before_ns <= powers.times_ns[-2] < powers.times_ns[-1] <= after_ns


def test_first_reading_waits_for_the_first_sample_of_a_slow_sensor(rail):
    rail.free.clear()
    threading.Timer(0.05, rail.free.set).start()
    with sampling(LONG_PERIOD_S, VDD_IN=rail) as sampler_:
        assert sampler_.read(fresh=False).keys() == {"VDD_IN"}


def test_unavailable_power_is_reported_within_a_second():
    assert sampler.MAX_SILENCE_S + 1.5 * sampler.HEALTH_CHECK_S < 1, "the silence, and the longest pause of the check"


@pytest.mark.parametrize("error", [OSError("No such device"), ValueError("in1_input holds '', no number")], ids=repr)
def test_unavailable_sensor_is_logged_once_and_other_domains_continue(quick, rail, error, caplog):
    with sampling(0.005, VDD_IN=rail, VDD_SOC=Rail(1.0)) as sampler_:
        sampler_.read()
        opened_ns = time.monotonic_ns()
        rail.error = error
        until(lambda: any(str(error) in text for text in caplog.messages))
        reads = rail.reads
        until(lambda: rail.reads > reads + 3)
        until(lambda: sampler_.read().keys() == {"VDD_SOC"})
        assert str(error) in sampler_.sampling(opened_ns, time.monotonic_ns()).unavailable["VDD_IN"]
        rail.error = None
        until(lambda: sampler_.read().keys() == {"VDD_IN", "VDD_SOC"})
    (message,) = (text for text in caplog.messages if str(error) in text)  # others are of a machine that pauses
    assert message.endswith(f"VDD_IN is no longer available: {error}")


@pytest.mark.timed
def test_sensor_with_expensive_reads_is_read_rarely_and_stays_available(rail, monkeypatch, caplog):
    """A read takes 0.2 ms of a core, of which it may use a thousandth: it pauses for 0.2 s, longer than the 0.05 s
    after which power would be unavailable."""
    monkeypatch.setattr(sampler, "MAX_SILENCE_S", 0.05)
    monkeypatch.setattr(sampler, "HEALTH_CHECK_S", 0.01)
    monkeypatch.setattr(periodic_thread, "MAX_CPU_FRACTION", 0.001)
    read = rail.read

    def dear() -> float:
        until_s = time.thread_time() + 0.0002
        while time.thread_time() < until_s:
            pass
        return read()

    rail.read = dear
    with sampling(0.005, VDD_IN=rail) as sampler_:
        begun_ns = time.monotonic_ns()
        until(lambda: sampler_.sampling(begun_ns, time.monotonic_ns()).gap_max_s > 0.15)
        caplog.clear()
        opened_ns = time.monotonic_ns()
        until(lambda: sampler_.sampling(opened_ns, time.monotonic_ns()).samples > 5)
        assert sampler_.sampling(opened_ns, time.monotonic_ns()).unavailable == {}
    assert not caplog.records


def test_sensor_that_hangs_delays_one_border_and_not_the_end(quick, rail, monkeypatch):
    with sampling(0.005, VDD_IN=rail) as sampler_:
        sampler_.read()
        opened_ns = time.monotonic_ns()
        rail.free.clear()
        reads = rail.reads
        until(lambda: rail.reads > reads)
        limits_s, wait_for = [], sampler_._thread._round_done.wait_for

        def note(condition, limit_s):
            limits_s.append((threading.current_thread(), limit_s))
            return wait_for(condition, limit_s)

        monkeypatch.setattr(sampler_._thread._round_done, "wait_for", note)
        for _ in range(3):
            sampler_.read()
        of_borders = [limit_s for thread, limit_s in limits_s if thread is threading.current_thread()]
        assert of_borders == [sampler.READ_LIMIT_S, 0, 0]
        until(lambda: sampler_.read() == {})
        assert sampler_.sampling(opened_ns, time.monotonic_ns()).unavailable["VDD_IN"].endswith("no sample was taken")
        assert not sampler_.close(), "it still hangs"


def test_window_waits_for_the_delay_of_its_sensor_and_is_covered_by_a_later_sample(rail):
    domain = Domain("sampled", LONG_PERIOD_S, "VDD_IN", response=Response(0.1))
    with closing(Sampler({"VDD_IN": Instrument(domain, rail.read)}, total=["VDD_IN"], period_s=LONG_PERIOD_S)) as rare:
        rare.read()
        closed_ns = time.monotonic_ns()
        rare.sampling(closed_ns - S, closed_ns)
        waited_ns = time.monotonic_ns() - closed_ns
        assert S // 10 <= rare.drain(time.monotonic_ns()).times_ns[-1] - closed_ns <= waited_ns < LONG_PERIOD_S * S


@pytest.mark.timed
def test_slow_reading_counts_as_failed(quick, rail):
    with sampling(LONG_PERIOD_S, VDD_IN=rail) as slow:
        slow.read()
        rail.free.clear()
        opened_ns = time.monotonic_ns()
        slow.read()
        time.sleep(sampler.MAX_SILENCE_S)
        rail.free.set()
        until(lambda: slow.sampling(opened_ns, time.monotonic_ns()).failed)
        window = slow.sampling(opened_ns, time.monotonic_ns())
        assert (window.samples, "a reading took 0." in window.unavailable["VDD_IN"]) == (0, True)
