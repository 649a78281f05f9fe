"""An error that ends a run, as the steward is told of it: by a word, and in words."""

import os
import re

from epochmeter.worker import oom
from epochmeter.worker.data import faults

BETWEEN_RANKS = ("gloo", "NCCL", "ProcessGroup", "monitoredBarrier", "Connection closed by peer", "TCPStore")
"""What stands in errors of the communication between ranks."""
SPEAKING = (ValueError, RuntimeError, OSError)
"""Exceptions whose texts say what is wrong; of others, as of a KeyError, the kind is half of it."""
CAUGHT = re.compile(r"Caught (\w+) in .*\nOriginal Traceback")
"""What torch says of an exception that comes from another process or thread, with its traceback."""


def message(error, job):
    """What the steward is to tell of an error that ends a run of `job`."""
    if failure(error) == "oom" and oom.is_exhausted(error) and not hasattr(error, "failure"):
        return oom.told(error, "batch={}".format(job["batch"]))
    return words(error)


def words(error):
    """What an error says; one from a loader process brings its traceback along, which is for the log alone."""
    kind, text = said(error)
    whole = faults.whole_text(error)
    if faults.is_shared_memory(whole):
        return faults.shared_memory(text)
    if faults.is_killed(whole):
        return faults.killed(text)
    if isinstance(error, SPEAKING) and kind == type(error).__name__:
        return text or kind
    return "{}: {}".format(kind, text) if text else kind


def said(error):
    """The name of an error's class and its text: those of the one in a loader process, where it stands for that."""
    text = str(error).strip()
    caught = CAUGHT.match(text)
    if not caught:
        return type(error).__name__, text
    for line in reversed(text.splitlines()):
        name, _, its_text = line.partition(": ")
        if name.rpartition(".")[2] == caught.group(1):
            return caught.group(1), its_text
    return caught.group(1), ""


def failure(error):
    """The word for an error in the tag `epochmeter.failure`."""
    text = faults.whole_text(error)
    if faults.is_shared_memory(text):
        return "shared_memory"
    if faults.is_killed(text):
        return "killed" if faults.kernel_counts_kills() else "oom"
    if oom.is_exhausted(error):
        return "oom"
    return "rank" if is_of_another_rank(error) else getattr(error, "failure", "exception")


def is_of_another_rank(error):
    """Whether an error is but what another rank's end, or silence, looks like from here."""
    told = isinstance(error, RuntimeError) and not hasattr(error, "failure") and not oom.is_exhausted(error)
    return "RANK" in os.environ and told and any(word in str(error) for word in BETWEEN_RANKS)
