"""What holds for the windows of any sequence of events: random scripts, some of which no sane script would do."""

import json
import os
import pickle
import random
from itertools import count, pairwise

import pytest

from epochmeter.agent import event_log
from epochmeter.agent.event_log import EventLog
from epochmeter.segmentation import logs
from epochmeter.segmentation.process import ProcessWindows
from epochmeter.segmentation.saved_state import FILE, load_state, save_state
from epochmeter.segmentation.script import ScriptWindows
from epochmeter.shared import events
from epochmeter.shared.events import Event
from epochmeter.shared.phases import PHASES

SEQUENCES = int(os.environ.get("SEQUENCES", "400"))  # `make test-hosts` has 100,000
STEPS_PER_WINDOW = 7
LENGTHS = (1, 2, 3, 5, None)
SEGMENT_RECORDS = 16  # of small files
CHUNK = 7
LOADERS = [{"kind": "loader", "object": number, "loader": number, "samples": 10, "batch": 2} for number in range(1, 4)]


class RandomScript:
    """A thread that does random things with its loaders, in random time."""

    def __init__(self, generator, first_number):
        self.generator, self.now_ns = generator, 0
        self.numbers = count(first_number)
        self.open = []  # numbers of passes whose iterators exist
        self.events = []

    def act(self):
        acts = [self.begin] * 2 + [self.fetch] * 8 + [self.train] * 8 + [self.end, self.drop, self.fail, self.forward]
        acts += [self.mark, self.repeat]
        self.generator.choice(acts)()

    def later(self):
        self.now_ns += self.generator.randrange(1, 1000)
        return self.now_ns

    def write(self, kind, begun_ns=0, value=float("nan"), thing=0, other=0, flags=0):
        self.events.append(Event(self.later(), begun_ns, value, thing, other, 0, 0, flags, kind))

    def begin(self):
        number, length = next(self.numbers), self.generator.choice(LENGTHS)
        self.open.append(number)
        value = float("nan") if length is None else float(length)
        loader, flags = self.generator.randrange(1, 4), self.generator.choice((0, 1))
        self.write(events.PASS, self.later(), value, number, loader, flags)

    def fetch(self):
        if self.open:
            self.write(events.BATCH, self.later(), 1.0, self.generator.choice(self.open[-2:]))

    def train(self):
        self.write(self.generator.choice((events.STEP, events.BACKWARD)), self.begun(), 0.1, 9)

    def forward(self):
        self.write(self.generator.choice((events.FORWARD, events.FORWARD_ENDED, events.GRADIENTS)), self.begun())

    def begun(self):
        """Return the begin of a part: now, or before earlier events; 0 if it is not known."""
        earlier = [event.time_ns + 1 for event in self.events[-4:]]
        return self.generator.choice([0, *earlier, *[self.later()] * 4])

    def fail(self):
        if self.open:
            self.write(events.FAILED, self.later(), 0.0, self.generator.choice(self.open))

    def repeat(self):
        self.write(events.REPEATED, 0, 0.0, self.generator.randrange(1, 4))

    def mark(self):
        self.write(self.generator.choice((events.COLLECTED, events.SAVED)), self.now_ns)

    def end(self):
        if self.open:
            self.write(events.END, self.later(), 0.0, self.open.pop(self.generator.randrange(len(self.open))))

    def drop(self):
        if self.open:
            self.write(events.DROPPED, self.later(), 0.0, self.open.pop(self.generator.randrange(len(self.open))))


def random_events(seed, threads=1, acts=60):
    """Return the events of each thread."""
    generator = random.Random(seed)
    scripts = [RandomScript(generator, 1000 * (number + 1)) for number in range(threads)]
    for _ in range(acts):
        generator.choice(scripts).act()
    return {number: script.events for number, script in enumerate(scripts)}


def segmented(of_threads, chunk=None):
    """Return the windows of events, which are added all at once or in chunks."""
    process = ProcessWindows(STEPS_PER_WINDOW)
    for facts in LOADERS:
        process.add_facts(facts)
    if chunk:
        longest = max(map(len, of_threads.values()))
        for first in range(0, longest, chunk):
            process.add({thread: entries[first : first + chunk] for thread, entries in of_threads.items()})
        of_threads = {}
    process.add(of_threads, is_final=True)
    return process


@pytest.mark.parametrize("seed", range(0, SEQUENCES, SEQUENCES // 8))
def test_windows_of_a_thread_are_ordered_do_not_overlap_and_add_up(seed):
    for number in range(seed, seed + SEQUENCES // 8):
        (entries,) = random_events(number).values()
        process = segmented({0: entries})
        windows = sorted(process.windows, key=lambda window: window.opened_ns)
        assert all(earlier.closed_ns <= later.opened_ns for earlier, later in pairwise(windows)), number
        for window in windows:
            parts = window.parts
            assert entries[0].begun_ns <= window.opened_ns <= window.closed_ns <= entries[-1].time_ns, number
            assert parts["e2e_s"] == pytest.approx((window.closed_ns - window.opened_ns) * 1e-9), number
            if "compute_s" in parts:
                total_s = parts["data_stall_s"] + parts["compute_s"] + parts["overhead_s"]
                assert total_s == pytest.approx(parts["e2e_s"], abs=1e-12), number
                assert min(parts[name] for name in ("data_stall_s", "compute_s", "save_s", "steps")) >= 0, number
                phases = [parts[phase] for phase in PHASES if phase in parts]
                assert not phases or sum(phases) == pytest.approx(parts["compute_s"], abs=1e-12), number
                assert min(phases, default=0.0) > -1e-12, number
            if window.name == "epoch":
                assert len(window.rows) == 4 * parts["steps"] > 0, number
        steps = sum(entry.kind == events.STEP for entry in entries)
        counted = sum(window.parts["steps"] for window in windows if "outside of passes" in window.rule)
        assert counted <= max(steps, sum(entry.kind == events.BACKWARD for entry in entries)), number


@pytest.mark.parametrize("chunk", [1, 7])
def test_windows_are_the_same_if_the_events_arrive_one_after_another(chunk):
    for seed in range(SEQUENCES // 4):
        of_threads = random_events(seed)
        assert [*segmented(of_threads, chunk).windows] == [*segmented(of_threads).windows], seed


@pytest.fixture
def small_files(monkeypatch):
    for module in (event_log, logs):
        monkeypatch.setattr(module, "SEGMENT_BYTES", SEGMENT_RECORDS * events.RECORD.size)
    monkeypatch.setattr(event_log, "SEGMENT_RECORDS", SEGMENT_RECORDS)


def test_windows_are_the_same_from_a_saved_state_without_the_earlier_logs(small_files, tmp_path):
    deleted = 0
    for seed in range(25):
        (folder := tmp_path / str(seed)).mkdir()
        of_threads = random_events(seed, threads=2, acts=200)
        facts = [{"kind": "process", "rank": 0, "is_first": True, "training": {}}, *LOADERS]
        (folder / "1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in facts))
        written = {thread: EventLog(str(folder), f"1-{thread}") for thread in of_threads}
        reader, plain = (ScriptWindows(folder, STEPS_PER_WINDOW) for _ in range(2))
        found, expected, generator = [], [], random.Random(seed)
        longest = max(map(len, of_threads.values()))
        for first in range(0, longest, CHUNK):
            for thread, entries in of_threads.items():
                for entry in entries[first : first + CHUNK]:
                    written[thread].write(entry.kind, *entry[:-1])
            for each, taken in ((plain, expected), (reader, found)):
                each.read()
                taken += each.take()
            if generator.random() < 0.3:
                save_state(reader)
                reader = load_state(folder)
        for each, taken in ((plain, expected), (reader, found)):
            each.read(is_final=True)
            taken += each.take(is_final=True)
        assert (found, reader.notes) == (expected, plain.notes), seed
        deleted += not all((folder / f"1-{thread}.0").exists() for thread in of_threads)
    assert deleted > 12


@pytest.mark.parametrize("damaged", [b"", b"x", pickle.dumps(print), pickle.dumps([1]), pickle.dumps(ScriptWindows)])
def test_damaged_state_is_an_error_and_calls_nothing(tmp_path, damaged):
    assert load_state(tmp_path) is None
    (tmp_path / FILE).write_bytes(damaged)
    with pytest.raises(pickle.UnpicklingError):
        load_state(tmp_path)


def test_windows_that_were_found_up_to_a_moment_do_not_change_later():
    for seed in range(SEQUENCES // 4):
        (entries,) = random_events(seed).values()
        process = ProcessWindows(STEPS_PER_WINDOW)
        process.add({0: entries[: len(entries) // 2]})
        earlier = [*process.windows]
        process.add({0: entries[len(entries) // 2 :]}, is_final=True)
        assert [*process.windows][: len(earlier)] == earlier, seed


def test_events_of_another_thread_do_not_change_the_windows_of_training_passes(monkeypatch):
    monkeypatch.setattr(ProcessWindows, "_busy_until_ns", lambda process: 0)  # windows at the same time are kept
    compared = 0
    for seed in range(SEQUENCES // 2):
        of_threads = random_events(seed, threads=2, acts=120)
        alone = segmented({0: of_threads[0]}).windows
        epochs = [window for window in alone if window.rule == "a pass with optimizer steps"]
        both = [*segmented(of_threads).windows]
        times = {(window.opened_ns, window.closed_ns, window.parts["steps"]) for window in both}
        assert {(window.opened_ns, window.closed_ns, window.parts["steps"]) for window in epochs} <= times, seed
        compared += len(epochs)
    assert compared > SEQUENCES / 8
