"""Phases of compute, from events at known times: each row of the rules, and what is absent."""

import contextlib

import pytest
from scripted import EVALUATION, MILLISECOND, NONE, TRAINING, Script, windows_of

from epochmeter.agent.sampling import GOLDEN
from epochmeter.segmentation import phases
from epochmeter.segmentation.phases import NO_BACKWARD, NO_FORWARD
from epochmeter.shared import events
from epochmeter.shared.phases import (
    BACKWARD,
    BETWEEN,
    FORWARD,
    LOSS,
    OPTIMIZER,
    OTHER,
    PHASES,
    PREPARATION,
    WITHIN,
)
from epochmeter.shared.units import percent

STEPS = 3
KINDS = {FORWARD: events.FORWARD_ENDED, BACKWARD: events.BACKWARD, OPTIMIZER: events.STEP}


class Steps(Script):
    """Writes the parts of steps, which may be within each other."""

    def spend(self, ms):
        self.now_ns += round(ms * MILLISECOND)

    @contextlib.contextmanager
    def part(self, phase, flags=0):
        begun_ns = self.now_ns
        yield
        event = events.Event(self.now_ns, begun_ns, 0.1, 9, 0, 0, 0, flags, KINDS[phase])
        self.events.append(event)

    def act(self, phase, ms, flags=0):
        with self.part(phase, flags):
            self.spend(ms)

    def step(self):
        self.spend(1)
        self.act(FORWARD, 2)
        self.spend(4)
        self.act(BACKWARD, 8)
        self.spend(16)
        self.act(OPTIMIZER, 32)


def epoch_of(step, *, length=STEPS, ahead=0, flags=0):
    """Return the window of an epoch with steps that an act writes, and the notes of the process."""
    script = Steps()
    script.write(events.PASS, 0, float(length), 1, TRAINING, events.HAS_GRADIENTS | flags)
    for _ in range(ahead):
        script.fetch(1)
    for number in range(length):
        if number + ahead < length:
            script.fetch(1)
        elif number + ahead == length:
            script.end(1)
        step(script)
    if not ahead:
        script.end(1)
    process = windows_of(script)
    (window,) = process.windows
    return window, process.notes


def ms_per_step(window, steps=STEPS):
    """Return the phases of a window, whose sum is its compute."""
    found = {phase: window.parts[phase] * 1e3 / steps for phase in PHASES if phase in window.parts}
    assert sum(found.values()) == pytest.approx(window.parts["compute_s"] * 1e3 / steps, rel=1e-9)
    return {phase: ms for phase, ms in found.items() if ms or phase != OTHER}


def test_phases_of_a_step_are_between_its_parts():
    window, notes = epoch_of(Steps.step)
    assert ms_per_step(window) == pytest.approx(
        {PREPARATION: 1, FORWARD: 2, LOSS: 4, BACKWARD: 8, OPTIMIZER: 32, OTHER: 16}
    )
    assert notes == []


@pytest.mark.parametrize("ahead", [1, 2])
def test_steps_on_batches_that_were_fetched_in_advance_have_the_same_phases(ahead):
    window, _ = epoch_of(Steps.step, length=6, ahead=ahead)
    found = ms_per_step(window, 6)
    assert {phase: found[phase] for phase in (FORWARD, LOSS, BACKWARD, OPTIMIZER)} == pytest.approx(
        {FORWARD: 2, LOSS: 4, BACKWARD: 8, OPTIMIZER: 32}
    )


@pytest.mark.parametrize(("outer", "inner"), WITHIN)
def test_part_within_another_one_belongs_to_the_phase_of_its_rule(outer, inner):
    def step(script):
        script.step()
        with script.part(outer):
            script.spend(64)
            script.act(inner, 128)
            script.spend(256)
        script.act(OPTIMIZER, 0)  # a step's compute ends with its last training event

    window, _ = epoch_of(step)
    alone, _ = epoch_of(Steps.step)
    more = {phase: ms - ms_per_step(alone)[phase] for phase, ms in ms_per_step(window).items()}
    expected = dict.fromkeys(PHASES, 0.0)
    expected[outer] += 64 + 256
    expected[WITHIN[outer, inner]] += 128
    assert more == pytest.approx(expected, abs=1e-6)


def test_gaps_within_a_closure_are_those_outside_of_it():
    def step(script):
        with script.part(OPTIMIZER):
            for _ in range(2):
                script.spend(1)
                script.act(FORWARD, 2)
                script.spend(4)
                script.act(BACKWARD, 8)
                script.spend(16)

    window, _ = epoch_of(step)
    assert ms_per_step(window) == pytest.approx({PREPARATION: 0, FORWARD: 4, LOSS: 8, BACKWARD: 16, OPTIMIZER: 34})


@pytest.mark.parametrize("before", [FORWARD, BACKWARD, OPTIMIZER])
@pytest.mark.parametrize("after", [FORWARD, BACKWARD, OPTIMIZER])
def test_gap_between_two_parts_belongs_to_the_phase_of_its_rule(before, after):
    def step(script):
        script.step()
        script.spend(64)
        script.act(before, 128)
        script.spend(256)
        script.act(after, 512)
        script.act(OPTIMIZER, 0)

    window, _ = epoch_of(step)
    found = ms_per_step(window)[BETWEEN.get((before, after), OTHER)]
    assert round(found) & 256


def test_several_forward_and_backward_passes_in_a_step_are_added():
    def step(script):  # of a GAN: the discriminator on two batches, then the generator
        for forwards in (1, 2, 2):
            for _ in range(forwards):
                script.act(FORWARD, 2)
                script.spend(0.5)
            script.act(BACKWARD, 8)
        script.act(OPTIMIZER, 32)

    window, _ = epoch_of(step)
    assert ms_per_step(window) == pytest.approx(
        {PREPARATION: 0, FORWARD: 10, LOSS: 1.5, BACKWARD: 24, OPTIMIZER: 32, OTHER: 1}
    )


def test_time_of_an_evaluation_within_a_step_is_in_no_phase():
    def step(script):
        script.spend(1)
        script.act(FORWARD, 2)
        number = len(script.events)
        script.begin(number, 2, EVALUATION)
        for _ in range(2):
            script.fetch(number)
            script.act(FORWARD, 100)
        script.end(number)
        script.act(BACKWARD, 8)
        script.act(OPTIMIZER, 32)

    window, _ = epoch_of(step)
    found = ms_per_step(window)
    assert found == pytest.approx({PREPARATION: 1, FORWARD: 2, LOSS: 0, BACKWARD: 8, OPTIMIZER: 32}, abs=1e-6)


def test_phases_without_their_events_are_absent_with_the_reason():
    def without_forward(script):
        script.spend(1)
        script.act(BACKWARD, 8)
        script.act(OPTIMIZER, 32)

    def without_backward(script):
        script.act(FORWARD, 2)
        script.spend(8)
        script.act(OPTIMIZER, 32)

    def with_late_class(script):
        script.act(FORWARD, 2, events.WAS_UNSEEN if script.now_ns > 50 * MILLISECOND else 0)
        script.act(BACKWARD, 8)
        script.act(OPTIMIZER, 32)

    def with_compiled_steps(script):
        script.act(FORWARD, 2)
        script.act(BACKWARD, 8)
        script.spend(16)
        script.events.append(events.Event(script.now_ns, 0, 0.1, 9, 0, 0, 0, 0, events.STEP))
        script.act(OPTIMIZER, 32)

    window, notes = epoch_of(with_compiled_steps)
    assert ms_per_step(window) == pytest.approx({PREPARATION: 0, FORWARD: 2, LOSS: 0, BACKWARD: 8, OTHER: 48})
    assert notes == [phases.NO_OPTIMIZER]
    window, notes = epoch_of(without_forward)
    assert ms_per_step(window) == pytest.approx({BACKWARD: 8, OPTIMIZER: 32, OTHER: 1})
    assert notes == [NO_FORWARD.format(phases.FEW_SEEN.format(0, STEPS))]
    _, notes = epoch_of(without_forward, flags=events.HIDES_FORWARDS)
    assert notes == [NO_FORWARD.format(phases.HIDDEN)]
    _, notes = epoch_of(Steps.step, flags=events.HIDES_FORWARDS)
    assert notes == [phases.COMPILED]
    window, notes = epoch_of(without_backward)
    assert ms_per_step(window) == pytest.approx({PREPARATION: 0, FORWARD: 2, OPTIMIZER: 32, OTHER: 8})
    assert notes == [NO_BACKWARD]
    window, notes = epoch_of(with_late_class)
    assert ms_per_step(window) == pytest.approx({BACKWARD: 8, OPTIMIZER: 32, OTHER: 2})
    assert notes == [NO_FORWARD.format(phases.SEEN_LATE)]


class SparseSteps(Steps):
    """Steps of which only some are timed: the others have the ends of their training events."""

    is_timed = True

    def fetch(self, number, ms=1):
        self.write(events.BATCH, ms, 4.0, number, flags=0 if self.is_timed else events.UNTIMED)

    @contextlib.contextmanager
    def part(self, phase, flags=0):
        with super().part(phase, flags):
            yield
        if not self.is_timed:
            event = self.events.pop()
            if event.kind == events.STEP:
                self.events.append(event)  # whose begin shows whether it is within another one
            elif event.kind == events.BACKWARD:
                self.events.append(event._replace(begun_ns=0))


def sparse_epoch(timed, step):
    """Return the window of an epoch, the timed steps of which are given, and the notes."""
    script = SparseSteps()
    script.begin(1, len(timed))
    for number, script.is_timed in enumerate(timed):
        script.fetch(1)
        step(script, number)
    script.end(1)
    process = windows_of(script)
    (window,) = process.windows
    return window, process.notes


def accumulating_step(script, number, every=4):
    """Take a known time, which differs between the steps, with an optimizer step in one of four."""
    factor = 1 + number % 3
    script.spend(1)
    script.act(FORWARD, 2 * factor)
    script.spend(4)
    script.act(BACKWARD, 8 * factor)
    if number % every == every - 1:
        script.act(OPTIMIZER, 32)
        script.spend(2)


def timed_by(offset, every, count=120):
    """Return which steps are timed: one in each block, whose place has no period."""
    places = [block * every + int((offset / every + block * GOLDEN) % 1 * every) for block in range(count // every)]
    return [number in places for number in range(count)]


@pytest.mark.parametrize("every", [2, 3, 4, 5])
def test_phases_of_all_steps_are_estimated_from_those_of_some_with_gradient_accumulation(every):
    true, _ = sparse_epoch(120 * [True], accumulating_step)
    for offset in range(every):
        timed = timed_by(offset, every)
        window, notes = sparse_epoch(timed, accumulating_step)
        assert notes == [phases.ESTIMATED]
        assert window.parts["timed_steps"] == sum(timed)
        compute_ms = true.parts["compute_s"] * 1e3 / 120
        assert ms_per_step(window, 120) == pytest.approx(ms_per_step(true, 120), abs=0.03 * compute_ms)
        assert window.parts["compute_s"] == true.parts["compute_s"]
    assert "timed_steps" not in true.parts


def test_phases_are_exact_if_the_steps_of_a_kind_are_alike():
    def step(script, number):
        script.step() if number % 2 else script.act(BACKWARD, 8)

    true, _ = sparse_epoch(40 * [True], step)
    window, _ = sparse_epoch(timed_by(0, 4, 40), step)
    assert ms_per_step(window, 40) == pytest.approx(ms_per_step(true, 40), rel=1e-9)


@pytest.mark.parametrize("timed", [[True, *19 * [False]], 20 * [False], [True, True, *18 * [False]]])
def test_phases_of_too_few_timed_steps_are_absent_with_the_reason(timed):
    window, notes = sparse_epoch(timed, lambda script, number: accumulating_step(script, number, every=2))
    assert not {*PHASES, "timed_steps"} & {*window.parts}
    assert notes == [phases.FEW_TIMED.format(percent(phases.MAX_HALF_WIDTH))]


def test_step_with_a_batch_of_another_pass_after_which_it_is_not_timed_any_more_is_left_out():
    def step(script, number):
        script.act(FORWARD, 2)
        if number % 4 == 3:
            timed, script.is_timed = script.is_timed, False
            script.begin(100 + number, 1, EVALUATION)
            script.fetch(100 + number)
            script.is_timed = timed
        script.act(BACKWARD, 8)
        script.act(OPTIMIZER, 32)

    window, _ = sparse_epoch(40 * [True], step)
    assert window.parts["timed_steps"] == 30


def test_events_of_an_earlier_version_give_no_phases_and_no_note():
    script = Steps()
    script.begin(1)
    for _ in range(STEPS):
        script.fetch(1)
        script.spend(8)
        script.events.append(events.Event(script.now_ns, 0, NONE, 0, 0, 0, 0, 0, events.BACKWARD))
        script.spend(8)
        script.events.append(events.Event(script.now_ns, 0, 0.1, 9, 0, 0, 0, 0, events.STEP))
    script.end(1)
    process = windows_of(script)
    assert not {*PHASES} & {*process.windows[0].parts}
    assert process.notes == []
