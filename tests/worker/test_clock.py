"""The clock with scripted time: every expected value is exact, to the nanosecond."""

import contextlib
import time

import pytest
from cases import case, cases

from epochmeter.worker.clock import Clock
from epochmeter.worker.timeline import EventTimeline, HostTimeline

MS = 1_000_000


class World:
    """Scripted time of the host, and a device that works on its queue."""

    def __init__(self, capacity=4096):
        self.now_ns = self.idle_from_ns = 0
        self.events, self.synchronized_at = [], []
        self.timeline = EventTimeline(self._event, self._synchronize, capacity)

    def now(self):
        return self.now_ns

    def host(self, ms):
        self.now_ns += round(ms * MS)

    def device(self, ms):
        self.idle_from_ns = max(self.idle_from_ns, self.now_ns) + round(ms * MS)

    def _event(self):
        self.events.append(Event(self))
        return self.events[-1]

    def _synchronize(self):
        self.now_ns = max(self.now_ns, self.idle_from_ns)
        self.synchronized_at.append(self.now_ns // MS)


class Event:
    """An event on the device's stream: completed after the work before it."""

    def __init__(self, world):
        self.world = world

    def record(self):
        self.at_ns = max(self.world.idle_from_ns, self.world.now_ns)

    def query(self):
        return self.at_ns <= self.world.now_ns

    def synchronize(self):
        self.world.now_ns = max(self.world.now_ns, self.at_ns)

    def elapsed_time(self, later):
        assert later.query(), "read before it has passed"
        return (later.at_ns - self.at_ns) / MS


class Loader:
    """Takes scripted times to start, to return each batch, and to end; a batch is its number."""

    def __init__(self, world, waits, start=0, stop=0):
        self.world, self.waits, self.start, self.stop = world, waits, start, stop

    def __iter__(self):
        self.world.host(self.start)
        return self._batches()

    def _batches(self):
        for number, wait in enumerate(self.waits):
            self.world.host(wait)
            yield number
        self.world.host(self.stop)


@pytest.fixture
def world():
    return World()


def on_device(world, timeline=None, **how):
    keys = {"host": world.now, "wall": world.now, "collect_interval_ns": 0, **how}
    return Clock(timeline or world.timeline, **keys)


def on_cpu(world, **how):
    return on_device(world, HostTimeline(world.now), **how)


timelines = pytest.mark.parametrize("timeline", [on_cpu, on_device])


def times(clock):
    """The parts that are times in milliseconds, those that are not 0."""
    return {name[:-2]: round(value * 1e3, 6) for name, value in clock.parts().items() if name.endswith("_s") and value}


def rows_ms(clock):
    values = [round(value * 1e3, 4) for value in clock.rows]
    return [tuple(values[at : at + 4]) for at in range(0, len(values), 4)]


def lagging_epoch(world, clock, waits, *, copy=1, launch=1, **loader):
    """An epoch on the device: the host queues a step's work in `launch` ms, and the device does it in its own time."""
    clock.open()
    for _ in clock.batches(Loader(world, waits, **loader), lambda batch: world.device(copy)):
        world.device(10)
        world.host(launch)
    clock.close()


def cpu_epoch(world, clock, *, rest=0, **loader):
    """Three steps on the CPU, the last with a smaller batch; `rest` ms pass between the loader's end and the close."""
    clock.open()
    for compute in clock.batches(Loader(world, [3, 4, 1], **loader), lambda step: world.host(1) or (10, 10, 5)[step]):
        world.host(compute)
    world.host(rest)
    clock.close()


def test_interrupted_clock_reading_is_retried(world):
    interruptions = {0: 5, 2: 5, 6: 7}  # ms lost after that reading of the wall clock, before its mark
    readings = []

    def wall():
        readings.append(world.now())
        world.host(interruptions.get(len(readings) - 1, 0))
        return readings[-1]

    clock = on_cpu(world, wall=wall)
    cpu_epoch(world, clock)
    assert len(readings) == 10  # twice again at the open, once at the close
    assert clock.parts()["clock_residual_s"] == 0


@timelines
@pytest.mark.parametrize(
    ("end", "last_step", "overhead"),
    [("", 15, 0), ("generator", 10, 5), ("last step", 10, 5), ("last step, then request", 15, 2)],
)
def test_time_after_the_last_step_is_overhead_unless_the_step_goes_on(world, timeline, end, last_step, overhead):
    """The consumer leaves the loop after two steps: it keeps the generator, drops it, or ends the last step."""
    clock = timeline(world)
    clock.open()
    batches = clock.batches(Loader(world, [4, 4] if "request" in end else [4] * 4, 2, 2), lambda batch: batch)
    for _ in range(2):
        next(batches)
        world.host(10)
    if "last step" in end:
        clock.end_last_step()
    elif end:
        del batches
    world.host(5)  # such as writing a log
    assert "request" not in end or list(batches) == []
    clock.close()
    waits = {"data_stall": 10, "host_wait": 10, "loader_start": 6, **({"loader_stop": 2} if "request" in end else {})}
    e2e, tail = 20 + last_step + overhead, {"overhead": overhead} if overhead else {}
    assert times(clock) == {"e2e": e2e, **waits, "compute": 10 + last_step, **tail}
    assert rows_ms(clock) == [(6, 6, 0, 10), (4, 4, 0, last_step)]


@timelines
@cases(
    case(
        "two batches",
        waits=[3, 4],
        script="fetch 10 fetch 20 end_step 7 fetch 0",
        expected={
            "e2e": 47,
            "data_stall": 9,
            "host_wait": 9,
            "compute": 30,
            "overhead": 8,
            "loader_start": 5,
            "loader_stop": 1,
        },
        rows=[(5, 5, 0, 10), (4, 4, 0, 20)],
    ),
    case(
        "no batch",
        waits=[],
        script="end_step 7 fetch 0",
        expected={"e2e": 10, "overhead": 10, "loader_stop": 3},
        rows=[],
    ),
    case(
        "an ended step is not extended by another batch",
        waits=[0, 2],
        script="fetch 10 end_last_step 5 end_step 3 fetch 4",
        expected={"e2e": 26, "data_stall": 4, "host_wait": 4, "compute": 14, "overhead": 8, "loader_start": 2},
        rows=[(2, 2, 0, 10), (10, 2, 0, 4)],
    ),
)
def test_consumer_that_requests_batches_itself_has_no_copies(world, timeline, waits, script, expected, rows):
    """`script` lists calls of the clock, each with the milliseconds until the next call."""
    clock = timeline(world, copies=False)
    clock.open()
    batches = iter(Loader(world, waits, start=2, stop=1))
    clock.add_early_wait(2 * MS)
    words = script.split()
    for call, ms in zip(words[::2], words[1::2], strict=True):
        with contextlib.suppress(StopIteration):
            getattr(clock, call)(*[batches] if call == "fetch" else [])
        world.host(int(ms))
    clock.close()
    assert (times(clock), rows_ms(clock), "copy_s" in clock.parts()) == (expected, rows, False)


def test_cpu_parts_match_the_script_also_if_several_steps_are_collected_at_once(world):
    for interval_ns, collected in ((0, [1, 2, 3]), (20 * MS, [2])):
        steps = []
        clock = on_cpu(
            world, collect_interval_ns=interval_ns, observe=lambda count, *_, steps=steps: steps.append(count)
        )
        cpu_epoch(world, clock, start=2, stop=2, rest=3)
        assert times(clock) == {
            "e2e": 43, "data_stall": 10, "host_wait": 10, "copy": 3, "compute": 25, "overhead": 5, "loader_start": 5,
            "loader_stop": 2,
        }  # fmt: skip
        assert (clock.parts()["steps"], steps) == (3, collected)
        assert rows_ms(clock) == [(5, 5, 1, 10), (4, 4, 1, 10), (1, 1, 1, 5)]


@cases(
    # 4 for the first batch, then the device never idles: 3 x (1 + 10)
    case(
        "a wait hidden by a lagging device is no stall",
        waits=[4, 4, 4],
        keys={"stop": 2},
        expected={"data_stall": 4, "host_wait": 12, "copy": 3, "compute": 30},
        last_row=(0, 4, 1, 10),
    ),
    # requested at 5, ready at 35; the device was busy until 15
    case(
        "a stall is idle time of the device",
        waits=[4, 30],
        keys={},
        expected={"data_stall": 4 + 20, "host_wait": 4 + 30, "copy": 2, "compute": 20},
        last_row=(20, 30, 1, 10),
    ),
    case(
        "a launch is compute",
        waits=[0, 0],
        keys={"copy": 0, "launch": 40},
        expected={"compute": 80},
        last_row=(0, 0, 0, 40),
    ),
)
def test_device_parts_match_the_script_from_an_idle_device_on(world, waits, keys, expected, last_row):
    clock = on_device(world)
    lagging_epoch(world, clock, [4, 30, 2], start=9)  # neither an earlier epoch nor queued work is part of the window
    world.device(100)
    opened_ns = world.idle_from_ns
    lagging_epoch(world, clock, waits, **keys)
    e2e = expected["data_stall"] + expected["copy"] + expected["compute"] if "copy" in expected else 80
    loader = {"loader_start": waits[0]} if waits[0] else {}
    assert times(clock) == {"e2e": e2e, **expected, **loader}
    assert (clock.opened_ns, clock.closed_ns) == (opened_ns, opened_ns + e2e * MS)
    assert (rows_ms(clock)[-1], len(rows_ms(clock)), clock.parts()["steps"]) == (last_row, len(waits), len(waits))


def milliseconds(parts):
    return [round(parts[f"{name}_s"] * 1e3, 6) for name in ("data_stall", "copy", "compute", "overhead")]


def test_parts_so_far_are_those_of_the_steps_that_the_device_has_finished(world):
    seen = []
    clock = on_device(world, observe=lambda steps, now_ns, parts: seen.append((steps, *milliseconds(parts()))))
    lagging_epoch(world, clock, [4, 30, 2], start=9)
    assert seen == [(0, 0, 0, 0, 0), (1, 13, 1, 10, 0), (1, 13, 1, 10, 0)]
    assert world.synchronized_at[0] == 0
    assert min(world.synchronized_at[1:]) >= 66, "when the pass was closed"


def test_gap_without_waiting_is_overhead_and_the_residual_is_between_the_clocks(world):
    seen = []

    def observe(steps, now_ns, parts):
        seen.append(milliseconds(parts()))
        world.host(7)

    clock = on_cpu(world, wall=lambda: round(world.now_ns * 1.001), observe=observe)
    cpu_epoch(world, clock, stop=2, rest=3)
    assert seen == [[3, 1, 10, 0], [7, 2, 20, 7], [8, 3, 25, 14]]
    assert times(clock) == {
        "e2e": pytest.approx(62 * 1.001), "data_stall": 8, "host_wait": 8, "copy": 3, "compute": 25,
        "overhead": 3 * 7 + 5, "clock_residual": pytest.approx(62 * 0.001), "loader_start": 3, "loader_stop": 2,
    }  # fmt: skip


def test_synchronous_timing_waits_after_every_step(world):
    clock = on_device(world, synchronous=True)
    lagging_epoch(world, clock, [4, 4, 4])
    assert world.synchronized_at[:4] == [0, 15, 30, 45]
    assert times(clock) == {
        "e2e": 45, "data_stall": 12, "host_wait": 12, "copy": 3, "compute": 30, "loader_start": 4,
    }  # fmt: skip


def test_full_event_queue_waits_and_counts_waits():
    world = World(capacity=3)
    clock = on_device(world)
    lagging_epoch(world, clock, [0] * 4, launch=0)
    # Each step leaves two marks under way, the next adds three: of five the host waits for two, since three may be.
    assert clock.parts()["clock_waits"] == 3 * 2
    assert len(world.events) <= 3 + 3 + 1
    assert times(clock) == {"e2e": 44, "copy": 4, "compute": 40}


@pytest.mark.timed
def test_real_clocks_differ_by_less_than_0_1_percent():
    clock = Clock(HostTimeline())
    shares = []
    for _ in range(5):  # a busy machine may take the processor away between the readings of the two clocks
        clock.open()
        for _ in clock.batches(range(20), int):
            time.sleep(0.002)
        clock.close()
        parts = clock.parts()
        assert parts["e2e_s"] >= parts["compute_s"] >= 20 * 0.002
        shares.append(abs(parts["clock_residual_s"]) / parts["e2e_s"])
    assert min(shares) <= 0.001
