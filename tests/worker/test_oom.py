import errno
import os

import pytest
import torch

from epochmeter.worker.oom import describe_out_of_memory, is_out_of_memory, peak_bytes

CPU = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "376700928 bytes. Error code 12 (Cannot allocate memory)"
)
OLD_CPU = (
    "[enforce fail at CPUAllocator.cpp:68] . DefaultCPUAllocator: not enough memory: you tried to allocate 4e9 bytes."
)
GPU = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.77 GiB."
IN_WORKER = f"Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n{CPU}"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(CPU),
        RuntimeError(OLD_CPU),
        RuntimeError(IN_WORKER),
        RuntimeError("std::bad_alloc"),
        RuntimeError(GPU),
        torch.cuda.OutOfMemoryError(GPU),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("HIP out of memory. Tried to allocate 20.00 MiB"),
        MemoryError(),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
    ],
    ids=str,
)
def test_out_of_memory_errors_are_detected(error):
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x21904 and 400x120)"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        ValueError("batch=0: give 1 or more."),
    ],
    ids=str,
)
def test_other_errors_are_not_out_of_memory(error):
    assert not is_out_of_memory(error)


@pytest.fixture
def peaks(monkeypatch):
    """Peak memory: 3.1 GB on the first of two GPUs, 0.8 GB in the process."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda gpu: [3_100_000_000, 5][gpu])
    monkeypatch.setattr("epochmeter.worker.oom.peak_bytes", lambda: 800_000_000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            CPU,
            "batch=512 ran out of memory (the training process's peak was 800 MB, and a further 377 MB was requested)",
        ),
        (GPU, "batch=512 ran out of memory (the GPU's peak was 3.1 GB, and a further 2.00 GiB was requested)"),
        ("CUDA error: out of memory", "batch=512 ran out of memory (the GPU's peak was 3.1 GB)"),
        ("std::bad_alloc", "batch=512 ran out of memory (the training process's peak was 800 MB)"),
        (
            IN_WORKER,
            "a DataLoader worker ran out of memory (a further 377 MB was requested). Use fewer workers, a smaller "
            "batch or prefetch, or workers=0.",
        ),
        (
            "Caught MemoryError in DataLoader worker process 1.\nOriginal Traceback (...):\nMemoryError",
            "a DataLoader worker ran out of memory. Use fewer workers, a smaller batch or prefetch, or workers=0.",
        ),
    ],
)
def test_message_has_the_peak_of_the_exhausted_memory(peaks, text, message):
    assert describe_out_of_memory(RuntimeError(text), "batch=512") == message


def test_peak_memory_is_at_least_current_memory():
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    assert 0.9 * resident <= peak_bytes() < 1e12
