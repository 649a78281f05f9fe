"""The worker: `python -m trainmeter.worker RUN_FOLDER` trains the job that the folder's job.json holds.

Its story, with the steward's part in brackets:

    build model, data, optimizer
    for each epoch:
        wait for the device; ask to open [counters read]; train; wait for the device; say closed [counters read]
        hand over what was measured [recorded, published]
        the same for the evaluation
    leave the weights and a trace
"""

import itertools
import os
import random
import sys
import traceback

import torch

from trainmeter.build import build
from trainmeter.record import Record
from trainmeter.worker.clock import Clock
from trainmeter.worker.data import faults
from trainmeter.worker.data.loader import loaders, notes
from trainmeter.worker.device import description, timeline
from trainmeter.worker.learner import Learner
from trainmeter.worker.link import Link, die_with_parent
from trainmeter.worker.windows import Windows


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
    strategy, task = build(job["strategy"]), build(job["task"])
    device = strategy.device(job["device"]["accelerator"])
    training, validation = loaders(job, record.run()["dataset"], task, strategy, device.type == "cuda")
    learner = Learner(job, task, strategy, device)
    clock = Clock(timeline(device), synchronous=job["timing"] == "synchronous", observe=link.progress)
    windows = Windows(record, link, clock, learner)

    link.ask("built", model=learner.facts(), training=description(device), notes=notes(job, training))
    for epoch in range(job["epochs"]):
        strategy.begin(epoch)
        last = windows.epoch(epoch, training)
        learner.advance()
        if job["evaluate"]:
            last = windows.val(epoch, validation)
        if last:
            break
    if job["save_model"]:
        torch.save(learner.model.state_dict(), str(record.folder / "weights.pt"))
    link.ask("trained")
    note = leave_trace(str(record.folder / "trace.json.gz"), build(job["profiler"]), learner, training)
    if note:
        link.say("note", text=note)
    link.say("done")


def leave_trace(path, profiler, learner, loader):
    """Traces a few steps, now that all that counts is measured: why that failed is a note, no failed run."""
    endless = (learner.move(batch) for _ in itertools.count() for batch in loader)
    try:
        profiler.take(path, endless, learner.learn)
    except Exception as error:
        traceback.print_exc()
        return "no trace: {}".format(words(error))
    return None


def words(error):
    """What an error says; one from a loader process brings its traceback along, which is for the log alone."""
    text = str(error).strip()
    if "Original Traceback" in text:
        text = text.splitlines()[-1].partition(": ")[2]
    whole = faults.whole_text(error)
    if faults.is_shared_memory(whole):
        return faults.shared_memory(text)
    return faults.killed(text) if faults.is_killed(whole) else text or type(error).__name__


def failure(error):
    """The word for an error in the tag `trainmeter.failure`."""
    text = faults.whole_text(error)
    if faults.is_shared_memory(text):
        return "shared_memory"
    if faults.is_killed(text):
        return "killed" if faults.kernel_counts_kills() else "oom"
    out_of_memory = isinstance(error, MemoryError) or "out of memory" in str(error)
    return "oom" if out_of_memory else getattr(error, "failure", "exception")


if __name__ == "__main__":
    main(sys.argv[1])
