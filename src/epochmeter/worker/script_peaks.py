"""Measure the peaks of a script's device after the script: `python -m epochmeter.worker.script_peaks`, by its Python.

Standard input and output are a conversation of JSON lines: the request; for each border of a measurement, the text on
what other processes did (`worker.peaks`); at last the peaks.
"""

import json
import sys

import torch

from epochmeter.shared.types import Document
from epochmeter.worker.peaks import device_peaks


def main() -> None:
    request: Document = json.loads(sys.stdin.readline())
    torch.set_num_threads(request["threads"])
    torch.backends.cuda.matmul.allow_tf32 = request["job"]["precision"] == "tf32"
    device = torch.device(request["device"])
    applied, host = request["applied"], request["host"]
    say({"peaks": device_peaks(request["job"], applied, host, device, disturbance, attempts=1)})


def disturbance() -> str:
    """Return what other processes did on the device since it was last called, as the controller knows."""
    say({"border": True})
    return str(json.loads(sys.stdin.readline()))


def say(message: Document) -> None:
    """Write a message as a line."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
