"""Callback for PyTorch Lightning."""

from typing import Any

from epochmeter.agent.meter import Meter

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback


class EpochMeter(Callback):  # type: ignore[misc]  # of a class that mypy would need minutes to read
    """Measures the epochs and evaluations of `Trainer.fit`; give it to the Trainer in `callbacks=`.

    The arguments are those of `Meter`. The attribute `meter` is that `Meter`: `meter.last` measures the last epoch.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from epochmeter.integrations.lightning import EpochMeter
        >>> trainer = Trainer(max_epochs=3, logger=False, accelerator="cpu", callbacks=[EpochMeter("fan=max")])
    """

    def __init__(self, *overrides: str) -> None:
        self.meter = Meter(*overrides)

    def on_fit_start(self, trainer: Any, pl_module: object) -> None:
        if trainer.global_rank == 0:
            self.meter.hook_loaders()
            epochs = (trainer.max_epochs or 0) - trainer.current_epoch  # -1: without end
            self.meter.expect_epochs(epochs if epochs > 0 and trainer.max_steps < 0 else None)

    def on_train_batch_end(self, trainer: Any, *arguments: object) -> None:
        if trainer.is_last_batch:  # also of `limit_train_batches`; a validation may follow before the epoch's end
            self.meter.end_window()

    def on_train_epoch_end(self, trainer: object, pl_module: object) -> None:
        self.meter.end_window()

    def on_fit_end(self, trainer: object, pl_module: object) -> None:
        self.meter.close()

    def on_exception(self, trainer: object, pl_module: object, exception: BaseException) -> None:
        self.meter.close(exception)
