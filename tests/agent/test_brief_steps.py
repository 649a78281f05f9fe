"""Brief steps: a script gets the same batches and errors, and the same events are recorded."""

import gc
import math
import os
import random
import signal
import threading
import traceback
import weakref

import pytest
import torch
from recorded import Connection, Script, events_of
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

from epochmeter.agent import batch_timer, brief_steps, hooks, recording, sampling
from epochmeter.agent.iterators import RecordedIterator
from epochmeter.shared import events
from epochmeter.shared.events import BACKWARD, BATCH, DROPPED, END, FAILED, LOADED, PASS, STEP

STEPS = 60
DATA = [(torch.full((4,), float(number)), number % 2) for number in range(4 * STEPS)]
EVERY = 12  # steps of which one is timed


@pytest.fixture(autouse=True)
def _sparse(monkeypatch):
    """One of so many steps is timed, and none of the first ones counts as such."""
    monkeypatch.setattr(sampling, "slowness", lambda: 1.0)
    monkeypatch.setattr(batch_timer, "SHORT_NS", math.inf)  # also on a slow machine
    for name, value in {"PHASES_BUDGET": 0.0, "LOADING_BUDGET": 0.0, "MAX_EVERY": EVERY, "FIRST_STEPS": 0}.items():
        monkeypatch.setattr(sampling, name, value)


@pytest.fixture
def hooked(script):
    """A script whose agent records all DataLoaders, with a model that was seen."""
    end = hooks.hook_loaders(script.agent)
    for inputs, _ in DataLoader(DATA[:80], batch_size=4):
        script.step(inputs)
    assert not script.agent.forwards.is_watching
    yield script
    end()


def recorded(script):
    """Return the events of this thread after those of the fixture."""
    (found, *_) = events_of(script.folder).values()
    begin = next(place for place, event in enumerate(found) if event.kind == END) + 1
    return found[begin:]


def of(found, *kinds):
    return [event for event in found if event.kind in kinds]


@pytest.fixture
def spans(monkeypatch):
    """All spans of brief steps."""
    made, init = [], brief_steps.Span.__init__

    def make(span, *arguments):
        made.append(span)
        init(span, *arguments)

    monkeypatch.setattr(brief_steps.Span, "__init__", make)
    return made


def batches_of(spans):
    return sum(span.batches for span in spans)


def is_brief(script):
    return script.agent.brief._span is not None


def train(script, loader, act=lambda number: None):
    """Train a pass; `act` is called with the number of each batch before its training. Return the inputs."""
    seen = []
    for number, (inputs, targets) in enumerate(loader):
        act(number)
        script.optimizer.zero_grad()
        nn.functional.cross_entropy(script.model(inputs), targets).backward()
        script.optimizer.step()
        seen.append(inputs)
    return seen


def test_most_steps_are_brief_and_have_the_events_of_others(hooked, spans):
    loader = DataLoader(DATA, batch_size=4)
    seen = [train(hooked, loader)]
    with_brief, count = recorded(hooked), batches_of(spans)
    hooked.agent.brief.forbid()
    seen.append(train(hooked, loader))
    without = recorded(hooked)[len(with_brief) :]
    assert torch.equal(torch.cat(seen[0]), torch.cat(seen[1]))
    assert batches_of(spans) == count > STEPS * 2 / 3
    names = (PASS, BATCH, BACKWARD, STEP, END)
    first, second = ([(event.kind, event.value) for event in of(each, *names)] for each in (with_brief, without))
    assert str(first) == str(second), "NaN for sizes that the loader states"
    times_ns = [event.time_ns for event in with_brief if event.kind != LOADED]
    assert times_ns == sorted(times_ns)
    assert [part["steps"] for part in hooked.parts[1:]] == [STEPS, STEPS]


class Uneven(Sampler):
    """A batch sampler of a script, with batches of one to three samples."""

    def __iter__(self):
        return iter([[*range(number, number + 1 + number % 3)] for number in range(STEPS)])

    def __len__(self):
        return STEPS


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_of_a_sampler_of_the_script_are_counted_in_brief_steps(hooked, spans, workers):
    train(hooked, DataLoader(DATA, batch_sampler=Uneven(), num_workers=workers))
    assert batches_of(spans) > STEPS * 2 / 3
    assert [event.value for event in of(recorded(hooked), BATCH)] == [1 + number % 3 for number in range(STEPS)]
    assert hooked.parts[1]["samples"] == STEPS * 2


def test_times_are_those_of_the_script(hooked, spans):
    at_ns = []

    class Slow(Dataset):
        def __len__(self):
            return len(DATA)

        def __getitem__(self, index):
            at_ns.append(sampling.monotonic_ns())
            return DATA[index]

    arrived_ns = []
    train(hooked, DataLoader(Slow(), batch_size=4), lambda number: arrived_ns.append(sampling.monotonic_ns()))
    batches = of(recorded(hooked), BATCH)
    assert batches_of(spans)
    for batch, first_ns, last_ns, script_ns in zip(batches, at_ns[::4], at_ns[3::4], arrived_ns, strict=True):
        assert batch.begun_ns <= first_ns <= last_ns <= batch.time_ns <= script_ns


def test_learning_rate_is_that_of_each_step(hooked):
    (group,) = hooked.optimizer.param_groups

    def schedule(number):
        group["lr"] = 1 / (number + 1)

    train(hooked, DataLoader(DATA, batch_size=4), schedule)
    assert [event.value for event in of(recorded(hooked), STEP)] == [1 / (number + 1) for number in range(STEPS)]


def test_rate_in_a_tensor_is_recorded_as_before(hooked):
    (group,) = hooked.optimizer.param_groups

    def schedule(number):
        if number >= STEPS // 2:
            group["lr"] = torch.tensor(0.25)

    train(hooked, DataLoader(DATA, batch_size=4), schedule)
    rates = [event.value for event in of(recorded(hooked), STEP)]
    assert rates == STEPS // 2 * [0.5] + STEPS // 2 * [0.25]


def other_optimizer(script, number):
    torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1).step()


def same_optimizer(script, number):
    script.optimizer.step()


@pytest.mark.parametrize("extra", [other_optimizer, same_optimizer])
def test_each_step_of_an_optimizer_is_recorded(hooked, spans, extra):
    def act(number):
        if number % 20 == 19:
            extra(hooked, number)

    train(hooked, DataLoader(DATA, batch_size=4), act)
    steps = of(recorded(hooked), STEP)
    assert batches_of(spans)
    assert len(steps) == STEPS + 3
    assert len({event.object for event in steps}) == (4 if extra is other_optimizer else 1)


def test_each_backward_pass_of_an_accumulated_step_is_recorded(hooked, spans):
    for number, (inputs, targets) in enumerate(DataLoader(DATA, batch_size=4)):
        nn.functional.cross_entropy(hooked.model(inputs), targets).backward()
        if number < STEPS // 2 or number % 4 == 3:
            hooked.optimizer.step()
    batches, steps = of(recorded(hooked), BATCH), of(recorded(hooked), STEP)
    assert len(batches) == STEPS
    assert len(steps) == STEPS // 2 + len(range(31, STEPS, 4))
    assert batches_of(spans) > STEPS / 2
    assert len(of(recorded(hooked), BACKWARD)) == STEPS


def test_batch_is_deleted_when_the_script_deletes_it(hooked, spans):
    iterator, freed = iter(DataLoader(DATA, batch_size=4)), []
    for _ in range(STEPS):
        batch = next(iterator)
        hooked.step(batch[0])
        kept = weakref.ref(batch[0])
        del batch
        freed.append(kept() is None)
    assert all(freed)
    assert batches_of(spans)


def test_iterator_that_is_left_is_deleted_at_once_and_brief_steps_end(hooked):
    gc.disable()
    try:
        for inputs, _ in DataLoader(DATA, batch_size=4):
            hooked.step(inputs)
            if is_brief(hooked):
                break
        assert of(recorded(hooked), DROPPED)
    finally:
        gc.enable()
    assert not is_brief(hooked)
    before = len(of(recorded(hooked), STEP))
    hooked.step(DATA[0][0])
    assert len(of(recorded(hooked), STEP)) == before + 1
    assert of(recorded(hooked), BACKWARD)[-1].time_ns > of(recorded(hooked), DROPPED)[-1].time_ns


class Failing(Dataset):
    """Samples one of which raises an error."""

    def __init__(self, at):
        self.at = at

    def __len__(self):
        return len(DATA)

    def __getitem__(self, index):
        if index == self.at:
            raise KeyError("own")
        return DATA[index]


def failure(script, at):
    """Return the batches before an error of the dataset, and its traceback."""
    seen = []

    def train():
        for inputs, _ in DataLoader(Failing(at), batch_size=4):
            script.step(inputs)
            seen.append(inputs)

    with pytest.raises(KeyError, match="own") as raised:
        train()
    frames = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    return len(seen), frames


def test_error_of_the_dataset_is_that_of_the_script_in_each_step(hooked):
    for number in range(20, 40):
        before = len(recorded(hooked))
        count, frames = failure(hooked, 4 * number)
        assert count == number
        assert not {"_batches", "_deliver", "__call__"} & {*frames}
        found = recorded(hooked)[before:]
        assert len(of(found, BATCH)) == number
        assert len(of(found, FAILED)) == 1
        assert not is_brief(hooked)
    restore_count, bare_frames = count, frames
    hooked.unhook()
    assert failure(hooked, 4 * number) == (restore_count, bare_frames)


def test_script_continues_after_an_error_of_the_dataset(hooked):
    iterator, seen, errors = iter(DataLoader(Failing(4 * 30), batch_size=4)), [], 0
    while True:
        try:
            inputs, _ = next(iterator)
        except KeyError:
            errors += 1
            continue
        except StopIteration:
            break
        hooked.step(inputs)
        seen.append(inputs)
    assert (len(seen), errors) == (STEPS - 1, 1)
    found = recorded(hooked)
    assert (len(of(found, BATCH)), len(of(found, FAILED)), len(of(found, END))) == (STEPS - 1, 1, 1)
    with pytest.raises(StopIteration):
        next(iterator)


def test_iterator_can_be_used_by_its_type_and_by_hand(hooked, spans):
    loader = DataLoader(DATA, batch_size=4)
    iterator, ways = iter(loader), [next, lambda it: it.__next__(), lambda it: type(it).__next__(it)]
    assert isinstance(type(iterator), type)
    seen = []
    for number in range(STEPS):
        inputs, _ = ways[number % 3](iterator)
        assert issubclass(type(iterator), RecordedIterator)
        assert isinstance(iterator, type(iterator._wrapped))
        assert iter(iterator) is iterator
        assert len(iterator) == STEPS
        hooked.step(inputs)
        seen.append(inputs)
    assert torch.equal(torch.cat(seen), torch.stack([inputs for inputs, _ in DATA]))
    assert batches_of(spans)


def test_evaluation_within_a_pass_is_a_pass_of_its_own(hooked):
    evaluated = DataLoader(DATA[:40], batch_size=4)

    def act(number):
        if number % 25 == 24:
            hooked.evaluate(evaluated)

    train(hooked, DataLoader(DATA, batch_size=4), act)
    found = recorded(hooked)
    assert len(of(found, PASS)) == 3
    assert len(of(found, BATCH)) == STEPS + 2 * 10
    assert len(of(found, events.FORWARD)) >= 2


def test_dataset_that_reads_another_loader_is_one_pass(hooked, spans):
    class Nested(Dataset):
        def __init__(self):
            self.inner = None

        def __len__(self):
            return len(DATA)

        def __getitem__(self, index):
            if index % 40 == 0:
                self.inner = iter(DataLoader(DATA))
            return next(self.inner)[0][0], DATA[index][1]

    train(hooked, DataLoader(Nested(), batch_size=4))
    found = recorded(hooked)
    assert batches_of(spans)
    assert len(of(found, PASS)) == 1
    assert len(of(found, BATCH)) == STEPS


def test_another_thread_that_trains_ends_them_for_good(hooked, spans):
    def train_too():
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for inputs, _ in DataLoader(DATA[:40], batch_size=4):
            model(inputs).sum().backward()
            optimizer.step()

    def act(number):
        if number == STEPS // 2:
            thread = threading.Thread(target=train_too)
            thread.start()
            thread.join()

    train(hooked, DataLoader(DATA, batch_size=4), act)
    assert 0 < batches_of(spans) <= STEPS // 2 + 1
    found = recorded(hooked)
    assert (len(of(found, BATCH)), len(of(found, STEP))) == (STEPS, STEPS)
    _, other = events_of(hooked.folder).values()
    assert (len(of(other, BATCH)), len(of(other, STEP))) == (10, 10)


def test_iterator_can_go_on_in_another_thread(hooked):
    iterator, seen = iter(DataLoader(DATA, batch_size=4)), []

    def take(count):
        for _ in range(count):
            inputs, _ = next(iterator)
            hooked.step(inputs)
            seen.append(inputs)

    take(STEPS // 2)
    thread = threading.Thread(target=take, args=(STEPS // 2,))
    thread.start()
    thread.join()
    assert torch.equal(torch.cat(seen), torch.stack([inputs for inputs, _ in DATA]))
    found = [event for thread in events_of(hooked.folder).values() for event in thread]
    assert len(of(found, BATCH)) == 20 + STEPS


def test_child_process_writes_nothing_of_its_parent_and_trains(hooked):
    status = []

    def act(number):
        if number == STEPS // 2:
            child = os.fork()
            if not child:
                try:
                    assert not is_brief(hooked)
                    hooked.step(DATA[0][0])
                    os._exit(0)
                finally:
                    os._exit(1)
            status.append(os.waitpid(child, 0)[1])

    train(hooked, DataLoader(DATA, batch_size=4), act)
    assert status == [0]
    found = recorded(hooked)
    assert (len(of(found, BATCH)), len(of(found, STEP))) == (STEPS, STEPS)


def test_function_that_the_script_puts_in_the_place_of_backward_stays(hooked, spans, monkeypatch):
    calls, within = [], []

    def act(number):
        if number == STEPS // 2:
            within.append(is_brief(hooked))
            original = torch.autograd.backward
            monkeypatch.setattr(torch.autograd, "backward", lambda *a, **k: (calls.append(1), original(*a, **k)))

    train(hooked, DataLoader(DATA, batch_size=4), act)
    assert len(calls) == STEPS // 2
    assert within == [True]
    assert batches_of(spans) < STEPS // 2 + EVERY


class Interrupt(Dataset):
    """Samples one of which is interrupted by a signal."""

    def __len__(self):
        return len(DATA)

    def __getitem__(self, index):
        if index == 4 * 30:
            signal.raise_signal(signal.SIGINT)
        return DATA[index]


def test_interrupt_reaches_the_script_whose_hooks_remain(hooked):
    with pytest.raises(KeyboardInterrupt):
        train(hooked, DataLoader(Interrupt(), batch_size=4))
    assert not is_brief(hooked)
    before = len(of(recorded(hooked), STEP))
    train(hooked, DataLoader(DATA, batch_size=4))
    assert len(of(recorded(hooked), STEP)) == before + STEPS


def test_error_of_the_agent_ends_recording_and_loses_no_batch(hooked, monkeypatch, capsys):
    failures = []

    def fail(*_):
        failures.append(1)
        raise ValueError("of the agent")

    seen = []
    for number, (inputs, _) in enumerate(DataLoader(DATA, batch_size=4)):
        if number == STEPS // 2:
            assert is_brief(hooked)
            monkeypatch.setattr(type(hooked.agent.brief._span), "write", fail)
        hooked.step(inputs)
        seen.append(inputs)
    assert torch.equal(torch.cat(seen), torch.stack([inputs for inputs, _ in DATA]))
    assert not hooked.agent.is_on
    assert len(failures) == 1
    assert capsys.readouterr().err.count("of the agent") == 1


def test_results_of_a_meter_include_the_steps_up_to_now(hooked):
    counts = []

    def act(number):
        hooked.agent.measurement("epoch")
        counts.append(len(of(recorded(hooked), BATCH)))

    train(hooked, DataLoader(DATA, batch_size=4), act)
    assert counts == [*range(1, STEPS + 1)]


def test_loading_of_a_part_of_the_batches_is_timed(hooked, spans):
    loader = DataLoader(DATA, batch_size=4)
    for _ in range(4):
        train(hooked, loader)
    found = recorded(hooked)
    loaded = of(found, LOADED)
    assert 4 * STEPS / (3 * EVERY) < len(loaded) < 4 * STEPS / EVERY * 2
    assert len(of(found, events.COLLATED)) == len(loaded)
    assert batches_of(spans) > 4 * STEPS / 2


def test_function_that_collates_is_the_scripts_own_and_its_errors_too(hooked):
    numbers = []

    def collate(samples):
        numbers.append(len(samples))
        if len(numbers) == 33:
            raise LookupError("own")
        return torch.stack([inputs for inputs, _ in samples]), torch.tensor([target for _, target in samples])

    with pytest.raises(LookupError, match="own"):
        train(hooked, DataLoader(DATA, batch_size=4, collate_fn=collate))
    assert len(numbers) == 33
    assert len(of(recorded(hooked), BATCH)) == 32
    train(hooked, DataLoader(DATA, batch_size=4, collate_fn=collate))
    assert len(numbers) == 33 + STEPS


def test_dataset_that_trains_a_model_is_recorded_as_before(hooked, spans):
    class Adversarial(Dataset):
        def __len__(self):
            return len(DATA)

        def __getitem__(self, index):
            if index % 4 == 0:
                hooked.model(DATA[index][0]).sum().backward()
            return DATA[index]

    train(hooked, DataLoader(Adversarial(), batch_size=4))
    found = recorded(hooked)
    assert batches_of(spans)
    assert [len(of(found, kind)) for kind in (BATCH, BACKWARD, STEP)] == [STEPS, 2 * STEPS, STEPS]
    assert [event.time_ns for event in of(found, BATCH)] == sorted(event.time_ns for event in of(found, BATCH))


def test_two_passes_side_by_side_are_recorded_as_before(hooked):
    first, second = DataLoader(DATA, batch_size=4), DataLoader(DATA, batch_size=4)
    for (inputs, _), (others, _) in zip(first, second, strict=True):
        hooked.step(inputs + others)
    found = recorded(hooked)
    assert [len(of(found, kind)) for kind in (PASS, BATCH, BACKWARD, STEP)] == [2, 2 * STEPS, STEPS, STEPS]
    times_ns = [event.time_ns for event in of(found, BATCH)]
    assert times_ns == sorted(times_ns)


def test_optimizer_whose_step_has_steps_of_others_has_no_brief_steps(hooked, spans):
    class Both(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    optimizer = Both(hooked.model.parameters(), lr=0.1)
    for inputs, _ in DataLoader(DATA, batch_size=4):
        hooked.model(inputs).sum().backward()
        optimizer.step()
    recorded_steps = of(recorded(hooked), STEP)
    assert len(recorded_steps) == 2 * STEPS
    assert all(event.begun_ns for event in recorded_steps[2 * EVERY :])


def random_training(script, seed):
    """Train as a random script does; return what it has seen.

    It accumulates gradients, steps several optimizers, evaluates, reads a second loader, and meets errors.
    """
    choose, seen = random.Random(seed), []
    torch.manual_seed(0)
    models = [nn.Linear(4, 2) for _ in range(3)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for _ in range(4):
        usual = choose.choice(["bs", "bs", "b", "bsbs"])
        iterator = iter(DataLoader(Failing(choose.choice([None, choose.randint(0, 239)])), choose.choice([1, 2, 4])))
        side = iter(DataLoader(DATA, batch_size=4))
        while choose.random() > 0.004:
            try:
                inputs, _ = next(iterator)
            except KeyError:
                seen.append("error")
                continue
            except StopIteration:
                break
            acts = usual if choose.random() < 0.9 else choose.choice(["b", "s", "", "bbss", "bsebs", "n", "nbs"])
            place = 0 if acts == usual else choose.choice([0, 0, 1, 2])
            for act in acts:
                if act == "b":
                    models[place](inputs).sum().backward()
                elif act == "s":
                    optimizers[place].step()
                elif act == "n":
                    seen.append(next(side, None) is None)
                else:
                    script.evaluate(DataLoader(DATA[:12], batch_size=4))
            seen.append(inputs.sum().item())
    return seen, [parameter.tolist() for model in models for parameter in model.parameters()]


@pytest.mark.parametrize("seed", range(4))
def test_random_scripts_have_the_same_events_with_and_without_brief_steps(tmp_path, monkeypatch, spans, seed):
    kinds = {PASS, BATCH, BACKWARD, STEP, END, FAILED, DROPPED, events.FORWARD, events.FORWARD_ENDED}
    ways = []
    for is_forbidden in (False, True):
        folder = tmp_path / str(is_forbidden)
        folder.mkdir()
        monkeypatch.setattr(recording, "ScriptConnection", lambda *_, folder=folder: Connection(folder / "events"))
        script = Script(folder)
        end = hooks.hook_loaders(script.agent)
        script.agent.brief._is_forbidden = is_forbidden
        seen = random_training(script, seed)
        script.unhook()
        end()
        (found,) = events_of(script.folder).values()
        found = of(found, *kinds)
        assert [event.time_ns for event in found] == sorted(event.time_ns for event in found)
        ways.append((seen, [(event.kind, event.object, str(event.value), event.flags) for event in found]))
        assert batches_of(spans) > 50
    assert ways[0] == ways[1]


def until_brief(script, iterator):
    """Train until the next steps are brief; return how many batches were delivered."""
    for number in range(1, STEPS):
        script.step(next(iterator)[0])
        if is_brief(script):
            return number
    raise AssertionError("no step was brief")


@pytest.mark.parametrize("keeps_iterator", [True, False])
def test_method_that_the_script_keeps_delivers_all_batches(hooked, keeps_iterator):
    iterator = iter(DataLoader(DATA, batch_size=4))
    count, method = until_brief(hooked, iterator), iterator.__next__
    if not keeps_iterator:
        del iterator
    assert len([hooked.step(method()[0]) for _ in range(STEPS - count)]) + count == STEPS
    with pytest.raises(StopIteration):
        method()


def test_function_of_brief_steps_that_the_script_keeps_is_recorded_for_good(hooked):
    iterator = iter(DataLoader(DATA, batch_size=4))
    count, backward = until_brief(hooked, iterator), torch.autograd.backward
    assert backward.__wrapped__
    for inputs, _ in iterator:
        backward(hooked.model(inputs).sum())
        hooked.optimizer.step()
        count += 1
    assert count == STEPS
    assert len(of(recorded(hooked), BACKWARD)) == STEPS


def test_new_optimizer_within_a_backward_pass_loses_no_event(hooked):
    def act(number):
        if number == STEPS // 2:
            optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
            handle = hooked.model.weight.register_hook(lambda _: (optimizer.step(), handle.remove())[-1])

    train(hooked, DataLoader(DATA, batch_size=4), act)
    found = recorded(hooked)
    assert [len(of(found, kind)) for kind in (BATCH, BACKWARD, STEP)] == [STEPS, STEPS, STEPS + 1]


def test_nothing_of_the_script_is_kept_after_brief_steps(hooked, spans):
    gc.collect()
    gc.disable()
    try:
        dataset = Failing(None)
        loader = DataLoader(dataset, batch_size=4)
        optimizer = torch.optim.SGD(hooked.model.parameters(), lr=0.1)
        for inputs, _ in loader:
            hooked.model(inputs).sum().backward()
            optimizer.step()
            if is_brief(hooked):
                break
        data, *others = (weakref.ref(thing) for thing in (dataset, optimizer, *spans))
        spans.clear()
        del dataset, loader, optimizer
        assert [other() for other in others] == [None] * len(others)
        gc.collect()  # the class of its stand-in refers to itself
        assert data() is None
    finally:
        gc.enable()


def test_iterator_left_in_brief_steps_does_not_hide_what_another_thread_trains(hooked):
    iterator = iter(DataLoader(DATA, batch_size=4))
    until_brief(hooked, iterator)
    thread = threading.Thread(target=train, args=(hooked, DataLoader(DATA, batch_size=4)))
    thread.start()
    thread.join()
    other = events_of(hooked.folder)[1]
    assert [len(of(other, kind)) for kind in (BATCH, BACKWARD, STEP)] == [STEPS, STEPS, STEPS]
    assert all(event.begun_ns for event in of(other, STEP))
    hooked.step(next(iterator)[0])


def test_end_of_another_kind_reaches_the_script(hooked):
    class Over(StopIteration):
        pass

    class Ending(Failing):
        def __getitem__(self, index):
            if index == 4 * 30:
                raise Over("a", "b")
            return DATA[index]

    iterator = iter(DataLoader(Ending(None), batch_size=4))
    until_brief(hooked, iterator)

    def train_on():
        while True:
            hooked.step(next(iterator)[0])

    with pytest.raises(Over) as raised:
        train_on()
    assert raised.value.args == ("a", "b")


def test_two_threads_that_share_an_iterator_get_all_batches(hooked):
    class Waiting(Failing):
        def __getitem__(self, index):
            if index % 40 == 0:
                threading.Event().wait(0.01)
            return DATA[index]

    iterator, seen, errors = iter(DataLoader(Waiting(None), batch_size=4)), [], []
    count = until_brief(hooked, iterator)

    def take():
        try:
            for inputs, _ in iterator:
                seen.append(inputs)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(seen) + count == STEPS
