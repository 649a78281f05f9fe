"""A load of known times: `python -m epochmeter.worker.known_load [DEVICE]` follows requests, one JSON object per line.

    {"switch": [[0.1, 0.2], ...]}    products for 0.1 s, a pause of 0.2 s, and so on -> {"pulses": [[begin, end], ...]}
    {"work": 4.0}                    a fixed number of products, for about 4 s       -> {"begun_s", "ended_s", "flop"}
    {"peaks": 3}                     measure the peak three times                    -> {"flop_per_s": [...]}
    {"kernels": "copies", "s": 2.0}  only copies, or only products, for 2 s          -> {"begun_s", "ended_s"}
    {"steady": true}                 products until the input ends                   -> {"begun_s", "ended_s", "flop"}

Times are of the monotonic clock, which all processes share. The process ends with its parent.
"""

import json
import os
import select
import sys
import time
from typing import Any, Callable, Dict, List

from epochmeter.shared.lifetime import die_with_parent

CALLS = 3  # of which the fastest one was not interrupted
SHORT_CALL_S = 0.0005  # a product takes about this long, so that a pulse ends in time
SIZES = (128, 256, 512, 1024, 2048, 4096, 8192)
CHUNK_S = 0.05  # how often a steady load looks for the end of its input
SPIN_S = 0.0005  # the end of a pause is a busy loop, since a sleep ends late


class KnownLoad:
    """Products of square matrices on a device, which use all of it."""

    def __init__(self, device: str) -> None:
        import torch

        self._torch = torch
        self.device = torch.device(device)
        if device == "cpu":
            torch.set_num_threads(max(1, len(os.sched_getaffinity(0))))
        self._synchronize: Callable[[], object] = torch.cuda.synchronize if device == "cuda" else lambda: None
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        for size in SIZES:
            self._matrix = torch.rand(size, size, device=self.device, dtype=torch.float32).to(dtype)
            self._out = torch.empty_like(self._matrix)
            self._call()
            self.call_s = min(self._call_s() for _ in range(CALLS))
            self.flop = 2 * size**3
            if self.call_s >= SHORT_CALL_S:
                break
        self._works: Dict[float, int] = {}

    def _call_s(self) -> float:
        begun_s = time.monotonic()
        self._call()
        return time.monotonic() - begun_s

    def _call(self) -> None:
        self._torch.mm(self._matrix, self._matrix, out=self._out)
        self._synchronize()

    def switch(self, switches: List[List[float]]) -> Dict[str, Any]:
        """Run products and pauses by an absolute schedule, so that a late pulse does not move the next one."""
        pulses, at_s = [], time.monotonic()
        for on_s, off_s in switches:
            wait_until(at_s)
            begun_s = time.monotonic()
            while time.monotonic() < at_s + on_s:
                self._call()
            pulses.append([begun_s, time.monotonic()])
            at_s += on_s + off_s
        wait_until(at_s)
        return {"pulses": pulses}

    def work(self, seconds: float) -> Dict[str, Any]:
        """Run the same number of products each time, which is chosen by the first time."""
        if seconds not in self._works:
            ends_s, count = time.monotonic() + seconds, 0
            while time.monotonic() < ends_s:
                self._call()
                count += 1
            self._works[seconds] = count
        begun_s = time.monotonic()
        for _ in range(self._works[seconds]):
            self._call()
        return {"begun_s": begun_s, "ended_s": time.monotonic(), "flop": self._works[seconds] * self.flop}

    def peaks(self, times: int) -> Dict[str, Any]:
        """Measure the peak of products as a run does it."""
        from epochmeter.worker.peaks import peak_flop_per_s

        precision = "bf16" if self.device.type == "cuda" else "fp32"
        generator = self._torch.Generator(device=self.device)
        return {"flop_per_s": [peak_flop_per_s(self.device, precision, generator) for _ in range(times)]}

    def kernels(self, mix: str, seconds: float) -> Dict[str, Any]:
        """Run kernels of one kind only; `idle`: none."""
        source = self._torch.zeros(1 << 26, device=self.device)
        target = self._torch.zeros_like(source)
        calls: Any = {"products": self._call, "copies": lambda: target.copy_(source), "idle": lambda: time.sleep(0.01)}
        begun_s, call = time.monotonic(), calls[mix]
        while time.monotonic() < begun_s + seconds:
            for _ in range(10):
                call()
            self._synchronize()
        return {"begun_s": begun_s, "ended_s": time.monotonic()}

    def steady(self) -> Dict[str, Any]:
        """Run products until the input ends."""
        begun_s, count, chunk = time.monotonic(), 0, max(1, round(CHUNK_S / self.call_s))
        while not select.select([sys.stdin], [], [], 0)[0]:
            for _ in range(chunk):
                self._call()
            count += chunk
        return {"begun_s": begun_s, "ended_s": time.monotonic(), "flop": count * self.flop}

    def facts(self) -> Dict[str, Any]:
        """Return what computes."""
        name = self._torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"
        numbers = {"call_s": self.call_s, "size": len(self._matrix), "threads": self._torch.get_num_threads()}
        return dict(numbers, device=name, dtype=str(self._matrix.dtype), torch=str(self._torch.__version__))

    def answer(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """Follow a request."""
        if "switch" in request:
            return self.switch(request["switch"])
        if "work" in request:
            return self.work(request["work"])
        if "peaks" in request:
            return self.peaks(request["peaks"])
        if "steady" in request:
            return self.steady()
        return self.kernels(request["kernels"], request["s"])


def wait_until(at_s: float) -> None:
    """Sleep until shortly before a moment, then wait for it."""
    while True:
        left_s = at_s - time.monotonic()
        if left_s <= 0:
            return
        if left_s > SPIN_S:
            time.sleep(left_s - SPIN_S)


def main(device: str = "") -> None:
    """Follow the requests; without a device, that is the first GPU, or else the processor."""
    die_with_parent()
    try:
        load = KnownLoad(device or default_device())
        print(json.dumps(load.facts()), flush=True)
        for line in iter(sys.stdin.readline, ""):
            print(json.dumps(load.answer(json.loads(line))), flush=True)
    except (ImportError, RuntimeError) as error:  # such as a driver that is too old
        print(json.dumps({"error": str(error).strip().splitlines()[0]}), flush=True)


def default_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


if __name__ == "__main__":
    main(*sys.argv[1:])
