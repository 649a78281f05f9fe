"""Where the measured peaks of a device are cached: a file per device, settings, precision and version of torch."""

import hashlib
import json
import os

from epochmeter.shared.types import Document

STATE = ("hostname", "power_mode", "power_limits_w", "governors", "driver")
"""Facts on the host on which peaks depend."""


def cached_peaks(device: object, threads: int, precision: str, torch: str, applied: Document, host: Document) -> str:
    """Return the path of the file with the peaks of a device; it need not exist.

    Args:
        device: Name of the GPU, or facts on the CPU.
        threads: Number of torch's threads.
        precision: Numeric precision of the products.
        torch: Version of torch.
        applied: The changed device settings.
        host: Facts on the host.
    """
    depends_on = {
        "device": device,
        "threads": threads,
        "precision": precision,
        "torch": torch,
        "applied": applied,
        "undisturbed": True,  # earlier versions cached also other peaks, without this key
        "state": [host.get(name) for name in STATE],
    }
    key = hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()[:16]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "epochmeter", "peaks-{}.json".format(key))
