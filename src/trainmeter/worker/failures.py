"""An error that ends a run, as the steward is told of it: by a word, and in words."""

import os

from trainmeter.worker import exhaustion
from trainmeter.worker.data import faults

BETWEEN_RANKS = ("gloo", "NCCL", "ProcessGroup", "monitoredBarrier", "Connection closed by peer", "TCPStore")
"""What stands in errors of the communication between ranks."""


def message(error, job):
    """What the steward is to tell of an error that ends a run of `job`."""
    if failure(error) == "oom" and exhaustion.is_exhausted(error):
        return exhaustion.told(error, job["batch"])
    return words(error)


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
    if exhaustion.is_exhausted(error):
        return "oom"
    return "rank" if is_of_another_rank(error) else getattr(error, "failure", "exception")


def is_of_another_rank(error):
    """Whether an error is but what another rank's end, or silence, looks like from here."""
    told = isinstance(error, RuntimeError) and not hasattr(error, "failure") and not exhaustion.is_exhausted(error)
    return "RANK" in os.environ and told and any(word in str(error) for word in BETWEEN_RANKS)
