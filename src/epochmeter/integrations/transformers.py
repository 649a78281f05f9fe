"""Callback for the Trainer of Hugging Face's transformers."""

from typing import Any

from transformers import TrainerCallback

from epochmeter.agent.meter import Meter


class EpochMeter(TrainerCallback):  # type: ignore[misc]  # of a class that mypy would need minutes to read
    """Measures the epochs and evaluations of `Trainer.train`; give it to the Trainer in `callbacks=`.

    The arguments are those of `Meter`. The attribute `meter` is that `Meter`: `meter.last` measures the last epoch.

    Example:
        >>> from torch.nn import Linear
        >>> from transformers import Trainer
        >>> from epochmeter.integrations.transformers import EpochMeter
        >>> trainer = Trainer(Linear(2, 1), callbacks=[EpochMeter("fan=max")])
    """

    def __init__(self, *overrides: str) -> None:
        self.meter = Meter(*overrides)

    def on_train_begin(self, args: Any, state: Any, control: object, **objects: object) -> None:
        if state.is_world_process_zero:
            self.meter.hook_loaders()
            epochs = state.num_train_epochs - int(state.epoch or 0)
            self.meter.expect_epochs(epochs if args.max_steps <= 0 else None)

    def on_epoch_end(self, args: object, state: object, control: object, **objects: object) -> None:
        self.meter.end_window()

    def on_train_end(self, args: object, state: object, control: object, **objects: object) -> None:
        self.meter.close()
