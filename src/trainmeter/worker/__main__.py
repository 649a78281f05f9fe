"""The worker: `python -m trainmeter.worker RUN_FOLDER` trains the job that the folder's job.json holds.

Its story, with the steward's part in brackets:

    build model, data, optimizer
    for each epoch:
        wait for the device; ask to open [counters read]; train; wait for the device; say closed [counters read]
        hand over what was measured [recorded, published]
        the same for the evaluation
    leave the weights and a trace
"""

import copy
import itertools
import os
import random
import sys
import traceback

import torch

from trainmeter.build import build
from trainmeter.record import Record
from trainmeter.worker.clock import Clock
from trainmeter.worker.data.loader import open_split, train_loader, val_loader
from trainmeter.worker.device import accelerator, description, memory, settle, timeline
from trainmeter.worker.link import Link, die_with_parent
from trainmeter.worker.loop import Tally, evaluate, train


def main(folder):
    die_with_parent()
    link = Link(os.environ["TRAINMETER_SOCKET"])
    try:
        work(Record(folder), link)
    except Exception as error:
        traceback.print_exc()
        link.say("failed", failure=failure(error), message=words(error))
        raise SystemExit(1) from error


def work(record, link):
    """All that the worker does, for `record`'s job."""
    job = record.job()
    random.seed(job["seed"])
    torch.manual_seed(job["seed"])
    device = accelerator(job["device"]["accelerator"])
    folder = record.run()["dataset"]["folder"]
    training = train_loader(open_split(job["dataset"], folder, "train"), job, device.type == "cuda")
    validation = val_loader(open_split(job["dataset"], folder, "val"), job, device.type == "cuda")
    model = build(job["model"])
    check_inputs(model, job)
    model.to(device)
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = build(job["optimizer"], model.parameters())
    clock = Clock(timeline(device), synchronous=job["timing"] == "synchronous", observe=link.progress)

    def move(batch):
        inputs, targets = batch
        return inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)

    def learn(batches, tally):
        train(model, batches, criterion, optimizer, tally)

    def judge(batches, tally):
        evaluate(model, batches, criterion, tally)

    def window(name, epoch, loader, run):
        return measure(record, link, clock, device, name, epoch, clock.batches(loader, move), len(loader), run)

    link.ask("built", **facts(model, device))
    for epoch in range(job["epochs"]):
        stop = window("epoch", epoch, training, learn)
        if job["evaluate"]:
            stop = window("val", epoch, validation, judge)
        if stop:
            break
    if job["save_model"]:
        torch.save(model.state_dict(), str(record.folder / "weights.pt"))
    link.ask("trained")
    endless = (move(batch) for _ in itertools.count() for batch in training)
    try:
        path = str(record.folder / "trace.json.gz")
        build(job["profiler"]).take(path, endless, lambda batches: learn(batches, Tally(device)))
    except Exception as error:
        # All that counts is measured by now: a profiler that fails leaves a note, not a failed run.
        traceback.print_exc()
        link.say("note", text="no trace: {}".format(error))
    link.say("done")


def measure(record, link, clock, device, name, epoch, batches, steps, run):
    """One window: `run` over the batches between two readings of the counters; whether to stop after it."""
    tally = Tally(device)
    settle(device)
    link.ask("open", window=name, epoch=epoch, steps=steps)
    clock.open()
    run(batches, tally)
    clock.close()
    link.ask("closed")
    parts = dict(clock.parts(), samples=tally.samples, **memory(device))
    loss, accuracy = tally.means()
    if name == "epoch":
        record.append_steps(clock.rows)
    times = {"opened_ns": clock.opened_ns, "closed_ns": clock.closed_ns}
    return link.ask("measured", parts=parts, loss=loss, accuracy=accuracy, **times)["stop"]


def check_inputs(model, job):
    """Refuses a model that cannot take the dataset's images, before anything is measured.

    Shapes alone are worked out, on torch's meta device; an old torch that lacks it for some layer checks nothing.
    """
    size, channels = job["dataset"]["size"], job["dataset"]["channels"]
    try:
        shapes = copy.deepcopy(model).to("meta").eval()
        with torch.no_grad():
            shapes(torch.empty(2, channels, size, size, device="meta"))
    except NotImplementedError:
        return
    except (RuntimeError, AssertionError) as error:
        images = "{} x {} x {}".format(channels, size, size)
        raise ValueError(
            "model {} cannot take the images of dataset {}, {}: {}. Set dataset.size, or take another model.".format(
                job["model"]["name"], job["dataset"]["name"], images, str(error).splitlines()[0]
            )
        ) from error


def facts(model, device):
    """What the record holds of the model and of what trains it."""
    parameters = list(model.parameters())
    tensors = parameters + list(model.buffers())
    counts = {
        "parameters": sum(p.numel() for p in parameters if p.requires_grad),
        "weight_bytes": sum(t.numel() * t.element_size() for t in tensors),
    }
    return {"model": counts, "training": description(device)}


def words(error):
    """What an error says; one from a loader process brings its traceback along, which is for the log alone."""
    text = str(error).strip()
    if "Original Traceback" in text:
        text = text.splitlines()[-1].partition(": ")[2]
    return text or type(error).__name__


def failure(error):
    """The word for an error in the tag `trainmeter.failure`."""
    out_of_memory = isinstance(error, MemoryError) or "out of memory" in str(error)
    return "oom" if out_of_memory else "exception"


if __name__ == "__main__":
    main(sys.argv[1])
