"""Forward passes, backward passes and optimizer steps of a script: what is recorded, and that it is not noticed."""

import copy
import functools
import io
import pickle
import threading
import traceback
import warnings

import cloudpickle
import pytest
import torch
from recorded import events_of
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from epochmeter.agent import module_calls
from epochmeter.agent.phases import FIRST_CALLS, WATCH_EVERY
from epochmeter.shared import events

DATA = [(torch.full((4,), float(number)), number % 2) for number in range(16)]
INPUTS = torch.ones(2, 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 2)

    def forward(self, inputs):
        return self.head(self.body(inputs))


class Called(Net):
    def __call__(self, inputs):
        return super().__call__(inputs)


class Head(nn.Linear):
    pass


class Raises(Net):
    def forward(self, inputs):
        self.body(inputs)
        raise ValueError("bad input")


class Replica(Net):
    pass


@pytest.fixture
def loader():
    return DataLoader(DATA, batch_size=2)


def spans(script, *kinds, thread=0):
    """Return the events of these kinds, all of which have a begin."""
    found = [event for event in events_of(script.folder)[thread] if event.kind in kinds]
    assert all(0 < event.begun_ns <= event.time_ns for event in found)
    return found


def forwards(script):
    return len(spans(script, events.FORWARD_ENDED))


def begin(script, loader):
    """Begin a pass, whose iterator the script holds."""
    batches = script.batches(loader)
    next(batches)
    return batches


@pytest.fixture(autouse=True)
def classes():
    """Check that the classes are restored."""
    yield
    for kind in (Net, Called, Head, Raises, Replica, nn.Linear, nn.Sequential):
        assert not isinstance(vars(kind).get("__call__"), module_calls.RecordedCall)
    assert not nn.modules.module._has_any_global_hook()


@pytest.mark.parametrize("make", [Net, Called, lambda: nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 2)))])
def test_forward_pass_of_the_outermost_module_is_recorded_once_per_call(script, loader, make):
    model, loss = make(), nn.CrossEntropyLoss()
    for inputs, targets in script.batches(loader):
        loss(model(inputs), targets).backward()
    recorded = spans(script, events.FORWARD_ENDED, events.BACKWARD)
    assert [event.kind for event in recorded] == [events.FORWARD_ENDED, events.BACKWARD] * 8
    times_ns = [time_ns for event in recorded for time_ns in (event.begun_ns, event.time_ns)]
    assert times_ns == sorted(times_ns), "none within another one"


def test_each_model_is_recorded_also_if_it_is_first_called_late(script, loader):
    first, second = Net(), Head(4, 2)
    for _ in range(3):
        for number, (inputs, _) in enumerate(script.batches(loader)):
            first(inputs)
            if number >= 4:
                second(inputs)
    assert forwards(script) == 3 * (8 + 4)
    assert not any(event.flags & events.WAS_UNSEEN for event in spans(script, events.FORWARD_ENDED))


def test_first_seen_call_of_a_class_is_marked_if_earlier_ones_may_not_have_been_seen(script, loader):
    batches, first, second = begin(script, loader), Net(), Head(4, 2)
    for _ in range(FIRST_CALLS):
        first(INPUTS)
    for _ in range(2 * WATCH_EVERY):
        first(INPUTS)
        second(INPUTS)
    unseen = [event.flags & events.WAS_UNSEEN for event in spans(script, events.FORWARD_ENDED)]
    assert sum(map(bool, unseen)) == 1
    next(batches)


def test_modules_without_parameters_and_modules_of_the_dataset_are_no_forward_pass(script):
    class Transformed(list):
        def __getitem__(self, index):
            return Net()(super().__getitem__(index)[0])

    normalize = nn.Sequential(nn.Identity(), nn.ReLU())
    for inputs in script.batches(DataLoader(Transformed(DATA))):
        normalize(inputs)
    assert forwards(script) == 0


def test_forward_passes_within_others_and_those_of_functional_transforms_are_recorded(script, loader):
    batches, model = begin(script, loader), Net()
    parameters = dict(model.named_parameters())
    torch.func.functional_call(model, parameters, (INPUTS,))
    torch.vmap(lambda inputs: torch.func.functional_call(model, parameters, (inputs,)))(INPUTS)
    torch.func.grad(lambda own: torch.func.functional_call(model, own, (INPUTS,)).sum())(parameters)
    checkpoint(model, INPUTS.clone().requires_grad_(), use_reentrant=False).sum().backward()
    assert forwards(script) == 5, "the last one is recomputed"
    *_, recomputed = spans(script, events.FORWARD_ENDED)
    (backward,) = spans(script, events.BACKWARD)
    assert backward.begun_ns < recomputed.begun_ns < recomputed.time_ns < backward.time_ns
    next(batches)


def test_closure_is_within_its_optimizer_step_and_steps_of_the_same_optimizer_within_each_other_have_begins(script):
    class Wrapper(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    torch.optim.SGD(script.model.parameters(), lr=0.1)  # its step has hooks, too
    optimizer = Wrapper(script.model.parameters(), lr=0.1)
    loader = DataLoader(DATA, batch_size=2)

    def closure():
        loss = script.model(INPUTS).sum()
        loss.backward()
        return loss

    for _ in script.batches(loader):
        optimizer.step(closure)
    forward, backward, inner, outer = spans(script, events.FORWARD_ENDED, events.BACKWARD, events.STEP)[-4:]
    assert outer.begun_ns < inner.begun_ns < forward.begun_ns < backward.begun_ns
    assert backward.time_ns < inner.time_ns < outer.time_ns


def test_gradients_of_torch_autograd_are_recorded_but_are_no_training(script, loader):
    for inputs, _ in script.batches(loader):
        torch.autograd.grad(script.model(inputs).sum(), list(script.model.parameters()))
    assert len(spans(script, events.GRADIENTS)) == 8
    assert spans(script, events.BACKWARD) == []


def test_error_in_a_forward_pass_ends_it_and_has_the_traceback_without_the_agent(script, loader):
    def trace():
        with pytest.raises(ValueError, match="bad input") as raised:
            Raises()(INPUTS)
        return traceback.format_exception(raised.value)

    batches = begin(script, loader)
    for _ in range(FIRST_CALLS + 1):
        measured = trace()
    assert forwards(script) == FIRST_CALLS + 1
    script.unhook()
    assert measured == trace()
    next(batches)


def test_threads_without_data_have_no_log(script, loader):
    batches, model = begin(script, loader), Replica()
    model(INPUTS)
    threads = [threading.Thread(target=model, args=(INPUTS,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [*events_of(script.folder)] == [0]
    assert forwards(script) == 1
    next(batches)


def test_model_and_its_class_are_as_without_the_agent(script, loader):
    model = Net()
    dumps = [pickle.dumps, cloudpickle.dumps]

    def traits():
        found = [dump(given) for dump in dumps for given in (model, Net)]
        saved = io.BytesIO()
        torch.save(model, saved)
        hooked = [len(hooks) for hooks in (model._forward_hooks, model._forward_pre_hooks, model._backward_hooks)]
        return [
            *found,
            saved.getvalue(),
            repr(model),
            {**vars(copy.deepcopy(model))}.keys(),
            vars(model).keys(),
            hooked,
        ]

    before = traits()
    batches = begin(script, loader)
    model(INPUTS)
    assert isinstance(vars(Net)["__call__"], module_calls.RecordedCall)
    assert traits() == before
    assert Net.__call__ is nn.Module.__call__
    graph = torch.fx.symbolic_trace(nn.Sequential(model))
    assert [node.op for node in graph.graph.nodes].count("call_module") == 3, "as deep as without it"
    next(batches)


def test_class_that_is_pickled_by_value_is_without_the_agent_where_it_is_loaded(script, loader):
    names = {"__name__": "__main__", "nn": nn}
    exec("class Own(nn.Linear):\n    pass", names)  # noqa: S102 (own)
    batches = begin(script, loader)
    names["Own"](4, 2)(INPUTS)
    loaded = pickle.loads(cloudpickle.dumps(names["Own"]))  # noqa: S301 (own)
    assert vars(loaded)["__call__"] is nn.Module.__call__
    script.unhook()
    next(batches)


def test_compiled_modules_are_recorded_and_compiled_as_without_the_agent(script, loader):
    def compiled(train):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        model = Net()
        model(INPUTS)
        of_module, of_function = torch.compile(model, backend="eager", fullgraph=True), Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        compiled_step = torch.compile(optimizer.step, backend="eager")
        step = torch.compile(lambda inputs: of_function(inputs).sum(), backend="eager", fullgraph=True)
        for inputs, _ in train:
            of_module(inputs).sum().backward()
            step(inputs).backward()
            compiled_step()
            of_function(inputs)
        exported = torch.export.export(of_function, (INPUTS,), strict=True)
        counters = {name: dict(torch._dynamo.utils.counters[name]) for name in ("stats", "graph_break")}
        return counters, str(exported.graph)

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        compiled(script.batches(loader))
        assert forwards(script) == 1 + 8, "that before torch.compile, and those of the compiled module"
        held = begin(script, loader)
        measured = compiled(script.batches(loader))
        script.unhook()
        assert compiled(loader) == measured
    next(held)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def test_class_that_was_replaced_before_torch_compile_is_not_seen_by_it(script, loader):
    batches = begin(script, loader)
    model = Net()
    model(INPUTS)
    assert "__call__" in vars(Net)
    torch.compile(model, backend="eager", fullgraph=True)(INPUTS)
    assert "__call__" not in vars(Net)
    assert torch.autograd.grad is torch.autograd.__dict__["grad"]
    assert not hasattr(torch.autograd.grad, "__wrapped__")
    next(batches)
    torch._dynamo.reset()


def test_method_that_the_script_has_replaced_is_kept(script, loader):
    batches = begin(script, loader)
    model = Net()
    model(INPUTS)
    recorded, called = vars(Net)["__call__"], []

    def replaced(self, *arguments):
        called.append(arguments)
        return recorded.__get__(self)(*arguments)

    Net.__call__ = replaced
    model(INPUTS)
    script.unhook()
    assert vars(Net)["__call__"] is replaced
    assert (len(called), forwards(script)) == (1, 2)
    del Net.__call__
    next(batches)


@pytest.mark.parametrize("fails_in", ["agent.thread.log.write", "agent.forwards._add"])
def test_error_of_the_agent_in_a_forward_pass_does_not_reach_the_script(script, loader, monkeypatch, capsys, fails_in):
    def fail(*arguments):
        raise BrokenPipeError("gone")

    batches, model = begin(script, loader), Net()
    *owner, name = fails_in.split(".")
    monkeypatch.setattr(functools.reduce(getattr, owner, script), name, fail)
    expected = model(INPUTS)
    assert torch.equal(model(INPUTS), expected)
    assert capsys.readouterr().err.count("measuring ended") == 1
    next(batches)


class Marks:
    """Numbers the timestamps of a GPU."""

    count = 0
    is_capturing = False

    def record(self):
        if self.is_capturing:
            return None
        self.count += 1
        return self.count - 1

    def collect(self, now_ns):
        pass

    def write_completed(self):
        pass

    def write_all(self, limit_s):
        pass


def test_begin_and_end_of_each_part_have_a_timestamp_of_the_gpu(script, loader):
    def train():
        script.optimizer.step(lambda: script.model(INPUTS).sum().backward())

    batches = begin(script, loader)
    script.agent.thread.marks = marks = Marks()
    train()
    forward, backward, step = recorded = spans(script, events.FORWARD_ENDED, events.BACKWARD, events.STEP)
    assert all(event.flags == events.HAS_DEVICE_TIME | events.HAS_BEGIN_TIME for event in recorded)
    numbers = [step.other, forward.other, forward.number, backward.other, backward.number, step.number]
    assert numbers == [*range(6)]
    marks.is_capturing = True
    train()
    captured = spans(script, events.FORWARD_ENDED, events.BACKWARD, events.STEP)[3:]
    assert [(event.flags, event.number, event.other) for event in captured] == [(0, 0, 0)] * 3
    next(batches)


def test_methods_of_a_module_that_list_its_parameters_are_not_called(script, loader):
    class Own(Net):
        def parameters(self):
            raise AssertionError("called")

        named_parameters = modules = parameters

    class Loss(nn.Module):
        def parameters(self):
            return [1]

        def forward(self, outputs):
            return outputs.sum()

    model, loss = Own(), Loss()
    for inputs, _ in script.batches(loader):
        loss(model(inputs)).backward()
    assert script.agent.is_on
    assert forwards(script) == 8, "not those of the loss"
