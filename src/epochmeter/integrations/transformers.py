"""Callback for the Trainer of Hugging Face's transformers."""

from transformers import TrainerCallback

from epochmeter.agent.meter import Meter


class EpochMeter(TrainerCallback):
    """Measures the epochs and evaluations of `Trainer.train`; give it to the Trainer in `callbacks=`.

    The arguments are those of `Meter`. The attribute `meter` is that `Meter`: `meter.last` measures the last epoch.
    """

    def __init__(self, *overrides):
        self.meter = Meter(*overrides)

    def on_train_begin(self, args, state, control, **objects):
        if state.is_world_process_zero:
            self.meter.hook_loaders()
            epochs = state.num_train_epochs - int(state.epoch or 0)
            self.meter.expect_epochs(epochs if args.max_steps <= 0 else None)

    def on_epoch_end(self, args, state, control, **objects):
        self.meter.end_window()

    def on_train_end(self, args, state, control, **objects):
        self.meter.close()
