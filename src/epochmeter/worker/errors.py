"""Errors that end a run, as the training process reports them to the controller: failure class and message."""

import os
import re

from epochmeter.worker import oom
from epochmeter.worker.data import faults

COMMUNICATION_ERRORS = ("gloo", "NCCL", "ProcessGroup", "monitoredBarrier", "Connection closed by peer", "TCPStore")
"""Substrings of errors in the communication between ranks."""
PLAIN_ERRORS = (ValueError, RuntimeError, OSError)
"""Exceptions whose message is clear without the class name, unlike a KeyError's."""
CAUGHT_IN_LOADER = re.compile(r"Caught (\w+) in .*\nOriginal Traceback")
"""torch's prefix for an exception from another process or thread, which has the traceback in its text."""


def final_message(error, job):
    """Return the message for an error that ends a run of `job`."""
    if failure_kind(error) == "oom" and oom.is_out_of_memory(error) and not hasattr(error, "failure"):
        return oom.describe_out_of_memory(error, "batch={}".format(job["batch"]))
    return error_text(error)


def error_text(error):
    """Return an error's message without the traceback that an error from a DataLoader worker carries; that goes to the
    log only.
    """
    kind, text = class_and_text(error)
    chain = faults.error_chain_text(error)
    if faults.is_shared_memory(chain):
        return faults.shared_memory_message(text)
    if faults.is_killed(chain):
        return faults.killed_message(text)
    if isinstance(error, PLAIN_ERRORS) and kind == type(error).__name__:
        return text or kind
    return "{}: {}".format(kind, text) if text else kind


def class_and_text(error):
    """Return an error's class name and text; for an error forwarded from a DataLoader worker, those of the original."""
    text = str(error).strip()
    caught = CAUGHT_IN_LOADER.match(text)
    if not caught:
        return type(error).__name__, text
    for line in reversed(text.splitlines()):
        name, _, message = line.partition(": ")
        if name.rpartition(".")[2] == caught.group(1):
            return caught.group(1), message
    return caught.group(1), ""


def failure_kind(error):
    """Return the failure class of an error, the value of the tag `epochmeter.failure`."""
    text = faults.error_chain_text(error)
    if faults.is_shared_memory(text):
        return "shared_memory"
    if faults.is_killed(text):
        return "killed" if faults.kernel_counts_kills() else "oom"
    if oom.is_out_of_memory(error):
        return "oom"
    return "rank" if is_peer_rank_error(error) else getattr(error, "failure", "exception")


def is_peer_rank_error(error):
    """Whether an error is only the consequence of another rank's failure or timeout."""
    from_torch = isinstance(error, RuntimeError) and not hasattr(error, "failure") and not oom.is_out_of_memory(error)
    return "RANK" in os.environ and from_torch and any(word in str(error) for word in COMMUNICATION_ERRORS)
