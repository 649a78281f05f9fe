"""Two workers of Ray Train with DistributedDataParallel, which Ray starts in processes of its own."""

import contextlib
import logging
import os
import sys
import tempfile

FOLDER = os.path.dirname(os.path.abspath(__file__))
MODULES = [FOLDER, os.path.join(FOLDER, "without_amdsmi")]
sys.path.insert(0, MODULES[1])
inherited = os.environ.get("PYTHONPATH")
os.environ["PYTHONPATH"] = os.pathsep.join(([inherited] if inherited else []) + MODULES)  # of all processes of Ray
os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0", RAY_TRAIN_V2_ENABLED="1")

import ray
from ray.train import RunConfig, ScalingConfig, get_context, report
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model


def train(config):
    from torch.utils.data import DataLoader
    from truth import Data, Truth, small_model, train_on

    logging.disable(logging.INFO)  # Ray's lines about both workers are in any order
    truth = Truth()
    model, optimizer = small_model()
    whole = prepare_model(model)
    loader = prepare_data_loader(DataLoader(Data(64, truth), 8), auto_transfer=False)
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        with truth.window():
            for inputs, targets in loader:
                truth.step(2 * len(inputs))
                train_on(whole, optimizer, inputs, targets)
        report({"epoch": epoch})
    if get_context().get_world_rank() == 0:
        truth.write(model)


if __name__ == "__main__":
    stderr = os.dup(2)
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as file:
        os.dup2(file.fileno(), 2)  # the lines of Ray's loggers are in the order of the workers
        # Before Ray 2.43, the trainer needs a processor of its own.
        options = {"num_cpus": 3, "include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        ray.init(**options)
        scaling = ScalingConfig(num_workers=2)
        trainer = TorchTrainer(train, scaling_config=scaling, run_config=RunConfig(storage_path=folder))
        with contextlib.redirect_stdout(file):  # earlier versions print times
            trainer.fit()
        ray.shutdown()
        os.dup2(stderr, 2)
