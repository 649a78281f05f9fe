"""The process that plays files: what it writes, and when it ends."""

import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from clocks import time_with
from project import put, wait_until

from epochmeter.config.installation import python_path
from epochmeter.machine.recorded import player
from epochmeter.machine.recorded.player import all_changes, play, repeated_files, without_late

RAPL = "sys/class/powercap/intel-rapl:0/energy_uj"
POWER = "sys/class/hwmon/hwmon0/power1_input"
FILES = {
    RAPL: {"times_s": [0.0, 0.2], "values": ["900\n", "100\n"]},
    POWER: {"times_s": [0.1, 0.3], "values": [None, "5\n"]},
}


@pytest.fixture
def root(tmp_path):
    return put(tmp_path, {RAPL: "900\n", POWER: "5\n", RAPL.replace("energy_uj", "max_energy_range_uj"): "1000\n"})


def test_files_are_changed_in_the_order_of_their_times_and_counters_overflow(root):
    changes = all_changes(repeated_files(FILES, root, 1.0), root)
    made = [(round(at_s, 3), files) for at_s, files in (next(changes) for _ in range(8))]
    rapl, power = str(root / RAPL), str(root / POWER)
    assert made == [
        (0.0, [(rapl, "900\n")]), (0.1, [(power, None)]), (0.2, [(rapl, "100\n")]), (0.3, [(power, "5\n")]),
        (1.0, [(rapl, "100\n")]), (1.1, [(power, None)]), (1.2, [(rapl, "300\n")]), (1.3, [(power, "5\n")]),
    ]  # fmt: skip


@pytest.mark.parametrize("path", ["sys/missing", "sys/class/hwmon", "link", "../outside"])
def test_only_regular_files_of_the_recording_are_played(root, path):
    (root.parent / "outside").write_text("")
    (root / "link").symlink_to(POWER)
    with pytest.raises(ValueError, match="is no file in it"):
        repeated_files({path: FILES[RAPL]}, root, 1.0)


def test_values_of_other_types_are_refused(root):
    with pytest.raises(ValueError, match="other values"):
        repeated_files({RAPL: {"times_s": [0.0], "values": [7]}}, root, 1.0)


def test_changes_are_made_at_their_times_until_it_is_stopped(root, monkeypatch):
    now = SimpleNamespace(s=100.0)
    clock = time_with(monotonic=lambda: now.s, monotonic_ns=lambda: round(now.s * 1e9))
    monkeypatch.setattr(player, "time", clock)

    def is_stopped(seconds):
        now.s += min(seconds, 0.05)
        return now.s > 100.26

    made = [
        at_ns * 1e-9 - 100 for at_ns in play(all_changes(repeated_files(FILES, root, 1.0), root), 100.0, is_stopped)
    ]
    assert made == pytest.approx([0.0, 0.1, 0.2])
    assert not (root / POWER).exists(), "it could not be read from then on"
    assert (root / RAPL).read_text() == "100\n"


def test_late_player_leaves_out_all_but_the_last_change_of_each_file(monkeypatch):
    now_s = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: 100.0 + now_s)
    planned = [(0.0, [("a", "0")]), (0.1, [("a", "1")]), (0.2, [("b", "2")]), (0.3, [("a", "3")]), (0.9, [("a", "4")])]
    made = without_late(iter([*planned, (9.0, [])]), 100.0)
    assert next(made) == (0.0, [("a", "0")])
    now_s = 0.5
    assert next(made) == (0.3, [("a", "3"), ("b", "2")])
    assert next(made) == (0.9, [("a", "4")])


def started(root):
    command = [sys.executable, "-m", "epochmeter.machine.recorded.player"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": python_path()},
    )  # fmt: skip
    print(json.dumps({"root": str(root), "files": FILES, "duration_s": 0.4}), file=process.stdin, flush=True)
    process.stdout.readline()
    print(time.monotonic(), file=process.stdin, flush=True)
    return process


def test_process_plays_with_the_permissions_of_the_files_and_ends_with_its_input(root):
    (root / RAPL).chmod(0o400)
    with started(root) as process:
        seen = set()
        wait_until(lambda: seen.add((root / RAPL).read_text()) or len(seen) >= 3, limit_s=20)
        assert (root / RAPL).stat().st_mode & 0o777 == 0o400
        process.stdin.close()
        assert process.wait(20) == 0
    assert seen <= {f"{value}\n" for value in range(100, 1000, 200)} | {"900\n"}
    assert not list(root.rglob("*.new"))
