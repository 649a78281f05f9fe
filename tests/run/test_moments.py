"""When an interrupted attempt of a run ended, and how long it was until the next one."""

import os

import pytest
from metadata import run_info

from epochmeter.results.run_info import Clock
from epochmeter.run.moments import ended_attempt, moments_with_end
from epochmeter.shared.record import Record

S = 10**9
WALL_S = 1_000_000.0
STARTED = Clock(wall_s=WALL_S, monotonic_ns=100 * S)
NOW = Clock(wall_s=WALL_S + 60, monotonic_ns=160 * S)
MOMENTS = {"command_ns": 98 * S, "process_ns": 101 * S}


@pytest.fixture
def record(tmp_path):
    """A record that was last written 40 s after its start, and a later summary."""
    record = Record(tmp_path)
    record.describe({}, {})
    record.append({"window": "epoch", "epoch": 0, "opened_ns": 110 * S, "closed_ns": 130 * S, "metrics": {}})
    (tmp_path / "progress.jsonl").touch()
    (tmp_path / "summary.json").touch()
    for name, after_s in {"job.json": 3, "epochs.jsonl": 30, "progress.jsonl": 40, "summary.json": 55}.items():
        os.utime(tmp_path / name, (WALL_S + after_s, WALL_S + after_s))
    return record


def run(boot="a", **moments):
    return run_info(clock=STARTED.document(), boot_id=boot, moments={**MOMENTS, **moments})


def test_killed_attempt_ended_when_it_last_wrote_to_its_record(record):
    moments = moments_with_end(record, run(), NOW)
    assert moments == {**MOMENTS, "ended_ns": 140 * S, "recorded_ns": 140 * S}
    assert moments_with_end(record, run(), None) == moments  # on another boot, by the clock of its own start


def test_end_is_neither_before_the_last_window_nor_after_now(record):
    for name in ("epochs.jsonl", "progress.jsonl"):
        os.utime(record.folder / name, (WALL_S - 500, WALL_S - 500))  # the clock was set
    assert moments_with_end(record, run(), NOW)["recorded_ns"] == 130 * S
    os.utime(record.folder / "progress.jsonl", (WALL_S + 500, WALL_S + 500))
    assert moments_with_end(record, run(), NOW)["recorded_ns"] == 160 * S


def test_recorded_end_and_records_without_moments_are_kept(record):
    recorded = run(ended_ns=131 * S, recorded_ns=132 * S)
    assert moments_with_end(record, recorded, NOW) == recorded.moments
    assert moments_with_end(record, run_info(clock=STARTED.document()), NOW) == {}


@pytest.mark.parametrize(
    ("boot", "resumed", "gap_s"),
    [
        ("a", Clock(wall_s=WALL_S + 5000, monotonic_ns=160 * S), 15),  # the wall clock was set meanwhile
        ("b", Clock(wall_s=WALL_S + 100, monotonic_ns=7 * S), 55),
        ("b", Clock(wall_s=WALL_S - 100, monotonic_ns=7 * S), None),
    ],
    ids=["same boot", "other boot", "clock set back"],
)
def test_gap_is_from_the_end_until_the_next_command(record, boot, resumed, gap_s):
    command_ns = 155 * S if boot == "a" else 2 * S
    ended = run(ended_ns=140 * S, recorded_ns=140 * S)
    attempt = ended_attempt(record, ended, 1, run(boot, command_ns=command_ns), resumed)
    assert (attempt.epochs, attempt.gap_s) == (1, gap_s)
