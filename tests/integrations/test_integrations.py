"""Real training loops of libraries, measured by the hooks alone and by their callbacks."""

import importlib
import sys

import pytest
import torch
from recorded import Connection, windows_of
from torch import nn
from torch.utils.data import DataLoader, RandomSampler

from epochmeter import Meter
from epochmeter.agent import hooks, recording
from epochmeter.agent.agent import Agent
from epochmeter.agent.find_controller import NoControllerError
from epochmeter.shared.events import FOLDER_PREFIX, NO_CONTROLLER
from epochmeter.testing import check_adapter

pytestmark = pytest.mark.system
DATA = [(torch.full((10,), float(number)), number % 2) for number in range(64)]
OF_TWO_EPOCHS = [("epoch", 0, 8), ("val", 0, 4), ("epoch", 1, 8), ("val", 1, 4)]


def lightning(callbacks, folder):
    from lightning import pytorch

    class Net(pytorch.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(10, 2)

        def training_step(self, batch, number):
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch, number):
            self.net(batch[0])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary"), False)
    trainer = pytorch.Trainer(max_epochs=2, limit_train_batches=8, accelerator="cpu", callbacks=callbacks, **quiet)
    net = Net()
    trainer.fit(net, DataLoader(DATA, 8, sampler=RandomSampler(DATA, num_samples=128)), DataLoader(DATA, 16))
    return net


def transformers(callbacks, folder):
    pytest.importorskip("transformers", reason="transformers needs Python 3.11 or newer")
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32}
    model = BertForSequenceClassification(BertConfig(num_hidden_layers=1, num_attention_heads=2, **sizes))
    data = [{"input_ids": torch.randint(0, 50, (8,)), "labels": torch.tensor(number % 2)} for number in range(64)]
    arguments = TrainingArguments(
        str(folder), num_train_epochs=2, per_device_train_batch_size=8, per_device_eval_batch_size=16, use_cpu=True,
        eval_strategy="epoch", save_strategy="epoch", report_to=[], disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    Trainer(model, arguments, train_dataset=data, eval_dataset=data, callbacks=callbacks).train()
    return model


def accelerate(adapters, folder):
    """Train in a loop of one's own, with a `Meter` in the loop."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    net = nn.Linear(10, 2)
    net, optimizer, loader, held_out = accelerator.prepare(
        net, torch.optim.SGD(net.parameters(), lr=0.01), DataLoader(DATA, 8, shuffle=True), DataLoader(DATA, 16)
    )
    meter = adapters[0].meter if adapters else None
    for _ in meter.epochs(2) if meter else range(2):
        for inputs, targets in meter.batches(loader) if meter else loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(net(inputs), targets))
            optimizer.step()
        with torch.no_grad():
            for inputs, _ in meter.batches(held_out) if meter else held_out:
                net(inputs)
    if meter:
        meter.close()
    return net


class InLoop:
    """A `Meter` in the script itself."""

    def __init__(self):
        self.meter = Meter()


def adapter(loop):
    """Return the adapter of a loop."""
    if loop is accelerate:
        return InLoop()
    return importlib.import_module(f"epochmeter.integrations.{loop.__name__}").EpochMeter()


def windows(folder):
    """Return name, epoch and steps of each window."""
    epochs, found = -1, []
    for window in windows_of(folder).windows:
        epochs += window.name == "epoch"
        found.append((window.name, epochs, window.parts["steps"]))
    return found


def weights(loop, *arguments):
    torch.manual_seed(0)
    return [parameter.detach().clone() for parameter in loop(*arguments).parameters()]


@pytest.fixture(autouse=True)
def _no_other_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # transformers would take tests/datasets for a library
    monkeypatch.delenv("EPOCHMETER_MEASURED", raising=False)


@pytest.mark.parametrize("loop", [lightning, transformers, accelerate])
def test_epochs_and_evaluations_are_complete_by_the_hooks_alone_and_weights_unchanged(loop, tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "ScriptConnection", lambda folder, *_: Connection(folder))
    plain, logs = weights(loop, [], tmp_path), tmp_path / "alone"
    logs.mkdir()
    agent = Agent(str(logs), str(logs), str(tmp_path))
    restores = hooks.hook_loaders(agent), hooks.hook_training(agent)
    measured = weights(loop, [], tmp_path)
    for restore in restores:
        restore()
    agent.end()
    assert all(map(torch.equal, measured, plain))
    assert windows(logs) == OF_TWO_EPOCHS


@pytest.mark.parametrize("loop", [lightning, transformers, accelerate])
def test_adapter_keeps_the_contract(loop, tmp_path):
    def train(made):
        return weights(loop, [made] if made else [], tmp_path)

    check_adapter(lambda: adapter(loop), train, epochs=2, steps=8, evaluations=2)


@pytest.mark.parametrize("loop", [lightning, transformers])
def test_callback_has_the_energy_of_the_last_epoch_after_training(loop, tmp_path, monkeypatch):
    class Controller:
        def __init__(self, overrides):
            self.agent = {"socket": str(tmp_path), "logs": str(tmp_path), "folder": str(tmp_path)}

        def wait(self):
            pass

    monkeypatch.setattr(recording, "ScriptConnection", lambda folder, *_: Connection(folder))
    monkeypatch.setattr("epochmeter.agent.own_controller.Controller", Controller)
    loop([callback := adapter(loop)], tmp_path)
    assert callback.meter.last.energy_j == 2.0


@pytest.mark.parametrize("loop", [lightning, transformers])
def test_callback_without_a_controller_records_the_same_windows_for_a_later_command(loop, tmp_path, monkeypatch):
    def without(overrides):
        raise NoControllerError("there is none")

    monkeypatch.setattr("epochmeter.agent.own_controller.Controller", without)
    monkeypatch.chdir(tmp_path)
    loop([callback := adapter(loop)], tmp_path)
    assert callback.meter.last.reason == NO_CONTROLLER
    (folder,) = tmp_path.glob(f"{FOLDER_PREFIX}*")
    assert windows(folder) == OF_TWO_EPOCHS
