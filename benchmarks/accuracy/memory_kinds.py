"""Memory by kind compared with PyTorch's own count, for 12 models on the CPU.

One profile covers the construction of each model and two training steps, so that its memory events count everything
from zero. The sum of the kinds at the peak of the second step must be PyTorch's total within 1 %.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from common.output import SHORT, print_table
from torch import nn
from torch.amp import GradScaler
from torch.profiler import ProfilerActivity, profile, record_function

from epochmeter.worker.loop import EpochStats, train
from epochmeter.worker.memory import ON_CPU, peak_by_kind, train_marked
from epochmeter.worker.models.lenet import LeNet
from epochmeter.worker.models.seq2seq import Seq2Seq
from epochmeter.worker.models.transformer import Transformer
from epochmeter.worker.models.vision import classifier
from epochmeter.worker.precision import NullContext
from epochmeter.worker.tasks import Classification, Regression, Translation

CPU = torch.device("cpu")
STEP = "measured step"  # name of its range
MAX_DIFFERENCE = 0.01
IMAGES = Classification(auxiliary=0.4)
WORDS = {"words": 200, "length": 16}


def images(size: int, channels: int = 3) -> dict[str, int]:
    return {"size": size, "channels": channels, "classes": 10}


def torchvision(name: str, **options: Any) -> Any:
    return lambda: classifier(name, 3, 10, **options)


MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "lenet": (lambda: LeNet(1, 10), IMAGES, images(32, 1)),
    "resnet18": (torchvision("resnet18", stem="cifar"), IMAGES, images(32)),
    "resnet18, instance norm": (torchvision("resnet18", norm="instance"), IMAGES, images(64)),
    "resnet50": (torchvision("resnet50"), IMAGES, images(96)),
    "vgg11": (torchvision("vgg11"), IMAGES, images(32)),
    "mobilenet_v3_small": (torchvision("mobilenet_v3_small"), IMAGES, images(96)),
    "squeezenet1_1": (torchvision("squeezenet1_1"), IMAGES, images(96)),
    "shufflenet_v2_x0_5": (torchvision("shufflenet_v2_x0_5"), IMAGES, images(96)),
    "inception_v3": (torchvision("inception_v3"), IMAGES, images(299)),
    "seq2seq": (lambda: Seq2Seq(200, "lstm", 64, 2, 0.1), Translation(), WORDS),
    "transformer": (lambda: Transformer(200, 16, 64, 4, 2, 128, 0.1), Translation(), WORDS),
    "linear": (lambda: nn.Linear(512, 1), Regression("mse_loss"), {"features": 512}),
}


def trainer_of(model: nn.Module, task: Any) -> SimpleNamespace:
    """Return a trainer that trains as in a run."""
    optimizer = torch.optim.Adam(model.parameters())

    def train_epoch(batches: list) -> None:
        train(model, batches, task, optimizer, EpochStats(task), NullContext(), GradScaler(enabled=False))

    return SimpleNamespace(model=model, optimizer=optimizer, device=CPU, train_epoch=train_epoch)


def measure(name: str, samples: int = 4) -> tuple[dict[str, int], int]:
    """Return the bytes by kind at the peak of a step, and PyTorch's own peak."""
    build, task, dataset = MODELS[name]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        trainer, batch = trainer_of(build(), task), task.example(dataset, samples, torch.Generator())
        trainer.train_epoch([batch])
        trainer.optimizer.zero_grad()
        with record_function(STEP):
            before, after = train_marked(trainer, batch)
    with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        events = json.loads(Path(file.name).read_text())["traceEvents"]
    since = next(event["ts"] for event in events if event.get("name") == STEP)
    step = [event for event in events if event.get("ts", 0) >= since]
    totals = [event["args"]["Total Allocated"] for event in step if event["name"] == "[memory]"]
    return peak_by_kind(step, before, after, ON_CPU)["kinds"], max(totals)


def main() -> int:
    worst, rows, kinds = 0.0, [], {}
    names = ["lenet", "transformer"] if SHORT else [*MODELS]
    # PyTorch counts memory that is freed after a profile as allocated: each model needs a process of its own.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        results = pool.map(measure, names, chunksize=1)
    for name, (kinds, peak) in zip(names, results, strict=True):
        difference = sum(kinds.values()) / peak - 1
        worst = max(worst, abs(difference))
        rows.append(
            [name, f"{peak / 1e6:.2f}", *(f"{size / 1e6:.2f}" for size in kinds.values()), f"{difference:+.2%}"]
        )
    columns = ["model", "torch's peak (MB)", *kinds, "difference"]
    print_table("Memory by kind at the peak of a training step, in MB, compared with PyTorch's count", columns, rows)
    return int(worst > MAX_DIFFERENCE)


if __name__ == "__main__":
    sys.exit(main())
