"""Errors that end a run, as the training process reports them to the controller: failure class and message."""

import os
import re
import shutil
import traceback

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
TRACEBACK_HINT = "\n  hint: worker.log in the run's folder has the traceback"
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LOADER_HINT = "\n  hint: use fewer workers, a smaller batch or prefetch, or workers=0"


def describe_failure(error, job):
    """Return the value of the tag `epochmeter.failure` for an error that ends `job`, and its message."""
    chain, (name, text) = _chain_text(error), _class_and_text(error)
    kind = "rank" if is_peer_rank_error(error) else getattr(error, "failure", "exception")
    if _is_shared_memory(chain):
        return "shared_memory", (
            "DataLoader workers ran out of shared memory, /dev/shm, which carries batches to the training process "
            "({}){}; in a container, enlarge shared memory (docker run --shm-size=8g)".format(text, LOADER_HINT)
        )
    if KILLED in chain:  # by the kernel, if it is out of memory: the controller finds out, if the kernel counts kills
        message = "a DataLoader worker was killed, probably by the kernel because memory ran out ({}){}"
        return "killed" if _kernel_counts_kills() else "oom", message.format(text, LOADER_HINT)
    if _is_out_of_memory(error):
        reason = (text or name).splitlines()[0].rstrip(".")
        if "in DataLoader worker" in chain:
            return "oom", "a DataLoader worker ran out of memory ({}){}".format(reason, LOADER_HINT)
        remedy = ", or set dataset.layout=files" if job["dataset"]["layout"] == "memory" else ""
        message = "batch={} ran out of memory ({})\n  hint: reduce the batch size{}"
        return "oom", message.format(job["batch"], reason, remedy)
    is_plain = isinstance(error, PLAIN_ERRORS) and name == type(error).__name__
    if is_plain or not text:
        return kind, text or name
    return kind, "{}: {}".format(name, text)


def traceback_hint(error, message):
    """Return where the traceback of an error is, for errors of other code, whose messages may not explain them."""
    text = str(error).strip()
    if CAUGHT_IN_LOADER.match(text):
        files = re.findall(r'^ *File "(.+)", line', text, re.MULTILINE)
    else:
        files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    is_own = bool(files) and files[-1].startswith(PACKAGE + os.sep)
    return "" if is_own or "hint: " in message else TRACEBACK_HINT


def is_peer_rank_error(error):
    """Whether an error is only the consequence of another rank's failure or timeout."""
    from_torch = isinstance(error, RuntimeError) and not hasattr(error, "failure") and not _is_out_of_memory(error)
    return "RANK" in os.environ and from_torch and any(word in str(error) for word in COMMUNICATION_ERRORS)


def first_line(error):
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def _class_and_text(error):
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


def _chain_text(error):
    """Return the texts of an error and its causes; only the cause has the reason why a DataLoader worker died."""
    text = str(error).strip()
    return text if error.__cause__ is None else "{}\n{}".format(text, _chain_text(error.__cause__))


def _is_shared_memory(text):
    if SHARED_MEMORY.search(text):
        return "Too many open files" not in text  # the same file names, but another cause
    return text.rstrip().endswith(NO_SPACE) and shutil.disk_usage("/dev/shm").free < MIN_FREE_BYTES


def _kernel_counts_kills():
    """Whether the kernel counts its out-of-memory kills (Linux 4.13 and newer, so not JetPack 4's)."""
    try:
        with open("/proc/vmstat") as file:
            return any(line.startswith("oom_kill ") for line in file)
    except OSError:  # some sandboxes lack it
        return False


def _is_out_of_memory(error):
    return isinstance(error, MemoryError) or bool(OUT_OF_MEMORY.search(_chain_text(error)))
