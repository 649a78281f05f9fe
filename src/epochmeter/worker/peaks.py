"""Peak FLOP/s, bytes/s and calls/s of the device, measured before training with its settings applied.

The result is cached per device, settings, precision and version of torch, so that only the first run measures. Peaks
beside other processes are too low: they are measured again, and never cached or used.
"""

import contextlib
import os
import time
from functools import partial
from typing import Any, Callable, Dict

import torch

from epochmeter.shared.atomic_files import read_json, write_json
from epochmeter.shared.peaks_cache import cached_peaks
from epochmeter.shared.types import Document

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MIN_SIZE, MAX_SIZE, LONG_CALL_S = 256, 8192, 0.02
"""Smallest and largest size of the square matrices; the size is doubled until a product takes this long."""
CHUNK_S, CHUNKS = 0.1, 5
"""Duration and number of the repetitions, of which the fastest counts. Short interruptions by the system, which a step
of training contains too, are within each of them."""
COPY_BYTES = {"cpu": 1 << 27, "cuda": 1 << 28}  # much larger than caches
CALLS = 2000
ATTEMPTS = 3  # measurements until one is undisturbed; all may be disturbed


def device_peaks(
    job: Document,
    applied: Document,
    host: Document,
    device: torch.device,
    disturbance: Callable[[], str],
    attempts: int = ATTEMPTS,
) -> Any:
    """Return the device's peaks, from the cache or measured now, or `reason`; empty if `roofline.peaks` is `none`.

    They are `flop_per_s`, `bytes_per_s` (read and written), `launch_s` (of one call) and `measured` (time in UTC).
    `applied` are the changed device settings.
    `disturbance` returns what other processes did on the device since it was last called, as a text. After so many
    `attempts` that were disturbed, the peaks are not known.
    """
    mode = job["roofline"]["peaks"]
    if mode == "none":
        return {}
    name = host.get("cpu") if device.type == "cpu" else torch.cuda.get_device_name(device)
    path = cached_peaks(name, torch.get_num_threads(), job["precision"], torch.__version__, applied, host)
    if mode == "cached":
        with contextlib.suppress(OSError, ValueError):
            return read_json(path)
    disturbance()
    for _ in range(attempts):
        try:
            measured = measure_peaks(device, job["precision"])
        except RuntimeError as error:  # such as too little memory
            return {"reason": str(error).strip().splitlines()[0]}
        others = disturbance()
        if not others:
            break
    else:
        return {"reason": "in each of {} attempts, {}".format(attempts, others) if attempts > 1 else others}
    peaks = {**measured, "measured": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    with contextlib.suppress(OSError):  # the next run measures again
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_json(path, peaks)
    return peaks


def measure_peaks(device: torch.device, precision: str) -> Dict[str, float]:
    """Measure the peaks: square matrix products in each layout of a training step, copies, and calls without work."""
    generator = torch.Generator(device=device)
    with torch.no_grad():
        flop_per_s = peak_flop_per_s(device, precision, generator)
        source = torch.zeros(COPY_BYTES[device.type] // 4, device=device)
        target = torch.zeros_like(source)
        bytes_per_s = 2 * COPY_BYTES[device.type] / _call_s(partial(target.copy_, source), device)
        one = torch.zeros(1, device=device)
        launch_s = _call_s(partial(one.add_, 1), device)
    del source, target
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return {"flop_per_s": flop_per_s, "bytes_per_s": bytes_per_s, "launch_s": launch_s}


def peak_flop_per_s(device: torch.device, precision: str, generator: torch.Generator) -> float:
    """Measure the peak of square matrix products."""
    size, call_s, dtype = MIN_SIZE // 2, 0.0, DTYPES[precision]
    while size < MAX_SIZE and call_s < LONG_CALL_S:
        size *= 2
        first, second = (torch.randn(size, size, generator=generator, device=device).to(dtype) for _ in range(2))
        result = torch.empty_like(first)
        call_s = _call_s(partial(torch.mm, first, second, out=result), device, chunks=3, chunk_s=0)
    layouts = ((first, second), (first, second.t()), (first.t(), second))  # the last two: the gradients
    return 2 * size**3 / min(_call_s(partial(torch.mm, *pair, out=result), device) for pair in layouts)


def _call_s(call: Callable[[], object], device: torch.device, chunks: int = CHUNKS, chunk_s: float = CHUNK_S) -> float:
    """Return the mean duration of a call in the fastest chunk."""
    synchronize: Callable[[], object] = torch.cuda.synchronize if device.type == "cuda" else lambda: None

    def chunk_call_s(count: int) -> float:
        synchronize()
        begun = time.perf_counter()
        for _ in range(count):
            call()
        synchronize()
        return (time.perf_counter() - begun) / count

    chunk_call_s(1)  # warm-up
    once_s = chunk_call_s(1)
    count = min(CALLS, max(1, int(chunk_s / once_s)))
    return min([chunk_call_s(count) for _ in range(chunks)])
