"""The operators of one step are recorded without any effect on the script: its results, its output, its errors."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from recorded import Connection, Script, events_of
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from epochmeter.agent import operators, recording
from epochmeter.segmentation.logs import FactsFile
from epochmeter.shared import events
from epochmeter.trace.operators import count_step

SOURCES = Path(operators.__file__).parents[2]
DATA = [(torch.full((4,), number / 16), number % 2) for number in range(32)]
OF_PRODUCT = 2 * 2 * 4 * 2  # FLOPs of a batch of two samples, from 4 values to 2


@torch.library.custom_op("epochmeter_test::product", mutates_args=())
def product(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return (first @ second).float()


class Counting:
    """A script whose operators are recorded."""

    def __init__(self, folder, counts=True):
        self.folder = folder / "counted" if counts else folder / "bare"
        self.folder.mkdir()
        self.script = Script(self.folder)
        if counts:
            self.script.agent._counts = True
            self.script.agent.begin_process()
        torch.manual_seed(0)
        self.script.model = nn.Linear(4, 2)
        self.script.optimizer = torch.optim.SGD(self.script.model.parameters(), lr=0.1)

    def batches(self, loader):
        return self.script.batches(loader)

    def end(self):
        self.script.agent.end()
        self.script.unhook()
        return [parameter.tolist() for parameter in self.script.model.parameters()]

    @property
    def facts(self):
        """The facts on the recorded operators."""
        (path,) = self.script.folder.glob("*.jsonl")
        (facts,) = (facts for facts in FactsFile(path).read() if facts["kind"] == "operators")
        return facts

    @property
    def step(self):
        """The recorded step; None if there is none."""
        return count_step(self.script.folder / self.facts["file"]) if "file" in self.facts else None


@pytest.fixture
def count(tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "ScriptConnection", lambda *_: Connection(tmp_path / "counted/events"))
    counting = Counting(tmp_path)
    yield counting
    counting.end()


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """The threads of other tests are not those of the script."""
    monkeypatch.setattr(operators, "is_alone", lambda path: True)


THREADED = """
import threading, torch
from epochmeter.agent import operators
model, losses = torch.nn.Linear(8, 8), []
assert operators.is_alone("probe.json") and operators.is_alone("probe.json")
threads = [threading.Thread(target=lambda: losses.append(model(torch.ones(4, 8)).sum())) for _ in range(9)]
assert threads[0].name.startswith("Thread-1 "), threads[0].name
for thread in threads:
    thread.start()
    thread.join()
try:
    operators.Recorder("step.json")
except operators.UnknownError as error:
    print(error)
for loss in losses:
    loss.backward()
"""


def test_nothing_is_recorded_if_another_thread_has_made_a_graph(outputs):
    """The observer would end the process."""
    assert outputs["THREADED"] == (operators.OTHER_THREADS + "\n", [])


ATTENTION = """
import threading, torch
from epochmeter.agent import operators
torch.set_num_threads(3)
inputs = torch.ones(2, 6, 16, 8, requires_grad=True)
def attend():
    return torch.nn.functional.scaled_dot_product_attention(inputs, inputs, inputs).sum()
attend().backward()
print(operators.is_alone("probe.json"), operators.is_alone("probe.json"))
losses = []
thread = threading.Thread(target=lambda: losses.append(attend()))
thread.start()
thread.join()
print(operators.is_alone("probe.json"))
"""


def test_threads_in_which_torch_computes_attention_are_no_others(outputs):
    assert outputs["ATTENTION"][0] == "True True\nFalse\n"


UNNOTICED = (
    ATTENTION.partition("print")[0]
    + """
import os, signal
def called(*arguments, **keywords):
    print("called", arguments)
    return arguments[0]
child = os.fork()
if not child:
    signal.alarm(20)
    try:
        operators.is_alone("probe.json")
    except operators.UnknownError as error:
        os._exit(3)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
torch.autograd.grad = torch.autograd.backward = called
torch.set_num_threads(4)
torch.set_default_dtype(torch.float16)
state = torch.get_rng_state()
with torch.autograd.graph.saved_tensors_hooks(called, called), torch.autocast("cpu", torch.bfloat16):
    print(operators.is_alone("probe.json"), torch.equal(state, torch.get_rng_state()))
"""
)


def test_numbers_of_torchs_threads_cause_no_calls_in_the_script_and_no_wait_in_a_forked_process(outputs):
    """A backward pass of autograd would count as one of the script, and OpenMP would wait in the child forever."""
    assert outputs["UNNOTICED"][0] == "3\nTrue True\n"


RUN_EACH = """
import os, sys
import torch  # once, as it takes longer than the scripts: it has no threads yet, and the agent is not imported
for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        os.chdir(name)
        os.dup2(os.open("../" + name + ".txt", os.O_CREAT | os.O_WRONLY), 1)
        exec(open("../" + name + ".py").read(), {"__name__": "__main__"})
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, name
"""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """What each script prints in a process of its own, and the files that it leaves."""
    folder, scripts = tmp_path_factory.mktemp("threads"), {
        "THREADED": THREADED, "ATTENTION": ATTENTION, "UNNOTICED": UNNOTICED,
    }  # fmt: skip
    for name, script in scripts.items():
        (folder / name).mkdir()
        (folder / f"{name}.py").write_text(script)
    environment, command = {**os.environ, "PYTHONPATH": str(SOURCES)}, [sys.executable, "-c", RUN_EACH, *scripts]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {name: ((folder / f"{name}.txt").read_text(), [*(folder / name).iterdir()]) for name in scripts}


def test_calls_on_nested_tensors_do_not_end_the_calls_around_them(count):
    """Each of them would take one of the open calls."""
    both = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])

    def pad(number):
        for _ in range(100 if number == 3 else 0):  # of the recorded step; each takes 10 ms there
            torch.nested.to_padded_tensor(both, 0.0)

    train(count.script, evaluate=pad)
    assert count.step.flops == 2 * OF_PRODUCT


def loader():
    return DataLoader(DATA, 2)


def train(script, epochs=1, steps=None, evaluate=None):
    for _ in range(epochs):
        for number, (inputs, targets) in enumerate(script.batches(loader()), 1):
            cross_entropy(script.model(inputs), targets).backward()
            script.optimizer.step()
            if evaluate:
                evaluate(number)
            if number == steps:
                break


def test_third_step_is_recorded_once_with_its_flops_samples_and_time(count):
    train(count.script, epochs=2)
    assert count.script.agent.details is None
    step = count.step
    assert (step.flops, step.not_counted) == (2 * OF_PRODUCT, {}), "forward, and the gradient of the weights"
    (logged,) = events_of(count.script.folder).values()
    (place,) = (place for place, event in enumerate(logged) if event.kind == events.COUNTED)
    assert sum(event.kind == events.BATCH for event in logged[:place]) == 3
    first, second = (window for window in count.script.measured.windows if window.name == "epoch")
    assert first.counted == count.facts["object"]
    assert 0 <= first.parts["counting_s"] < first.parts["e2e_s"]
    assert second.counted is None
    assert "counting_s" not in second.parts
    assert count.script.measured.operators[count.facts["object"]]["samples"] == 2


@pytest.mark.parametrize("ahead", [1, 3])
def test_batches_that_are_requested_together_belong_to_one_step(count, ahead):
    iterator = iter(count.batches(loader()))
    for _ in range(4):
        for inputs, targets in [next(iterator) for _ in range(ahead)]:
            cross_entropy(count.script.model(inputs), targets).backward()
        count.script.optimizer.step()
    assert count.facts["batches"] == ahead
    assert count.step.flops == ahead * 2 * OF_PRODUCT
    assert next(iter(count.script.measured.operators.values()))["samples"] == 2 * ahead


def test_step_with_another_loop_in_it_is_not_taken(count):
    train(count.script, evaluate=lambda number: count.script.evaluate(loader()) if number == 3 else None)
    assert count.step.flops == 2 * OF_PRODUCT
    assert count.facts["file"].endswith("-2.json")
    assert len([*count.script.folder.glob("*.json")]) == 1


def test_loop_that_ends_in_the_recorded_step_ends_it_and_one_that_is_held_ends_with_the_script(count):
    train(count.script, steps=3)
    assert count.step.flops == 2 * OF_PRODUCT


def test_held_iterator_that_is_left_in_the_recorded_step_gives_no_flops(count):
    iterator = iter(count.batches(loader()))
    for _ in range(3):
        count.script.step(next(iterator)[0])
    weights = count.end()
    assert count.facts["reason"] == operators.FEW_STEPS
    assert weights
    assert [*count.script.folder.glob("*.json")] == []


def test_epochs_of_one_batch_are_counted_and_evaluations_of_one_batch_are_not(count):
    whole = DataLoader(DATA, 32)
    for _ in range(5):
        for inputs, targets in count.batches(whole):
            cross_entropy(count.script.model(inputs), targets).backward()
            count.script.optimizer.step()
        count.script.evaluate(whole)
    assert count.step.flops == 2 * 16 * OF_PRODUCT


def custom(model, inputs):
    with torch.autocast("cpu", torch.bfloat16):
        return product(inputs, torch.ones(4, 2)).sum()


def inferred(model, inputs):
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        return torch.einsum("ij,jk->ik", inputs, torch.ones(4, 2)).float().sum().item()


def nested(model, inputs):
    both = torch.nested.nested_tensor([inputs, inputs[:1]])
    return torch.nested.to_padded_tensor(both, 0.0).sum().item()


def transformed(model, inputs):
    weights = dict(model.named_parameters())
    losses = torch.func.vmap(lambda row: torch.func.functional_call(model, weights, (row,)).sum())
    return losses(inputs).sum()


@pytest.mark.parametrize("more", [custom, inferred, nested, transformed])
def test_results_and_messages_are_those_without_counting(tmp_path, monkeypatch, capfd, more):
    """A mode of `torch.utils.flop_counter` would change the first two."""
    results = []
    for counts in (False, True):
        monkeypatch.setattr(recording, "ScriptConnection", lambda *_: Connection(tmp_path / "events"))
        counting = Counting(tmp_path, counts)
        values = []
        for inputs, targets in counting.batches(loader()):
            value = more(counting.script.model, inputs)
            loss = cross_entropy(counting.script.model(inputs), targets) + value * 0.1
            loss.backward()
            counting.script.optimizer.step()
            values.append((loss.item(), float(value)))
        results.append((values, counting.end()))
        assert not counts or counting.step.flops > 0
    assert results[0] == results[1]
    assert capfd.readouterr().err == ""


def test_error_of_the_script_in_the_recorded_step_reaches_it(count):
    def fail(number):
        if number == 3:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised:
        train(count.script, evaluate=fail)
    assert raised.traceback[-1].path.name == os.path.basename(__file__)
    count.end()
    assert count.facts.keys() & {"reason", "file"}


def test_error_of_the_recorder_ends_only_the_counting(count, monkeypatch, capfd):
    def fail(path):
        raise RuntimeError("no observer")

    monkeypatch.setattr(operators, "new_observer", fail)
    train(count.script)
    assert count.facts["reason"] == "RuntimeError: no observer"
    assert count.script.windows == [("epoch", 0, 16)]
    assert capfd.readouterr().err == ""
    assert operators.log_level().value < operators.ERROR


def test_observer_of_the_script_is_left_alone(count, tmp_path):
    observer = torch.profiler.ExecutionTraceObserver()
    observer.register_callback(str(tmp_path / "own.json"))
    train(count.script)
    assert count.facts["reason"] == operators.NOT_FREE
    observer.start()
    torch.ones(2) + 1
    observer.unregister_callback()
    assert "aten::ones" in (tmp_path / "own.json").read_text()


def test_profile_of_the_script_has_its_own_calls_only_and_a_later_step_is_taken(count):
    profile = torch.profiler.profile()

    def switch(number):
        if number in (2, 4):
            (profile.start if number == 2 else profile.stop)()

    train(count.script, evaluate=switch)
    assert [event.key for event in profile.key_averages() if "epochmeter" in event.key] == []
    assert count.step.flops == 2 * OF_PRODUCT


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_child_process_does_not_write_to_the_file_of_its_parent(count):
    for number, (inputs, _) in enumerate(count.batches(loader())):
        if number == 2:
            child = os.fork()
            if not child:
                (torch.ones(8, 8) @ torch.ones(8, 8)).sum()
                os._exit(operators.log_level().value)
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 1, "the level of messages is restored"
        count.script.step(inputs)
    assert count.step.flops == 2 * OF_PRODUCT


def test_without_an_observer_the_reason_names_the_version(count, monkeypatch):
    monkeypatch.delattr(torch.profiler, "ExecutionTraceObserver")
    train(count.script)
    assert count.facts["reason"] == operators.NO_OBSERVER.format(torch.__version__)


def test_compiled_step_is_not_taken(count, monkeypatch):
    counters = {"frames": {"total": 0}}
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", type("Utils", (), {"counters": counters}))

    def compile_in(number):
        if number == 3:
            counters["frames"]["total"] += 1

    train(count.script, evaluate=compile_in)
    assert count.facts["file"].endswith("-2.json")
