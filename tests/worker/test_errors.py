"""Problems of the errors that end a run."""

import errno
import os
import shutil
from types import SimpleNamespace

import pytest
import torch
from torch._utils import ExceptionWrapper

from epochmeter.shared.instantiate import instantiate_spec
from epochmeter.shared.problem import InputError, Place, Problem
from epochmeter.worker.data.faults import BadSampleError, StorageGoneError
from epochmeter.worker.errors import LOADER_HINT, describe_failure

JOB = {"batch": 512, "dataset": {"layout": "files"}}
CPU = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "376700928 bytes. Error code 12 (Cannot allocate memory)"
)
OLD_CPU = (
    "[enforce fail at CPUAllocator.cpp:68] . DefaultCPUAllocator: not enough memory: you tried to allocate 4e9 bytes."
)
GPU = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.77 GiB."
IN_WORKER = f"Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback (...):\nRuntimeError: {CPU}"
SHARED_MEMORY = [
    "DataLoader worker (pid 77) is killed by signal: Bus error. It is possible that dataloader's workers are out of "
    "shared memory. Please try to raise your shared memory limit.",
    "unable to write to file </torch_77_1>: No space left on device (28)",
    "unable to mmap 38535168 bytes from file </torch_77_2>: Cannot allocate memory (12)",
    "unable to allocate shared memory(shm) for file </torch_77_3>: No space left on device (28)",
    "unable to open shared memory object </torch_77_4> in read-write mode: No space left on device (28)",
]
"""Messages of torch 1.10 to 2.x if /dev/shm is full."""
OUT_OF_MEMORY = [
    *map(RuntimeError, (CPU, OLD_CPU, IN_WORKER, "std::bad_alloc", GPU, "CUDA error: out of memory")),
    torch.cuda.OutOfMemoryError(GPU),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("HIP out of memory. Tried to allocate 20.00 MiB"),
    MemoryError(),
    OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
]
CAUSED = RuntimeError("DataLoader worker (pid(s) 77) exited unexpectedly")
CAUSED.__cause__ = RuntimeError(SHARED_MEMORY[0])
OTHER = [
    BadSampleError(Problem("bad")),
    RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x21904 and 400x120)"),
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    OSError(errno.ENOSPC, "No space left on device", "/runs/weights.pt"),
    RuntimeError("out of resource: shared memory, Required: 131072, Hardware limit: 101376"),
    RuntimeError("unable to open shared memory object </torch_77_5> in read-write mode: Too many open files (24)"),
]


def test_failure_class_by_error():
    for kind, errors_of_kind in {
        "storage": [StorageGoneError(Problem("gone", code="storage"))],
        "oom": OUT_OF_MEMORY,
        "shared_memory": [CAUSED, *map(RuntimeError, SHARED_MEMORY)],
        "exception": OTHER,
    }.items():
        for error in errors_of_kind:
            problem = describe_failure(error, JOB)
            assert (problem.code, "--shm-size" in problem.hint) == (kind, kind == "shared_memory"), error


def test_class_may_depend_on_free_shared_memory(monkeypatch):
    for free, kind in ((2**20, "exception"), (2**20 - 1, "shared_memory")):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=free))
        assert describe_failure(OSError(errno.ENOSPC, "No space left on device"), JOB).code == kind


def test_killed_dataloader_worker_is_no_sign_of_missing_memory():
    """The controller compares the kernel's counts of kills."""
    error = RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")
    assert describe_failure(error, JOB) == Problem(f"a DataLoader worker was killed ({error})", code="killed")


def test_out_of_memory_message_names_the_process_and_the_reason():
    in_memory = {**JOB, "dataset": {"layout": "memory"}}
    smaller, batch = "reduce the batch size", Place(key="batch")
    for error, job, expected in (
        (RuntimeError(GPU), JOB, Problem(f"batch=512 ran out of memory ({GPU[:-1]})", smaller, "oom", batch)),
        (MemoryError(), JOB, Problem("batch=512 ran out of memory (MemoryError)", smaller, "oom", batch)),
        (MemoryError(), in_memory, Problem("batch=512 ran out of memory (MemoryError)",
                                           f"{smaller}, or set dataset.layout=files", "oom", batch)),
        (RuntimeError(IN_WORKER), JOB, Problem(f"a DataLoader worker ran out of memory ({CPU})",
                                               LOADER_HINT, "oom", Place(key="workers"))),
    ):  # fmt: skip
        assert describe_failure(error, job) == expected


def test_errors_of_communication_are_those_of_another_rank_if_there_are_ranks(monkeypatch):
    gloo = RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1")
    for ranks, kind in ((False, "exception"), (True, "rank")):
        if ranks:
            monkeypatch.setenv("RANK", "1")
        assert describe_failure(gloo, JOB).code == kind
        others = (
            RuntimeError("other"),
            ValueError("gloo"),
            RuntimeError("NCCL: out of memory"),
            StorageGoneError(Problem("gloo", code="storage")),
        )
        assert [describe_failure(error, JOB).code for error in others] == ["exception", "exception", "oom", "storage"]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyError("label"), "KeyError: 'label'"),
        (AssertionError(), "AssertionError"),
        (FileNotFoundError(errno.ENOENT, "No such file", "a.png"), "[Errno 2] No such file: 'a.png'"),
        (
            ValueError("The labels are missing. They were found in the folder of last year."),
            "The labels are missing. They were found in the folder of last year.",
        ),
        (RuntimeError("CUDA error: no kernel\nFor debugging consider: waiting"), "CUDA error: no kernel"),
    ],
    ids=str,
)
def test_error_message_includes_the_class_where_needed(error, message):
    def raises():
        raise error

    try:
        raises()
    except Exception:
        sent = ExceptionWrapper(where="in DataLoader worker process 0")
    described = describe_failure(error, JOB)
    assert (described.message.startswith(message), described.hint, described.where.file) == (True, "", "worker.log")
    with pytest.raises(type(error)) as raised:
        sent.reraise()
    assert describe_failure(raised.value, JOB) == Problem(message, where=Place(file="worker.log"))


def test_error_that_a_dataloader_worker_cannot_forward_has_its_own_class():
    text = "Caught MyError in DataLoader worker process 0.\nOriginal Traceback (...):\n  File ...\n{}"
    for last_line, message in (("package.MyError: broken", "MyError: broken"), ("MyError", "MyError")):
        assert describe_failure(RuntimeError(text.format(last_line)), JOB).message == message


def test_errors_of_other_code_have_the_place_of_their_traceback_also_in_workers():
    for call, is_foreign in ((lambda: {}["label"], True), (lambda: instantiate_spec({"_target_": "no.such"}), False)):
        try:
            call()
        except (KeyError, ValueError) as raised:
            error, sent = raised, ExceptionWrapper(where="in DataLoader worker process 0")
        with pytest.raises(type(error)) as forwarded:
            sent.reraise()
        for own in (error, forwarded.value):
            assert describe_failure(own, JOB).where.file == ("worker.log" if is_foreign else "")


def test_error_of_this_project_keeps_its_fields():
    problem = Problem("no stem. Two sentences.", "set model.stem=imagenet", where=Place(key="model.stem"))
    assert describe_failure(InputError(problem), JOB) == problem
