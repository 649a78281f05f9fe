"""Out-of-memory errors: detection and message."""

import re
import resource

import torch

from epochmeter.worker.data import faults

OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|not enough memory: you tried|Cannot allocate memory|bad_alloc|ALLOC_FAILED",
    re.IGNORECASE,
)
"""Messages of torch, its libraries and the system about exhausted GPU or host memory; mostly in a RuntimeError."""
LOADER_ERROR = "in DataLoader worker"
"""torch's words in an exception from a DataLoader worker."""
GPU_ERROR = re.compile(r"CUDA|HIP|CUDNN|CUBLAS|GPU")
TRIED_TO_ALLOCATE = re.compile(r"tried to allocate ([\d.]+) ?(bytes|[KMGT]i?B)", re.IGNORECASE)


def is_out_of_memory(error):
    """Whether an error, or the DataLoader worker's error that it forwards, is an out-of-memory error."""
    return isinstance(error, MemoryError) or bool(OUT_OF_MEMORY.search(faults.error_chain_text(error)))


def describe_out_of_memory(error, setting):
    """Return the message for an out-of-memory error.

    Args:
        setting: The setting to blame, such as `batch=64`.

    Returns:
        A message with the peak memory use and the size of the failed allocation, where known. The memory use of a
        DataLoader worker is unknown.
    """
    text = faults.error_chain_text(error)
    requested = TRIED_TO_ALLOCATE.search(text)
    failed = ["a further {} was requested".format(_size(*requested.groups()))] if requested else []
    if LOADER_ERROR in text:
        return faults.out_of_memory_message(*failed)
    of_gpu = bool(GPU_ERROR.search(text)) and torch.cuda.is_available()
    where, peak = ("the GPU's", gpu_peak_bytes()) if of_gpu else ("the training process's", peak_bytes())
    return "{} ran out of memory ({})".format(
        setting, ", and ".join(["{} peak was {}".format(where, _size(peak)), *failed])
    )


def peak_bytes():
    """Return the peak resident memory of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def gpu_peak_bytes():
    """Return the peak memory allocated in the current window, in bytes; the largest of the GPUs."""
    return max(torch.cuda.max_memory_allocated(gpu) for gpu in range(torch.cuda.device_count()))


def _size(number, unit="bytes"):
    """Format a size as torch reports it, or bytes in MB or GB."""
    if unit != "bytes":
        return "{} {}".format(number, unit)
    count = float(number)
    return "{:.1f} GB".format(count / 1e9) if count >= 1e9 else "{:.0f} MB".format(count / 1e6)
