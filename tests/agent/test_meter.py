import contextlib
import gc
import json
import math
import os
import threading
import time
import weakref
from types import SimpleNamespace

import pytest
import torch
from recorded import FrozenError, Script, windows_of
from torch.utils.data import DataLoader

from epochmeter import BudgetReached, Measurement, Meter
from epochmeter.agent import hooks
from epochmeter.agent.meter import REPLACED, UNLOCKED
from epochmeter.segmentation.process import UNUSED

DATA = [(torch.full((4,), float(number)), number % 2) for number in range(16)]
BATCHES = [(torch.ones(2, 4), torch.tensor([0, 1]))] * 6


class Loop(Script):
    """The training loop of a script with a meter, over batches as they are."""

    def __init__(self, folder, monkeypatch):
        super().__init__(folder)
        monkeypatch.setattr(hooks, "agent", self.agent)
        self.meter = Meter()

    def batches(self, loader):
        return loader


@pytest.fixture
def loop(script, tmp_path, monkeypatch):
    script.unhook()
    loop = Loop(tmp_path, monkeypatch)
    yield loop
    loop.unhook()


def test_meter_that_is_made_before_the_import_of_torch_uses_the_agent_of_the_script(script, tmp_path, monkeypatch):
    meters = [Meter("tracking=none"), Meter()]
    monkeypatch.setattr(hooks, "agent", script.agent)  # as the import of torch does
    assert meters[1].last == Measurement(reason="no such window was measured yet")
    for _ in meters[0].epochs(2):
        script.train(meters[0].batches(BATCHES))
    assert (script.windows, script.measured.expected_epochs) == ([("epoch", 0, 6), ("epoch", 1, 6)], 2)
    assert script.measured.notes[:1] == [UNUSED.format("`tracking=`")]
    assert meters[1].last.energy_j == 2.0


@pytest.mark.parametrize(
    "make", [lambda: DataLoader(DATA[:12], batch_size=2), lambda: BATCHES, lambda: (batch for batch in BATCHES)]
)
def test_any_iterable_is_measured_by_epoch(loop, make):
    assert loop.meter.last == Measurement(reason="no such window was measured yet")
    for epoch in loop.meter.epochs(2):
        loop.train(loop.meter.batches(make()))
        assert loop.meter.last.energy_j == 2.0
        assert loop.meter.last.e2e_s >= loop.meter.last.compute_s > 0
        assert loop.windows[epoch:] == [("epoch", epoch, 6)]
    assert loop.meter.last.metrics["data_stall_s"] == loop.meter.last.data_stall_s
    assert len(repr(loop.meter.last)) < 200 < len(str(loop.meter.last.metrics))
    assert loop.meter.last.metrics["forecast/energy_j"] == 9.0


def test_keys_that_the_command_of_the_script_decides_are_noted_without_their_values(loop):
    meter = Meter("budget.energy_j=5000", "tracking=none")
    for _ in range(2):
        loop.train(meter.batches(BATCHES))
    assert loop.measured.notes[:1] == [UNUSED.format("`budget.energy_j=`, `tracking=`")]


@pytest.mark.parametrize(("epochs", "expected"), [(3, 3), (range(2, 5), 3), ([0], 1), ((n for n in range(3)), None)])
def test_number_of_epochs_is_recorded_and_batches_have_the_loader_s_attributes(loop, epochs, expected):
    batches = loop.meter.batches(DataLoader(DATA, batch_size=4))
    for _ in loop.meter.epochs(epochs):
        loop.train(batches)
        assert loop.measured.expected_epochs == expected
    count = expected or 3
    assert (loop.windows, len(batches), batches.batch_size) == ([("epoch", n, 4) for n in range(count)], 4, 4)


def test_batches_are_called_as_their_loader(loop):
    class Data(list):
        def __call__(self, *arguments, **keywords):
            return arguments, keywords

    assert loop.meter.batches(Data(BATCHES))(1, epoch=2) == ((1,), {"epoch": 2})


def test_attribute_that_the_script_sets_on_batches_is_set_in_its_loader(loop):
    loader = DataLoader(DATA, batch_size=4)
    batches = loop.meter.batches(loader)
    batches.collate_fn = len
    assert [*batches] == [*loader] == [4, 4, 4, 4]
    batches.of_script = 1
    assert loader.of_script == 1
    del batches.of_script
    assert not hasattr(loader, "of_script")


def test_script_is_told_that_a_budget_is_reached(loop):
    loop.meter.check_budget()
    loop.train(loop.meter.batches(BATCHES))
    loop.meter.check_budget()
    loop.connection.has_reached_budget = True
    with pytest.raises(BudgetReached):
        loop.meter.check_budget()


def test_evaluation_follows_its_epoch_and_a_window_can_be_named(loop):
    with loop.meter.window("load data"):
        time.sleep(0.02)
    loop.train(loop.meter.batches(BATCHES))
    loop.evaluate(loop.meter.batches(BATCHES))
    loop.evaluate(loop.meter.batches(BATCHES), steps=1)
    for _ in loop.meter.batches(BATCHES, window="epoch"):
        pass
    assert loop.windows == [("load_data", 0, 0), ("epoch", 0, 6), ("val", 0, 6), ("val", 0, 1), ("epoch", 1, 6)]
    assert loop.meter.last_of("load data").e2e_s >= 0.02


def test_epochs_without_an_optimizer_of_torch_end_even_if_an_iterator_is_held(loop):
    held = []
    for _ in loop.meter.epochs(2):
        held.append(iter(loop.meter.batches(BATCHES)))
        next(held[-1])
    assert loop.windows == [("epoch", 0, 1), ("epoch", 1, 1)]
    assert len(list(held[0])) == 5


def test_iterator_of_the_data_is_released_with_the_loop(loop):
    class Batches:
        def __iter__(self):
            iterator = (batch for batch in BATCHES)
            iterators.append(weakref.ref(iterator))
            return iterator

    iterators = []
    gc.disable()
    loop.train(loop.meter.batches(Batches()))
    is_released = iterators[0]() is None
    gc.enable()
    assert is_released


def test_windows_within_a_window_are_parts_of_it(loop):
    with loop.meter.window("all"):
        loop.train(loop.meter.batches(BATCHES))
        with loop.meter.window("inner"):
            pass
    assert loop.windows == [("all", 0, 0)]


@pytest.mark.timed
@pytest.mark.parametrize("names", [("first", "second"), ("same", "same")])
def test_windows_that_overlap_as_in_coroutines_have_the_time_of_the_first(loop, names):
    first, second = map(loop.meter.window, names)
    begun_s = time.perf_counter()
    first.__enter__()
    second.__enter__()
    time.sleep(0.01)
    first.__exit__(None, None, None)
    ended_s = time.perf_counter()
    time.sleep(0.1)
    loop.train(loop.meter.batches(BATCHES))
    second.__exit__(None, None, None)
    loop.train(loop.meter.batches(BATCHES))
    assert loop.windows == [(names[0], 0, 0), ("epoch", 0, 6), ("epoch", 1, 6)]
    assert 0.01 <= loop.meter.last_of(names[0]).e2e_s <= ended_s - begun_s


@pytest.mark.timed
def test_window_within_a_step_leaves_its_time_in_the_compute_of_the_step(loop):
    for _ in range(2):
        for inputs, targets in loop.meter.batches(BATCHES):
            with loop.meter.window("forward"):
                loss = torch.nn.functional.cross_entropy(loop.model(inputs), targets)
                time.sleep(0.01)
            loss.backward()
            loop.optimizer.step()
        with torch.no_grad():
            for inputs, _ in loop.meter.batches(BATCHES):
                with loop.meter.window("forward"):
                    loop.model(inputs)
    assert loop.windows == [("epoch", 0, 6), ("val", 0, 6), ("epoch", 1, 6), ("val", 1, 6)]
    assert loop.meter.last.compute_s >= 0.06


def test_passes_that_a_loader_makes_itself_are_its_own(loop):
    class OneAhead(DataLoader):
        def __iter__(self):
            iterator = loop.agent.passes.iterate(self, DataLoader.__iter__)  # as the hook does
            ahead = next(iterator)
            for batch in iterator:
                yield ahead
                ahead = batch
            yield ahead

    loop.train(loop.meter.batches(OneAhead(DATA, batch_size=2)))
    assert loop.windows == [("epoch", 0, 8)]


def test_named_window_ends_with_any_error_and_decorates_functions(loop):
    @loop.meter.window("call")
    def call(depth):
        if not depth:
            raise FrozenError
        call(depth - 1)

    window = loop.meter.window("block")
    for error in (FrozenError, StopIteration, GeneratorExit):
        with pytest.raises(error), window, window:
            raise error
    with pytest.raises(FrozenError):
        call(1)
    names = [name for name, *_ in loop.windows]
    assert [names.count(name) for name in ("block", "call")] == [3, 1], "those within others are parts of these"


def test_function_that_goes_on_after_its_call_is_not_measured_as_one(loop, capsys):
    async def coroutine():
        pass

    def generator():
        yield

    assert [loop.meter.window("call")(function) for function in (coroutine, generator)] == [coroutine, generator]
    assert capsys.readouterr().err.count("is not measured: its call returns before it runs") == 2


@pytest.mark.parametrize(
    ("error", "recorded"),
    [
        (None, ""),
        (SystemExit(), ""),
        (SystemExit(0), ""),
        (BudgetReached("one more"), ""),
        (GeneratorExit(), ""),
        (SystemExit(3), "SystemExit: 3"),
        (SystemExit("no data"), "SystemExit: no data"),
        (KeyboardInterrupt(), "KeyboardInterrupt: "),
        (FrozenError(), "FrozenError: "),
    ],
)
def test_error_that_ended_the_script_is_recorded_unless_it_is_an_end(start_alone, error, recorded):
    with contextlib.suppress(BaseException), Meter() as meter:
        list(meter.batches(BATCHES))
        if error is not None:
            raise error
    lines = (start_alone[0] / f"{os.getpid()}.jsonl").read_text().splitlines()
    (end,) = [facts for facts in map(json.loads, lines) if facts["kind"] == "end"]
    assert end["error"] == recorded


@pytest.mark.parametrize("name", ["epoch", "total", " ", None, ["list"]])
def test_window_with_an_invalid_name_is_not_measured_and_others_are(loop, capsys, name):
    for _ in range(2):
        with loop.meter.window(name):
            time.sleep(0.001)
    loop.train(loop.meter.batches(BATCHES))
    assert loop.meter.last.e2e_s > 0
    assert loop.windows == [("epoch", 0, 6)]
    assert capsys.readouterr().err.count("a window cannot have the name") == 1
    assert math.isnan(loop.meter.last_of(" ").e2e_s)
    assert "a window cannot have the name" in loop.meter.last_of(" ").reason


def test_threads_that_begin_at_the_same_time_start_one_controller(script, tmp_path, monkeypatch):
    started = []

    def start(overrides):
        started.append(overrides)
        time.sleep(0.05)  # as a controller that waits for its devices
        return SimpleNamespace(agent={"socket": None, "logs": str(tmp_path), "folder": str(tmp_path)}, wait=int)

    script.unhook()
    monkeypatch.setattr(hooks, "agent", None)
    monkeypatch.delenv("EPOCHMETER_MEASURED", raising=False)
    monkeypatch.setattr("epochmeter.agent.own_controller.start_controller", start)
    with Meter() as meter:
        threads = [threading.Thread(target=list, args=[meter.batches(BATCHES)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(started) == 1


def test_interrupt_within_the_agent_ends_measuring_and_reaches_the_script(loop, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    loop.train(loop.meter.batches(BATCHES))
    monkeypatch.setattr(loop.connection, "wake", interrupt)
    with pytest.raises(KeyboardInterrupt):
        loop.train(loop.meter.batches(BATCHES))
    assert loop.meter.last.reason.startswith("KeyboardInterrupt")
    loop.train(loop.meter.batches(BATCHES))


def test_meter_without_a_controller_measures_nothing(monkeypatch):
    monkeypatch.setattr(hooks, "agent", None)
    monkeypatch.setattr("epochmeter.agent.own_controller.Controller", None)
    meter = Meter()
    with meter.window("phase"):
        assert [list(meter.batches(BATCHES)) for _ in meter.epochs(2)] == [BATCHES, BATCHES]
    assert math.isnan(meter.last.energy_j)
    assert meter.last.reason == "TypeError: 'NoneType' object is not callable"


def test_override_without_a_value_is_refused_and_the_loop_continues(monkeypatch):
    monkeypatch.setattr(hooks, "agent", None)
    monkeypatch.delenv("EPOCHMETER_MEASURED", raising=False)
    meter = Meter("power_limit", "tracking=none")
    assert list(meter.batches(BATCHES)) == BATCHES
    assert "`power_limit` is not valid" in meter.last.reason


def test_agent_that_cannot_begin_leaves_the_script_alone(monkeypatch):
    monkeypatch.setattr(hooks, "agent", None)
    monkeypatch.delenv("EPOCHMETER_MEASURED", raising=False)
    monkeypatch.setattr("epochmeter.agent.own_controller.Controller", lambda overrides: SimpleNamespace(agent={}))
    with Meter() as meter:
        assert list(meter.batches(BATCHES)) == BATCHES
    assert meter.last.reason.startswith("TypeError: ")


@pytest.fixture
def start_alone(monkeypatch, tmp_path):
    """Meters of a process have a folder of events each, in place of a controller; returns the list of these folders."""
    monkeypatch.setattr(hooks, "agent", None)
    monkeypatch.delenv("EPOCHMETER_MEASURED", raising=False)
    folders = []

    def start(overrides):
        time.sleep(0.01)  # in which another thread may start
        folder = tmp_path / str(len(folders))
        folder.mkdir()
        folders.append(folder)
        return SimpleNamespace(agent={"socket": None, "logs": str(folder), "folder": str(folder)}, wait=lambda: None)

    monkeypatch.setattr("epochmeter.agent.own_controller.start_controller", start)
    return folders


class Net(torch.nn.Linear):
    """A class of modules that no other test uses."""


def client(meter, batches, rounds, wait=lambda: None):
    """Train a client of federated learning for some rounds, each of which waits for the other clients."""
    model = Net(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(rounds):
        wait()
        for inputs, targets in meter.batches(batches):
            time.sleep(0.002)
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()


def test_meters_of_clients_in_threads_measure_the_epochs_of_their_own_client(start_alone):
    meters = [Meter(UNLOCKED, f"script.client={number}") for number in range(2)]
    barrier = threading.Barrier(2)
    threads = [
        threading.Thread(target=client, args=[meter, BATCHES[: 6 - 2 * number], 3, barrier.wait])
        for number, meter in enumerate(meters)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert os.environ["EPOCHMETER_MEASURED"] == str(os.getpid())
    meters[0].close()
    client(meters[1], BATCHES, 1)
    assert os.environ["EPOCHMETER_MEASURED"] == str(os.getpid()), "one is still open"
    meters[1].close()
    assert os.environ.get("EPOCHMETER_MEASURED") is None
    found = {}
    for folder in start_alone:
        measured = [*windows_of(folder).windows]
        found[measured[0].parts["steps"]] = [(window.name, window.parts["steps"]) for window in measured]
        assert all(window.parts["forward_s"] > 0 for window in measured[:3]), "the class has a hook of each agent"
    assert found == {6: [("epoch", 6)] * 3, 4: [("epoch", 4)] * 3 + [("epoch", 6)]}


def test_meters_of_clients_in_one_thread_measure_in_turn(start_alone):
    meters = [Meter(UNLOCKED, f"script.client={number}") for number in range(2)]
    models = [Net(4, 2) for _ in meters]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for _ in range(3):
        for meter, model, optimizer in zip(meters, models, optimizers, strict=True):
            for inputs, targets in meter.batches(BATCHES):
                torch.nn.functional.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
    for meter in meters:
        meter.close()
    for folder in start_alone:
        measured = windows_of(folder)
        assert [(window.name, window.parts["steps"]) for window in measured.windows] == [("epoch", 6)] * 3
        assert [*measured.trainings] == [0]


@pytest.mark.parametrize("keys", [(), (UNLOCKED, "script.client=1")])
def test_next_meter_ends_one_with_the_same_keys_which_says_so_when_it_is_used_again(start_alone, capsys, keys):
    first, second = Meter(*keys), Meter(*keys)
    client(first, BATCHES, 2)
    client(second, BATCHES, 1)
    assert first.last.reason != REPLACED, "its results remain"
    assert capsys.readouterr().err == ""
    client(first, BATCHES, 2)
    assert first.last == Measurement(reason=REPLACED), "not that of an earlier epoch"
    assert capsys.readouterr().err.count(REPLACED) == 1
    second.close()
    client(second, BATCHES, 1)
    assert capsys.readouterr().err == "", "its script has closed it"
    assert [len(windows_of(folder).windows) for folder in start_alone] == [2, 1]


def test_one_meter_that_two_threads_use_first_at_the_same_time_starts_once(start_alone):
    meter, barrier = Meter(), threading.Barrier(2)
    threads = [threading.Thread(target=client, args=[meter, BATCHES, 1, barrier.wait]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    meter.close()
    assert len(start_alone) == 1
