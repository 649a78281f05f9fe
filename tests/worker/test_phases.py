"""Phases of the steps of our own loop, on a timeline whose time passes only where a test lets it pass."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from epochmeter.shared.phases import BACKWARD, FORWARD, LOSS, OPTIMIZER, OTHER, PREPARATION
from epochmeter.worker.phases import MAX_BORDERS, StepPhases
from epochmeter.worker.timeline import HostTimeline

STEPS = MAX_BORDERS // 7 + 10
BATCH = torch.ones(2, 3)


class Time:
    ns = 0

    def spend(self, seconds):
        self.ns += round(seconds * 1e9)


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, time, seconds):
        ctx.time, ctx.seconds = time, seconds
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.time.spend(ctx.seconds)
        return gradient, None, None


class Model(nn.Module):
    def __init__(self, time, recomputes):
        super().__init__()
        self.layer, self.time, self.recomputes = nn.Linear(3, 1), time, recomputes

    def inner(self, inputs):
        self.time.spend(2)
        return Slow.apply(self.layer(inputs), self.time, 5)

    def forward(self, inputs):
        return checkpoint(self.inner, inputs, use_reentrant=True) if self.recomputes else self.inner(inputs)


class Optimizer(torch.optim.SGD):
    def step(self, closure=None):
        self.defaults["time"].spend(7)
        return super().step(closure)


@pytest.fixture
def time():
    return Time()


def make(time, *, recomputes=False):
    model = Model(time, recomputes)
    torch.optim.SGD(model.parameters(), lr=0.1)  # the step of the base class has hooks too
    optimizer = Optimizer(model.parameters(), lr=0.1)
    optimizer.defaults["time"] = time
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # replaces the method too
    return StepPhases(HostTimeline(lambda: time.ns), model, optimizer), model, optimizer


def train(time, phases, model, optimizer, steps=STEPS):
    phases.open()
    for batch in map(phases.moving(lambda batch: batch), [BATCH.clone().requires_grad_() for _ in range(steps)]):
        time.spend(1)
        outputs = model(batch)
        time.spend(3)
        outputs.sum().backward()
        time.spend(4)
        optimizer.step()
        time.spend(6)
    phases.close()
    return phases.parts(steps * 28.0)


def test_phases_are_between_their_borders_and_add_up_to_the_compute(time):
    parts = train(time, *make(time))
    per_step = {phase: seconds / STEPS for phase, seconds in parts.items()}
    expected = {PREPARATION: 1, FORWARD: 2, LOSS: 3, BACKWARD: 5, OPTIMIZER: 7, OTHER: 10}
    assert per_step == pytest.approx(expected)


def test_steps_of_optimizers_without_hooks_are_timed_too(time, monkeypatch):
    monkeypatch.delattr(torch.optim.Optimizer, "register_step_pre_hook")
    assert train(time, *make(time), steps=2)[OPTIMIZER] == pytest.approx(14)


def test_recomputed_forward_passes_and_backward_passes_within_one_are_backward(time):
    parts = train(time, *make(time, recomputes=True), steps=2)
    assert (parts[FORWARD], parts[LOSS], parts[BACKWARD]) == pytest.approx((4, 6, 14))


def test_phase_that_was_not_seen_is_absent_and_part_of_the_rest(time):
    phases, model, _ = make(time)
    phases.open()
    model(phases.moving(lambda batch: batch)(BATCH)).sum().backward()
    phases.close()
    parts = phases.parts(100.0)
    assert OPTIMIZER not in parts
    assert sum(parts.values()) == pytest.approx(100)


def test_nothing_is_hooked_while_no_epoch_is_open(time):
    def hooked():
        of_model = [dict(hooks) for hooks in (model._forward_pre_hooks, model._forward_hooks)]
        of_optimizer = [
            dict(hooks) for hooks in (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
        ]
        return torch.autograd.backward, of_model, of_optimizer

    phases, model, optimizer = make(time)
    before = hooked()
    for _ in range(2):
        assert train(time, phases, model, optimizer, steps=1)[FORWARD] == pytest.approx(2)
        assert hooked() == before
