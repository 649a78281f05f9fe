"""Records that are damaged, foreign or malicious: each is one line, and all others are reported, watched and loaded.

A fixed seed selects several hundred mutations of the files of one record. Those of a batch are in one sweep, next to
two sound records: what one of them could break is visible in the others.
"""

import io
import json
import os
import platform
import random
import shutil
import warnings

import pytest
from damaged import HOSTILE, change_value, damage_text, replace_file
from watched import JOB, epochs, write_run

from epochmeter.console.plain import PlainConsole
from epochmeter.report.build import build_report
from epochmeter.report.output.report import print_report, write_report
from epochmeter.report.runs.frames import load_runs
from epochmeter.report.runs.load import read_sweep
from epochmeter.shared.atomic_files import read_json, write_json
from epochmeter.watch import terminal
from epochmeter.watch.openmetrics import to_openmetrics
from epochmeter.watch.server import to_json
from epochmeter.watch.watcher import Watcher

BATCHES, MUTATIONS = 5, 90
SOUND = (0, 1)
FILES = ("job.json", "summary.json", "host.json", "completed.json", "epochs.jsonl", "power.csv", "progress.jsonl")
HOST = {
    "cpu": {"model": "x", "cores": 2}, "memory_bytes": 2**30, "gpus": [{"model": "g"}], "git": {"commit": "0a" * 20},
    "power_mode": {"id": 0, "name": "MAXN"},
    "power_modes": [{"id": 0, "name": "MAXN", "cores": 4, "cpu_hz": 1e9, "gpu_hz": 1e9, "emc_hz": 1e9}],
}  # fmt: skip
MEANS = ("e2e_s", "data_stall_s", "energy_j", "steps")
METRICS = {
    **{f"{prefix}/{name}": 1.5 for prefix in ("steady", "std") for name in MEANS},
    "total/energy_j": 9.0, "total/e2e_s": 9.0, "total/epochs": 3, "val/accuracy": 0.5,
}  # fmt: skip


def write_sound(folder, number, *, ended=True):
    summary = {"state": "completed", "metrics": METRICS, "notes": ["a note"], "ended": "2026-11-20T12:00:40+00:00"}
    job = {**JOB, "batch": 16 + number, "footprint": {"intensity": 100, "price": None, "currency": None, "pue": 1.0}}
    write_run(folder, epochs(3), summary=summary if ended else None, job=job, number=number, host="here",
              overrides=[f"batch={16 + number}", "note=a"], choices={"model": "lenet"})  # fmt: skip
    write_json(folder / "host.json", HOST)
    (folder / "power.csv").write_text(
        "monotonic_ns,total_w\n" + "".join(f"{n}000000000,{n}\n" for n in range(4990, 5000))
    )
    progress = {"epoch": 3, "steps": 5, "epoch_steps": 9, "parts": {"data_stall_s": 0.5, "compute_s": 1.0}}
    (folder / "progress.jsonl").write_text(json.dumps(progress) + "\n")


@pytest.fixture(scope="module", params=range(BATCHES))
def sweep(request, tmp_path_factory):
    """A sweep with two sound records and many damaged ones, and what happened to each of these."""
    generator, root = random.Random(request.param), tmp_path_factory.mktemp("damaged")
    no_flush = pytest.MonkeyPatch()
    no_flush.setattr(os, "fsync", lambda descriptor: None)
    (root / "private").write_text('{"job": "hunter2"}')
    folder, done = root / f"sweep{HOSTILE[-1]}", {}
    for number in range(len(SOUND) + MUTATIONS):
        run = folder / str(number)
        write_sound(run, number, ended=number in SOUND or generator.random() < 0.7)
        if number not in SOUND:
            file = run / generator.choice([name for name in FILES if (run / name).exists()])
            text_only = file.suffix == ".csv" or generator.random() < 0.25
            change = generator.choice([damage_text, damage_text, replace_file] if text_only else [change_value])
            change(file, generator)
            if os.path.lexists(run / "job.json"):
                done[number] = f"{change.__name__} {file.name}"
    write_json(folder / "points.json", {"points": [["batch=1", HOSTILE]] * (len(SOUND) + MUTATIONS)})
    no_flush.undo()
    yield folder, done
    shutil.rmtree(root)


def assert_printable(text):
    assert text.encode()
    assert not {*"\x1b\x07\x9b\x00\u202e"} & set(text)
    assert "hunter2" not in text


def test_damaged_record_is_left_out_of_the_report_and_the_others_are_in_it(sweep, tmp_path):
    folder, done = sweep
    found = read_sweep(folder)
    numbers = {int(run.folder.name) for run in found.runs}
    assert numbers | {int(name) for name in found.unreadable} == {*SOUND, *done}
    assert all(found.unreadable.values())
    assert numbers >= {*SOUND}
    report = build_report(found)
    file = io.StringIO()
    print_report(report, PlainConsole(file=file, width=100))
    assert_printable(file.getvalue())
    for path in write_report(report, tmp_path, lambda *_: None, None):
        assert_printable(path.read_text())
    assert {*SOUND} <= {int(run.folder.name) for run in report.runs}


def test_watch_shows_all_runs_and_never_ends_by_a_record(sweep, monkeypatch):
    folder, done = sweep
    snapshot = Watcher(folder).read()
    states = {row.number: row.state for row in snapshot.runs}
    assert {number for number, state in states.items() if state != "planned"} == {*SOUND, *done}
    assert {states[number] for number in SOUND} == {"completed"}
    for width in (80, 200):
        assert_printable("".join(text for line in terminal.draw(snapshot, width) for text, _ in line))
    json.loads(to_json(snapshot, ""))
    to_openmetrics(snapshot).encode(errors="replace")


def test_frames_have_the_sound_runs(sweep):
    folder, _ = sweep
    runs = load_runs(folder)
    assert len(runs.to_pandas()) == len(runs)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        for frame in (runs.epochs, runs.steps, runs.power):
            frame.to_pandas()
        assert {f"{folder.name[:-1]}\ufffd/{number}" for number in SOUND} <= {*runs.epochs.to_pandas()["run"]}


def change(folder, name, **values):
    write_json(folder / name, {**read_json(folder / name), **values})


FOREIGN = {
    "newer schema": lambda run: change(run, "job.json", schema=2),
    "newer state": lambda run: (change(run, "summary.json", state="melted"), (run / "completed.json").unlink()),
    "damaged summary": lambda run: (run / "summary.json").write_text("{"),
    "lost summary": lambda run: (run / "summary.json").unlink(),
    "lost end": lambda run: (run / "completed.json").unlink(),
    "lost host": lambda run: (run / "host.json").unlink(),
    "damaged host": lambda run: (run / "host.json").write_text("{"),
    "own metric": lambda run: change(run, "summary.json", metrics={**METRICS, "steady/my_score": 0.25, "odd": 1e300}),
}
"""What another version, a user or a crash leaves."""
SHOWN = {
    "newer schema": ("unreadable", "it is of schema 2, and schema 1 is read here"),
    "newer state": ("failed", "it ended with the state `melted`, which this version does not know"),
    "damaged summary": ("unreadable", "EOF while parsing"),
    "lost summary": ("unreadable", "No such file"),
    "lost end": ("failed", "all epochs are measured, but the end of the run is not recorded"),
    "lost host": ("completed", ""),
    "damaged host": ("completed", "host.json: Invalid JSON: EOF while parsing"),
    "own metric": ("completed", "odd: too large"),
}
"""The state of each, and what is said of it."""


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_record_is_shown_with_what_is_known_of_it_everywhere(tmp_path, kind):
    for number in range(3):
        write_sound(tmp_path / str(number), number)
    ended = {**read_json(tmp_path / "2/job.json")["run"], "host": platform.node(), "start_ticks": "0"}
    change(tmp_path / "2", "job.json", run=ended)
    FOREIGN[kind](tmp_path / "2")
    state, why = SHOWN[kind]
    sweep = read_sweep(tmp_path)
    states = {
        **{run.number: run.state for run in sweep.runs},
        **dict.fromkeys(map(int, sweep.unreadable), "unreadable"),
    }
    rows = {row.number: row for row in Watcher(tmp_path).read().runs}
    assert states == {number: row.state for number, row in rows.items()} == {0: "completed", 1: "completed", 2: state}
    file = io.StringIO()
    print_report(report := build_report(sweep), PlainConsole(file=file, width=1000))
    assert why in " ".join(file.getvalue().split())
    assert why in rows[2].reason or state == "completed"
    assert len(report.runs) == 2 + (state == "completed")
    loaded = load_runs(tmp_path)
    assert len(loaded.to_pandas()) + len(loaded.unreadable) == 3
    if kind == "own metric":
        assert loaded.to_pandas()["steady/my_score"].tolist()[2] == 0.25
