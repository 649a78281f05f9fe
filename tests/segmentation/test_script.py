"""Windows of several processes of a script: ranks are merged, and another training is noted."""

import json

import pytest

from epochmeter.agent import event_log
from epochmeter.agent.event_log import EventLog
from epochmeter.results.rank_merge import merge_ranks
from epochmeter.segmentation import logs, process, script
from epochmeter.segmentation.script import ScriptWindows, clipped, rank_window, with_common_phases
from epochmeter.segmentation.windows import Window
from epochmeter.shared import events
from epochmeter.shared.phases import FORWARD, LOSS, OTHER, PHASES

SECOND = 10**9
PARTS = {
    "e2e_s": 4.0, "data_stall_s": 1.0, "host_wait_s": 1.5, "loader_start_s": 0.5, "compute_s": 3.0,
    "overhead_s": 0.0, "steps": 8, "samples": 64,
}  # fmt: skip


class Rank:
    """The logs of one process, written as its agent would."""

    def __init__(self, folder, name, rank=0, is_first=True, local_ranks=1, **training):
        self.name, self.passes = name, 0
        facts = [
            {
                "kind": "process",
                "rank": rank,
                "is_first": is_first,
                "training": training or {"accelerator": "cpu"},
                "local_ranks": local_ranks,
            },
            {"kind": "loader", "object": 1, "loader": 1, "samples": 8, "batch": 4},
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in facts))
        self.log = EventLog(str(folder), f"{name}-0")

    def epoch(self, opened_s, closed_s, is_evaluation=False, steps=2):
        """Record a pass of some batches, which divide the time evenly, and its end."""
        self.passes += 1
        number, begun, step = 100 + self.passes, opened_s * SECOND, (closed_s - opened_s) * SECOND // steps
        self.log.write(events.PASS, begun, begun, 2.0, number, 1, 0, 0, events.HAS_GRADIENTS)
        for at in range(begun, begun + steps * step, step):
            self.log.write(events.BATCH, at + SECOND // 10, at, 0.0, number)
            self.log.write(*((events.FORWARD, at + step) if is_evaluation else (events.STEP, at + step, 0, 0.1, 2)))
        self.log.write(events.END, closed_s * SECOND, closed_s * SECOND, 0.0, number)


@pytest.fixture
def windows(tmp_path, monkeypatch):
    monkeypatch.setattr(script, "RANK_WAIT_S", 0.0)
    return ScriptWindows(tmp_path, 500)


def taken(windows, *, is_final=False, **how):
    windows.read(at_rest=["1", "2"], is_final=is_final, **how)
    return [*windows.take(is_final=is_final)]


def test_windows_of_all_ranks_at_the_same_time_are_merged(windows, tmp_path):
    first, other = Rank(tmp_path, "1"), Rank(tmp_path, "2", 1, is_first=False, gpu={"uuid": "bb"})
    other.epoch(10, 14)
    first.epoch(10, 14)
    other.epoch(20, 25)
    first.epoch(20, 24)
    (one, two) = taken(windows)
    merged = merge_ranks(one.ranks)
    assert (merged.parts["samples"], merged.parts["e2e_s"], merged.rank_max["e2e_s"]) == (16, 4.0, 4.0)
    assert "first_gap_s" not in merged.parts
    merged = merge_ranks(two.ranks)
    assert (merged.parts["e2e_s"], merged.closed_ns) == (4.5, 24 * SECOND)
    assert (windows.rank_count, windows.gpus, windows.notes) == (2, {"bb"}, [])


def test_rank_without_a_window_is_waited_for_once_and_sums_are_absent(windows, tmp_path, monkeypatch):
    first, other = Rank(tmp_path, "1"), Rank(tmp_path, "2", 1, is_first=False)
    monkeypatch.setattr(script, "RANK_WAIT_S", 60.0)
    first.epoch(10, 14)
    assert taken(windows) == [], "it waits"
    monkeypatch.setattr(script.time, "monotonic", lambda: 1e12)
    (alone,) = windows.take()
    assert "samples" not in alone.ranks[0].parts
    assert alone.ranks[0].parts["e2e_s"] == 4.0
    monkeypatch.undo()
    monkeypatch.setattr(script, "RANK_WAIT_S", 60.0)
    first.epoch(20, 24)
    assert [len(window.ranks) for window in taken(windows)] == [1], "not waited for again"
    assert windows.notes == [script.NO_WINDOW.format(1)]
    other.epoch(30, 34)
    windows.read(at_rest=["2"])
    first.epoch(30, 34)
    first.epoch(40, 44)
    assert [len(window.ranks) for window in taken(windows)] == [2], "it was late, and is waited for again"


def test_rank_that_ended_before_a_window_is_not_waited_for(windows, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "RANK_WAIT_S", 60.0)
    first, other = Rank(tmp_path, "1"), Rank(tmp_path, "2", 1, is_first=False)
    other.epoch(10, 14)
    first.epoch(10, 14)
    first.epoch(20, 24)
    both, alone = taken(windows, ended=["2"])
    assert [len(both.ranks), len(alone.ranks)] == [2, 1]
    assert "samples" not in alone.ranks[0].parts
    assert windows.notes == [script.ENDED_RANK.format(1)]


def test_rank_with_another_number_of_steps_is_noted_once(windows, tmp_path):
    first, other = Rank(tmp_path, "1"), Rank(tmp_path, "2", 1, is_first=False)
    for begin_s in (10, 20):
        other.epoch(begin_s, begin_s + 3, steps=3)
        first.epoch(begin_s, begin_s + 4)
    one, _ = taken(windows)
    assert [rank.parts["steps"] for rank in one.ranks] == [2, 3]
    assert windows.notes == [script.OTHER_STEPS.format(1, 3, 2)]


def test_rank_that_joins_late_is_merged_from_then_on(windows, tmp_path):
    first = Rank(tmp_path, "1", local_ranks=2, ranks=2)
    first.epoch(10, 14)
    (alone,) = taken(windows)
    assert "samples" not in alone.ranks[0].parts
    assert (windows.lacks_ranks, windows.notes) == (True, [script.UNSEEN])
    other = Rank(tmp_path, "2", 1, is_first=False, ranks=2)
    other.epoch(20, 24)
    first.epoch(20, 24)
    (both,) = taken(windows)
    assert [rank.parts["samples"] for rank in both.ranks] == [8, 8]
    assert (windows.lacks_ranks, windows.notes) == (False, [script.UNSEEN])


def test_file_that_another_process_has_saved_is_no_save_of_the_training(windows, tmp_path):
    first, other = Rank(tmp_path, "1"), Rank(tmp_path, "2", 1, is_first=False)
    first.epoch(10, 14)
    other.log.write(events.SAVED, 16 * SECOND, 15 * SECOND)
    first.log.write(events.SAVED, 18 * SECOND, 17 * SECOND)
    taken(windows)
    assert windows.saves_ns == [[17 * SECOND, 18 * SECOND]]


def test_evaluation_of_the_first_rank_alone_is_its_own(windows, tmp_path):
    first, other = Rank(tmp_path, "1"), Rank(tmp_path, "2", 1, is_first=False)
    for rank in (first, other):
        rank.epoch(10, 14)
    first.epoch(15, 17, is_evaluation=True)
    other.epoch(15, 24)
    first.epoch(20, 24)
    measured = taken(windows)
    assert [(entry.window.name, len(entry.ranks)) for entry in measured] == [("epoch", 2), ("val", 1), ("epoch", 2)]
    waiting = measured[2].ranks[1]
    assert (waiting.opened_ns, waiting.parts["e2e_s"]) == (20 * SECOND, pytest.approx(4.0))


def test_second_process_that_trains_without_a_process_group_is_noted(windows, tmp_path):
    reader = Rank(tmp_path, "3")
    reader.epoch(1, 2, is_evaluation=True)
    first = Rank(tmp_path, "1")
    first.epoch(10, 14)
    assert len(taken(windows)) == 1
    assert (windows.main.name, windows.notes) == ("1", [])
    other = Rank(tmp_path, "2")
    other.epoch(20, 24)
    assert taken(windows, is_final=True) == []
    assert windows.notes == [script.ANOTHER_PROCESS]


def test_last_window_is_known_before_the_first_training(windows, tmp_path):
    rank = Rank(tmp_path, "1")
    with (tmp_path / "1.jsonl").open("a") as facts:
        facts.write(json.dumps({"kind": "name", "object": 3, "name": "load"}) + "\n")
    for number, (opened_s, closed_s) in enumerate([(1, 2), (3, 6)], 1):
        rank.log.write(events.OPENED, opened_s * SECOND, 0, number, 3)
        rank.log.write(events.CLOSED, closed_s * SECOND, 0, number, 3)
    windows.read(at_rest=["1"])
    assert windows.last_of("1", "epoch") is None
    assert windows.last_of("1", "load").parts["e2e_s"] == pytest.approx(3.0)
    rank.epoch(10, 14)
    windows.read(at_rest=["1"])
    assert windows.last_of("1", "load") is None  # by now, the record has it


@pytest.mark.parametrize("trains", [False, True])
def test_program_that_a_measured_process_has_started_is_noted(windows, tmp_path, trains):
    Rank(tmp_path, "1").epoch(1, 2, is_evaluation=not trains)
    taken(windows)
    assert script.STARTED not in windows.notes
    (tmp_path / events.UNMEASURED).touch()
    assert script.STARTED in windows.notes


@pytest.mark.parametrize(("trains", "reason"), [(None, ""), (False, script.NO_STEP), (True, script.NO_LOADER)])
def test_reason_is_known_if_nothing_was_measured(windows, tmp_path, trains, reason):
    if trains is not None:
        rank = Rank(tmp_path, "1")
        rank.epoch(1, 2, is_evaluation=True)
        if trains:
            rank.log.write(events.STEP, 3 * SECOND, 0, 0.1, 2)
    assert taken(windows, is_final=True) == []
    assert windows.reason == reason


def test_logs_are_forgotten_when_they_are_read_and_borders_of_open_passes_are_known(windows, tmp_path):
    first = Rank(tmp_path, "1")
    first.epoch(10, 14)
    first.log.write(events.PASS, 15 * SECOND, 15 * SECOND, 2.0, 999, 1)
    taken(windows)
    assert {10 * SECOND, 14 * SECOND} & {*windows.possible_borders_ns} == set(), "that epoch is recorded"
    assert min(windows.possible_borders_ns) == 15 * SECOND
    taken(windows, is_final=True)
    assert [path.name for path in windows.forget()] == ["1-0.0"]


def add_fact(folder, rank, **fact):
    with (folder / f"{rank.name}.jsonl").open("a") as facts:
        facts.write(json.dumps(fact) + "\n")


@pytest.mark.parametrize(
    ("fact", "end", "problem"),
    [(None, None, ""), ({"kind": "end", "error": "why"}, "why", ""), ({"kind": "end", "error": ""}, "", ""),
     ({"kind": "problem", "text": "TypeError"}, None, "TypeError")],
)  # fmt: skip
@pytest.mark.parametrize("has_trained", [False, True])
def test_end_of_the_script_and_of_its_agent_are_known(windows, tmp_path, fact, end, problem, has_trained):
    rank = Rank(tmp_path, "1")
    if has_trained:
        rank.epoch(10, 14)
    if fact:
        add_fact(tmp_path, rank, **fact)
    taken(windows, is_final=True)
    assert (windows.end, windows.problem) == (end, problem)
    assert (problem in windows.notes) == bool(problem)


def test_events_that_were_lost_up_to_the_end_are_noted(windows, tmp_path, monkeypatch):
    for module in (event_log, logs):
        monkeypatch.setattr(module, "SEGMENT_BYTES", 6 * events.RECORD.size)
    monkeypatch.setattr(event_log, "SEGMENT_RECORDS", 6)
    monkeypatch.setattr(event_log, "MAX_SEGMENTS", 1)
    rank = Rank(tmp_path, "1")
    rank.epoch(10, 14)
    rank.epoch(20, 24)
    assert [len(window.ranks) for window in taken(windows, is_final=True)] == [1]
    assert windows.notes == [process.LOST_AT_END.format(6)]


def window(opened_s, closed_s, first_gap_s=0.0, **parts):
    times_ns = int(opened_s * SECOND), int(closed_s * SECOND)
    return Window("epoch", "", *times_ns, {**PARTS, **parts}, first_gap_s=first_gap_s)


def test_time_before_the_first_rank_is_taken_from_the_first_batch_then_compute():
    first = window(12, 14)
    early = clipped(window(10, 14), first)
    assert (early.opened_ns, early.closed_ns) == (first.opened_ns, first.closed_ns)
    expected = {"e2e_s": 2.0, "data_stall_s": 0.5, "host_wait_s": 1.0, "loader_start_s": 0.0, "compute_s": 1.5}
    assert early.parts == {**PARTS, **expected}
    late_request = clipped(window(10, 14, 1.25, compute_s=2.0, overhead_s=1.0), first)
    assert late_request.parts == {**PARTS, **expected, "compute_s": 1.25, "overhead_s": 0.25}
    assert clipped(window(12.5, 13, 0.1), first).parts == PARTS
    without_loader = Window("epoch", "", 10 * SECOND, 14 * SECOND, {"e2e_s": 4.0, "steps": 8})
    assert clipped(without_loader, first).parts == {"e2e_s": 2.0, "steps": 8}


def test_phases_of_ranks_add_up_to_the_compute_of_each():
    phases = {FORWARD: 0.5, LOSS: 0.25, OTHER: PARTS["compute_s"] - 0.75}
    of_ranks = window(12, 14, **phases), window(10, 14, **phases)
    late, early = (rank_window(clipped(of_rank, window(12, 14)), 1) for of_rank in of_ranks)
    assert late.parts[FORWARD] == 0.5
    assert early.parts[FORWARD] / early.parts["compute_s"] == pytest.approx(0.5 / PARTS["compute_s"])
    lacking = early._replace(parts={**early.parts, OTHER: early.parts[OTHER] + early.parts[LOSS]})
    del lacking.parts[LOSS]
    for rank in with_common_phases([late, lacking]):
        found = {phase: rank.parts[phase] for phase in PHASES if phase in rank.parts}
        assert [*found] == [FORWARD, OTHER]
        assert sum(found.values()) == pytest.approx(rank.parts["compute_s"])
