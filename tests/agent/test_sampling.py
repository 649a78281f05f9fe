"""Short steps whose phases are timed: how many, which ones, and what the hooks do in the others."""

import math
import random
from collections import Counter

import pytest
import torch
from recorded import events_of
from torch import nn
from torch.utils.data import DataLoader

from epochmeter.agent import sampling
from epochmeter.agent.sampling import MAX_EVERY, PHASES_BUDGET, PHASES_NS, Gaps, LoadingGaps, StepSampling
from epochmeter.shared import events
from epochmeter.shared.events import UNTIMED

MS = 1_000_000
LONG_NS = math.ceil(PHASES_NS / PHASES_BUDGET)  # steps from which on all are timed
DATA = [(torch.full((4,), float(number)), number % 2) for number in range(400)]


@pytest.fixture(autouse=True)
def slowness(monkeypatch):
    """A machine as fast as that of the constants, on which no step counts as one of the first."""
    factors = [1.0]
    monkeypatch.setattr(sampling, "slowness", lambda: factors[0])
    monkeypatch.setattr(sampling, "FIRST_STEPS", 0)
    return factors


@pytest.fixture
def sparse(monkeypatch):
    """One of five steps is timed, however long they are."""
    monkeypatch.setattr(sampling, "PHASES_BUDGET", 0.0)
    monkeypatch.setattr(sampling, "MAX_EVERY", 5)


def gaps(first):
    return Gaps(PHASES_NS, PHASES_BUDGET, first)


def timed_places(own, period_ns, count):
    """Return the places of the units that are timed, of so many."""
    places, place = [], own.next(period_ns)
    while place < count:
        places.append(place)
        place += 1 + own.next(period_ns)
    return places


@pytest.mark.parametrize("period_ms", [0.05, 0.3, 1, 4, 9])
def test_time_for_timed_steps_is_within_the_budget_as_far_as_the_largest_gap_allows(period_ms):
    count = 20_000
    places = timed_places(gaps(0), period_ms * MS, count)
    every = min(MAX_EVERY, math.ceil(PHASES_NS / (PHASES_BUDGET * period_ms * MS)))
    assert len(places) == pytest.approx(count / every, rel=1e-2)


def test_long_steps_the_first_steps_and_steps_of_unknown_duration_are_all_timed(slowness):
    assert timed_places(gaps(0), LONG_NS, 50) == [*range(50)]
    assert timed_places(gaps(10), 1 * MS, 10) == [*range(10)]
    assert gaps(0).next(None) == 0
    slowness[0] = 3.0
    assert len(timed_places(gaps(0), LONG_NS, 3000)) == pytest.approx(1000, abs=2)


def test_median_of_recent_periods_decides():
    own = gaps(0)
    assert [own.next(period_ns) for period_ns in (LONG_NS, LONG_NS, 1, LONG_NS, 1)] == [0] * 5


@pytest.mark.parametrize("period", [2, 3, 4, 7, 8, 16, 50])
def test_each_place_in_a_period_of_the_script_gets_its_share(period):
    places = timed_places(gaps(0), LONG_NS // 4, 50_000)
    counts = Counter(place % period for place in places)
    assert min(counts.values()) > 0.95 * len(places) / period
    assert max(counts.values()) < 1.05 * len(places) / period


def test_no_random_numbers_are_drawn():
    states = random.getstate(), torch.get_rng_state()
    timed_places(gaps(0), 1 * MS, 100)
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])


def test_other_threads_are_looked_at_in_the_first_passes_over_a_loader_and_seldom_later():
    own, looked = LoadingGaps(), []
    for _ in range(40):
        own.passes += 1
        looked += [own.passes] * own.looks
    assert looked == [1, 2, 16, 32]


class Steps:
    """Delivers batches of passes, with the decisions on their steps."""

    def __init__(self):
        self.sampling, self.now_ns = StepSampling(), 0

    def deliver(self, number):
        self.now_ns += LONG_NS // 14  # of three such ones, one of five is timed
        state = self.sampling
        if state.left and state.decider == number and not state.rival:  # as the iterator does
            state.left -= 1
        else:
            state.choose(number, self.now_ns)
        return not state.untimed


def test_of_passes_side_by_side_one_decides_for_the_whole_step():
    steps = Steps()
    decisions = [[steps.deliver(number) for number in (1, 2, 3)] for _ in range(500)]
    assert all(len({*step}) == 1 for step in decisions)
    assert sum(first for first, *_ in decisions) == pytest.approx(500 / 5, abs=3), "a step has three batches, 3 ms"


def test_inner_loop_decides_from_its_second_batch_on_and_the_outer_one_again_after_its_end():
    steps = Steps()
    while steps.deliver(1):
        pass
    assert not steps.deliver(2)
    inner = [steps.deliver(2) for _ in range(400)]
    assert 0 < sum(inner) < 100
    steps.sampling.end(2)
    assert not steps.sampling.untimed, "what follows is timed until the next batch"
    assert 0 < sum(steps.deliver(1) for _ in range(400)) < 100


@pytest.mark.parametrize(
    ("length", "fewest", "most"), [(1, 1, 1), (3, 3, 3), (7, 7, 7), (20, 3, 5), (90, 3, 5), (1000, 14, 17)]
)
def test_about_four_steps_of_a_pass_are_timed_on_a_slow_machine_too(length, fewest, most, slowness):
    slowness[0], own, now_ns = 50.0, StepSampling(), 0
    for number in range(1, 30):
        timed = 0
        for _ in range(length):
            now_ns += 3 * MS
            if own.left:
                own.left -= 1
            else:
                own.choose(number, now_ns, length)
            timed += not own.untimed
        assert fewest <= timed <= most
        own.end(number)


@pytest.mark.parametrize("between", [1, 2, 3, 5, 7])
def test_passes_within_a_pass_hardly_change_how_many_of_its_steps_are_timed(between):
    steps, timed, count = Steps(), 0, 2000
    for number in range(count):
        timed += steps.deliver(1)
        if number % between == between - 1:
            for _ in range(3):
                steps.deliver(2 + number)
            steps.sampling.end(2 + number)
    assert timed == pytest.approx(count / 14, rel=0.25), "inner passes take some places"


def test_end_of_another_pass_does_not_change_a_decision():
    steps = Steps()
    while steps.deliver(1):
        pass
    steps.sampling.end(2)
    assert steps.sampling.untimed == UNTIMED


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, inputs):
        return self.layer(inputs)


def test_steps_that_are_not_timed_have_their_ends_only_and_calls_of_modules_are_untouched(script, sparse):
    script.agent.brief.forbid()
    model, wrapped = Net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for inputs, targets in script.batches(DataLoader(DATA, batch_size=4)):
            wrapped.append(model.__call__.__func__ is not nn.Module.__call__)
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    by_step = []
    for event in events_of(script.folder)[0]:
        if event.kind == events.BATCH:
            by_step.append([event])
        elif by_step and event.kind in (events.FORWARD_ENDED, events.BACKWARD, events.STEP):
            by_step[-1].append(event)
    timed = [not batch.flags & UNTIMED for batch, *_ in by_step]
    assert sum(timed[1:]) == pytest.approx(len(timed) / 5, abs=2)
    settled = slice(40, 100)  # the first calls are watched
    for (_, *parts), is_timed, is_wrapped in zip(by_step[settled], timed[settled], wrapped[settled], strict=True):
        *forwards, backward, step = parts
        assert [part.kind for part in forwards] == is_timed * [events.FORWARD_ENDED]
        assert (backward.kind, step.kind) == (events.BACKWARD, events.STEP)
        assert bool(backward.begun_ns) == is_timed == is_wrapped


def test_step_of_an_optimizer_within_its_own_step_counts_once_in_steps_that_are_not_timed(script, sparse):
    class Wrapper(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    optimizer = Wrapper(script.model.parameters(), lr=0.1)
    for inputs, _ in script.batches(DataLoader(DATA, batch_size=4)):
        script.model(inputs).sum().backward()
        optimizer.step()
    recorded = [event for event in events_of(script.folder)[0] if event.kind == events.STEP]
    assert len(recorded) == 2 * 100
    assert all(0 < outer.begun_ns <= inner.begun_ns for inner, outer in zip(recorded[::2], recorded[1::2], strict=True))


def test_training_after_the_end_of_a_pass_is_timed(script, sparse):
    batches = [*script.batches(DataLoader(DATA, batch_size=4))]
    for inputs, _ in batches:
        script.step(inputs)
    (window,) = script.parts
    assert "timed_steps" not in window
    assert window["forward_s"] > 0
