"""Cost of exporters: LeNet's time while an epoch is exported divided by its time without, and their processor time.

An exporter without a client and the real clients of W&B and trackio export to this disk, as during a run: in processes
of their own, one epoch per `export_process.PERIOD_S`. A client that is not installed has no row. The argument is the
largest number of pairs.

Stretches of training alternate: before one, the record gets a new epoch, which is exported meanwhile; in the next, all
processes of the exporters are suspended.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import live
import psutil
import torch
from common.jobs import composed
from common.output import ARGUMENTS, print_table, sized
from common.pairs import COLUMNS, Ratio, ratio
from cost.overhead import DIGITS, Bench, controller
from watched import JOB

from epochmeter.shared.record import Record
from epochmeter.tracking.export_process import PERIOD_S, ExportProcess, refusal

LINES = "common.lines_exporter:Lines"
WAYS = ((LINES,), ("wandb",), ("trackio",), ("wandb", "trackio"))
STRETCH_S = sized(1.1 * PERIOD_S, 0.1)  # duration of a stretch: each may begin with an export
WITHIN, MOST = 0.002, int(ARGUMENTS[0]) if ARGUMENTS else 120
END_LIMIT_S = 60.0
SETTLED_S = 3.0  # without processor time, after which an exporter waits for the next epoch
RECORDED = {**JOB, "epochs": 1_000_000, "tracking": {"name": "none", "experiment": "epochmeter"}}


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder, controller() as connection:
        os.environ |= {"WANDB_MODE": "offline", "WANDB_DIR": folder, "TRACKIO_DIR": folder, "TMPDIR": folder}
        bench = Bench(composed(*DIGITS), steps=90, connection=connection)
        step_s = min(bench.bare() for _ in range(sized(10, 2))) / 90  # the first epochs are longer
        bench.steps = max(1, round(STRETCH_S / step_s))
        for number, names in enumerate(WAYS):
            if problems := [problem.message for name in names if (problem := refusal(name))]:
                print(f"{', '.join(names)}: {problems[0]}", file=sys.stderr)
                continue
            record = live.start(Path(folder) / f"sweep/{number}", "lenet digits", job=RECORDED)
            with exporting(record, names) as processes:
                result, used_s = compare(bench, record, processes)
            rows.append([", ".join(names).replace(LINES, "lines of JSON"), *result.cells(), f"{1e3 * used_s:.0f} ms"])
            print(*rows[-1], file=sys.stderr)
    columns = ("exporters", *COLUMNS, "processor time per epoch")
    print_table("LeNet's time while an epoch is exported every 2 s / without", columns, rows)


def compare(bench: Bench, record: Record, processes: Sequence[ExportProcess]) -> tuple[Ratio, float]:
    """Return the time of a stretch with exports / without, and the processor time of all exporters per epoch in s."""
    numbers = count()

    def train(command: signal.Signals) -> float:
        send(processes, command)
        if command == signal.SIGCONT:
            live.append_epoch(record, next(numbers))
            for process in processes:
                process.look()
        return bench.bare()

    train(signal.SIGCONT)
    settle(processes)  # the clients open the run, once
    used_s = -processor_s(processes)
    exported = next(numbers)
    result = ratio(lambda: train(signal.SIGCONT), lambda: train(signal.SIGSTOP), WITHIN, MOST)
    return result, (used_s + processor_s(processes)) / (next(numbers) - exported - 1)


@contextmanager
def exporting(record: Record, names: Sequence[str]) -> Iterator[Sequence[ExportProcess]]:
    """Export a record as it grows; RuntimeError if an exporter failed."""
    processes = [ExportProcess(name, record) for name in names]
    for process in processes:
        process.start()
    try:
        yield processes
        send(processes, signal.SIGCONT)
        for process in processes:
            process.end("completed")
            if problem := process.wait(END_LIMIT_S).problem:
                raise RuntimeError(f"{process.exporter}: {problem}")
    finally:
        send(processes, signal.SIGCONT)
        for process in processes:
            process.kill()


def tree(processes: Sequence[ExportProcess]) -> Iterator[psutil.Process]:
    """Yield the processes of exporters with all that their clients have started."""
    for pid in (pid for process in processes for pid in process.pids):
        with suppress(psutil.NoSuchProcess):
            first = psutil.Process(pid)
            yield from (first, *first.children(recursive=True))


def send(processes: Sequence[ExportProcess], command: signal.Signals) -> None:
    for each in tree(processes):
        with suppress(psutil.NoSuchProcess):
            each.send_signal(command)


def settle(processes: Sequence[ExportProcess]) -> None:
    """Wait until the exporters have nothing left to do."""
    before_s, now_s = -1.0, 0.0
    while now_s > before_s:
        before_s = now_s
        time.sleep(SETTLED_S)
        now_s = processor_s(processes)


def processor_s(processes: Sequence[ExportProcess]) -> float:
    """Return the processor time of all processes up to now."""
    total_s = 0.0
    for each in tree(processes):
        with suppress(psutil.NoSuchProcess):
            own = each.cpu_times()
            total_s += own.user + own.system
    return total_s


if __name__ == "__main__":
    main()
