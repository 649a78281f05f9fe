"""Staging compared with `cp -r` and `sync -f`, and its memory by number of files.

`python benchmarks/cost/staging.py [--share 0.1] [--pairs 6] [--folder FOLDER]`: with share 1, 10,000 files of 110 kB
and 100,000 of 1 kB. The source is in the page cache, so that the disk it is on plays no part.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from common.output import ARGUMENTS, print_table, sized
from common.pairs import ratio

from epochmeter.config.installation import python_path
from epochmeter.config.schema import Dataset
from epochmeter.datasets.manifest import MANIFEST_NAME, Facts, describe_folder, try_read_manifest
from epochmeter.datasets.ready import stage

CASES = ((10_000, 110_000), (100_000, 1_000))
CLASSES = 20
DATASET = Dataset.from_dict({"name": "staged", "layout": "files", "open": None, "make": {"_target_": "none"}})


def filled(home: Path, count: int, size: int) -> Path:
    """Create a dataset of `count` files of random bytes."""
    body = os.urandom(size)
    for number in range(count):
        path = home / "train" / str(number % CLASSES) / f"{number:07}.bin"
        if number < CLASSES:
            path.parent.mkdir(parents=True)
        path.write_bytes(number.to_bytes(8, "big") + body[8:])
    facts: Facts = {"splits": {"train": count, "val": 0}, "classes": CLASSES, "channels": 3, "source": "random bytes"}
    describe_folder(home, DATASET, facts, "make").write(home / MANIFEST_NAME)
    os.sync()
    return home


def staged_s(home: Path, place: Path) -> float:
    return _taken_s(_staging(home, place), place)


def copied_s(home: Path, place: Path) -> float:
    return _taken_s(["sh", "-c", 'cp -r "$0" "$1" && sync -f "$1"', str(home), str(place)], place)


def peak_mb(home: Path, place: Path) -> float:
    """Return the peak of the memory that only staging and its processes use, sampled every 10 ms."""
    peak = 0
    with subprocess.Popen(_staging(home, place), env=_environment(), stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            try:
                parent = psutil.Process(process.pid)
                peak = max(peak, sum(one.memory_full_info().uss for one in [parent, *parent.children(recursive=True)]))
            except psutil.Error:  # one of them ended meanwhile
                pass
            time.sleep(0.01)
    assert process.returncode == 0
    shutil.rmtree(place)
    return peak / 1e6


def _staging(home: Path, place: Path) -> list[str]:
    return [sys.executable, __file__, "--stage", str(home), str(place)]


def _taken_s(command: list[str], place: Path) -> float:
    os.sync()
    began = time.perf_counter()
    subprocess.run(command, env=_environment(), stdout=subprocess.DEVNULL, check=True)
    taken = time.perf_counter() - began
    shutil.rmtree(place)
    return taken


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": python_path()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=sized(1.0, 0.01), help="of the files")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--folder", default=None, help="where to copy to and from; else the temporary folder")
    parser.add_argument("--stage", nargs=2, type=Path, help="only copy a dataset between two folders")
    options = parser.parse_args(ARGUMENTS)
    if options.stage:
        home, place = options.stage
        original = try_read_manifest(home / MANIFEST_NAME)
        assert original
        stage(DATASET, home, original, place, print)
        return
    rows = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for count, size in CASES:
            home, place = (
                filled(Path(folder) / "home", max(CLASSES, int(count * options.share)), size),
                Path(folder) / "to",
            )
            result = ratio(lambda: copied_s(home, place), lambda: staged_s(home, place), 0, options.pairs)  # noqa: B023
            low, high = result.quartiles
            files = f"{count * options.share:,.0f}"
            rows.append([files, f"{size:,}", f"{result.median:.2f}", f"{low:.2f} .. {high:.2f}", ""])
            shutil.rmtree(home)
        for share in (0.1, 1.0):
            home = filled(Path(folder) / "home", max(CLASSES, int(CASES[1][0] * options.share * share)), CASES[1][1])
            files = f"{CASES[1][0] * options.share * share:,.0f}"
            rows.append([files, f"{CASES[1][1]:,}", "", "", f"{peak_mb(home, place):.1f}"])
            shutil.rmtree(home)
    columns = ("files", "bytes each", "speed / cp -r and sync -f: median", "quartiles", "peak MB")
    print_table("Copies of a dataset, checksums included, compared with cp", columns, rows)


if __name__ == "__main__":
    main()
