"""Loops of scripts, run with the agent: the windows that their events give."""

import collections
import contextlib
import copy
import gc
import itertools
import math
import sys
import threading
import time
import warnings

import pytest
import torch
from clocks import ScriptedClock
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from epochmeter.agent import hooks
from epochmeter.segmentation import kinds, process
from epochmeter.segmentation.steps import NO_PARTS
from epochmeter.segmentation.windows import OTHER_COUNT

STEPS = 8
DATA = [(torch.full((4,), float(number)), number % 2) for number in range(2 * STEPS)]
TWO_EPOCHS = [("epoch", 0, 8), ("val", 0, 4), ("epoch", 1, 8), ("val", 1, 4)]


def test_loaders_of_windows_are_known_with_their_options(script, loader, held_out):
    for _ in range(2):  # loaders that are alike are one
        script.train(DataLoader(DATA, batch_size=2, num_workers=1, persistent_workers=True, drop_last=True))
    script.evaluate(held_out)
    trained, evaluated = script.measured.loaders.documents
    assert trained == {
        "windows": ["epoch"], "class": "torch.utils.data.dataloader.DataLoader", "dataset": "builtins.list",
        "sampler": "torch.utils.data.sampler.SequentialSampler", "iterable": False,
        "batch_sampler": "torch.utils.data.sampler.BatchSampler", "in_order": True,
        "collate": "torch.utils.data._utils.collate.default_collate",
        "samples": 16, "batch": 2, "batches": 8, "workers": 1, "prefetch": 2, "start_method": "fork",
        "drop_last": True, "pin_memory": False, "persistent_workers": True,
    }  # fmt: skip
    assert (evaluated["windows"], evaluated["workers"], "prefetch" in evaluated) == (["val"], 0, False)
    script.train(loader)
    assert script.measured.loaders.documents[0]["workers"] == 0


def pause(seconds):
    """Sleep, and return how long it took: a busy machine wakes late."""
    began_s = time.perf_counter()
    time.sleep(seconds)
    return time.perf_counter() - began_s


@pytest.fixture
def clock(monkeypatch):
    """A clock that only pauses advance, for a script whose batches are loaded in its process."""
    return ScriptedClock(monkeypatch, sys.modules[__name__])


@pytest.fixture
def loader():
    return DataLoader(DATA, batch_size=2)


@pytest.fixture
def held_out():
    return DataLoader(DATA, batch_size=4)


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.ones(4), 1


class Stream(IterableDataset):
    def __iter__(self):
        return iter(DATA[:8])


class Slow(list):
    def __getitem__(self, index):
        time.sleep(0.01)
        return super().__getitem__(index)


class Repeating(DataLoader):
    """Has one iterator for all epochs, like ultralytics' `InfiniteDataLoader` and timm's `MultiEpochsDataLoader`."""

    iterator = None

    def __init__(self, data, batch_size, make_iterator, is_early=False):
        super().__init__(data, batch_size)
        object.__setattr__(self, "batch_sampler", itertools.cycle([*self.batch_sampler]))
        self.make_iterator = make_iterator
        if is_early:
            self.iterator = make_iterator(self)

    def __len__(self):
        return STEPS

    def __iter__(self):
        if self.iterator is None:
            self.iterator = self.make_iterator(self)
        for _ in range(len(self)):
            yield next(self.iterator)


class KnownWaits:
    """A loader that sums the time that its consumer waits for it."""

    def __init__(self, loader):
        self.loader, self.waited_s = loader, 0.0

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        self.iterator = self.timed(iter, self.loader)
        return self

    def __next__(self):
        return self.timed(next, self.iterator)

    def timed(self, act, iterator):
        began_s = time.perf_counter()
        result = act(iterator)  # the wait for the end, when workers stop, is overhead
        self.waited_s += time.perf_counter() - began_s
        return result


# Which passes are windows


def test_passes_with_steps_are_epochs_and_passes_without_are_evaluations(script, loader, held_out):
    for _ in range(2):
        script.train(loader)
        script.evaluate(held_out)
    assert script.windows == TWO_EPOCHS
    epoch = script.measured.windows[0]
    assert (epoch.parts["samples"], epoch.parts["learning_rate"], epoch.rule) == (16, 0.5, kinds.STEPS_RULE)
    assert "copy_s" not in epoch.parts


def test_early_steps_passes_that_only_read_and_early_evaluations_are_no_windows(script, loader):
    script.optimizer.step()
    script.evaluate(DataLoader(DATA, batch_size=4))
    assert len(list(script.batches(loader))) == STEPS
    script.train(loader)
    assert len(list(script.batches(DataLoader(DATA)))) == len(DATA)
    measured = script.measured
    assert script.windows == [("epoch", 0, 8)]
    assert [discarded.reason for discarded in measured.discarded] == [
        "it was before the first epoch, and did not train", "no forward pass was seen in it",
        "no forward pass was seen in it",
    ]  # fmt: skip
    assert measured.notes == [process.OUTSIDE.format(1, "optimizer step")]


def test_early_break_and_accumulated_gradients_end_their_epoch_with_their_steps(script, loader):
    script.train(loader, steps=3)
    script.train(loader, every=4)
    assert script.windows == [("epoch", 0, 3), ("epoch", 1, 8)]
    assert [len(window.rows) for window in script.measured.windows] == [4 * 3, 4 * 8]


@pytest.mark.parametrize("is_new", [False, True])
def test_epochs_that_end_early_after_a_complete_one_are_partial(script, loader, is_new):
    for steps in (2, None, 3, 3):
        script.train(DataLoader(DATA, batch_size=2) if is_new else loader, steps)
    assert [steps for _, _, steps in script.windows] == [2, 8, 3, 3]
    assert script.partial_steps == [None, None, 3, 3]


def test_early_end_of_a_pass_without_a_length_is_partial_after_a_complete_one(script):
    stream = DataLoader(Stream(), batch_size=2)
    for steps in (3, None, 3):
        script.train(stream, steps)
    assert script.partial_steps == [None, None, 3]
    assert [parts["samples"] for parts in script.parts] == [6, 8, 6]


@pytest.mark.parametrize("epochs", [0, 1])
@pytest.mark.parametrize(("ahead", "steps"), [(True, 3), (False, 4)])
def test_batch_that_was_requested_in_advance_is_no_step_of_a_loop_that_ends_early(script, loader, epochs, ahead, steps):
    for epoch in range(epochs + 1):
        batches = fetching_ahead(script, loader) if ahead else (inputs for inputs, _ in script.batches(loader))
        for number, inputs in enumerate(batches, 1):
            if ahead or number > 1 or not epochs:  # without a complete epoch, a skipped batch cannot be told from it
                script.step(inputs)
            if number == steps and epoch == epochs:
                break
    *_, parts = script.parts
    assert (parts["steps"], parts["samples"]) == (steps, 2 * steps)
    assert parts["data_stall_s"] + parts["compute_s"] + parts["overhead_s"] == pytest.approx(parts["e2e_s"])
    assert parts["data_stall_s"] == pytest.approx(parts["host_wait_s"], abs=0.002)


def one_ahead(script, batches, steps):
    """Request each batch before the step on the one before it, and none too many."""
    following = next(batches)
    for number in range(1, steps + 1):
        inputs, following = following, next(batches) if number < steps else None
        script.step(inputs[0])


def in_pairs(script, batches, steps):
    """Request two batches, then train on both."""
    for _ in range(steps // 2):
        for inputs, _ in [next(batches), next(batches)]:
            script.step(inputs)


def in_pairs_without_backward_passes(script, batches, steps):
    """Accumulate gradients of two batches by a function whose calls are no training events."""
    for number, (inputs, _) in enumerate(itertools.islice(batches, steps), 1):
        gradients = torch.autograd.grad(script.model(inputs).sum(), [*script.model.parameters()])
        for weights, gradient in zip(script.model.parameters(), gradients, strict=True):
            weights.grad = gradient
        if number % 2 == 0:
            script.optimizer.step()


@pytest.mark.parametrize("train", [one_ahead, in_pairs, in_pairs_without_backward_passes])
@pytest.mark.parametrize("steps", [6, STEPS])
def test_all_batches_count_of_a_loop_that_trains_on_all_that_it_has_requested(script, loader, train, steps):
    batches = script.batches(loader)
    train(script, batches, steps)
    del batches
    (parts,) = script.parts
    assert (parts["steps"], parts["samples"]) == (steps, 2 * steps)


def test_batch_requested_in_advance_is_no_step_if_it_is_the_last_one_or_of_a_stream(script, loader):
    stream = DataLoader(Stream(), batch_size=2)
    for data, steps in ((loader, 7), (stream, 4), (stream, 3)):
        for inputs in itertools.islice(fetching_ahead(script, data), steps):
            script.step(inputs)
    assert [(parts["steps"], parts["samples"]) for parts in script.parts] == [(7, 14), (4, 8), (3, 6)]
    assert script.partial_steps == [None, None, 3]


@pytest.mark.parametrize("evaluates", [False, True])
def test_step_on_the_rest_of_accumulated_gradients_belongs_to_the_epoch_before_it(script, loader, held_out, evaluates):
    begins_ns = []
    script.optimizer.register_step_pre_hook(lambda *_: begins_ns.append(time.monotonic_ns()))
    for _ in range(2):
        script.train(loader, every=3)
        if evaluates:
            script.evaluate(held_out)
        script.optimizer.step()
    assert [window for window in script.windows if window[0] == "epoch"] == [("epoch", 0, 8), ("epoch", 1, 8)]
    ends_ns = [window.closed_ns for window in script.measured.windows if window.name == "epoch"]
    of_rest = [end_ns > begun_ns for end_ns, begun_ns in zip(ends_ns, begins_ns[2::3], strict=True)]
    assert of_rest == [not evaluates] * 2
    assert script.measured.notes[:1] == ([process.OUTSIDE.format(2, "optimizer steps")] if evaluates else [])


def test_training_on_other_data_after_an_epoch_with_a_rest_of_gradients_is_no_part_of_it(script, loader):
    script.train(loader, every=3)
    ended_ns = time.monotonic_ns()
    script.step(torch.ones(2, 4))
    assert script.measured.windows[0].closed_ns < ended_ns
    assert script.measured.notes == [process.OUTSIDE.format(1, "optimizer step")]


def test_steps_outside_of_epochs_are_noted_as_those_of_all_threads(script, loader):
    script.train(loader)
    for _ in range(2):
        thread = threading.Thread(target=script.step, args=[torch.ones(2, 4)])
        thread.start()
        thread.join()
    assert script.measured.notes == [process.OUTSIDE.format(2, "optimizer steps")]


def test_samples_are_absent_only_if_the_batch_that_failed_may_be_the_smaller_one(script):
    class Failing(list):
        def __getitem__(self, index):
            if index == 3:
                raise ValueError
            return super().__getitem__(index)

    for count, batch_size in ((16, 2), (15, 2)):
        batches = script.batches(DataLoader(Failing(DATA[:count]), batch_size))
        for _ in range(math.ceil(count / batch_size)):
            with contextlib.suppress(ValueError):
                script.step(next(batches)[0])
        del batches
    even, odd = script.measured.windows
    assert (even.parts["steps"], even.parts["samples"]) == (7, 14)
    assert (odd.parts["steps"], "samples" in odd.parts, odd.reason) == (7, False, OTHER_COUNT)


def test_batches_of_several_loaders_in_one_step_are_noted(script, loader):
    for inputs in with_further_batches(script, loader):
        script.step(inputs)
    assert script.measured.notes == [process.OTHER_BATCHES]


def test_evaluations_that_end_early_are_windows_if_none_was_complete(script, loader, held_out):
    for evaluated in (1, 2, None, 2):
        script.train(loader)
        script.evaluate(held_out, evaluated)
    assert [steps for name, _, steps in script.windows if name == "val"] == [2, 4]


def test_endless_loader_has_windows_of_equal_steps_and_a_partial_last_one(script):
    script.agent.expect_epochs(2)
    script.train(DataLoader(Endless(), batch_size=2), steps=12)
    assert script.windows == [("epoch", 0, 5), ("epoch", 1, 5), ("epoch", 2, 2)]
    assert script.partial_steps == [None, None, 2]
    assert script.measured.expected_epochs is None, "the number of windows is not that of epochs"


@pytest.mark.parametrize(("method", "is_early"), [("__iter__", False), ("__iter__", True), ("_get_iterator", False)])
@pytest.mark.parametrize("is_later", [False, True])
def test_passes_of_a_subclass_are_epochs_also_if_it_has_one_iterator(script, loader, method, is_early, is_later):
    script.batches, restore = iter, hooks.hook_loaders(script.agent)
    later = type("Later", (Repeating,), {"__iter__": lambda loader: Repeating.__iter__(loader)})
    script.model.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0][0, 0].item()))
    seen, repeating = [], (later if is_later else Repeating)(DATA, 2, getattr(DataLoader, method), is_early)
    for every in (1, 3):
        script.train(repeating, every=every)
        script.evaluate(loader)
    restore()
    script.train(repeating)
    assert seen == [2.0 * number for number in range(STEPS)] * 5
    assert script.windows == [("epoch", 0, STEPS), ("val", 0, STEPS), ("epoch", 1, STEPS), ("val", 1, STEPS)]
    assert [parts["samples"] for parts in script.parts[::2]] == [len(DATA)] * 2


@pytest.mark.parametrize("is_requested", [False, True])
def test_passes_in_a_loader_that_is_an_endless_iterator_are_epochs(script, is_requested):
    class Restarting(DataLoader):
        iterator = iter(())

        def __iter__(self):
            return self

        def __next__(self):
            for batch in self.iterator:
                return batch
            self.iterator = super().__iter__()
            return next(self.iterator)

    script.batches, restore = iter, hooks.hook_loaders(script.agent)
    restarting = Restarting(DATA, 2)
    script.train(iter(restarting.__next__, None) if is_requested else restarting, steps=2 * STEPS + 1)
    restore()
    assert script.windows == [("epoch", 0, STEPS), ("epoch", 1, STEPS), ("epoch", 2, 1)]
    assert script.partial_steps == [None, None, 1]


def test_endless_pass_of_a_subclass_with_a_length_has_epochs_of_its_length(script):
    class Restarting(DataLoader):
        def __iter__(self):
            while True:
                yield from super().__iter__()

    script.batches, restore = iter, hooks.hook_loaders(script.agent)
    script.train(Restarting(DATA, 2), steps=3 * STEPS - 1)
    restore()
    assert script.windows == [("epoch", 0, STEPS), ("epoch", 1, STEPS), ("epoch", 2, STEPS - 1)]
    assert script.partial_steps == [None, None, STEPS - 1]


@pytest.mark.parametrize("steps", [None, 2])
def test_pass_over_a_loader_without_length_that_ends_early_is_an_epoch(script, steps):
    class Short(IterableDataset):
        def __iter__(self):
            return iter(DATA[:6])

    for _ in range(2):
        script.train(DataLoader(Short(), batch_size=2), steps)
    assert script.windows == [("epoch", number, steps or 3) for number in range(2)]
    assert script.partial_steps == [None, None]


def test_measuring_does_not_change_compiled_code(script, loader):
    loss = torch.compile(
        lambda inputs, targets: nn.functional.cross_entropy(script.model(inputs), targets), backend="eager",
        fullgraph=True,
    )  # fmt: skip

    @torch.compile(backend="eager")
    def step(inputs, targets):
        loss(inputs, targets).backward()
        script.optimizer.step()

    compiled = torch.compile(script.model, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            for inputs, targets in script.batches(loader):
                step(inputs, targets)
            with torch.no_grad():
                for inputs, _ in script.batches(DataLoader(DATA)):
                    compiled(inputs)
    assert script.windows == [("epoch", 0, 8), ("val", 0, 16), ("epoch", 1, 8), ("val", 1, 16)]
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def test_backward_passes_are_the_steps_of_a_script_without_an_optimizer(script, loader):
    for _ in range(2):
        for inputs, _ in script.batches(loader):
            script.model(inputs).sum().backward()
            computed_s = pause(0.01)
        script.evaluate(loader)
    assert script.windows == [("epoch", 0, 8), ("val", 0, 8), ("epoch", 1, 8), ("val", 1, 8)]
    epoch = script.measured.windows[0]
    assert epoch.rule == kinds.BACKWARD_RULE
    assert "learning_rate" not in epoch.parts
    assert epoch.parts["compute_s"] > STEPS * computed_s / 2, "the script changes its weights after the backward pass"


@pytest.mark.parametrize("every", [2 * STEPS + 1, 3 * STEPS])
def test_epochs_without_an_optimizer_step_are_epochs_before_and_after_the_first_one(script, loader, every):
    steps = itertools.count(1)
    for _ in range(7):
        for inputs, _ in script.batches(loader):
            script.model(inputs).sum().backward()
            if next(steps) % every == 0:
                script.optimizer.step()
        script.evaluate(loader)
    assert script.windows == [(name, number, 8) for number in range(7) for name in ("epoch", "val")]


def test_optimizer_step_after_the_loop_belongs_to_its_epoch(script, loader):
    for _ in range(3):
        for inputs, _ in script.batches(loader):
            script.model(inputs).sum().backward()
        script.optimizer.step()
    assert script.windows == [("epoch", number, 8) for number in range(3)]
    assert (script.parts[2]["learning_rate"], script.measured.notes) == (0.5, [])


def test_backward_passes_on_data_that_was_never_trained_on_are_an_evaluation(script, loader):
    """As for adversarial examples."""
    held_out = DataLoader([*DATA], batch_size=4)
    for _ in range(2):
        script.train(loader)
        for inputs, _ in script.batches(held_out):
            script.model(inputs.requires_grad_()).sum().backward()
    assert script.windows == TWO_EPOCHS


@pytest.mark.parametrize(("every", "unit"), [(0, "backward passes"), (1, "optimizer steps"), (3, "optimizer steps")])
def test_without_a_loader_steps_are_backward_passes_only_if_there_is_no_optimizer(script, clock, every, unit):
    trained_s = []
    for number in range(13 * (every or 1)):
        script.model(torch.ones(1, 4)).sum().backward()
        if every and (number + 1) % every == 0:
            script.optimizer.step()
        if (number + 1) % (every or 1) == 0:
            trained_s.append(time.perf_counter())
        pause(0.01)
    assert script.windows == [("epoch", 0, 5), ("epoch", 1, 5), ("epoch", 2, 2)]
    assert script.partial_steps == [None, None, 2]
    assert {window.reason for window in script.measured.windows} == {NO_PARTS.format(5, unit)}
    parts = script.parts[1]
    assert parts["e2e_s"] == pytest.approx(trained_s[10] - trained_s[5], abs=0.0001)
    assert parts.keys() - {"learning_rate"} == {"e2e_s", "steps"}


def test_steps_on_the_first_batch_of_a_new_pass_each_are_counted(script, loader):
    for _ in range(13):
        inputs, _ = next(script.batches(loader))
        script.step(inputs)
    assert script.windows == [("epoch", 0, 5), ("epoch", 1, 5), ("epoch", 2, 2)]


@pytest.mark.parametrize("is_held", [False, True])
def test_steps_on_one_batch_before_the_first_epoch_are_no_epoch_but_noted(script, loader, held_out, is_held):
    inputs, _ = next(script.batches(held_out))
    held = script.batches(loader)
    inputs, _ = next(held)
    if not is_held:
        del held
    for _ in range(3):
        script.step(inputs)
    for _ in range(2):
        script.train(loader)
    assert script.windows == [("epoch", 0, 8), ("epoch", 1, 8)]
    assert script.measured.notes == [process.OUTSIDE.format(3, "optimizer steps")]


def test_steps_over_cached_batches_are_counted(script, loader):
    cached = list(script.batches(loader))
    for inputs, _ in 2 * cached:
        script.step(inputs)
    script.evaluate(loader)
    assert script.windows == [("epoch", 0, 5), ("epoch", 1, 5), ("epoch", 2, 5), ("val", 2, 8)]


def test_later_steps_over_cached_batches_are_noted_if_the_first_ones_are_an_epoch(script, loader):
    cached = list(script.batches(loader))
    for _ in range(2):
        for inputs, _ in cached:
            script.step(inputs)
        script.evaluate(loader)
    assert script.windows == [("epoch", 0, 8), ("val", 0, 8), ("val", 0, 8)]
    assert script.measured.notes == [process.OUTSIDE.format(8, "optimizer steps")]


def test_batches_that_are_all_read_before_the_steps_are_an_epoch_with_its_stall(script, clock):
    slow, read_s = DataLoader(Slow(DATA), batch_size=2), []
    for _ in range(2):
        began_s = time.perf_counter()
        batches = list(script.batches(slow))
        read_s.append(time.perf_counter() - began_s)
        for inputs, _ in batches:
            script.step(inputs)
            pause(0.01)
    assert script.windows == [("epoch", 0, 8), ("epoch", 1, 8)]
    epoch = script.measured.windows[1]
    assert epoch.rule == kinds.READ_AT_ONCE_RULE
    assert epoch.parts["data_stall_s"] == pytest.approx(read_s[1], abs=0.0001)
    assert (epoch.parts["samples"], epoch.parts["learning_rate"]) == (16, 0.5)


def test_evaluation_with_a_loader_without_length_is_one_window(script, loader):
    script.train(loader)
    script.evaluate(DataLoader(Endless(), batch_size=2), steps=12)
    assert script.windows == [("epoch", 0, 8), ("val", 0, 12)]


# Threads


def test_each_thread_has_windows_of_its_own(script, loader, held_out):
    other = torch.optim.SGD(script.model.parameters(), lr=9.0)
    ends = threading.Event()

    def train_another():
        while not ends.wait(0.001):
            other.step()

    for epoch in range(4):
        if epoch == 1:
            thread = threading.Thread(target=train_another)
            thread.start()
        script.train(loader)
        script.evaluate(held_out)
    ends.set()
    thread.join()
    assert script.windows == [entry for n in range(4) for entry in (("epoch", n, 8), ("val", n, 4))]
    assert {parts["learning_rate"] for parts in script.parts[::2]} == {0.5}


def test_script_may_train_in_another_thread(script, loader):
    thread = threading.Thread(target=script.train, args=(loader,))
    thread.start()
    thread.join()
    script.train(loader)
    assert script.windows == [("epoch", 0, 8), ("epoch", 1, 8)]


def test_epochs_whose_batches_another_thread_reads_have_no_parts(script, loader):
    spans_s = []
    for _ in range(2):
        began_s = time.perf_counter()
        batches, read = script.batches(loader), []
        thread = threading.Thread(target=read.extend, args=(batches,))
        thread.start()
        thread.join()
        for inputs, _ in read:
            pause(0.005)
            script.step(inputs)
        script.evaluate(loader)
        spans_s.append(time.perf_counter() - began_s)
    assert script.windows == [("epoch", 0, 8), ("val", 0, 8), ("epoch", 1, 8), ("val", 1, 8)]
    epoch = script.measured.windows[2]
    assert (epoch.rule, epoch.parts.keys()) == (process.READ_AHEAD_RULE, {"e2e_s", "steps", "samples"})
    assert 8 * 0.005 <= epoch.parts["e2e_s"] <= spans_s[1]
    assert epoch.reason == process.READ_AHEAD


def test_steps_of_another_thread_that_are_not_one_per_batch_are_noted(script, loader):
    read = []
    thread = threading.Thread(target=lambda: read.extend(script.batches(loader)))
    thread.start()
    thread.join()
    for inputs, _ in read:
        script.step(inputs)
        script.step(inputs)
    assert process.READ_AHEAD_UNMATCHED in script.measured.notes
    assert {window.rule for window in script.measured.windows}.isdisjoint({kinds.STEPS_RULE, process.READ_AHEAD_RULE})


# Passes that the script leaves, or repeats within others


def test_training_ends_an_evaluation_that_the_script_left_but_holds(script, loader):
    with torch.no_grad():
        held = script.batches(DataLoader(DATA))
        script.model(next(held)[0])
    script.train(loader)
    script.train(loader)
    assert script.windows == [("epoch", 0, 8), ("epoch", 1, 8)]
    assert len(list(held)) == len(DATA) - 1


@pytest.mark.parametrize("held", [1, 2])
def test_left_passes_are_epochs_if_their_iterators_are_released_or_held(script, clock, loader, held):
    iterators = collections.deque(maxlen=held)
    for _ in range(2):
        iterators.append(script.batches(loader))  # an earlier one is released afterwards
        for _ in range(3):
            next(iterators[-1])
            script.optimizer.step()
        pause(0.05)
    assert script.windows == [("epoch", 0, 3), ("epoch", 1, 3)]
    assert script.partial_steps == [None, None]
    assert all(parts["e2e_s"] < 0.001 for parts in script.parts), "an epoch ends with its last step"
    assert [len(list(iterator)) for iterator in iterators] == [STEPS - 3] * held


@pytest.mark.parametrize("is_complete", [False, True])
def test_work_after_an_endless_generator_of_passes_is_no_part_of_the_last_epoch(script, clock, loader, is_complete):
    def cycle():
        while True:
            yield from script.batches(loader)

    batches = cycle()
    for _ in range(3 * STEPS if is_complete else 3 * STEPS - 2):
        script.step(next(batches)[0])
    pause(0.2)
    del batches
    assert [steps for _, _, steps in script.windows] == [8, 8, 8 if is_complete else 6]
    assert script.parts[-1]["e2e_s"] < 0.001
    assert script.partial_steps[-1] == (None if is_complete else 6)


def test_pass_within_a_pass_over_the_same_loader_does_not_end_the_outer_pass(script, loader):
    for _ in range(2):
        for number, (inputs, _) in enumerate(script.batches(loader)):
            next(iter(script.batches(loader)))
            script.model(inputs)
            if number == 2:
                script.evaluate(loader)
            script.optimizer.step()
            if number < STEPS - 1:
                next(iter(script.batches(loader)))
    assert script.windows == [("epoch", 0, 8), ("epoch", 1, 8)]


def test_some_batches_of_an_iterator_that_the_script_holds_are_an_evaluation_after_each_epoch(script, loader):
    held = script.batches(DataLoader(DATA))
    for _ in range(4):
        script.train(loader)
        with torch.no_grad():
            for _ in range(3):
                script.model(next(held)[0])
    found = [window for epoch in range(4) for window in (("epoch", epoch, STEPS), ("val", epoch, 3))]
    assert script.windows == found


def test_batches_that_are_only_read_after_an_evaluation_with_their_iterator_are_none(script, loader):
    held = script.batches(DataLoader(DATA))
    for epoch in range(2):
        script.train(loader)
        with torch.no_grad():
            for _ in range(3):
                inputs, _ = next(held)
                if epoch == 0:
                    script.model(inputs)
    script.train(loader)
    assert script.windows == [("epoch", 0, 8), ("val", 0, 3), ("epoch", 1, 8), ("epoch", 2, 8)]


@pytest.mark.parametrize(("tasks", "is_compiled"), [(1, False), (3, False), (3, True)])
def test_loader_of_tasks_is_no_evaluation_if_a_loop_trains_on_each(script, loader, monkeypatch, tasks, is_compiled):
    """As in continual learning."""
    monkeypatch.setattr(script.agent._first_forwards, "_has_compiled", lambda: is_compiled)
    for _ in range(2):
        for _ in script.batches(DataLoader(range(tasks))):
            script.train(loader)
            script.model(torch.ones(1, 4))
    assert script.windows == [("epoch", number, STEPS) for number in range(2 * tasks)]


def test_loops_that_train_copies_are_the_epochs_although_an_outer_model_makes_steps_between_them(script, loader):
    """As in meta-learning: beside one batch of a held iterator per epoch, with a step on it, the same is seen."""
    for _ in range(2):
        for _ in script.batches(DataLoader(range(3))):
            copied = copy.deepcopy(script.model)
            optimizer = torch.optim.SGD(copied.parameters(), lr=0.5)
            for inputs, _ in script.batches(loader):
                copied(inputs).sum().backward()
                optimizer.step()
            script.step(torch.ones(1, 4))
    assert script.windows == [("epoch", number, STEPS) for number in range(6)]


@pytest.mark.parametrize("has_new_model", [False, True])
def test_step_on_a_batch_of_a_held_iterator_after_each_epoch_leaves_the_epochs(script, loader, has_new_model):
    """As in architecture search, or to calibrate each model."""
    held, other = script.batches(DataLoader(DATA)), nn.Linear(4, 2)
    others = torch.optim.SGD(other.parameters(), lr=0.5)
    for _ in range(4):
        if has_new_model:
            script.model = nn.Linear(4, 2)
            script.optimizer = torch.optim.SGD(script.model.parameters(), lr=0.5)
        inputs, _ = next(held)
        script.train(loader)
        other(inputs).sum().backward()
        others.step()
    assert script.windows == [("epoch", number, STEPS) for number in range(4)]


def test_last_step_of_a_loop_after_its_end_does_not_make_it_a_part_of_a_pass_that_the_script_holds(script, loader):
    """As of gradients that are left over, beside one batch of held-out data per epoch."""
    held = script.batches(DataLoader(DATA))
    for _ in range(3):
        with torch.no_grad():
            script.model(next(held)[0])
        script.train(loader, every=3)
        script.optimizer.step()
    assert script.windows == [("epoch", number, STEPS) for number in range(3)]


def test_second_pass_over_a_loader_does_not_replace_the_first_one_in_the_same_loop(script, loader):
    for _ in range(2):
        for (inputs, _), _ in zip(script.batches(loader), script.batches(loader), strict=True):
            script.model(inputs)
            script.optimizer.step()
    assert script.windows == [("epoch", 0, 8), ("epoch", 1, 8)]


def test_pass_that_each_step_requests_first_is_the_epoch(script, loader):
    for _ in range(2):
        others = itertools.cycle(script.batches(DataLoader(DATA[:6], batch_size=2)))
        for (inputs, _), _ in zip(script.batches(loader), others, strict=False):
            script.model(inputs)
            script.optimizer.step()
        script.evaluate(DataLoader(DATA))
    assert script.windows == [("epoch", 0, 8), ("val", 0, 16), ("epoch", 1, 8), ("val", 1, 16)]
    assert script.parts[0]["samples"] == 16


@pytest.mark.parametrize("critic_steps", [2, 5])
def test_passes_with_several_steps_are_epochs_beside_a_loader_used_once_per_loop(script, loader, critic_steps):
    """As in a Wasserstein GAN, whose critic trains several times per batch of the generator."""
    critic = script.batches(loader)
    for _ in range(3):
        for inputs, _ in script.batches(DataLoader(DATA, batch_size=4)):
            for _ in range(critic_steps):
                batch = next(critic, None)
                if batch is None:
                    critic = script.batches(loader)
                    batch = next(critic)
                script.step(batch[0])
            script.step(inputs)
    complete = [window for window in script.measured.windows if not window.is_partial]
    assert {window.parts["steps"] for window in complete} == {8}
    assert len(complete) == 3 * 4 * critic_steps // STEPS


def test_evaluation_between_a_new_iterator_and_its_first_batch_does_not_end_the_pass(script, clock, loader):
    batches = script.batches(loader)
    pause(0.1)
    script.evaluate(DataLoader(DATA))
    for inputs, _ in batches:
        script.step(inputs)
    assert script.windows == [("epoch", 0, 8)]
    assert script.parts[0]["e2e_s"] < 0.001, "it begins with its first request"


def test_training_ends_a_pass_over_the_same_loader_that_was_left_without_training(script, loader):
    held = script.batches(loader)
    script.model(next(held)[0])
    for _ in range(2):
        script.train(loader)
    assert len(list(held)) == STEPS - 1
    held = script.batches(loader)
    script.model(next(held)[0])
    script.evaluate(loader)
    assert script.windows == [("epoch", 0, 8), ("epoch", 1, 8), ("val", 1, 8)]


def test_training_ends_a_pass_over_another_loader_that_was_left_without_training(script, loader, held_out):
    held = script.batches(held_out)
    script.model(next(held)[0])
    for _ in range(2):
        script.train(loader)
        script.evaluate(held_out)
    assert script.windows == TWO_EPOCHS
    assert len(list(held)) == 3


def test_later_request_of_a_held_iterator_takes_no_epoch_into_its_pass(script, loader, held_out):
    """As a script that shows some images at its begin and at its end."""
    held = script.batches(loader)
    next(held)
    for epoch in range(3):
        script.train(loader)
        script.evaluate(held_out)
        if epoch == 1:
            next(held)
    next(held)
    assert script.windows == [*TWO_EPOCHS, ("epoch", 2, 8), ("val", 2, 4)]


def test_iterator_of_a_complete_pass_ends_also_after_an_evaluation(script, loader):
    batches = script.batches(loader)
    for _ in range(2):
        for _ in range(STEPS):
            script.step(next(batches)[0])
        script.evaluate(loader)
        assert next(batches, None) is None
        batches = script.batches(loader)
    assert script.windows == [("epoch", 0, 8), ("val", 0, 8), ("epoch", 1, 8), ("val", 1, 8)]


def test_evaluation_ends_a_held_pass_without_a_step_on_its_last_batch(script, loader):
    held = script.batches(loader)
    for number in range(STEPS):
        script.model(next(held)[0]).sum().backward()
        if number == 3:
            script.optimizer.step()
    script.evaluate(DataLoader(DATA))
    assert script.windows == [("epoch", 0, 8), ("val", 0, 16)]


@pytest.mark.parametrize("steps_per_batch", [1, 2])
def test_compute_of_a_step_ends_with_its_last_optimizer_step(script, clock, loader, steps_per_batch):
    computed_s = spent_s = 0.0
    for _ in script.batches(loader):
        for _ in range(steps_per_batch):
            computed_s += pause(0.01)
            script.optimizer.step()
        spent_s += pause(0.02)
    parts = script.parts[0]
    assert parts["compute_s"] == pytest.approx(computed_s, abs=0.001)
    assert parts["overhead_s"] == pytest.approx(spent_s, abs=0.001)


class SavedSlowly:
    def __reduce__(self):
        pause(0.05)
        return dict, ()


class CollectedSlowly:
    def __init__(self):
        self.itself = self

    def __del__(self):
        pause(0.03)


def test_saving_and_garbage_collection_after_a_step_are_named_parts_of_the_overhead(script, clock, loader, tmp_path):
    gc.disable()
    CollectedSlowly()
    for number, _ in enumerate(script.batches(loader)):
        script.optimizer.step()
        if number == 3:
            torch.save(SavedSlowly(), tmp_path / "weights")
        if number == 5:
            gc.collect()
    gc.enable()
    parts = script.parts[0]
    assert parts["save_s"] == pytest.approx(0.05, abs=0.0001)
    assert parts["collection_s"] == pytest.approx(0.03, abs=0.0001)
    assert parts["overhead_s"] == pytest.approx(0.08, abs=0.001)


@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("is_before_step", [False, True])
def test_time_of_an_evaluation_within_an_epoch_is_overhead(script, clock, loader, monkeypatch, context, is_before_step):
    monkeypatch.setattr(torch, "no_grad", context)  # the evaluation's; some disable gradients for each batch only
    slow = DataLoader(Slow(DATA), batch_size=4)
    for number, (inputs, _) in enumerate(script.batches(loader)):
        if number == 3 and is_before_step:
            script.evaluate(slow)
        script.step(inputs)
        if number == 3 and not is_before_step:
            script.evaluate(slow)
            pause(0.1)
    (parts,) = script.parts
    evaluated_s = len(DATA) * 0.01 + (0.0 if is_before_step else 0.1)
    assert parts["overhead_s"] == pytest.approx(evaluated_s, abs=0.001)
    assert parts["compute_s"] < 0.001
    assert parts["data_stall_s"] < 0.001


def with_further_samples(script, loader):
    for inputs, _ in script.batches(loader):
        next(iter(script.batches(DataLoader(DATA, batch_size=2))))
        yield inputs


def with_further_batches(script, loader):
    for (inputs, _), _ in zip(script.batches(loader), script.batches(DataLoader(DATA, batch_size=2)), strict=True):
        yield inputs


def fetching_ahead(script, loader):
    batches = script.batches(loader)
    batch = next(batches)
    for following in batches:
        yield batch[0]
        batch = following
    yield batch[0]


@pytest.mark.parametrize("iterate", [with_further_samples, with_further_batches, fetching_ahead])
def test_steps_of_a_loop_that_fetches_several_batches_are_complete(script, clock, loader, iterate):
    computed_s = [0.0, 0.0]
    for epoch in range(2):
        for inputs in iterate(script, loader):
            script.model(inputs)
            computed_s[epoch] += pause(0.02)
            script.optimizer.step()
        pause(0.2)
        script.evaluate(loader)
    assert [window[0] for window in script.windows] == ["epoch", "val"] * 2
    for parts, known_s in zip(script.parts[::2], computed_s, strict=True):
        assert parts["compute_s"] == pytest.approx(known_s, abs=0.001)
        assert parts["overhead_s"] < 0.001


@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad])
def test_evaluation_before_the_last_step_of_a_loop_that_fetches_ahead_is_overhead(script, loader, monkeypatch, context):
    monkeypatch.setattr(torch, "no_grad", context)
    held_out = DataLoader(DATA, batch_size=4)
    for last in (STEPS, STEPS - 1):
        for number, inputs in enumerate(fetching_ahead(script, loader), 1):
            script.model(inputs)
            if number <= last:
                script.optimizer.step()
            if number == STEPS - 1:
                script.evaluate(held_out)
        script.evaluate(held_out)
    assert script.windows == TWO_EPOCHS


def test_single_batch_fetched_before_the_step_is_an_epoch_with_its_evaluation(script):
    one, held_out = DataLoader(DATA[:2], batch_size=2), DataLoader(DATA, batch_size=16)
    for _ in range(3):
        for inputs in fetching_ahead(script, one):
            script.step(inputs)
        with torch.no_grad():
            for inputs in fetching_ahead(script, held_out):
                script.model(inputs)
    assert script.windows == [entry for n in range(3) for entry in (("epoch", n, 1), ("val", n, 1))]


# Times and errors


@pytest.mark.parametrize("steps", [None, 1])
def test_end_of_the_loader_is_loader_stop_time_also_after_an_early_break(script, clock, steps):
    waited_s = 0.0

    class StopsSlowly(IterableDataset):
        def __iter__(self):
            nonlocal waited_s
            try:
                yield torch.ones(4), 1
            finally:
                waited_s += pause(0.05)

    script.train(DataLoader(StopsSlowly()), steps)
    (parts,) = script.parts
    assert parts["loader_stop_s"] == pytest.approx(waited_s, abs=0.0001)
    assert parts["overhead_s"] > 0.9 * waited_s > parts["data_stall_s"]


@pytest.mark.parametrize(("workers", "every"), [(0, 1), (0, 4), (1, 1), (2, 1)])
def test_data_stall_is_the_known_wait(script, workers, every):
    for _ in range(3):  # other programs may interrupt the script between two readings of a clock
        known = KnownWaits(DataLoader(Slow(DATA), batch_size=2, num_workers=workers))
        script.train(known, every=every)
        parts, waited_s = script.parts[-1], pytest.approx(known.waited_s, rel=0.02, abs=0.002)
        if parts["data_stall_s"] == waited_s:
            break
    assert parts["data_stall_s"] == waited_s
    total_s = parts["data_stall_s"] + parts["compute_s"] + parts["overhead_s"]
    assert total_s == pytest.approx(parts["e2e_s"], rel=1e-9)


def test_error_of_the_dataset_reaches_the_script(script, loader):
    with pytest.raises(TypeError, match="not subscriptable"):
        script.train(DataLoader({1, 2}))
    script.train(loader)
    assert script.windows == [("epoch", 0, 8)]


@pytest.mark.parametrize("workers", [0, 1])
def test_pass_continues_after_ignored_errors_and_waits_for_them_are_overhead(script, workers):
    class Damaged(list):
        def __getitem__(self, index):
            if index in (0, 9):
                time.sleep(0.1)
                raise OSError("damaged")
            return super().__getitem__(index)

    loader = DataLoader(Damaged(DATA), batch_size=2, num_workers=workers)
    for _ in range(2):
        batches, errors = script.batches(loader), []
        while len(errors) < 3:
            try:
                script.step(next(batches)[0])
            except (OSError, StopIteration) as error:
                errors.append(type(error))
        assert errors == [OSError, OSError, StopIteration]
    assert script.windows == [("epoch", 0, 6), ("epoch", 1, 6)]
    if not workers:
        assert script.parts[0]["overhead_s"] > 0.1 > script.parts[0]["compute_s"]


@pytest.mark.parametrize("is_held", [False, True])
def test_error_of_the_dataset_ends_the_pass_also_while_its_iterator_is_held(script, is_held):
    damaged = DataLoader([*DATA[:8], None], batch_size=2)
    batches = script.batches(damaged)
    held = batches if is_held else None
    with pytest.raises(TypeError) as raised:
        script.train(held or damaged)
    assert raised.value.__traceback__, "which holds the iterator"
    assert script.windows == [("epoch", 0, 4)]
    script.train(DataLoader(DATA, batch_size=2))
    assert script.windows == [("epoch", 0, 4), ("epoch", 1, 8)]


def test_windows_up_to_a_moment_do_not_depend_on_what_follows(script, loader, held_out):
    for _ in range(3):
        script.train(loader)
        script.evaluate(held_out)
    windows = script.windows
    for _ in range(2):
        script.train(loader, 3)
        script.evaluate(held_out)
        assert script.windows[: len(windows)] == windows
