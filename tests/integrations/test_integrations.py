"""Real training loops of libraries, measured by the hooks alone and by their callbacks."""

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

pytestmark = pytest.mark.system
DATA = [(torch.full((10,), float(number)), number % 2) for number in range(64)]
OF_TWO_EPOCHS = [("epoch", 0, 8), ("val", 0, 4), ("epoch", 1, 8), ("val", 1, 4)]


def lightning(callback, folder):
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

    if callback:
        from epochmeter.integrations.lightning import EpochMeter

        callback = EpochMeter()
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary"), False)
    trainer = pytorch.Trainer(max_epochs=2, limit_train_batches=8, accelerator="cpu", callbacks=callback or [], **quiet)
    net = Net()
    trainer.fit(net, DataLoader(DATA, 8, sampler=RandomSampler(DATA, num_samples=128)), DataLoader(DATA, 16))
    return net, callback


def transformers(callback, folder):
    pytest.importorskip("transformers", reason="transformers needs Python 3.11 or newer")
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    if callback:
        from epochmeter.integrations.transformers import EpochMeter

        callback = EpochMeter()
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32}
    model = BertForSequenceClassification(BertConfig(num_hidden_layers=1, num_attention_heads=2, **sizes))
    data = [{"input_ids": torch.randint(0, 50, (8,)), "labels": torch.tensor(number % 2)} for number in range(64)]
    arguments = TrainingArguments(
        str(folder), num_train_epochs=2, per_device_train_batch_size=8, per_device_eval_batch_size=16, use_cpu=True,
        eval_strategy="epoch", save_strategy="epoch", report_to=[], disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    callbacks = [callback] if callback else []
    Trainer(model, arguments, train_dataset=data, eval_dataset=data, callbacks=callbacks).train()
    return model, callback


def accelerate(callback, folder):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    net = nn.Linear(10, 2)
    net, optimizer, loader, held_out = accelerator.prepare(
        net, torch.optim.SGD(net.parameters(), lr=0.01), DataLoader(DATA, 8, shuffle=True), DataLoader(DATA, 16)
    )
    meter = Meter()
    for _ in meter.epochs(2):
        for inputs, targets in meter.batches(loader) if callback else loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(net(inputs), targets))
            optimizer.step()
        with torch.no_grad():
            for inputs, _ in meter.batches(held_out) if callback else held_out:
                net(inputs)
    last = meter.last
    meter.close()
    assert not callback or last.energy_j == 2.0
    return net, None


def windows(folder):
    """Return name, epoch and steps of each window."""
    epochs, found = -1, []
    for window in windows_of(folder).windows:
        epochs += window.name == "epoch"
        found.append((window.name, epochs, window.parts["steps"]))
    return found


def weights(loop, *arguments):
    torch.manual_seed(0)
    model, callback = loop(*arguments)
    return [parameter.detach().double().sum().item() for parameter in model.parameters()], callback


@pytest.mark.parametrize("loop", [lightning, transformers, accelerate])
def test_epochs_and_evaluations_are_complete_and_weights_unchanged(loop, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # transformers would take tests/datasets for a library
    monkeypatch.setattr(recording, "ScriptConnection", lambda folder, *_: Connection(folder))
    alone, metered = tmp_path / "alone", tmp_path / "metered"
    alone.mkdir()
    metered.mkdir()
    plain, _ = weights(loop, False, tmp_path)

    agent = Agent(str(alone), str(alone), str(tmp_path))
    restores = hooks.hook_loaders(agent), hooks.hook_training(agent)
    assert weights(loop, False, tmp_path)[0] == plain
    for restore in restores:
        restore()
    agent.end()

    class Controller:
        def __init__(self, overrides):
            self.agent = {"socket": str(metered), "logs": str(metered), "folder": str(tmp_path)}

        def wait(self):
            pass

    monkeypatch.setattr("epochmeter.agent.meter.Controller", Controller)
    measured, callback = weights(loop, True, tmp_path)
    assert measured == plain
    assert callback is None or callback.meter.last.energy_j == 2.0
    assert callback is None or windows_of(metered).expected_epochs == 2
    assert (windows(alone), windows(metered)) == (OF_TWO_EPOCHS, OF_TWO_EPOCHS)


@pytest.mark.parametrize("loop", [lightning, transformers])
def test_callback_without_a_controller_records_the_same_windows_for_a_later_command(loop, tmp_path, monkeypatch):
    def without(overrides):
        raise NoControllerError("there is none")

    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.setattr("epochmeter.agent.meter.Controller", without)
    monkeypatch.delenv("EPOCHMETER_MEASURED", raising=False)
    monkeypatch.chdir(tmp_path)
    plain, _ = weights(loop, False, tmp_path)
    measured, callback = weights(loop, True, tmp_path)
    assert measured == plain
    assert callback.meter.last.reason == NO_CONTROLLER
    (folder,) = tmp_path.glob(f"{FOLDER_PREFIX}*")
    assert windows(folder) == OF_TWO_EPOCHS
