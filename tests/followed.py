"""A script that a controller follows: logs as an agent writes them, a meter with known power, a scripted process."""

import json
import time
from types import SimpleNamespace
from unittest.mock import Mock

from default_jobs import job_of
from metadata import run_info

from epochmeter.agent.event_log import EventLog
from epochmeter.machine.cpu_load import CpuUse
from epochmeter.power.instrument import Domain, Instrument
from epochmeter.power.meter import EnergyMeter, NullMeter
from epochmeter.power.window_energy import take_reading
from epochmeter.run.instruments import WindowInstruments
from epochmeter.run.node_windows import SingleNode
from epochmeter.run.recording import Recording
from epochmeter.run.script_loop import ScriptLoop
from epochmeter.segmentation.script import ScriptWindows
from epochmeter.shared import events
from epochmeter.shared.process_identity import this_process
from epochmeter.shared.protocol import Asked

POWER_W = 50.0
BATCH_S = 0.05


class Running:
    """A script of one process, which does the next of its `acts` each time that it is followed."""

    def __init__(self, folder, acts, name="7", rank=0):
        self.pids, self.ended, self.is_at_border, self.is_ending = [1], set(), False, False
        self.openings, self.questions, self.traced, self.answers = [], [], [], []
        self.stops = 0
        self.loaded, self.not_replayed, self.end_notes = [], None, []
        self.failure, self._acts, self._passes = None, iter(acts), 0
        self.optimizer = 2
        self.times_ns = []  # begin of each pass, and the end of its last step
        facts = {"kind": "process", "rank": rank, "is_first": rank == 0, "training": {"accelerator": "cpu"}}
        facts["identity"] = this_process()._replace(start_ticks="0")  # it has ended
        loader = {"kind": "loader", "object": 1, "loader": 1, "samples": 16, "batch": 4, "workers": 2,
                  "pin_memory": False}  # fmt: skip
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (facts, loader)))
        self.log = EventLog(str(folder), f"{name}-0")

    def receive(self, limit_s):
        self.is_at_border = False
        act = next(self._acts, None)
        if act is None:
            return False
        act(self)
        return True

    def end_replayed(self, note):
        self.end_notes.append(note)

    def check_end(self):
        if self.failure:
            raise self.failure

    def stop(self):
        self.stops += 1

    def answer(self, connection, reply):
        self.answers.append((connection, reply))

    def begin(self):
        """Begin a pass of four batches."""
        self._passes += 1
        now_ns = time.monotonic_ns()
        self.times_ns.append([now_ns, now_ns])
        self.log.write(events.PASS, now_ns, now_ns, 4.0, 100 + self._passes, 1, 0, 0, events.HAS_GRADIENTS)
        self.is_at_border = True

    def step(self, count=1):
        """Request a batch, and train on it."""
        for _ in range(count):
            requested_ns = time.monotonic_ns()
            self.log.write(events.BATCH, time.monotonic_ns(), requested_ns, 0.0, 100 + self._passes)
            time.sleep(BATCH_S)
            self.times_ns[-1][1] = time.monotonic_ns()
            self.log.write(events.STEP, self.times_ns[-1][1], 0, 0.1, self.optimizer)

    def end(self):
        """End the pass."""
        now_ns = time.monotonic_ns()
        self.times_ns[-1][1] = now_ns
        self.log.write(events.END, now_ns, now_ns, 0.0, 100 + self._passes)
        self.is_at_border = True

    def durations_s(self):
        """Return the known durations of the epochs."""
        return [(ended_ns - begun_ns) * 1e-9 for begun_ns, ended_ns in self.times_ns]

    def ask(self, name="epoch", process="7"):
        self.questions = [("connection", Asked(name, process))]


def train(optimizer):
    """Return the acts of a short epoch with an optimizer."""
    return [lambda script: setattr(script, "optimizer", optimizer), Running.begin, Running.step, Running.end]


EPOCH = [Running.begin, *4 * [Running.step], Running.end]


def counter():
    """A meter of a constant power."""
    instrument = Instrument(Domain("counter", 0.001, "the CPU"), lambda: POWER_W * time.monotonic())
    return EnergyMeter(total=["cpu"], covers="the CPU", counters={"cpu": instrument})


def make_loop(folder, record, acts, meter=None, prepare=lambda number: [], **keys):
    """Return a loop that follows a script; its logs are in a folder, which is created as that of the record is."""
    folder.mkdir()
    record.folder.mkdir(parents=True, exist_ok=True)
    job = job_of(**{"measure": {"command": ["train.py"]}, "warmup_epochs": 0, **keys})
    facts = run_info(training={"accelerator": "cpu"})
    plan = SimpleNamespace(record=record, job=job, targets={}, run=facts, gpus=[], set_flags=lambda flags: None)
    plan.describe = lambda: None
    source = Mock(prepare=prepare, window=lambda *_: {})
    load = Mock(window=lambda *_: CpuUse(), own_pids=set())
    gauges = Mock(series=None, window=lambda *_: {}, throttled=lambda *_: [])
    instruments = WindowInstruments(meter or NullMeter("none"), gauges, source, load)
    recording = Recording(plan, instruments, Mock(drift_messages=list), Mock())
    windows = ScriptWindows(folder, 500)
    before = take_reading(instruments.meter)
    return ScriptLoop(Running(folder, acts), windows, plan, instruments, recording, Mock(), SingleNode(), before)
