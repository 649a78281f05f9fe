"""Windows of a script on several nodes, which are joined from a shared folder."""

import json
from array import array
from types import SimpleNamespace

import pytest

from epochmeter.run import node_windows, nodes
from epochmeter.run.node_windows import END, FirstNode, OtherNode, SingleNode, hand_over, open_nodes, with_lost
from epochmeter.run.nodes import ScriptNode, script_node, script_node_folder
from epochmeter.segmentation.script import MeasuredWindow
from epochmeter.segmentation.windows import Window
from epochmeter.shared.problem import Problem, ProblemError
from epochmeter.shared.protocol import RankWindow
from epochmeter.shared.record import Record

SLURM = {
    "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "3",
    "SLURM_PROCID": "1", "SLURMD_NODENAME": "b",
}  # fmt: skip


def rank(number, **parts):
    parts = {"e2e_s": 1.0 + number, "steps": 2, "samples": 8, **parts}
    return RankWindow(0, 10, 0, parts, [], False, 0.0, 0.0, None, number)


def measured(*ranks, name="epoch", rows=2):
    """Return a window of a node; the rows of a rank have its number."""
    window = Window(name, "", 0, 10**9, {})
    values = [value for one in ranks for value in [one.rank] * 4 * rows]
    return MeasuredWindow(window, list(ranks), array("f", values), rows)


def line(name="epoch", joules=5.0, **more):
    metrics = {f"{name}/energy_j": joules, f"{name}/samples": 8}
    return {"window": name, "metrics": metrics, "energy": {"joules": {"gpu0": joules}, "term": {}}, **more}


class Step:
    """Two nodes, the second of which is `b`."""

    def __init__(self, folder, world=2):
        self.folder = folder
        places = [{"rank": 1, "host": "b", "device": "cpu"}]
        self.windows = SimpleNamespace(lacks_ranks=world > 1, places=places)
        self.first_record, self.record = Record(folder / "sweep" / "0"), Record(folder / "1" / "0")
        for record in (self.first_record, self.record):
            record.folder.mkdir(parents=True)
        self.other = OtherNode(ScriptNode(1, 2, "b", folder), self.windows)
        self.first = FirstNode(ScriptNode(0, 2, "a", folder), self.first_record, self.windows)

    def leave(self, window, **how):
        self.record.append_rank_rows(window.rank_rows)
        self.other.leave(window, line(window.window.name, **how), "no counter")

    def joined(self, *windows, is_final=False):
        return [*self.first.joined(windows, is_final=is_final)]


@pytest.fixture
def step(tmp_path, monkeypatch):
    monkeypatch.setattr(node_windows, "POLL_S", 0.01)
    return Step(tmp_path)


def test_window_waits_for_that_of_the_other_node_and_has_its_ranks_energy_and_rows(step):
    assert step.joined(measured(rank(0))) == []
    assert step.first.possible_borders_ns == [0, 10**9]
    step.leave(measured(rank(1, forward_s=0.5)))
    (joined,) = step.joined()
    assert [(one.rank, one.node, one.parts["samples"]) for one in joined.measured.ranks] == [(0, 0, 8), (1, 1, 8)]
    assert "forward_s" not in joined.measured.ranks[1].parts, "the phases are those that all ranks have"
    (node,) = joined.nodes
    assert (node.node, node.metrics, node.joules) == ("b", {"energy_j": 5.0}, {"gpu0": 5.0})
    assert (joined.notes, joined.measured.rank_steps) == ([], 2)
    assert [*joined.measured.rank_rows] == [0.0] * 8 + [1.0] * 8
    assert step.first.places == [{"rank": 1, "host": "b", "device": "cpu"}]
    assert step.first.possible_borders_ns == []


def test_windows_are_joined_by_their_numbers_whatever_the_clocks(step):
    for number in range(3):
        shifted = rank(1)._replace(opened_ns=10**15, closed_ns=10**15 + number)
        step.leave(measured(shifted, rows=2 + number), joules=float(number))
    joined = step.joined(*(measured(rank(0), rows=3) for _ in range(3)))
    assert [one.nodes[0].metrics["energy_j"] for one in joined] == [0.0, 1.0, 2.0]
    assert [one.measured.rank_steps for one in joined] == [2, 3, 3], "the steps that all ranks have"


@pytest.mark.parametrize("damage", ["not written", "incomplete"])
def test_window_that_a_node_could_not_leave_is_absent_and_later_ones_keep_their_numbers(step, damage):
    path = step.folder / "1" / "windows"
    for number in range(3):
        before = path.read_bytes() if number else b""
        step.leave(measured(rank(1)), joules=float(number))
        if number == 1:
            path.write_bytes(path.read_bytes()[:-20] if damage == "incomplete" else before)
    joined = step.joined(*(measured(rank(0)) for _ in range(3)))
    assert [one.nodes[0].metrics.get("energy_j") for one in joined] == [0.0, None, 2.0]
    assert [bool(one.notes) for one in joined] == [False, True, False], "it is not waited for"
    assert "samples" not in joined[1].measured.ranks[0].parts


def test_window_without_the_other_node_is_recorded_after_a_wait_without_sums_and_says_so(step, monkeypatch):
    monkeypatch.setattr(node_windows, "NODE_WAIT_S", 0.0)
    (joined,) = step.joined(measured(rank(0)))
    (own,) = joined.measured.ranks
    assert (own.parts, joined.measured.rank_steps) == ({"e2e_s": 1.0, "steps": 2}, 2)
    assert (joined.nodes[0].metrics, bool(joined.nodes[0].reason)) == ({}, True)
    assert len(joined.notes) == 1
    monkeypatch.setattr(node_windows, "NODE_WAIT_S", 100.0)
    assert len(step.joined(measured(rank(0)))) == 1, "a silent node is not waited for again"
    for _ in range(3):
        step.leave(measured(rank(1)))
    (late,) = step.joined(measured(rank(0)))
    assert len(late.measured.ranks) == 2


def test_node_that_has_ended_is_not_waited_for(step):
    step.leave(measured(rank(1)))
    step.other.end()
    first, second = step.joined(measured(rank(0)), measured(rank(0)))
    assert (len(first.measured.ranks), len(second.measured.ranks)) == (2, 1)


def test_nodes_are_lost_that_leave_no_end_when_the_script_has_failed(step, monkeypatch):
    monkeypatch.setattr(node_windows, "NODE_WAIT_S", 0.05)
    step.leave(measured(rank(1)))
    step.joined(measured(rank(0)))
    lost = step.first.lost()
    problem = with_lost(Problem("the script ended with exit code 1"), lost)
    assert (lost, problem.code, problem.where.host) == (["b"], "node", "b")
    assert "exit code 1, and node b was killed" in problem.message
    step.other.end()
    assert step.first.lost() == []


def test_no_node_of_ranks_that_do_not_train_together_is_lost(tmp_path):
    assert Step(tmp_path, world=1).first.lost() == []


def test_last_windows_wait_for_the_node_at_most_their_time(step, monkeypatch):
    monkeypatch.setattr(node_windows, "NODE_WAIT_S", 0.05)
    (joined,) = step.joined(measured(rank(0)), is_final=True)
    assert len(joined.measured.ranks) == 1


def test_other_number_of_steps_and_evaluations_of_one_node_are_noted(step, monkeypatch):
    step.leave(measured(rank(1, steps=3), rows=3))
    (joined,) = step.joined(measured(rank(0)))
    assert ("3" in joined.notes[0], joined.measured.rank_steps) == (True, 2)
    step.other.end()
    (evaluation,) = step.joined(measured(rank(0), name="val", rows=0))
    assert (len(evaluation.measured.ranks), evaluation.measured.rank_steps) == (1, 0)


def test_nodes_that_train_apart_are_not_joined(tmp_path):
    step = Step(tmp_path, world=1)
    (joined,) = step.joined(measured(rank(0)))
    assert (len(joined.measured.ranks), joined.nodes, joined.notes) == (1, [], [])


def test_windows_before_the_nodes_train_together_count(tmp_path):
    step = Step(tmp_path, world=1)
    for joules in (1.0, 2.0):
        step.leave(measured(rank(1)), joules=joules)
    step.joined(measured(rank(0)))
    step.windows.lacks_ranks = True
    (joined,) = step.joined(measured(rank(0)))
    assert joined.nodes[0].metrics["energy_j"] == 2.0


def test_truncated_line_is_read_when_it_is_complete(step):
    step.leave(measured(rank(1)))
    file = step.folder / "1" / node_windows.WINDOWS
    content = file.read_bytes()
    file.write_bytes(content[:-20])
    assert step.joined(measured(rank(0))) == []
    file.write_bytes(content + json.dumps({END: True}).encode() + b"\n")
    assert len(step.joined()[0].measured.ranks) == 2


def test_record_of_the_other_node_moves_into_that_of_the_first(step, tmp_path):
    (step.record.folder / "job.json").write_text("{}")
    moved = hand_over(ScriptNode(1, 2, "b", tmp_path), step.record, is_joined=True)
    assert moved == step.first_record.folder.absolute() / "nodes" / "b"
    assert (moved / "job.json").exists()
    step.record.folder.mkdir()
    apart = hand_over(ScriptNode(1, 2, "b", tmp_path), step.record, is_joined=False)
    assert apart == tmp_path.absolute() / "sweep-b" / "0"


def test_record_stays_if_the_first_node_never_began(tmp_path):
    record = Record(tmp_path / "1" / "0")
    record.folder.mkdir(parents=True)
    assert hand_over(ScriptNode(1, 2, "b", tmp_path), record, is_joined=True) == record.folder


def test_node_is_known_by_the_variables_of_its_step(tmp_path):
    assert script_node({}, tmp_path) == ScriptNode()
    assert script_node({**SLURM, "SLURM_STEP_NUM_TASKS": "4"}, tmp_path) == ScriptNode()
    assert script_node(SLURM, tmp_path) == ScriptNode(1, 2, "b", tmp_path / ".nodes" / "7.3")
    requeued = script_node({**SLURM, "SLURM_RESTART_COUNT": "1"}, tmp_path)
    assert requeued.folder == tmp_path / ".nodes" / "7.3.1"
    assert script_node_folder(SLURM, tmp_path, many=False) == tmp_path / ".nodes" / "7.3" / "1"
    assert script_node_folder({**SLURM, "SLURM_PROCID": "0"}, tmp_path, many=False) is None
    with pytest.raises(ProblemError):
        script_node_folder(SLURM, tmp_path, many=True)
    assert isinstance(open_nodes(ScriptNode(), Record(tmp_path), None), SingleNode)
    assert nodes.script_node_folder({}, tmp_path, many=True) is None
