"""A known load: products of square matrices, `python -m epochmeter.worker.known_load`, until the input ends.

It prints a line of JSON when the first product is done, and another one at the end, with the number of products.
"""

import json
import os
import select
import sys
import time
from typing import Any, Dict

import torch

SIZES = {"cuda": 8192, "cpu": 1024}
CHUNK_S = 0.05  # how often it is checked whether to end


def main() -> None:
    parent = os.getppid()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size, dtype = SIZES[device.type], torch.float16 if device.type == "cuda" else torch.float32
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))

    def multiply(count: int) -> float:
        """Return how long some products take."""
        begun_s = time.monotonic()
        for _ in range(count):
            torch.mm(left, right)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.monotonic() - begun_s

    multiply(1)
    per_chunk = max(1, round(CHUNK_S / multiply(1)))
    facts: Dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": str(torch.__version__),
        "size": size,
        "dtype": str(dtype),
        "flop_per_product": 2 * size**3,
        "threads": torch.get_num_threads(),
    }
    print(json.dumps(facts), flush=True)
    begun_s, products = time.monotonic(), 0
    while not select.select([sys.stdin], [], [], 0)[0] and os.getppid() == parent:
        multiply(per_chunk)
        products += per_chunk
    print(json.dumps({"products": products, "seconds": time.monotonic() - begun_s}), flush=True)


if __name__ == "__main__":
    main()
