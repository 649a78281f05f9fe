"""The agent in a script's process: what it records, and that the script does not notice it."""

import contextlib
import copy
import functools
import gc
import importlib
import io
import math
import operator
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import warnings

import cloudpickle
import numpy as np
import pytest
import torch
from recorded import FrozenError, events_of
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from epochmeter.agent import hooks, recording, script_connection, thread_times
from epochmeter.agent.script_connection import ScriptConnection
from epochmeter.run import launch
from epochmeter.shared import events
from epochmeter.shared.problem import Problem
from epochmeter.shared.protocol import (
    Asked,
    Finished,
    NotMeasured,
    PassOpening,
    RankFailed,
    Recorded,
    Trained,
    decode,
    encode,
)
from epochmeter.worker.connection import ControllerGoneError

STEPS = 8
DATA = [(torch.full((4,), float(number)), number % 2) for number in range(2 * STEPS)]


@pytest.fixture
def loader():
    return DataLoader(DATA, batch_size=2)


def kinds(folder, thread=0):
    return [event.kind for event in events_of(folder)[thread]]


class OwnStep(torch.optim.SGD):
    """An optimizer whose step calls that of its base class; torch calls the hooks for both once the latter was used."""

    def step(self, closure=None):
        time.sleep(0.01)
        loss = super().step(closure)
        time.sleep(0.01)
        return loss


def test_step_that_calls_the_step_of_its_base_class_is_one(script):
    script.optimizer.step()
    script.optimizer = OwnStep(script.model.parameters(), lr=0.5)
    for _ in range(10):
        script.step(torch.ones(4))
    kinds_of_steps = [kind for kind in kinds(script.folder) if kind == events.STEP]
    assert len(kinds_of_steps) == 1 + 2 * 10, "both are recorded"
    assert script.windows == [("epoch", 0, 5), ("epoch", 1, 5)]
    script.train(DataLoader(DATA, batch_size=2))
    assert script.parts[-1]["compute_s"] >= 0.02 * STEPS


def test_each_event_is_recorded_with_its_object_and_times(script, loader):
    before_ns = time.monotonic_ns()
    script.train(loader, steps=2)
    begun, forward, *steps, dropped = [event for event in events_of(script.folder)[0] if event.kind != events.COLLECTED]
    assert (begun.kind, forward.kind, dropped.kind) == (events.PASS, events.BATCH, events.DROPPED)
    assert [event.kind for event in steps] == [
        events.FORWARD, events.FORWARD_ENDED, events.BACKWARD, events.STEP,
        events.BATCH, events.FORWARD_ENDED, events.BACKWARD, events.STEP,
    ]  # fmt: skip
    assert (begun.value, begun.flags) == (STEPS, events.HAS_GRADIENTS)
    assert {event.object for event in (begun, forward, dropped)} == {begun.object}
    assert steps[3].value == 0.5
    times_ns = [time_ns for event in (begun, forward, dropped) for time_ns in (event.begun_ns, event.time_ns)]
    assert [before_ns, *times_ns] == sorted([before_ns, *times_ns])
    assert script.connection.wakes == 2, "at the borders of passes"


def test_events_of_each_thread_are_in_a_log_of_its_own(script, loader):
    script.train(loader)
    thread = threading.Thread(target=script.train, args=(loader,))
    thread.start()
    thread.join()
    assert kinds(script.folder, 0).count(events.STEP) == kinds(script.folder, 1).count(events.STEP) == STEPS


def test_child_process_does_not_write_to_the_log_of_its_parent(script, loader):
    batches = script.batches(loader)
    next(batches)
    if not (child := os.fork()):
        try:
            torch.set_num_threads(1)  # the threads of OpenMP are gone
            list(batches)
            script.train(loader)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert kinds(script.folder) == [events.PASS, events.BATCH]
    logs = {path.name.partition("-")[0] for path in script.folder.glob("*-*.0")}
    assert logs == {str(os.getpid()), str(child)}


def test_wait_is_recorded_as_that_of_the_outermost_iterator(script, loader):
    class OneAhead(DataLoader):
        def __iter__(self):
            iterator = script.batches(DataLoader(DATA, batch_size=2))
            ahead = next(iterator)
            for batch in iterator:
                yield ahead
                ahead = batch
            yield ahead

    script.train(OneAhead(DATA, batch_size=2))
    assert script.windows == [("epoch", 0, 8)]
    assert kinds(script.folder).count(events.PASS) == 1


@pytest.mark.parametrize("fails_in", ["connection.wake", "agent.thread.log.write", "agent.facts.loader_number"])
def test_error_of_the_agent_is_reported_once_and_loses_no_batch(script, loader, monkeypatch, capsys, fails_in):
    script.train(loader)

    def fail(*arguments):
        raise BrokenPipeError("gone")

    batches = script.batches(loader)
    values = [next(batches)[0][0, 0].item()]
    *owner, name = fails_in.split(".")
    monkeypatch.setattr(functools.reduce(getattr, owner, script), name, fail)
    values += [inputs[0, 0].item() for inputs, _ in batches]
    script.train(loader)
    assert values == [2.0 * number for number in range(STEPS)]
    assert capsys.readouterr().err == "epochmeter: measuring ended, the script continues: BrokenPipeError: gone\n"
    assert script.connection.of(NotMeasured) == [NotMeasured(Problem("BrokenPipeError: gone"))]
    assert type(script.batches(loader)) is type(iter(loader))


def handle(number, frame):
    raise TimeoutError("own")


class Handler:
    def __call__(self, number, frame):
        handle(number, frame)

    method = __call__


@pytest.mark.parametrize("interrupted_in", ["agent.passes._begin", "agent.thread.log.write"])
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


@pytest.mark.parametrize(
    "place",
    [
        "batch_timer.own_run_queue", "thread_times.thread_ns", "batch_timer.monotonic_ns", "batch_timer.TransformTimes",
        "passes.stand_ins", "facts.class_name", "samples.length_of", "tokens.field_of",
        "recording.process_facts", "event_log.Suppressed", "recording.trained_gpu", "facts.identity_of",
        "training_events.learning_rate",
    ],
)  # fmt: skip
def test_error_of_a_signal_handler_within_any_part_of_the_agent_reaches_the_script(script, monkeypatch, place):
    def interrupted(*arguments, **keywords):
        signal.raise_signal(signal.SIGUSR1)

    before, restore = signal.signal(signal.SIGUSR1, handle), hooks.hook_loaders(script.agent)
    module, _, name = place.partition(".")
    monkeypatch.setattr(sys.modules[f"epochmeter.agent.{module}"], name, interrupted)
    with pytest.raises(TimeoutError, match="own"):
        script.train(DataLoader(DATA, batch_size=2))
    restore()
    signal.signal(signal.SIGUSR1, before)


def test_error_of_a_signal_handler_while_recording_ends_reaches_the_script(script, loader):
    def interrupted(message):
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    script.train(loader)
    script.connection.send = interrupted
    with pytest.raises(TimeoutError, match="own"):
        script.agent.end()
    signal.signal(signal.SIGUSR1, before)


def test_handlers_are_not_looked_for_at_errors_that_are_only_the_agents(monkeypatch):
    def never(number):
        raise AssertionError

    queue = thread_times.RunQueue()
    queue._descriptor = -1  # as without statistics of the kernel
    monkeypatch.setattr(signal, "getsignal", never)
    assert math.isnan(queue.waited_ns(0))


def test_exit_of_the_script_is_not_an_error_of_the_agent(script):
    def end(error):
        raise error

    with pytest.raises(SystemExit, match="3"):
        script.agent.guarded(end, SystemExit(3))
    assert script.agent.is_on
    assert script.agent.guarded(end, ControllerGoneError("the controller is gone")) is None
    assert script.agent.reason == "ControllerGoneError: the controller is gone"


@pytest.mark.parametrize("rate", [np.float64(0.5), np.float32(0.5), torch.tensor(0.5), 0.5])
def test_learning_rate_may_be_any_number(script, loader, rate):
    script.optimizer.param_groups[0]["lr"] = rate
    script.train(loader)
    assert script.parts[0]["learning_rate"] == 0.5


@pytest.mark.parametrize("groups", [[], [{}], None])
def test_steps_of_an_optimizer_without_parameters_have_no_learning_rate(script, loader, groups):
    class Own(torch.optim.SGD):
        def step(self, closure=None):
            pass

    script.optimizer = Own(script.model.parameters(), lr=0.5)
    script.optimizer.param_groups = groups
    script.train(loader)
    assert script.windows == [("epoch", 0, STEPS)]
    assert "learning_rate" not in script.parts[0]


def test_new_optimizer_of_a_model_continues_its_training_and_its_parameters_can_be_swapped(script, loader):
    for model in (script.model, script.model, nn.Linear(4, 2)):
        script.model, script.optimizer = model, torch.optim.SGD(model.parameters(), lr=0.5)
        script.train(loader)
    assert [window.training for window in script.measured.windows] == [0, 0, 1]
    script.optimizer.zero_grad()
    for parameter in script.model.parameters():
        torch.utils.swap_tensors(parameter, nn.Parameter(parameter.detach().clone()))


@pytest.mark.parametrize("make_parameter", [lambda: nn.Parameter(torch.eye(2).to_sparse()), lambda: torch.zeros(2)])
def test_optimizer_of_any_tensors_is_recorded(script, loader, make_parameter):
    script.optimizer.add_param_group({"params": [make_parameter().requires_grad_()], "lr": 0.5})
    script.train(loader)
    assert script.windows == [("epoch", 0, STEPS)]


@pytest.mark.parametrize(("error", "message"), [
    (None, Finished()), (ValueError("why"), RankFailed(Problem("ValueError: why"), 0)),
])  # fmt: skip
def test_end_of_the_script_is_reported_with_its_error(script, loader, error, message):
    script.train(loader)
    script.agent.end(error)
    assert script.connection.sent == [message]


def test_controller_is_asked_to_prepare_each_pass_only_if_it_does(script, loader):
    script.train(loader)
    assert script.connection.sent == []
    script.agent.passes._prepares = True
    script.train(loader)
    assert script.connection.sent == [PassOpening()]


# Hooks


def class_of_main():
    """Return a class that is pickled by value, as one of `__main__`."""
    code = """
class Mine(DataLoader):
    def __iter__(self):
        yield from super().__iter__()
"""
    names = {"__name__": "__main__", "DataLoader": DataLoader}
    exec(code, names)  # noqa: S102 (own)
    return names["Mine"]


def test_class_of_a_loader_is_pickled_by_value_as_without_the_agent(script):
    kind = class_of_main()
    plain = cloudpickle.dumps(kind)
    restore = hooks.hook_loaders(script.agent)
    script.train(kind(DATA, 2))
    assert [cloudpickle.dumps(kind) for _ in range(2)] == [plain, plain]
    by_another = vars(kind)["__iter__"].__reduce_ex__(4)
    assert by_another[0](*by_another[1]) is kind.__iter__.__wrapped__, "as the function by another pickler too"
    assert cloudpickle.dumps(cloudpickle.loads(plain)) == plain
    restore()
    assert cloudpickle.dumps(kind) == plain
    assert vars(kind)["__iter__"] is kind.__iter__, "a function again"


class Bad(list):
    def __getitem__(self, index):
        raise ValueError("bad sample")


class BadSampler(list):
    def __iter__(self):
        yield [0]
        raise ValueError("bad sampler")


class BadStart(DataLoader):
    def __iter__(self):
        raise OSError("bad start")


class BadLater(DataLoader):
    def __iter__(self):
        yield from super().__iter__()
        raise OSError("bad later")


ERRORS = {
    "dataset": lambda: list(DataLoader(Bad(DATA))),
    "sampler": lambda: list(DataLoader(DATA, batch_sampler=BadSampler(DATA))),
    "start": lambda: list(BadStart(DATA)),
    "iterator of a subclass": lambda: list(BadLater(DATA)),
    "iterator within an iterator": lambda: list(BadLater(Bad(DATA))),
    "backward": lambda: torch.ones(1).backward(),
    "save": lambda: torch.save(lambda: None, io.BytesIO()),
}


class BadForward(nn.Module):
    def forward(self, inputs):
        raise FrozenError


class BadItems(list):
    def __getitem__(self, index):
        raise FrozenError


class BadIndices:
    def __iter__(self):
        raise FrozenError


class BadGradient(torch.autograd.Function):
    @staticmethod
    def forward(context, inputs):
        return inputs.clone()

    @staticmethod
    def backward(context, gradients):
        raise FrozenError


@pytest.mark.parametrize(
    "act",
    [
        lambda: BadForward()(torch.ones(1)),
        lambda: list(DataLoader(BadItems(DATA))),
        lambda: list(DataLoader(DATA, batch_sampler=BadIndices())),
        lambda: BadGradient.apply(torch.ones(1, requires_grad=True)).backward(),
    ],
)
def test_error_whose_class_refuses_new_values_reaches_the_script(script, loader, act):
    restore = hooks.hook_loaders(script.agent)
    for _ in loader:
        with pytest.raises(FrozenError):
            act()
    restore()
    assert script.agent.is_on


@pytest.mark.skipif(sys.version_info < (3, 11), reason="`raise` restores the traceback")
@pytest.mark.parametrize("place", ERRORS)
def test_traceback_of_an_error_of_the_script_is_that_without_the_agent(script, place):
    def trace():
        with pytest.raises(Exception) as raised:  # noqa: PT011 (that of the script)
            ERRORS[place]()
        return "".join(traceback.format_exception(raised.value))

    restore = hooks.hook_loaders(script.agent)
    measured = trace()
    restore()
    script.unhook()
    assert measured == trace()


def test_warnings_that_libraries_attribute_to_their_caller_name_the_script(script):
    class WrongLength(IterableDataset):
        def __len__(self):
            return 1

        def __iter__(self):
            return iter(DATA)

    restore = hooks.hook_loaders(script.agent)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = DataLoader(WrongLength())
        assert len(loader) == 1
        assert len(list(loader)) == len(DATA)
        hooks.followed_by(lambda: warnings.warn("own", stacklevel=2), lambda *_: None)()
    restore()
    assert len(caught) == len(DATA), "one for each batch after the first, and the last one"
    assert {warning.filename for warning in caught} == {__file__}


class Generated(DataLoader):
    def __iter__(self):
        yield from super().__iter__()


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.ones(4)


@pytest.mark.parametrize("loader", [DataLoader(DATA, 2), Generated(DATA, 2), DataLoader(Endless()), DATA])
def test_iterator_has_the_class_the_methods_and_the_errors_of_the_script_s_own(script, loader):
    def traits(iterator):
        found = [
            iterator.__class__,
            isinstance(iterator, type(iter(loader))),
            iterator == iterator,
            bool(hash(iterator)),
        ]
        for act in (len, bool, operator.length_hint, reversed, copy.copy, lambda given: given[0], "wrong".__eq__):
            try:
                found.append(type(act(iterator)) if act is not len else act(iterator))
            except Exception as error:
                found.append((type(error), str(error).replace("RecordedIterator", iterator.__class__.__name__)))
        return found

    own, measured = iter(loader), script.batches(loader)
    assert type(measured) is not type(own)
    for iterator in (own, measured):
        try:
            iterator._num_yielded = 3  # as of torch's own iterators
            assert next(iterator) is not None
        except AttributeError:
            assert not hasattr(iterator, "_num_yielded")
    assert getattr(own, "_num_yielded", 0) == getattr(measured, "_num_yielded", 0)
    assert traits(measured) == traits(own)


def test_method_of_a_loader_is_pickled_by_name_as_without_the_agent(script):
    def pickles():
        return [library.dumps(DataLoader.__iter__) for library in (pickle, cloudpickle)]

    plain = pickles()
    restore = hooks.hook_loaders(script.agent)
    measured, loaded = pickles(), pickle.loads(plain[0])  # noqa: S301 (own)
    restore()
    assert measured == plain
    assert loaded.__wrapped__ is DataLoader.__iter__


def test_all_hooks_are_removed_and_keep_what_the_script_has_replaced_since(script):
    import gc

    from torch import autograd
    from torch.utils import data

    own = vars(DataLoader).get("_index_sampler"), torch.save, vars(DataLoader)["__iter__"]
    before = (autograd.backward, [*gc.callbacks])
    others = (autograd.grad, torch.compile)
    restore, unhook = hooks.hook_loaders(script.agent), hooks.hook_training(script.agent)
    replaced = lambda *arguments: None  # noqa: E731
    autograd.backward, kept = replaced, autograd.backward
    unhook()
    restore()
    assert autograd.backward is replaced
    assert (autograd.grad, torch.compile) == others
    autograd.backward = kept.__wrapped__
    assert (autograd.backward, gc.callbacks) == before
    assert (vars(data.DataLoader).get("_index_sampler"), torch.save, vars(data.DataLoader)["__iter__"]) == own
    assert "__init_subclass__" not in vars(DataLoader)


def test_steps_are_recorded_once_without_the_hook_of_torch_2(monkeypatch):
    class Custom(torch.optim.SGD):
        def step(self, closure=None):
            return closure

    derived = type("Derived", (Custom,), {})
    monkeypatch.setattr(torch.optim.Optimizer, "__init__", torch.optim.Optimizer.__init__)  # restored at the end
    monkeypatch.delattr(importlib.import_module("torch.optim.optimizer"), "register_optimizer_step_post_hook")
    stepped = []

    def note(optimizer, arguments, keywords):
        stepped.append((type(optimizer), arguments))

    hooks.hook_optimizer_steps(note, note)
    for kind in (Custom, derived, derived):
        assert kind(nn.Linear(1, 1).parameters(), lr=0.1).step(2) == 2
    assert stepped == [(kind, (2,)) for kind in (Custom, Custom, derived, derived, derived, derived)]


# The connection


@pytest.mark.timed
def test_script_waits_a_limited_time_for_a_controller_that_neither_reads_nor_replies(monkeypatch):
    monkeypatch.setattr(script_connection, "LIMIT_S", 1)
    with launch.listening_socket() as listener:
        connection = ScriptConnection(listener.getsockname(), 0, True)
        assert connection.request(Trained()) is None
        assert "did not answer for 1 s" in connection.lost
        connection = ScriptConnection(listener.getsockname(), 0, True)
        begun_s = time.monotonic()
        for _ in range(10_000):
            connection.wake()  # it never waits: not for a second each, once the socket is full
        assert time.monotonic() - begun_s < 1000
        connection.send(NotMeasured(Problem("longer than the socket has room for" * 100_000)))
        assert "read nothing for 1 s" in connection.lost
        connection.close()


@pytest.mark.parametrize("died", ["before it connects", "then"])
def test_script_without_a_controller_records_as_before_and_is_not_ended_by_sigpipe(
    script, loader, monkeypatch, capsys, died
):
    """Python ignores SIGPIPE, but programs for pipes restore its default."""
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    with launch.listening_socket() as listener:
        address = listener.getsockname()
        monkeypatch.setattr(recording, "ScriptConnection", lambda *_: ScriptConnection(address, 0, True))
        if died == "then":
            script.train(loader)
            (connection, _) = listener.accept()
            connection.close()
    for _ in range(2):
        script.train(loader)
        assert script.agent.measurement("epoch") is None
    script.agent.end()
    signal.signal(signal.SIGPIPE, before)
    assert script.agent.reason == script.agent.connection.lost != ""
    assert capsys.readouterr().err.count("\n") == 1
    assert script.windows == [("epoch", number, STEPS) for number in range(2 + (died == "then"))]


def test_nothing_is_sent_to_a_file_in_place_of_a_socket_that_the_script_closed(tmp_path):
    with launch.listening_socket() as listener:
        connection = ScriptConnection(listener.getsockname(), 0, True)
        os.close(connection._socket.fileno())
        with open(tmp_path / "own", "wb", buffering=0) as own:
            assert own.fileno() == connection._socket.detach() or connection.is_open() is False
            connection.wake()
            connection.close()
            own.write(b"own")
    assert (tmp_path / "own").read_bytes() == b"own"


@pytest.mark.parametrize("has_closed", [False, True])
def test_child_releases_its_parent_s_connection_and_closes_no_file_of_the_script(tmp_path, has_closed):
    with launch.listening_socket() as listener, warnings.catch_warnings():
        warnings.simplefilter("error")  # of a socket that is not closed
        connection = ScriptConnection(listener.getsockname(), 0, True)
        (peer, _) = listener.accept()
        number = connection._socket.fileno()
        with open(tmp_path / "own", "wb", buffering=0) as own, peer, open(os.dup(number), "wb", buffering=0) as parent:
            if has_closed:
                os.dup2(own.fileno(), number)
            connection.release()
            connection.wake()
            parent.write(b"still open")
            assert peer.recv(1 << 16).endswith(b"still open")
            if has_closed:
                os.write(number, b"own")
                os.close(number)
            else:
                with pytest.raises(OSError, match="Bad file descriptor"):
                    os.fstat(number)
    assert (tmp_path / "own").read_bytes() == (b"own" if has_closed else b"")


@pytest.fixture
def answering():
    """answering(before) -> a connection to a controller that answers each `Asked` with its name, after `before()`."""
    with contextlib.ExitStack() as opened:

        def connect(before=lambda: None):
            listener = opened.enter_context(launch.listening_socket())
            connection = ScriptConnection(listener.getsockname(), 0, True)
            peer = opened.enter_context(listener.accept()[0])

            def answer():
                with peer.makefile("rb") as lines:
                    for message in map(decode, lines):
                        if isinstance(message, Asked):
                            before()
                            peer.sendall(encode(Recorded(False, {message.window: 1.0}, "")))

            threading.Thread(target=answer, daemon=True).start()
            opened.callback(connection.close)
            return connection

        yield connect


def test_threads_that_ask_at_the_same_time_get_their_own_answers(answering):
    connection, found = answering(), {}

    def ask(name):
        found[name] = {metric for _ in range(500) for metric in connection.request(Asked(name, "1")).metrics}

    threads = [threading.Thread(target=ask, args=[name], daemon=True) for name in ("epoch", "val")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {"epoch": {"epoch"}, "val": {"val"}}


def test_signal_handler_that_asks_within_a_request_gets_nothing_and_the_request_its_answer(answering):
    handled, answers = threading.Event(), []

    def handle(number, frame):
        answers.append(connection.request(Asked("val", "1")))
        handled.set()

    def interrupt():
        os.kill(os.getpid(), signal.SIGUSR1)
        handled.wait(60)

    connection, before = answering(interrupt), signal.signal(signal.SIGUSR1, handle)
    assert connection.request(Asked("epoch", "1")).metrics == {"epoch": 1.0}
    signal.signal(signal.SIGUSR1, before)
    assert answers == [None]


def test_connection_that_fails_leaves_no_open_socket(tmp_path, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ScriptConnection(str(tmp_path / "absent"), 0, True).lost
        gc.collect()
    assert capsys.readouterr().err.count("\n") == 1
