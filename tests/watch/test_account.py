"""Where the time of a run went so far."""

import math

import pytest
from metadata import run_info
from watched import SECOND, epochs, write_run

from epochmeter.results.account import account_of
from epochmeter.watch import account
from epochmeter.watch.account import RunAccount
from epochmeter.watch.watcher import Watcher

NOW_NS = 5000 * SECOND
MOMENTS = {"command_ns": 4900 * SECOND, "process_ns": 4910 * SECOND, "imported_ns": 4915 * SECOND}
RUN = run_info(moments=MOMENTS)


def seconds(metrics):
    rows = {name.removeprefix("run/"): value for name, value in metrics.items() if value}
    wall_s = rows.pop("wall_s")
    assert math.fsum(rows.values()) == pytest.approx(wall_s)
    return rows


def test_rows_add_up_to_the_wall_time_until_now(tmp_path):
    windows = epochs(3)
    rows = seconds(RunAccount(tmp_path).read(RUN, windows, 1, NOW_NS))
    assert rows == pytest.approx({
        "prepare_s": 10, "import_s": 5, "build_s": 51, "data_stall_s": 6, "compute_s": 17.7, "overhead_s": 0.3,
        "evaluation_s": 3, "between_s": 2, "open_s": 5,
    })  # fmt: skip


def test_only_the_last_row_grows_until_there_are_new_windows(tmp_path, monkeypatch):
    counted = []
    monkeypatch.setattr(account, "account_of", lambda *args: counted.append(args) or account_of(*args))
    watched, windows = RunAccount(tmp_path), epochs(3)
    for later_s in range(4):
        found = watched.read(RUN, windows, 1, NOW_NS + later_s * SECOND)
        assert (found["run/open_s"], found["run/wall_s"]) == (5 + later_s, 100 + later_s)
    assert len(counted) == 1
    rows = seconds(watched.read(RUN, epochs(4), 1, NOW_NS + 4 * SECOND))
    assert (len(counted), rows["open_s"], rows["evaluation_s"]) == (2, 9, 4)


def test_long_run_is_divided_again_from_time_to_time_and_always_adds_up(tmp_path, monkeypatch):
    monkeypatch.setattr(account, "AGE", 10)
    watched = RunAccount(tmp_path)
    watched.read(RUN, epochs(3), 1, NOW_NS)
    rows = seconds(watched.read(RUN, epochs(4), 1, NOW_NS + 15 * SECOND))
    assert (rows["evaluation_s"], rows["open_s"]) == (3, 20)


def test_time_before_what_is_recorded_and_a_damaged_window_give_no_wrong_row(tmp_path):
    windows = epochs(3)
    assert RunAccount(tmp_path).read(RUN, windows, 1, 0)["run/wall_s"] == 95
    del windows[0]["metrics"]["epoch/overhead_s"]
    assert RunAccount(tmp_path).read(RUN, windows, 1, NOW_NS) == {}


@pytest.mark.parametrize(("silent_s", "pid", "wall_s"), [(0, None, 100), (2, 2**22 + 1, 98)], ids=["running", "killed"])
def test_view_of_a_run_without_an_end_has_its_account_so_far(tmp_path, monkeypatch, silent_s, pid, wall_s):
    monkeypatch.setattr("epochmeter.watch.watcher.time.time", lambda: 1_000_000.0)
    facts = {"pid": pid} if pid else {}
    folder = write_run(tmp_path / "0", epochs(3), silent_s=silent_s, moments=MOMENTS, boot_id="other", **facts)
    (view,) = Watcher(folder).read().active
    assert view.account["run/wall_s"] == pytest.approx(wall_s)
    seconds(view.account)


@pytest.mark.parametrize("ahead_s", [-600, 0, 600])
def test_account_of_a_run_on_another_host_has_no_difference_of_clocks(tmp_path, monkeypatch, ahead_s):
    monkeypatch.setattr("epochmeter.watch.watcher.time.time", lambda: 1_000_000.0 + ahead_s)
    folder = write_run(tmp_path / "0", epochs(3), moments=MOMENTS, boot_id="other", host="elsewhere")
    (view,) = Watcher(folder).read().active
    assert view.account["run/wall_s"] == pytest.approx(95), "up to the last window"
    (folder / "gauges.csv").write_text(f"monotonic_ns,cpu_percent\n{4998 * SECOND},50\n")
    (view,) = Watcher(folder).read().active
    assert (view.account["run/open_s"], view.account["run/wall_s"]) == pytest.approx((3, 98))


def test_view_of_an_ended_run_has_the_account_of_its_summary(tmp_path):
    ended = {"state": "completed", "ended": "2026-11-20T12:00:40+00:00", "metrics": {"run/wall_s": 4, "run/build_s": 4}}
    (view,) = Watcher(write_run(tmp_path / "0", epochs(3), moments=MOMENTS, summary=ended)).read().active
    assert view.account == {"run/wall_s": 4, "run/build_s": 4}
