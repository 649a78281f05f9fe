"""Times on the device's clock, from a simulated GPU with a known queue, offset and drift."""

import random

import pytest

from epochmeter.agent import device_marks
from epochmeter.segmentation.device_times import MAX_DRIFT, DeviceTimes
from epochmeter.shared import events
from epochmeter.shared.events import HAS_BEGIN_TIME, HAS_DEVICE_TIME, Event

MILLISECOND = 10**6
NONE = float("nan")
QUEUE = 100  # steps that the host can be ahead of the device
INTERNAL = (events.DEVICE_TIME, events.IDLE_TIME)


class Gpu:
    """A device that works on what it is given in order, with a clock of its own, and a stream without work.

    Args:
        drift: Seconds by which its clock is ahead after one second.
        has_streams: Whether the other stream does not wait for the first one.
    """

    def __init__(self, drift=0.0, *, has_streams=True):
        self.drift, self.has_streams = drift, has_streams
        self.now_ns = 0  # of the host
        self.free_at_ns = 0  # the end of all work so far; host's clock
        self.ends_ns = []  # of the last work
        self.reached_ns = []  # when it reached each timestamp that the script waits for; host's clock
        self.log = []  # what the agent writes

    def host(self, milliseconds):
        self.now_ns += round(milliseconds * MILLISECOND)

    def clock(self):
        self.now_ns += 1000
        return self.now_ns

    def sleep(self, seconds):
        self.host(1000 * seconds)

    def work(self, milliseconds):
        self.free_at_ns = max(self.now_ns, self.free_at_ns) + round(milliseconds * MILLISECOND)
        self.ends_ns.append(self.free_at_ns)
        if len(self.ends_ns) > QUEUE:
            self.now_ns = max(self.now_ns, self.ends_ns.pop(0))  # a launch waits for space in the queue

    def write(self, kind, time_ns, begun_ns=0, value=NONE, thing=0, other=0, number=0, detail=0, flags=0):
        self.log.append(Event(time_ns, begun_ns, value, thing, other, number, detail, flags, kind))


class Timestamp:
    """A CUDA event of the simulated device."""

    def __init__(self, gpu):
        self.gpu = gpu

    def record(self, stream):
        gpu = self.gpu
        waits = stream == "current" or not gpu.has_streams
        self.reached_ns = max(gpu.now_ns, gpu.free_at_ns if waits else 0)
        if stream == "current":
            gpu.reached_ns.append(self.reached_ns)

    def query(self):
        return self.reached_ns <= self.gpu.now_ns

    def synchronize(self):
        self.gpu.now_ns = max(self.gpu.now_ns, self.reached_ns)

    def elapsed_time(self, later):
        ticks = (later.reached_ns - self.reached_ns) * (1 + self.gpu.drift)
        return ticks / MILLISECOND


def train(gpu, marks, steps, *, wait_ms=2.0, launch_ms=1.0, compute_ms=5.0, generator=None):
    """Train an epoch."""

    def jitter():
        return 1.0 if generator is None else generator.uniform(0.5, 2.0)

    gpu.write(events.PASS, gpu.now_ns, gpu.now_ns, NONE, 1, 1)
    for _ in range(steps):
        number = marks.record()
        begun_ns = gpu.now_ns
        gpu.host(wait_ms * jitter())
        marks.record()
        gpu.write(events.BATCH, gpu.now_ns, begun_ns, 4.0, 1, 0, number, 0, HAS_DEVICE_TIME)
        marks.collect(gpu.now_ns)
        gpu.host(launch_ms * jitter())
        gpu.work(compute_ms * jitter())
        number = marks.record()
        gpu.write(events.STEP, gpu.now_ns, 0, 0.1, 2, 0, number, 0, HAS_DEVICE_TIME)


@pytest.fixture
def simulated(monkeypatch):
    """Return a function that makes a simulated GPU, and its `DeviceMarks`."""

    def make(*arguments, **keywords):
        gpu = Gpu(*arguments, **keywords)
        monkeypatch.setattr(device_marks, "monotonic_ns", gpu.clock)
        monkeypatch.setattr(device_marks.time, "sleep", gpu.sleep)
        monkeypatch.setattr(device_marks.time, "monotonic", lambda: gpu.now_ns * 1e-9)
        cuda = device_marks.torch.cuda
        monkeypatch.setattr(cuda, "Stream", lambda device: "idle")
        monkeypatch.setattr(cuda, "current_stream", lambda device: "current")
        monkeypatch.setattr(cuda, "is_current_stream_capturing", lambda: False)
        monkeypatch.setattr(cuda, "Event", lambda enable_timing: Timestamp(gpu))
        return gpu, device_marks.DeviceMarks(gpu, "cuda:0")

    return make


def measured_ns(timed):
    """Return the device's times in the order of the timestamps."""
    marked = [each for each in timed if each.event.flags & HAS_DEVICE_TIME]
    begins = {each.event.number: each.device_begun_ns for each in marked if each.event.kind == events.BATCH}
    ends = {each.event.number + (each.event.kind == events.BATCH): each.device_ns for each in marked}
    return [time_ns for _, time_ns in sorted((begins | ends).items())]


def errors_ns(gpu, marks):
    """Return the differences of measured and real times."""
    marks.write_all(1e9)
    times = measured_ns(DeviceTimes().timed(gpu.log))
    return [time_ns - reached_ns for time_ns, reached_ns in zip(times, gpu.reached_ns, strict=True)]


@pytest.mark.parametrize("wait_ms", [0.1, 2.0, 20.0])
@pytest.mark.parametrize("drift", [0.0, 2e-5, -2e-5])
def test_times_are_those_of_the_device_even_if_it_never_waits_for_the_host(simulated, wait_ms, drift):
    gpu, marks = simulated(drift)
    for _ in range(30):
        train(gpu, marks, 100, wait_ms=wait_ms, generator=random.Random(5))
    errors = errors_ns(gpu, marks)
    assert len(errors) == 30 * 100 * 3
    assert gpu.reached_ns[-1] * abs(drift) > 100_000 or not drift, "more than the largest error"
    queue_ns, interval_ns = QUEUE * 10 * MILLISECOND, 1.1 * device_marks.COLLECT_INTERVAL_NS
    assert max(map(abs, errors)) <= MAX_DRIFT * interval_ns + abs(drift) * queue_ns + 5000


def test_times_are_those_of_the_device_if_one_stream_waits_for_the_host_at_times(simulated):
    gpu, marks = simulated(has_streams=False)
    for _ in range(30):
        train(gpu, marks, 100, wait_ms=0.1)
        gpu.host(1000)  # an evaluation, or any synchronization
    longest_ns = 100 * 5 * MILLISECOND
    assert max(map(abs, errors_ns(gpu, marks))) <= MAX_DRIFT * longest_ns + 5000


def test_begin_of_a_part_has_the_time_of_the_device_also_if_it_began_before_another_part(simulated):
    gpu, marks = simulated()
    gpu.work(3.0)
    outer, outer_ns = marks.record(), gpu.now_ns
    gpu.work(5.0)
    inner, inner_ns = marks.record(), gpu.now_ns
    gpu.work(7.0)
    flags = HAS_DEVICE_TIME | HAS_BEGIN_TIME
    for kind, number, begun_ns in ((events.BACKWARD, inner, inner_ns), (events.STEP, outer, outer_ns)):
        gpu.write(kind, gpu.now_ns, begun_ns, 0.1, 2, number, marks.record(), 0, flags)
        gpu.work(2.0)
    marks.write_all(1e9)
    begins, ends = zip(*[(each.device_begun_ns, each.device_ns) for each in DeviceTimes().timed(gpu.log)], strict=True)
    assert [begins[1], begins[0], *ends] == pytest.approx(gpu.reached_ns, abs=5000)


def test_events_keep_their_order_and_wait_for_their_timestamps(simulated):
    gpu, marks = simulated()
    train(gpu, marks, 3, wait_ms=0.1, compute_ms=500.0)
    gpu.write(events.END, gpu.now_ns, gpu.now_ns, 0.0, 1)
    times, log = DeviceTimes(), [*gpu.log]
    early = [*times.timed(log)]
    assert [each.event.kind for each in early] == [events.PASS, events.BATCH]
    gpu.log.clear()
    marks.write_all(100.0)
    later = [*times.timed(gpu.log)]
    assert [each.event for each in early + later] == [event for event in log if event.kind not in INTERNAL]
    assert times.unread == 0


def test_events_without_read_timestamps_have_the_host_s_times_and_are_counted(simulated):
    gpu, marks = simulated()
    train(gpu, marks, 3, wait_ms=0.1, compute_ms=500.0)
    times = DeviceTimes()
    timed = [*times.timed(gpu.log, is_final=True)]
    marked = [event for event in gpu.log if event.kind not in INTERNAL]
    assert [each.event for each in timed] == marked
    assert times.unread == 5, "two batches, and all steps"
    assert [each.device_ns for each in timed[-3:]] == [event.time_ns for event in marked[-3:]]


def test_work_that_never_ends_is_not_waited_for(simulated):
    gpu, marks = simulated()
    gpu.work(1e12)
    train(gpu, marks, 3)
    begun_ns = gpu.now_ns
    marks.write_all(2.0)
    assert gpu.now_ns - begun_ns == pytest.approx(2e9, rel=0.01)
    assert events.DEVICE_TIME not in [event.kind for event in gpu.log[-3:]]


def test_graph_that_is_captured_gets_no_timestamps(simulated, monkeypatch):
    gpu, marks = simulated()
    monkeypatch.setattr(device_marks.torch.cuda, "is_current_stream_capturing", lambda: True)
    count = len(gpu.log)
    assert marks.record() is None
    marks.collect(10**12)
    marks.write_completed()
    assert (gpu.reached_ns, len(gpu.log)) == ([], count)
