"""Memory that ran out: which errors say so, and what there is to say of it."""

import re
import resource

import torch

from epochmeter.worker.data import faults

SAID = re.compile(
    r"out of memory|can't allocate memory|not enough memory: you tried|Cannot allocate memory|bad_alloc|ALLOC_FAILED",
    re.IGNORECASE,
)
"""What torch, its libraries and the system say of a GPU's memory and of the machine's; mostly by a RuntimeError."""
OF_LOADER = "in DataLoader worker"
"""What torch says of an exception that comes from a loader process."""
OF_GPU = re.compile(r"CUDA|HIP|CUDNN|CUBLAS|GPU")
ASKED = re.compile(r"tried to allocate ([\d.]+) ?(bytes|[KMGT]i?B)", re.IGNORECASE)


def is_exhausted(error):
    """Whether an error, or the one of a loader process that it stands for, says that memory ran out."""
    return isinstance(error, MemoryError) or bool(SAID.search(faults.whole_text(error)))


def told(error, what):
    """`what` was asked for, the most memory that was in use, and how much more was wanted, where that is known.

    Of a loader process nobody knows how much it had.
    """
    text = faults.whole_text(error)
    asked = ASKED.search(text)
    more = ["{} more wanted".format(_size(*asked.groups()))] if asked else []
    if OF_LOADER in text:
        return faults.exhausted(*more)
    of_gpu = bool(OF_GPU.search(text)) and torch.cuda.is_available()
    where, peak = ("the GPU's", gpu_peak_bytes()) if of_gpu else ("the worker's", peak_bytes())
    return "{} ran out of memory ({})".format(what, ", and ".join(["{} peak was {}".format(where, _size(peak)), *more]))


def peak_bytes():
    """The most memory of the machine that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def gpu_peak_bytes():
    """The most memory that was allocated on one GPU in the window that is open."""
    return max(torch.cuda.max_memory_allocated(gpu) for gpu in range(torch.cuda.device_count()))


def _size(number, unit="bytes"):
    """A size as torch tells it, or in MB or GB where it counts bytes."""
    if unit != "bytes":
        return "{} {}".format(number, unit)
    count = float(number)
    return "{:.1f} GB".format(count / 1e9) if count >= 1e9 else "{:.0f} MB".format(count / 1e6)
