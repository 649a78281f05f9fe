"""Exposed communication, with a scripted clock; two gloo ranks are in test_strategy.py."""

from array import array

import pytest
import torch
from torch import nn

from epochmeter.worker import communication
from epochmeter.worker.communication import ExposedCommunication, rank_rows
from epochmeter.worker.timeline import HostTimeline

MS = 10**6


class Waits:
    """A clock that runs only in waits of a given time, which are calls of a function of `torch.distributed`."""

    def __init__(self, monkeypatch):
        self.now_ns, self.calls = 0, []
        monkeypatch.setattr(communication, "collective_functions", lambda: [(self, "all_reduce"), (self, "barrier")])

    def all_reduce(self, wait_ms, async_op=False):
        self.calls.append(wait_ms)
        self.now_ns += 0 if async_op else wait_ms * MS

    def barrier(self, wait_ms):
        self.all_reduce(wait_ms)  # within a wait


@pytest.fixture
def waits(monkeypatch):
    return Waits(monkeypatch)


def exposed(waits):
    return ExposedCommunication(HostTimeline(lambda: waits.now_ns))


def test_waits_are_those_of_their_steps_and_each_counts_once(waits, monkeypatch):
    monkeypatch.setattr(communication, "MAX_MARKS", 3)
    own = exposed(waits)
    for _ in range(2):  # epochs
        own.open()
        move = own.moving(lambda batch: 2 * batch)
        waits.all_reduce(1)  # before the first batch
        assert move(4) == 8
        waits.all_reduce(2)
        waits.now_ns += 50 * MS
        waits.barrier(3)
        move(0)
        move(0)
        waits.all_reduce(wait_ms=5)
        waits.all_reduce(7, async_op=True)
        own.close()
        assert [*own.waits_s(4)] == pytest.approx([0.006, 0.0, 0.005, 0.0])
    waits.all_reduce(9)  # between epochs, nothing is timed
    assert [*own.waits_s(4)] == pytest.approx([0.006, 0.0, 0.005, 0.0])
    assert waits.calls == [1, 2, 3, 5, 7] * 2 + [9]


def test_wait_that_fails_is_timed_and_raises(waits):
    own = exposed(waits)
    own.open()
    own.moving(lambda batch: batch)(0)
    with pytest.raises(TypeError):
        waits.all_reduce()
    own.close()
    assert [*own.waits_s(1)] == [0.0]


def test_time_of_a_backward_pass_after_its_gradients_is_a_wait_and_gradients_are_unchanged(waits):
    model, inputs = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)), torch.ones(2, 4)
    model(inputs).sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    own = exposed(waits)
    own.open()
    move = own.moving(lambda batch: batch)

    def computed(gradient):  # as the hooks of DistributedDataParallel
        waits.now_ns += 20 * MS
        torch.autograd.Variable._execution_engine.queue_callback(lambda: waits.all_reduce(8))

    for hooked in (True, False):
        move(0)
        model.zero_grad()
        handle = model[0].weight.register_hook(computed) if hooked else None
        loss = model(inputs).sum()
        loss.backward()
        assert all(map(torch.equal, expected, (parameter.grad for parameter in model.parameters())))
        if handle:
            handle.remove()
    own.close()
    assert [*own.waits_s(2)] == pytest.approx([0.008, 0.0], abs=1e-9)


def test_rank_without_others_is_not_timed(waits):
    own = ExposedCommunication(None)
    move = object()
    own.open()
    assert own.moving(move) is move
    waits.all_reduce(1)
    own.close()
    assert not own.is_on


def test_rows_of_a_rank_have_gap_stall_busy_time_and_communication():
    steps = array("f", [3, 2, 1, 4, 1, 5, 0, 2])  # gap, host wait, copy, compute
    assert [*rank_rows(steps, array("f", [0.5, 0.25]))] == [3, 2, 5, 0.5, 1, 1, 2, 0.25]
