import collections
import functools
import importlib
import itertools
import queue
import signal
import threading
import time
import warnings

import cloudpickle
import pytest
import torch
from quick_replies import Connection, Script
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from epochmeter.agent import agent as module
from epochmeter.agent import hooks, recorder
from epochmeter.agent.iterators import READ_AHEAD
from epochmeter.run import launch
from epochmeter.shared.protocol import Finished, NotMeasured, Trained, WindowClosed, WindowMeasured, WindowOpening
from epochmeter.worker.connection import ControllerGoneError

STEPS = 8
DATA = [(torch.full((4,), float(number)), number % 2) for number in range(2 * STEPS)]


def pause(seconds):
    """Sleep, and return how long it took: a busy machine wakes late."""
    began_s = time.perf_counter()
    time.sleep(seconds)
    return time.perf_counter() - began_s


@pytest.fixture
def script(agent):
    return Script(agent)


@pytest.fixture
def loader():
    return DataLoader(DATA, batch_size=2)


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.ones(4), 1


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


def test_passes_with_steps_are_epochs_and_passes_without_are_evaluations(script, loader):
    held_out, hooked = DataLoader(DATA, batch_size=4), torch.autograd.backward
    for _ in range(2):
        script.train(loader)
        script.evaluate(held_out)
    assert script.windows == [("epoch", 0, 8), ("val", 0, 4), ("epoch", 1, 8), ("val", 1, 4)]
    assert script.connection.parts[0]["samples"] == len(DATA)
    assert script.connection.parts[0]["learning_rate"] == 0.5
    assert "copy_s" not in script.connection.parts[0]
    assert torch.autograd.backward is hooked.__wrapped__, "hooked until an epoch has had an optimizer step"


@pytest.mark.parametrize("steps", [None, 1])
def test_end_of_the_loader_is_loader_stop_time_and_overhead_also_after_an_early_break(script, steps):
    waited_s = 0.0

    class StopsSlowly(IterableDataset):
        def __iter__(self):
            nonlocal waited_s
            try:
                yield torch.ones(4), 1
            finally:
                waited_s += pause(0.05)

    script.train(DataLoader(StopsSlowly()), steps)
    script.agent.end()
    (parts,) = script.connection.parts
    assert parts["loader_stop_s"] == pytest.approx(waited_s, rel=0.1)
    assert parts["overhead_s"] > 0.9 * waited_s > parts["data_stall_s"]


def test_early_steps_passes_that_only_read_and_early_evaluations_are_discarded(script, loader):
    script.agent.counts_steps = True
    script.optimizer.step()
    script.evaluate(DataLoader(DATA, batch_size=4))
    assert len(list(script.batches(loader))) == STEPS
    script.train(loader)
    script.optimizer.step()
    assert len(list(script.batches(DataLoader(DATA)))) == len(DATA)
    assert script.windows == [("epoch", 0, 8)]


def test_early_break_and_accumulated_gradients_end_their_epoch_with_their_steps(script, loader):
    script.train(loader, steps=3)
    script.train(loader, every=4)
    assert script.windows == [("epoch", 0, 3), ("epoch", 1, 8)]
    assert len(script.agent.recorder._record.steps()) == 4 * (3 + 8)


def test_passes_that_end_early_after_a_complete_one_are_partial_epochs_but_no_evaluations(script, loader):
    held_out = DataLoader(DATA, batch_size=4)
    for steps, evaluated in ((2, 1), (None, 2), (3, None), (3, 2)):
        script.train(loader, steps)
        script.evaluate(held_out, evaluated)
    assert [steps for _, _, steps in script.windows] == [2, 8, 2, 3, 4, 3]
    assert script.partial_steps == [None, None, None, 3, None, 3]


def test_endless_loader_has_windows_of_equal_steps_and_a_partial_last_one(script):
    script.agent.expect_epochs(2)
    script.train(DataLoader(Endless(), batch_size=2), steps=12)
    assert script.windows == [("epoch", 0, 5), ("epoch", 1, 5), ("epoch", 2, 2)]
    opened = script.connection.of(WindowOpening)
    assert [message.epochs for message in opened] == [2, None, None], "the number of windows is not that of epochs"
    assert script.partial_steps == [None, None, 2]


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
    script.agent.lock = threading.Lock()  # as an agent with a socket, it cannot be copied
    assert cloudpickle.dumps(type(repeating)), "also by value, as the class has no name in its module"
    restore()
    script.train(repeating)
    assert seen == [2.0 * number for number in range(STEPS)] * 5
    assert script.windows == [("epoch", 0, STEPS), ("val", 0, STEPS), ("epoch", 1, STEPS), ("val", 1, STEPS)]


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
    assert script.windows == [("epoch", 0, STEPS), ("epoch", 1, STEPS)]


def test_endless_pass_of_a_subclass_with_a_length_has_epochs_of_its_length(script):
    class Restarting(DataLoader):
        def __iter__(self):
            while True:
                yield from super().__iter__()

    script.batches, restore = iter, hooks.hook_loaders(script.agent)
    script.train(Restarting(DATA, 2), steps=3 * STEPS)
    restore()
    assert script.windows == [("epoch", 0, STEPS + 1), ("epoch", 1, STEPS), ("epoch", 2, STEPS - 1)]
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
        script.evaluate(loader)
    assert script.windows == [("epoch", 0, 8), ("val", 0, 8), ("epoch", 1, 8), ("val", 1, 8)]
    assert "learning_rate" not in script.connection.parts[0]


def test_passes_with_backward_passes_are_epochs_if_an_optimizer_step_takes_longer_than_an_epoch(script, loader):
    steps = itertools.count(1)
    for _ in range(5):
        for inputs, _ in script.batches(loader):
            script.model(inputs).sum().backward()
            if next(steps) % (2 * STEPS + 1) == 0:
                script.optimizer.step()
        script.evaluate(loader)
    assert script.windows == [(name, number, 8) for number in range(5) for name in ("epoch", "val")]


@pytest.mark.parametrize(("every", "unit"), [(0, "backward passes"), (1, "optimizer steps"), (3, "optimizer steps")])
def test_without_a_loader_steps_are_backward_passes_only_if_there_is_no_optimizer(script, every, unit):
    script.agent.counts_steps = True
    trained_s = []
    for number in range(12 * (every or 1)):
        script.model(torch.ones(1, 4)).sum().backward()
        if every and (number + 1) % every == 0:
            script.optimizer.step()
        if (number + 1) % (every or 1) == 0:
            trained_s.append(time.perf_counter())
        pause(0.01)
    script.agent.end()
    assert script.windows == [("epoch", 0, 5), ("epoch", 1, 5), ("epoch", 2, 2)]
    assert script.connection.of(NotMeasured) == [NotMeasured(recorder.NO_PARTS.format(5, unit))]
    assert {*script.connection.parts_so_far} == {None}
    parts = script.connection.parts[1]
    assert parts["e2e_s"] == pytest.approx(trained_s[10] - trained_s[5], rel=0.5)
    assert parts.keys() - {"learning_rate"} == {"e2e_s", "steps", "clock_residual_s"}


def test_steps_on_the_first_batch_of_a_new_pass_each_are_counted(script, loader):
    script.agent.counts_steps = True
    for _ in range(12):
        inputs, _ = next(script.batches(loader))
        script.model(inputs).sum().backward()
        script.optimizer.step()
    script.agent.end()
    assert script.windows == [("epoch", 0, 5), ("epoch", 1, 5), ("epoch", 2, 1)]


def test_steps_on_one_batch_before_the_first_epoch_are_discarded(script, loader):
    script.agent.counts_steps = True
    for held_out in (DataLoader(DATA, batch_size=4), loader):
        inputs, _ = next(script.batches(held_out))
    for _ in range(3):
        script.model(inputs).sum().backward()
        script.optimizer.step()
    for _ in range(2):
        script.train(loader)
    assert script.windows == [("epoch", 0, 8), ("epoch", 1, 8)]


def test_steps_outside_of_passes_are_counted_with_the_evaluations_between_them(script, loader):
    script.agent.counts_steps = True
    cached = list(script.batches(loader))
    for _ in range(2):
        for inputs, _ in cached:
            script.model(inputs).sum().backward()
            script.optimizer.step()
        script.evaluate(loader)
        assert len(list(script.batches(loader))) == STEPS
    script.agent.end()
    assert script.windows == [("epoch", number, count) for number, count in enumerate((5, 5, 5, 1))]


def test_evaluation_with_a_loader_without_length_is_one_window(script, loader):
    script.train(loader)
    with torch.no_grad():
        for number, (inputs, _) in enumerate(script.batches(DataLoader(Endless(), batch_size=2))):
            script.model(inputs)
            if number == 11:
                break
    assert script.windows == [("epoch", 0, 8), ("val", 0, 12)]


def test_script_may_train_in_another_thread(script, loader):
    thread = threading.Thread(target=script.train, args=(loader,))
    thread.start()
    thread.join()
    script.train(loader)
    script.agent.end()
    assert script.windows == [("epoch", 0, 8)], "of the thread that trained first"
    assert script.connection.sent[-1] == Finished()


def test_pass_whose_batches_another_thread_requests_is_discarded_and_later_steps_are_counted(script, loader):
    script.agent.counts_steps = True
    for _ in range(2):
        batches, read = script.batches(loader), []
        thread = threading.Thread(target=read.extend, args=(batches,))
        thread.start()
        thread.join()
        for _ in range(STEPS):
            script.optimizer.step()
        assert len(read) == STEPS
    script.agent.end()
    assert script.windows == [("epoch", 0, 5), ("epoch", 1, 5), ("epoch", 2, 5)]
    partless = NotMeasured(recorder.NO_PARTS.format(5, "optimizer steps"))
    assert script.connection.of(NotMeasured) == [NotMeasured(READ_AHEAD), partless]


def test_pass_that_a_thread_reads_ahead_is_discarded_and_later_steps_are_counted(script, loader):
    script.agent.counts_steps = True

    def put_all():
        for batch in script.batches(loader):
            batches.put(batch)
        batches.put(None)

    for _ in range(2):
        batches = queue.Queue(2)
        thread = threading.Thread(target=put_all)
        thread.start()
        for _ in iter(batches.get, None):
            pause(0.001)
            script.optimizer.step()
        thread.join()
        script.evaluate(loader)
    script.agent.end()
    partless = NotMeasured(recorder.NO_PARTS.format(5, "optimizer steps"))
    assert script.connection.of(NotMeasured) == [NotMeasured(READ_AHEAD), partless]
    assert [window[0] for window in script.windows] == ["epoch"] * 3
    assert sum(window[2] for window in script.windows) == pytest.approx(15, abs=1)
    assert script.connection.parts[-1].keys() == {"learning_rate", "e2e_s", "steps", "clock_residual_s"}


@pytest.mark.parametrize(("every", "steps"), [(1, 1), (3, 1), (1, 2)])
def test_steps_of_a_thread_that_trains_while_the_loop_waits_belong_to_the_pass(script, loader, every, steps):
    for number, _ in enumerate(script.batches(loader), 1):
        thread = threading.Thread(target=lambda: [script.optimizer.step() for _ in range(steps)])
        if number % every == 0 or number == STEPS:
            thread.start()
            thread.join()
    assert script.windows == [("epoch", 0, 8)]


def test_steps_of_a_thread_in_a_forked_process_leave_the_pass_of_its_parent(script, loader, monkeypatch):
    for number, (inputs, _) in enumerate(script.batches(loader)):
        script.model(inputs)
        if number == 3:
            with monkeypatch.context() as forked:
                forked.setattr(module.os, "getpid", lambda: 0)
                thread = threading.Thread(target=script.optimizer.step)
                thread.start()
                thread.join()
        if number > 3:
            script.optimizer.step()
    assert (script.windows, script.connection.of(NotMeasured)) == ([("epoch", 0, 8)], [])


def test_training_ends_an_evaluation_that_the_script_left_but_holds(script, loader):
    with torch.no_grad():
        held = script.batches(DataLoader(DATA))
        script.model(next(held)[0])
    script.train(loader)
    assert script.windows == [("epoch", 0, 8)]
    assert len(list(held)) == len(DATA) - 1


@pytest.mark.parametrize(("held", "steps", "partial"), [(1, 3, None), (2, 2, 2)])
def test_left_pass_ends_if_its_iterator_is_released_or_the_next_pass_trains(script, loader, held, steps, partial):
    iterators = collections.deque(maxlen=held)
    for _ in range(2):
        iterators.append(script.batches(loader))  # an earlier one is released afterwards
        for _ in range(3):
            next(iterators[-1])
            script.optimizer.step()
    script.agent.end()
    assert script.windows == [("epoch", 0, 3), ("epoch", 1, steps)]
    assert script.partial_steps == [None, partial]
    assert [len(list(iterator)) for iterator in iterators] == [STEPS - 3] * held


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


def test_second_pass_over_a_loader_does_not_replace_the_first_one_in_the_same_loop(script, loader):
    for _ in range(2):
        for (inputs, _), _ in zip(script.batches(loader), script.batches(loader), strict=True):
            script.model(inputs)
            script.optimizer.step()
    assert script.windows == [("epoch", 0, 8), ("epoch", 1, 8)]


def test_pass_that_each_step_requests_first_is_the_epoch_also_if_its_iterator_was_made_last(script, loader):
    for _ in range(2):
        others = itertools.cycle(script.batches(DataLoader(DATA[:6], batch_size=2)))
        for (inputs, _), _ in zip(script.batches(loader), others, strict=False):
            script.model(inputs)
            script.optimizer.step()
        script.evaluate(DataLoader(DATA))
    assert script.windows == [("epoch", 0, 8), ("val", 0, 16), ("epoch", 1, 8), ("val", 1, 16)]
    assert "samples" not in script.connection.parts[0], "the first batch was one of the other loader"


def test_evaluation_between_a_new_iterator_and_its_first_batch_does_not_end_the_pass(script, loader):
    batches = script.batches(loader)
    script.evaluate(DataLoader(DATA))
    for inputs, _ in batches:
        script.model(inputs)
        script.optimizer.step()
    assert script.windows == [("epoch", 0, 8)]


def test_training_ends_a_pass_over_the_same_loader_that_was_left_without_training(script, loader):
    held = script.batches(loader)
    script.model(next(held)[0])
    for _ in range(2):
        script.train(loader)
    assert len(list(held)) == STEPS - 1
    held = script.batches(loader)
    script.model(next(held)[0])
    script.evaluate(loader)
    assert script.windows[:2] == [("epoch", 0, 7), ("epoch", 1, 8)], "without the first batch, as a pass was held"
    assert script.partial_steps[:2] == [7, None]
    assert script.windows[-1] == ("val", 1, 8)


def test_training_ends_a_pass_over_another_loader_that_was_left_without_training(script, loader):
    held_out = DataLoader(DATA, batch_size=4)
    held = script.batches(held_out)
    script.model(next(held)[0])
    for _ in range(2):
        script.train(loader)
        script.evaluate(held_out)
    assert script.windows == [("epoch", 0, 7), ("val", 0, 4), ("epoch", 1, 8), ("val", 1, 4)]
    assert len(list(held)) == 3


def test_iterator_of_a_complete_pass_ends_also_after_an_evaluation(script, loader):
    batches = script.batches(loader)
    for _ in range(2):
        for _ in range(STEPS):
            script.model(next(batches)[0])
            script.optimizer.step()
        script.evaluate(loader)
        assert next(batches, None) is None
        batches = script.batches(loader)
    assert script.windows == [("epoch", 0, 8), ("val", 0, 8), ("epoch", 1, 8), ("val", 1, 8)]


def test_evaluation_ends_a_held_pass_without_a_step_on_its_last_batch(script, loader):
    held = script.batches(loader)
    for number in range(STEPS):
        script.model(next(held)[0])
        if number == 3:
            script.optimizer.step()
    script.evaluate(DataLoader(DATA))
    assert script.windows == [("epoch", 0, 8), ("val", 0, 16)]


@pytest.mark.parametrize("steps_per_batch", [1, 2])
def test_time_after_the_last_optimizer_step_of_a_held_pass_is_overhead(script, loader, steps_per_batch):
    held, computed_s = script.batches(loader), 0.0
    for _ in range(STEPS):
        next(held)
        for _ in range(steps_per_batch):
            computed_s += pause(0.02)
            script.optimizer.step()
    paused_s = pause(0.2)
    script.evaluate(DataLoader(DATA))
    parts = script.connection.parts[0]
    assert parts["compute_s"] == pytest.approx(computed_s, rel=0.05)
    assert parts["overhead_s"] == pytest.approx(paused_s, rel=0.1)


def test_time_of_an_evaluation_within_an_epoch_is_overhead(script, loader):
    for number, (inputs, _) in enumerate(script.batches(loader)):
        script.model(inputs)
        script.optimizer.step()
        if number == 3:
            began_s = time.perf_counter()
            script.evaluate(DataLoader(DATA))
            time.sleep(0.1)
            evaluated_s = time.perf_counter() - began_s
    (parts,) = script.connection.parts
    assert parts["overhead_s"] == pytest.approx(evaluated_s, rel=0.3)
    assert parts["data_stall_s"] < 0.05


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
def test_steps_of_a_loop_that_fetches_several_batches_are_complete(script, loader, iterate):
    computed_s = [0.0, 0.0]
    for epoch in range(2):
        for inputs in iterate(script, loader):
            script.model(inputs)
            computed_s[epoch] += pause(0.02)
            script.optimizer.step()
        time.sleep(0.2)
        script.evaluate(loader)
    assert [window[0] for window in script.windows] == ["epoch", "val"] * 2
    for parts, known_s in zip(script.connection.parts[::2], computed_s, strict=True):
        assert parts["compute_s"] == pytest.approx(known_s, rel=0.3)
        assert parts["overhead_s"] < 0.02


@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad])
def test_evaluation_before_the_last_step_of_a_loop_that_fetches_ahead_is_overhead(script, loader, monkeypatch, context):
    monkeypatch.setattr(torch, "no_grad", context)  # the evaluation's; some disable gradients for each batch only
    held_out = DataLoader(DATA, batch_size=4)
    for last in (STEPS, STEPS - 1):
        for number, inputs in enumerate(fetching_ahead(script, loader), 1):
            script.model(inputs)
            if number <= last:
                script.optimizer.step()
            if number == STEPS - 1:
                script.evaluate(held_out)
        script.evaluate(held_out)
    assert script.windows == [("epoch", 0, 8), ("val", 0, 4), ("epoch", 1, 8), ("val", 1, 4)]


@pytest.mark.parametrize(("workers", "every"), [(0, 1), (0, 4), (1, 1), (2, 1)])
def test_data_stall_is_the_known_wait(script, workers, every):
    for _ in range(3):  # other programs may interrupt the script between two readings of a clock
        known = KnownWaits(DataLoader(Slow(DATA), batch_size=2, num_workers=workers))
        script.train(known, every=every)
        parts, waited_s = script.connection.parts[-1], pytest.approx(known.waited_s, rel=0.02, abs=0.002)
        if parts["data_stall_s"] == waited_s:
            break
    assert parts["data_stall_s"] == waited_s
    so_far = script.connection.parts_so_far[-1]
    assert so_far.keys() == {"data_stall_s", "compute_s", "overhead_s"}
    assert 0.5 * known.waited_s < so_far["data_stall_s"] <= parts["data_stall_s"]
    reports = len(script.connection.parts_so_far)
    script.evaluate(known)
    assert len(script.connection.parts_so_far) == reports, "an evaluation reports no progress of an epoch"
    assert abs(parts["clock_residual_s"]) <= 0.001 * parts["e2e_s"]


@pytest.mark.parametrize(
    "fails_in", ["connection.error", "agent.recorder.clock._mark_at", "agent.recorder.clock._waits"]
)
def test_error_of_the_agent_is_reported_once_and_loses_no_batch(script, loader, monkeypatch, capsys, fails_in):
    script.train(loader)
    batches = script.batches(loader)
    values = [next(batches)[0][0, 0].item()]
    *owner, name = fails_in.split(".")
    monkeypatch.setattr(functools.reduce(getattr, owner, script), name, BrokenPipeError("gone"))
    values += [inputs[0, 0].item() for inputs, _ in batches]
    assert values == [2.0 * number for number in range(STEPS)]
    assert capsys.readouterr().err.count("epochmeter: measuring ended, the script continues") == 1
    assert isinstance(script.batches(loader), type(iter(DataLoader(DATA))))


def handle(number, frame):
    raise TimeoutError("own")


class Handler:
    def __call__(self, number, frame):
        handle(number, frame)

    method = __call__


@pytest.mark.parametrize("interrupted_in", ["agent._open", "agent.recorder.clock._mark_at"])
@pytest.mark.parametrize("handle", [handle, Handler(), Handler().method, functools.partial(Handler())])
def test_error_of_the_scripts_signal_handler_reaches_the_script(script, loader, monkeypatch, interrupted_in, handle):
    def interrupted(*arguments, **properties):
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    script.train(loader)
    *owner, name = interrupted_in.split(".")
    monkeypatch.setattr(functools.reduce(getattr, owner, script), name, interrupted)
    with pytest.raises(TimeoutError, match="own"):
        script.train(loader)
    signal.signal(signal.SIGUSR1, before)
    assert len(list(script.batches(loader))) == STEPS


@pytest.mark.parametrize("error", [ControllerGoneError("gone"), BrokenPipeError("gone")])
def test_reason_names_another_process_of_the_script_as_a_possible_cause(script, loader, monkeypatch, error):
    def refuse(connection, message):
        raise error

    monkeypatch.setattr(Connection, "request", refuse)
    script.train(loader)
    assert "measures another process of the script" in script.agent.reason


def test_error_of_the_dataset_reaches_the_script(script, loader):
    with pytest.raises(TypeError, match="not subscriptable"):
        script.train(DataLoader({1, 2}))
    script.train(loader)
    assert script.windows == [("epoch", 0, 8)]


@pytest.mark.parametrize("workers", [0, 1])
def test_pass_continues_after_errors_that_the_script_ignores_and_waits_for_them_are_overhead(script, workers):
    class Damaged(list):
        def __getitem__(self, index):
            if index in (0, 9):
                raise OSError("damaged")
            return super().__getitem__(index)

    loader = DataLoader(Damaged(DATA), batch_size=2, num_workers=workers)
    for _ in range(2):
        batches, errors = script.batches(loader), []
        while len(errors) < 3:
            try:
                script.model(next(batches)[0])
                script.optimizer.step()
            except (OSError, StopIteration) as error:
                errors.append(type(error))
        assert errors == [OSError, OSError, StopIteration]
    assert script.windows == [("epoch", 0, 6), ("epoch", 1, 6)]


def test_error_of_the_dataset_ends_the_pass_also_while_the_script_handles_it(script, loader):
    damaged = DataLoader([*DATA[:8], None], batch_size=2)
    try:
        script.train(damaged)
    except TypeError:
        assert script.windows == [("epoch", 0, 4)], "although the error's traceback exists"
        held = script.batches(damaged)
    for _ in range(4):
        script.model(next(held)[0])
        script.optimizer.step()
    with pytest.raises(TypeError):
        next(held)
    script.train(loader)
    assert script.windows == [("epoch", 0, 4), ("epoch", 1, 4), ("epoch", 2, 8)]


def test_reason_is_sent_if_nothing_was_measured(script, loader):
    assert len(list(script.batches(loader))) == STEPS
    script.agent.end()
    assert script.connection.sent[-2:] == [NotMeasured(module.NO_STEP), Finished()]


@pytest.mark.parametrize(
    ("reads_counters", "interval_ns", "openings"),
    [(True, 10**12, [True] * 4), (False, 10**12, [True, False, False, False]), (False, 0, [True] * 4)],
)
def test_script_waits_at_borders_if_counters_are_read_there_and_otherwise_seldom(
    script, loader, monkeypatch, reads_counters, interval_ns, openings
):
    monkeypatch.setattr(Connection, "reads_counters", reads_counters)
    monkeypatch.setattr(recorder, "AWAIT_INTERVAL_NS", interval_ns)
    monkeypatch.setattr(recorder, "MAX_UNREAD", 2)
    monkeypatch.setattr(recorder, "monotonic_ns", lambda: 10**12)
    for _ in range(4):
        script.train(loader)
    assert [message.is_awaited for message in script.connection.of(WindowOpening)] == openings
    assert [message.is_awaited for message in script.connection.of(WindowClosed)] == [reads_counters] * 4
    assert script.windows == [("epoch", number, 8) for number in range(4)]
    read = script.connection.read
    assert read.count(WindowMeasured) == (3 if openings[-1] else 1)
    script.agent.read_replies()
    assert (read.count(WindowMeasured), script.agent.recorder.recorded["epoch"].metrics["epoch/energy_j"]) == (4, 2.0)


def test_exit_of_the_script_is_not_an_error_of_the_agent(agent):
    def end(error):
        raise error

    with pytest.raises(SystemExit, match="3"):
        agent.guarded(end, SystemExit(3))
    assert agent.guarded(end, ControllerGoneError("the controller is gone")) is None
    assert agent.reason == "ControllerGoneError: the controller is gone"


def test_steps_are_counted_once_without_the_hook_of_torch_2(monkeypatch):
    class Custom(torch.optim.SGD):
        def step(self, closure=None):
            return closure

    derived = type("Derived", (Custom,), {})
    monkeypatch.setattr(torch.optim.Optimizer, "__init__", torch.optim.Optimizer.__init__)  # restored at the end
    monkeypatch.delattr(importlib.import_module("torch.optim.optimizer"), "register_optimizer_step_post_hook")
    stepped = []
    hooks.hook_optimizer_steps(lambda optimizer, arguments, keywords: stepped.append((type(optimizer), arguments)))
    for kind in (Custom, derived, derived):
        assert kind(nn.Linear(1, 1).parameters(), lr=0.1).step(2) == 2
    assert stepped == [(Custom, (2,)), (derived, (2,)), (derived, (2,))]


def test_script_waits_a_limited_time_for_a_controller_that_neither_reads_nor_replies(monkeypatch):
    monkeypatch.setattr(recorder, "LIMIT_S", 1)
    with launch.listening_socket() as listener:
        connection = recorder.ScriptConnection(listener.getsockname())
        with pytest.raises(ControllerGoneError, match="did not answer for 1 s"):
            connection.request(Trained())
        with pytest.raises(ControllerGoneError, match="read nothing for 1 s"):
            connection.send(NotMeasured("longer than the socket has room for" * 100_000))
        begun_s = time.monotonic()
        with pytest.raises(ControllerGoneError):
            connection.send(NotMeasured("the controller read nothing"))
        assert time.monotonic() - begun_s < 0.5, "it waits once"
        connection.close()
