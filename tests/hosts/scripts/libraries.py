"""Loops of libraries, with their own count of steps."""

import logging
import random
import sys
import warnings

import numpy
import torch
from torch.utils.data import DataLoader
from truth import Data, Truth, small_model, train_on

kind = sys.argv[1]
warnings.simplefilter("ignore")
truth = Truth()
model, optimizer = small_model()
data = Data(64, truth)


def accelerate():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    own, stepper, loader = accelerator.prepare(model, optimizer, DataLoader(data, 8))
    for _ in range(3):
        with truth.window():
            for inputs, targets in loader:
                truth.step(len(inputs))
                loss = (own(inputs) - targets).pow(2).mean()
                stepper.zero_grad()
                accelerator.backward(loss)
                stepper.step()


def lightning_several():
    """The shorter loader begins again within the epoch."""
    lightning({"short": DataLoader(Data(24, truth), 8), "long": DataLoader(data, 8)}, samples="samples are unknown")


def lightning(loader=None, **unknown):
    import lightning.pytorch as pl

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch, number):
            truth.step(len((batch[0] if loader is None else batch["long"])[0]))
            batches = [batch] if loader is None else batch.values()
            return sum((self.model(inputs) - targets).pow(2).mean() for inputs, targets in batches)

        def validation_step(self, batch, number):
            if truth.open is not None:  # not in the sanity check
                truth.step(len(batch[0]))
            self.model(batch[0])

        def configure_optimizers(self):
            return optimizer

    class Timed(pl.Callback):
        def on_train_epoch_start(self, *_):
            self.window = truth.window(**unknown)
            self.window.__enter__()

        def on_validation_start(self, trainer, _):
            if trainer.sanity_checking:
                return
            self.window.__exit__(None, None, None)
            self.window = truth.window("val")
            self.window.__enter__()

        def on_validation_end(self, trainer, _):
            if not trainer.sanity_checking:
                self.window.__exit__(None, None, None)

    trainer = pl.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Timed()],
    )
    trainer.fit(Module(), loader or DataLoader(data, 8), DataLoader(Data(16, truth), 8))


def transformers():
    import transformers

    class Tuned(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, inputs, labels):
            outputs = self.model(inputs)
            return {"loss": (outputs - labels).pow(2).mean(), "logits": outputs}

    class Items(Data):
        def item(self, index):
            inputs, labels = super().item(index)
            return {"inputs": inputs, "labels": labels}

    class Timed(transformers.TrainerCallback):
        def on_epoch_begin(self, *_, **__):
            self.window = truth.window()
            self.window.__enter__()

        def on_step_end(self, *_, **__):
            truth.step(8)

        def on_epoch_end(self, *_, **__):
            self.window.__exit__(None, None, None)

    arguments = transformers.TrainingArguments(
        "unused",
        num_train_epochs=3,
        per_device_train_batch_size=8,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        logging_strategy="no",
    )
    trainer = transformers.Trainer(Tuned(), arguments, train_dataset=Items(64, truth), callbacks=[Timed()])
    trainer.remove_callback(transformers.PrinterCallback)  # prints times
    trainer.train()


def optuna():
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def objective(trial):
        own, stepper = small_model()
        stepper.param_groups[0]["lr"] = trial.suggest_float("lr", 0.01, 0.1)
        for _ in range(2):
            with truth.window():
                for inputs, targets in DataLoader(data, 8):
                    truth.step(len(inputs))
                    loss = train_on(own, stepper, inputs, targets)
        return loss

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective, 3)
    print(study.best_params)


def torchmetrics():
    import torchmetrics

    error = torchmetrics.MeanSquaredError()
    for _ in range(2):
        with truth.window():
            for inputs, targets in DataLoader(data, 8):
                truth.step(len(inputs))
                train_on(model, optimizer, inputs, targets)
        with truth.window("val"), torch.no_grad():
            for inputs, targets in DataLoader(Data(16, truth), 8):
                error.update(model(inputs), targets)
        print(error.compute().item())


def tensorboard():
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter("logs") as writer:
        for epoch in range(2):
            with truth.window():
                for number, (inputs, targets) in enumerate(DataLoader(data, 8)):
                    truth.step(len(inputs))
                    writer.add_scalar("loss", train_on(model, optimizer, inputs, targets), 8 * epoch + number)


def torchvision():
    import torchvision

    net = torchvision.models.mobilenet_v3_small(num_classes=2)
    own = torch.optim.AdamW(net.parameters())
    images = torchvision.datasets.FakeData(16, (3, 32, 32), 2, torchvision.transforms.ToTensor())
    for _ in range(2):
        with truth.window():
            iterator = iter(DataLoader(images, 8, shuffle=True))
            for _ in range(2):
                with truth.waiting():
                    inputs, targets = next(iterator)
                truth.step(len(inputs))
                own.zero_grad()
                torch.nn.functional.cross_entropy(net(inputs), targets).backward()
                own.step()


def ignite():
    from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer

    trainer = create_supervised_trainer(model, optimizer, torch.nn.MSELoss())
    evaluator = create_supervised_evaluator(model)
    held_out = DataLoader(Data(16), 8)
    windows = []

    @trainer.on(Events.EPOCH_STARTED)
    def begin():
        windows.append(truth.window())
        windows[-1].__enter__()

    @trainer.on(Events.ITERATION_STARTED)
    def count(engine):
        truth.step(len(engine.state.batch[0]))

    @trainer.on(Events.EPOCH_COMPLETED)
    def evaluate():
        windows[-1].__exit__(None, None, None)
        with truth.window("val"):
            evaluator.run(held_out)

    trainer.run(DataLoader(data, 8), max_epochs=3)


def skorch():
    import skorch

    class Timed(skorch.callbacks.Callback):
        def on_epoch_begin(self, *_, **__):
            self.window = truth.window()
            self.window.__enter__()

        def on_batch_begin(self, net, batch, **_):
            truth.step(len(batch[0]))

        def on_epoch_end(self, *_, **__):
            self.window.__exit__(None, None, None)

    class Items(Data, torch.utils.data.Dataset):
        pass

    net = skorch.NeuralNet(
        model, torch.nn.MSELoss, optimizer=torch.optim.SGD, lr=0.1, max_epochs=3, batch_size=8, train_split=None,
        verbose=0, callbacks=[Timed()],
    )  # fmt: skip
    net.fit(Items(64, truth), None)
    print(net.history[:, "train_loss"])
    model.load_state_dict(net.module_.state_dict())


def peft():
    import peft

    tuned = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["0", "2"], lora_dropout=0.1))
    own = torch.optim.AdamW([weight for weight in tuned.parameters() if weight.requires_grad], lr=0.01)
    for _ in range(3):
        with truth.window():
            for inputs, targets in DataLoader(data, 8):
                truth.step(len(inputs))
                print(train_on(tuned, own, inputs, targets))


def timm():
    import timm.data
    import timm.loss
    import timm.optim
    import timm.scheduler
    import timm.utils
    import torchvision

    random.seed(0)  # of the augmentations, as the next one
    numpy.random.seed(0)
    net = timm.create_model("test_vit", num_classes=2)
    own = timm.optim.create_optimizer_v2(net, "lamb", lr=0.01)
    schedule = timm.scheduler.CosineLRScheduler(own, 2)
    average, mixup = timm.utils.ModelEmaV2(net), timm.data.Mixup(0.2, num_classes=2)
    images = torchvision.datasets.FakeData(16, (3, 160, 160), 2)
    loader = timm.data.create_loader(
        images, (3, 160, 160), 8, is_training=True, use_prefetcher=False, num_workers=0, persistent_workers=False
    )
    for epoch in range(2):
        with truth.window():
            iterator = iter(loader)
            for _ in range(2):
                with truth.waiting():
                    inputs, targets = next(iterator)
                truth.step(len(inputs))
                inputs, targets = mixup(inputs, targets)
                own.zero_grad()
                loss = timm.loss.SoftTargetCrossEntropy()(net(inputs), targets)
                loss.backward()
                own.step()
                average.update(net)
        schedule.step(epoch + 1)
        print(loss.item())
    truth.write(net, average.module)


globals()[kind]()
if kind != "timm":
    truth.write(model)
