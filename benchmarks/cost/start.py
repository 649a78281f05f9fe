"""What a person waits for around the training: the start, the end, and the wall time of a short job.

A handwritten script trains LeNet on digits for six epochs. Each round runs it bare, as a job of `src/train.py` with and
without a profiler's trace, under `src/measure.py`, and with a `Meter`, in random order. All runs are published to the
database of MLflow. Ratios and differences are those within a round.

Creating the dataset and the database, measuring the device's peaks and preparing the page cache do not count.
`start.py 3 FILE` runs three rounds, and adds them to those that earlier calls have written to a file: on a shared
machine, the rounds can be run in small parts.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from common.jobs import TRACKING, digits_folder, measured, trained
from common.output import ARGUMENTS, SHORT, print_table, sized
from common.pairs import median

from epochmeter.config.installation import ROOT
from epochmeter.results.run_folder import RunFolder
from epochmeter.shared.record import COMPLETED_FILE, INTERVALS, Record

EPOCHS = sized(6, 1)
ROUNDS = sized(9, 1)
FIRST, LAST, WAITED = "first step ended", "last step ended", "waited"
SCRIPT = f"""
import sys, time
import torch
from torch.utils.data import DataLoader
sys.path.insert(0, {str(ROOT / "src")!r})
from epochmeter.worker.data.images import ImageFiles
from epochmeter.worker.data.transforms import preprocessing
from epochmeter.worker.models.lenet import LeNet

torch.manual_seed(0)
digits = {{"size": 32, "channels": 1, "normalize": {{"mean": [0.305], "std": [0.324]}}}}
samples = ImageFiles({str(ROOT / "data/digits")!r}, "train", preprocessing(digits, "train"))
model = LeNet(1, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(samples, batch_size=16, shuffle=True)
moments = {{}}
"""
"""The script up to its loop."""
LOOP = f"""
for epoch in EPOCHS:
    total, correct = 0.0, 0
    for inputs, targets in loader:
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = torch.nn.functional.cross_entropy(outputs, targets)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(targets)
        correct += (outputs.argmax(1) == targets).sum().item()
        moments.setdefault({FIRST!r}, time.monotonic())
    print(f"epoch {{epoch}}: loss {{total / len(samples):.4f}}, accuracy {{correct / len(samples):.1%}}", flush=True)
    moments[{LAST!r}] = time.monotonic()
import json
print(json.dumps(moments), flush=True)
"""
BARE = SCRIPT + LOOP.replace("EPOCHS", f"range({EPOCHS})")
WITH_METER = (
    SCRIPT
    + f"""
from epochmeter import Meter
began_s = time.monotonic()
meter = Meter({TRACKING!r})
for inputs, targets in meter.batches(loader):
    moments.setdefault({WAITED!r}, time.monotonic() - began_s)
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
meter.close()
import json
print(json.dumps(moments), flush=True)
"""
)
JOB = ["model=lenet", "dataset=digits", "batch=16", "workers=0", f"epochs={EPOCHS}", "cache=keep", "evaluate=false"]
Times = dict[str, float]


def run_script(path: Path) -> Times:
    """Run the script bare; return its wall time, its start until the first step has ended, and its end."""
    begun_s = time.monotonic()
    done = subprocess.run([sys.executable, str(path)], check=True, capture_output=True, text=True)
    ended_s = time.monotonic()
    moments = json.loads(done.stdout.splitlines()[-1])
    return {
        "bare wall": ended_s - begun_s,
        "bare start": moments[FIRST] - begun_s,
        "bare end": ended_s - moments[LAST],
    }


def run_job(profiler: str) -> Times:
    """Train with `src/train.py`; return the same times, and when the record was complete after the last step."""
    begun_s = time.monotonic()
    (record,) = trained(*JOB, f"profiler={profiler}")
    ended_s = time.monotonic()
    gap_s, _, copy_s, compute_s = record.steps()[: len(INTERVALS)]
    opened_s, closed_s = record.windows()[0]["opened_ns"] / 1e9, record.windows()[-1]["closed_ns"] / 1e9
    return {
        f"{profiler} wall": ended_s - begun_s,
        f"{profiler} start": opened_s + gap_s + copy_s + compute_s - begun_s,
        f"{profiler} end": ended_s - closed_s,
        f"{profiler} safe": completed_s(record) - closed_s,
    }


def completed_s(record: Record) -> float:
    """Return when a record was completed, on the monotonic clock."""
    clock = RunFolder(record.folder).run.clock
    assert clock
    written_s = (record.folder / COMPLETED_FILE).stat().st_mtime
    return written_s - clock.unix_s(0)


def run_measured(path: Path) -> Times:
    begun_s = time.monotonic()
    measured(str(path))
    return {"measured wall": time.monotonic() - begun_s}


def run_meter(path: Path) -> Times:
    done = subprocess.run([sys.executable, str(path)], check=True, capture_output=True, text=True, cwd=ROOT)
    return {"meter": json.loads(done.stdout.splitlines()[-1])[WAITED]}


def one_round(folder: Path) -> Times:
    """Run everything once, in random order."""
    bare, with_meter = folder / "bare.py", folder / "with_meter.py"
    bare.write_text(BARE)
    with_meter.write_text(WITH_METER)
    runs: list[Callable[[], Times]] = [
        lambda: run_script(bare),
        lambda: run_job("none"),
        lambda: run_job("torch"),
        lambda: run_measured(bare),
        lambda: run_meter(with_meter),
    ]
    times: Times = {}
    for run in random.sample(runs, len(runs)):
        times |= run()
    return times


def table(rounds: list[Times]) -> list[list[str]]:
    """Return the rows of the table: medians with their intervals and quartiles."""

    def row(name: str, value: Callable[[Times], float], goal: str = "") -> list[str]:
        of_rounds = median([value(times) for times in rounds])
        cells = (f"{of_rounds.median:.3f}", f"{of_rounds.low:.3f} .. {of_rounds.high:.3f}")
        quartiles = "{:.3f} .. {:.3f}".format(*of_rounds.quartiles)
        return [name, *cells, quartiles, str(of_rounds.pairs), goal]

    return [
        row("wall time of the job / bare script", lambda t: t["none wall"] / t["bare wall"], "1.08"),
        row("the same, with a profiler's trace", lambda t: t["torch wall"] / t["bare wall"]),
        row("last step to prompt, s", lambda t: t["none end"], "0.5"),
        row("the same, with a profiler's trace, s", lambda t: t["torch end"], "0.5"),
        row("last step to complete record, s", lambda t: t["none safe"], "0.1"),
        row("last step to prompt, bare script, s", lambda t: t["bare end"]),
        row("command to first step, above bare script, s", lambda t: t["none start"] - t["bare start"], "0.5"),
        row("wall time with `measure.py` / bare script", lambda t: t["measured wall"] / t["bare wall"], "1.05"),
        row("`Meter()` to the first window, s", lambda t: t["meter"], "0.5"),
        row("wall time of the bare script, s", lambda t: t["bare wall"]),
    ]


def main() -> None:
    count = int(ARGUMENTS[0]) if ARGUMENTS else ROUNDS
    kept = Path(ARGUMENTS[1]) if len(ARGUMENTS) > 1 else None
    rounds: list[Times] = json.loads(kept.read_text()) if kept and kept.exists() else []
    digits_folder()
    with tempfile.TemporaryDirectory() as folder:
        if not (rounds or SHORT):  # creates the database, measures the device's peaks, and fills the page cache
            one_round(Path(folder))
        for _ in range(count):
            rounds.append(one_round(Path(folder)))
            print(rounds[-1], file=sys.stderr)
            if kept:
                kept.write_text(json.dumps(rounds))
    columns = ("", "median", "95 % interval", "quartiles", "rounds", "goal")
    print_table(f"Waits around {EPOCHS} epochs of LeNet on digits", columns, table(rounds))


if __name__ == "__main__":
    main()
