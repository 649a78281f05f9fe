"""Errors that end a run, as the training process reports them to the controller."""

import os
import re
import shutil
import traceback
from typing import Tuple

from epochmeter.shared.problem import EXCEPTION, PEER_RANK, Place, Problem, ProblemError, problem_of
from epochmeter.shared.record import WORKER_LOG
from epochmeter.shared.types import Document

COMMUNICATION_ERRORS = ("gloo", "NCCL", "ProcessGroup", "monitoredBarrier", "Connection closed by peer", "TCPStore")
"""Substrings of errors in the communication between ranks."""
PLAIN_ERRORS = (ValueError, RuntimeError, OSError)
"""Exceptions whose message is clear without the class name, unlike a KeyError's."""
CAUGHT_IN_LOADER = re.compile(r"Caught (\w+) in .*\nOriginal Traceback")
"""torch's prefix for an exception from another process or thread, which has the traceback in its text."""
OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|not enough memory: you tried|Cannot allocate memory|bad_alloc|ALLOC_FAILED",
    re.IGNORECASE,
)
"""Messages of torch, its libraries and the system about exhausted GPU or host memory; mostly in a RuntimeError."""
SHARED_MEMORY = re.compile(r"unable to [^<]*</torch_|shared memory object|out of shared memory|signal: Bus error")
"""torch's messages when DataLoader workers have no shared memory left for batches."""
NO_SPACE = "No space left on device"
"""A queue's message without shared memory. Any full disk has the same, so the free shared memory is checked too."""
MIN_FREE_BYTES = 1 << 20  # shared memory counts as exhausted if less than this is free
KILLED = "signal: Killed"  # torch's message about a DataLoader worker ended by SIGKILL
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LOADER_HINT = "use fewer workers, a smaller batch or prefetch, or workers=0"


def describe_failure(error: BaseException, job: Document) -> Problem:
    """Return the problem of an error that ends `job`.

    An error of other code has no hint, as its text is not this project's; its place is the file with the traceback.
    """
    if isinstance(error, ProblemError) and not CAUGHT_IN_LOADER.match(str(error)):
        return problem_of(error)
    chain, (name, text) = _chain_text(error), _class_and_text(error)
    if _is_shared_memory(chain):
        what = "DataLoader workers ran out of shared memory, /dev/shm, which carries batches to the training process"
        hint = "{}; in a container, enlarge shared memory (docker run --shm-size=8g)".format(LOADER_HINT)
        return Problem("{} ({})".format(what, text), hint, "shared_memory", Place(key="workers", file="/dev/shm"))
    if KILLED in chain:  # the controller finds out whether by the kernel, because memory ran out
        return Problem("a DataLoader worker was killed ({})".format(text), code="killed")
    if _is_out_of_memory(error):
        reason = (text or name).splitlines()[0].rstrip(".")
        if "in DataLoader worker" in chain:
            message = "a DataLoader worker ran out of memory ({})".format(reason)
            return Problem(message, LOADER_HINT, "oom", Place(key="workers"))
        remedy = ", or set dataset.layout=files" if job["dataset"]["layout"] == "memory" else ""
        message = "batch={} ran out of memory ({})".format(job["batch"], reason)
        return Problem(message, "reduce the batch size" + remedy, "oom", Place(key="batch"))
    is_plain = isinstance(error, PLAIN_ERRORS) and name == type(error).__name__
    message = (text or name) if is_plain or not text else "{}: {}".format(name, text)
    code = PEER_RANK if is_peer_rank_error(error) else EXCEPTION
    return Problem(message, code=code, where=Place(file="" if _is_of_project(error) else WORKER_LOG))


def _is_of_project(error: BaseException) -> bool:
    """Return whether the code of this project raised an error, whose message then explains it without a traceback."""
    text = str(error).strip()
    if CAUGHT_IN_LOADER.match(text):
        files = re.findall(r'^ *File "(.+)", line', text, re.MULTILINE)
    else:
        files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(files) and files[-1].startswith(PACKAGE + os.sep)


def is_peer_rank_error(error: BaseException) -> bool:
    """Whether an error is only the consequence of another rank's failure or timeout."""
    is_own = isinstance(error, ProblemError)
    from_torch = isinstance(error, RuntimeError) and not is_own and not _is_out_of_memory(error)
    return "RANK" in os.environ and from_torch and any(word in str(error) for word in COMMUNICATION_ERRORS)


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def _class_and_text(error: BaseException) -> Tuple[str, str]:
    """Return class name and text of an error; of the original, if a DataLoader worker forwarded it."""
    text = str(error).strip()
    caught = CAUGHT_IN_LOADER.match(text)
    if not caught:
        return type(error).__name__, text
    for line in reversed(text.splitlines()):
        name, _, message = line.partition(": ")
        if name.rpartition(".")[2] == caught.group(1):
            return caught.group(1), message
    return caught.group(1), ""


def _chain_text(error: BaseException) -> str:
    """Return the texts of an error and its causes; only the cause has the reason why a DataLoader worker died."""
    text = str(error).strip()
    return text if error.__cause__ is None else "{}\n{}".format(text, _chain_text(error.__cause__))


def _is_shared_memory(text: str) -> bool:
    if SHARED_MEMORY.search(text):
        return "Too many open files" not in text  # the same file names, but another cause
    return text.rstrip().endswith(NO_SPACE) and shutil.disk_usage("/dev/shm").free < MIN_FREE_BYTES


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or bool(OUT_OF_MEMORY.search(_chain_text(error)))
