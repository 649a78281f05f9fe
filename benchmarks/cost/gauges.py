"""Cost of the gauges: processor time of their sampler, with and without `gauges.csv`, and size of the file per hour."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from common.output import print_table, sized

from epochmeter.config.installation import ROOT
from epochmeter.machine.disk import disk_of
from epochmeter.machine.gauge_sampler import Gauges
from epochmeter.machine.gauge_series import GaugeSeries
from epochmeter.machine.gpus import find_gpus, meter_id
from epochmeter.run.instruments import write_gauges
from epochmeter.shared.record import GAUGES, Record

SECONDS = sized(300, 2)
HOUR_S = 3600
ROUNDS = sized(5, 2)
COLUMNS = ("gauges.csv", "columns", "processor time", "size of one hour")


def main() -> None:
    gpus = [name for gpu in find_gpus(Path("/")) if (name := meter_id(gpu))]
    series = [None, GaugeSeries(Path("/"), 1.0, disk_of(ROOT).devices)]
    rows = [measure(gpus, recorded) for recorded in series]
    print_table(f"Cost of sampling gauges for {SECONDS} s, as a fraction of one core", COLUMNS, rows)


def measure(gpus: list[str], series: GaugeSeries | None) -> list[str]:
    """Sample for a while, writing the rows as a run does, and return the cells of a row."""
    with TemporaryDirectory() as folder, closing(Gauges(gpus=gpus, series=series)) as gauges:
        gauges.mark()
        begun_s, used_s = time.monotonic(), time.process_time()
        for _ in range(ROUNDS):
            time.sleep(SECONDS / ROUNDS)
            write_gauges(gauges, Record(folder), durably=False)
        fraction = (time.process_time() - used_s) / (time.monotonic() - begun_s)
        if series is None:
            return ["no", "", f"{fraction:.3%}", ""]
        size = (Path(folder) / GAUGES).stat().st_size * HOUR_S / (time.monotonic() - begun_s)
        return ["yes", str(len(series.columns)), f"{fraction:.3%}", f"{size / 1e6:.2f} MB"]


if __name__ == "__main__":
    main()
