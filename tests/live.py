"""The record of a run that this process measures now, for tests of the page of the live view."""

import time

import watched

from epochmeter.shared.record import Record

AGO_S, SAMPLES = 60, 10
GAUGES = ("cpu_utilization", "cpu0_utilization", "cpu1_utilization", "coretemp_temperature_c", "disk_read_await_s")


def start(folder, name, **options):
    """Write the first files of a run; `options` are those of `watched.write_run`."""
    now_s = time.time()
    clock = {"wall_s": now_s - AGO_S, "monotonic_ns": time.monotonic_ns() - AGO_S * watched.SECOND}
    return Record(watched.write_run(folder, silent_s=watched.NOW_S - now_s, name=name, clock=clock, **options))


def append_epoch(record, epoch, keys=None, **metrics):
    """Append an epoch of 10 s, and its samples of power and gauges."""
    parts = {"data_stall_s": 2.0, "copy_s": 0.5, "compute_s": 7.0, "overhead_s": 0.5, "steps": 100, "energy_j": 400.0}
    line = watched.window("epoch", epoch, 0.0, **{"e2e_s": 10.0, **parts, **metrics})
    opened_ns = record.run()["clock"]["monotonic_ns"] + epoch * SAMPLES * watched.SECOND
    times_ns = [opened_ns + second * watched.SECOND for second in range(SAMPLES)]
    record.append_power(times_ns, {"total": [40.0 + second for second in range(SAMPLES)]})
    path = record.folder / "gauges.csv"
    rows = [f"{at_ns},0.5,0.9,0.1,{50 + second},0.002" for second, at_ns in enumerate(times_ns)]
    head = [] if path.exists() else [",".join(("monotonic_ns", *GAUGES))]
    with path.open("a") as file:
        file.write("".join(f"{row}\n" for row in head + rows))
    record.append({**line, "opened_ns": opened_ns, "closed_ns": times_ns[-1], "warmup": epoch == 0, **(keys or {})})
