"""The state of runs and sweeps, read from their folders."""

import os
from array import array
from pathlib import Path
from types import SimpleNamespace

import live
import pytest
from cases import case, cases
from watched import JOB, NOW_S, SECOND, epochs, window, write_ended, write_points, write_run

from epochmeter.results import summary
from epochmeter.results.bottleneck import find_verdict
from epochmeter.shared import process_identity
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.problem import InputError, Problem, read_problem
from epochmeter.shared.record import PROGRESS, Record
from epochmeter.watch import run_watcher, watcher
from epochmeter.watch.watcher import Watcher

GONE = {"pid": 2**22 + 1, "start_ticks": None}


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(watcher, "time", SimpleNamespace(time=lambda: NOW_S))


def look(folder):
    return Watcher(folder).read()


def test_remaining_time_and_energy_follow_from_the_median_epoch(tmp_path):
    lines = epochs(3)
    lines[0]["opened_ns"] -= 20 * SECOND  # the first interval includes the start of the workers
    progress = look(write_run(tmp_path / "0", lines)).active[0].progress
    # 3 epochs of 10 s and 90 J remain, of which the first has trained for 4 s.
    remaining = {"fraction": 3.4 / 6, "remaining_s": 26, "remaining_j": 2.6 * 90}
    counts = {"epoch": 4, "recorded": 3, "epochs": 6, "steps": 270, "is_maximum": False, "pid": None}
    assert vars(progress) == pytest.approx({**counts, "elapsed_s": 100, "silent_s": 0, **remaining})
    progress = look(write_run(tmp_path / "1", epochs(3)[:-1])).active[0].progress
    assert progress.fraction == pytest.approx(3 / 6), "an evaluation that is not recorded belongs to its epoch"


def test_a_resumed_run_is_timed_by_its_epochs_and_its_clock_since_then(tmp_path):
    times_s = {"epoch": (5, 13), "val": (13, 14)}
    new = [{**window(name, 2, 0.0, 0.0), "opened_ns": opened_s * SECOND, "closed_ns": closed_s * SECOND}
           for name, (opened_s, closed_s) in times_s.items()]  # fmt: skip
    resumed = [{"epoch": 2, "clock": {"wall_s": NOW_S - 18, "monotonic_ns": 0}}]
    progress = look(write_run(tmp_path / "0", [*epochs(2), *new], resumed=resumed)).active[0].progress
    # 3 epochs of 9 s remain, of which the first has trained for 4 s.
    assert progress.remaining_s == pytest.approx(23)


def test_a_suspension_of_the_machine_is_no_progress_of_the_epoch_after_it(tmp_path):
    clock = {"wall_s": NOW_S - 3600 - 100, "monotonic_ns": 4900 * SECOND}
    lines = [{**line, "suspended_s": 3600.0} for line in epochs(3)]
    progress = look(write_run(tmp_path / "0", lines, clock=clock)).active[0].progress
    assert progress.remaining_s == pytest.approx(26)


def test_times_are_right_although_the_clock_was_set_during_the_run(tmp_path, monkeypatch):
    clock = {"wall_s": 120.0, "monotonic_ns": 4900 * SECOND, "boottime_ns": 4900 * SECOND}  # 100 s ago, in 1970
    folder = write_run(tmp_path / "0", epochs(3), clock=clock, boot_id="this")
    for module in (run_watcher, process_identity):
        monkeypatch.setattr(module, "boot_id", lambda: "this")
    monkeypatch.setattr(run_watcher.time, "clock_gettime_ns", lambda clock: 5000 * SECOND)
    progress = look(folder).active[0].progress
    assert (progress.elapsed_s, progress.remaining_s) == (100, pytest.approx(26))


def test_a_run_without_a_number_of_epochs_or_with_all_trained_has_no_time_to_go(tmp_path):
    job = {key: value for key, value in JOB.items() if key != "epochs"}
    progress = look(write_run(tmp_path / "0", epochs(2), job=job)).active[0].progress
    assert (progress.epoch, progress.epochs, progress.remaining_s, progress.fraction) == (3, None, None, None)
    view = look(write_run(tmp_path / "1", epochs(6))).active[0]
    assert (view.state, view.progress.fraction, view.progress.remaining_s) == ("training", 1, 0)
    assert view.reason


def test_mean_epoch_of_a_script_is_that_of_its_last_training(tmp_path):
    lines = [{**line, "training": line["epoch"] // 3} for line in epochs(6)]
    for line in lines[6:]:
        line["metrics"] = {name: 2 * value for name, value in line["metrics"].items()}
    lines[6]["warmup"] = True
    view = look(write_run(tmp_path / "0", lines)).active[0]
    mean = view.splits["mean"]
    assert (mean.title, mean.metrics["data_stall_s"]) == ("mean 5-6, training 2", 4.0)


def test_numbers_so_far_are_those_of_the_summary(tmp_path):
    lines = epochs(3)
    view = look(write_run(tmp_path / "0", lines)).active[0]
    totals = summary.total_metrics(summary.training_windows(lines))
    steady = summary.steady_metrics([lines[2], lines[4]], array("f"))
    steady |= find_verdict(steady, None, "steady").metrics
    assert view.metrics == steady | {f"total/{name}": value for name, value in totals.items()}
    assert view.verdict.startswith("Bottleneck: compute-bound. Epoch time: compute 74 %,")
    assert view.bottleneck == {"compute": pytest.approx(5.9 / 8)}
    assert {kind: split.title for kind, split in view.splits.items()} == {"last": "3", "mean": "mean 2-3"}
    assert [view.splits[kind].metrics["data_stall_s"] for kind in ("last", "mean")] == [2.0, 2.0]


def test_straggler_is_that_of_the_steps_so_far_unless_it_is_recorded(tmp_path):
    ranks = {"rank_steps": 60, "of_ranks": [{"rank": 0}, {"rank": 1}]}
    lines = [{**window("epoch", number, 30 - 10 * number, 8.0, steps=60), **ranks} for number in range(2)]
    folder = write_run(tmp_path / "0", lines, job={**JOB, "warmup_epochs": 0})
    assert look(folder).active[0].straggler == ""
    of_ranks = [[0.0, 0.0, 0.1, 0.05], [0.06, 0.05, 0.1, 0.001]]  # gap, data stall, busy time, communication
    rows = array("f", [value for rank in of_ranks for step in range(60) for value in rank])
    for _ in lines:
        Record(folder).append_rank_rows(rows)
    assert "rank 1 is the slowest in 100 % of 120 steps" in look(folder).active[0].straggler
    recorded = {"rank": 7, "excess_s": 0.1, "uncertainty_s": 0.01, "steps": 50, "slowest_fraction": 0.5, "causes": []}
    ended = {"state": "completed", "straggler": recorded}
    view = look(write_run(tmp_path / "1", lines, summary=ended)).active[0]
    assert "rank 7 is the slowest in 50 % of 50 steps" in view.straggler


def test_bottleneck_allows_for_the_spread_of_the_epochs_unless_it_is_recorded(tmp_path):
    parts = [{"compute_s": compute_s, "data_stall_s": 8 - compute_s, "copy_s": 0.0, "overhead_s": 0.0}
             for compute_s in (7.0, 3.0, 5.0)]  # fmt: skip
    lines = [window("epoch", number, 30 - 10 * number, 8.0, steps=90, **own) for number, own in enumerate(parts)]
    view = look(write_run(tmp_path / "0", lines, job={**JOB, "warmup_epochs": 0})).active[0]
    assert view.verdict.startswith("Bottleneck: compute-bound or data-bound (no significant difference).")
    metrics = {"steady/e2e_s": 8.0, "steady/compute_s": 5.0, "steady/data_stall_s": 3.0, "steady/copy_s": 0.0,
               "steady/overhead_s": 0.0}  # fmt: skip
    ended = {"state": "completed", "metrics": metrics, "bottleneck": "compute", "absent": {}}
    folder = write_run(tmp_path / "1", lines, job={**JOB, "warmup_epochs": 0}, summary=ended)
    assert look(folder).active[0].verdict.startswith("Bottleneck: compute-bound. ")


def test_energy_that_does_not_hold_has_its_codes_so_far_and_at_the_end(tmp_path):
    record = live.start(tmp_path / "0", name="energy")
    assert look(record.folder).active[0].energy_valid is None, "nothing was measured yet"
    live.append_epoch(record, 0)
    live.append_epoch(record, 1)
    assert (look(record.folder).active[0].energy_valid, look(record.folder).active[0].energy_reasons) == (True, {})
    reason = {"code": "shared_gpu", "text": "others computed on the GPU."}
    live.append_epoch(record, 2, keys={"energy_valid": False, "energy_reasons": [reason]})
    view = look(record.folder).active[0]
    assert view.energy_valid is False
    assert view.energy_reasons["shared_gpu"] == "others computed on the GPU."
    ended = {"energy_valid": False, "energy_reasons": [{"code": "suspended", "text": "the machine was suspended"}]}
    record.write_summary({"state": "completed", "metrics": {"steady/e2e_s": 1.0}, "notes": [], "failure": None,
                          "energy": {"steady": ended, "total": {"energy_valid": True}}}, "1d")  # fmt: skip
    view = look(record.folder).active[0]
    assert (view.energy_valid, [*view.energy_reasons]) == (False, ["suspended"])


def test_a_metric_of_the_user_is_shown_with_its_name_and_the_unit_in_it(tmp_path):
    lines = [window("epoch", 0, 0.0, e2e_s=1.0, my_wait_s=0.5, f1=0.75)]
    assert look(write_run(tmp_path / "0", lines)).active[0].unlisted == [
        ("my wait", "my_wait_s", "s"),
        ("f1", "f1", ""),
    ]


PARTS = {"data_stall_s": 0.75, "copy_s": 0.25, "compute_s": 1.0, "overhead_s": 0.0}


def write_progress(folder, epoch, steps, parts, epoch_steps=90):
    Record(folder).append_progress({"epoch": epoch, "steps": steps, "epoch_steps": epoch_steps, "parts": parts})
    os.utime(folder / PROGRESS, (NOW_S, NOW_S))


def test_the_current_epoch_has_the_parts_so_far_until_it_is_recorded(tmp_path):
    folder = write_run(tmp_path / "0", epochs(2)[:3])
    own = Watcher(folder)
    for steps in (10, 45):
        write_progress(folder, 2, steps, PARTS)
    current = own.read().active[0].splits["current"]
    assert (current.title, dict(current.metrics)) == ("3 so far", {"steps": 45, "e2e_s": 2.0, **PARTS})
    with open(folder / PROGRESS, "ab") as file:
        file.write(b'{"epoch": 2, "steps": "x"}\n{"epoch": 2, "st')
    assert own.read().active[0].splits["current"] == current
    Record(folder).end_progress()
    write_run(folder, [window("epoch", 2, 4, 2.0)])
    assert [*own.read().active[0].splits] == ["last", "mean"]


def test_the_first_epoch_has_progress_a_forecast_and_a_bottleneck_from_its_steps(tmp_path):
    folder = write_run(tmp_path / "0")
    assert look(folder).active[0].progress.fraction is None
    write_progress(folder, 0, 45, PARTS)
    view = look(folder).active[0]
    assert view.progress.fraction == pytest.approx(0.5 / 6)
    assert view.progress.remaining_s == pytest.approx(5.5 * 4.0)
    assert view.verdict.startswith("Epoch 1 so far. Bottleneck: compute-bound. ")
    assert view.bottleneck == {"compute": 0.5}


@cases(
    case(steps=45, step_s=0.1, silent_s=40, state="stalled"),
    case(steps=45, step_s=15.0, silent_s=40, state="training"),
    case(steps=90, step_s=0.1, silent_s=40, state="training"),
    case(steps=45, step_s=0.1, silent_s=20, state="training"),
)
def test_a_run_stalls_within_its_first_epoch_after_three_steps_of_silence(tmp_path, steps, step_s, silent_s, state):
    folder = write_run(tmp_path / "0")
    write_progress(folder, 0, steps, {"compute_s": steps * step_s})
    for path in folder.iterdir():
        os.utime(path, (NOW_S - silent_s, NOW_S - silent_s))
    assert look(folder).state == state


@pytest.mark.parametrize(("parts", "epoch_steps", "e2e_s"), [({}, 5, None), (PARTS, 0, 2.0)])
def test_a_script_without_parts_or_without_a_length_has_its_steps(tmp_path, parts, epoch_steps, e2e_s):
    write_progress(folder := write_run(tmp_path / "0"), 0, 3, parts, epoch_steps)
    view = look(folder).active[0]
    assert (view.splits["current"].metrics.get("e2e_s"), view.progress.remaining_s) == (e2e_s, None)


@pytest.mark.parametrize(("later_s", "run"), [(5, {}), (1, GONE)])
def test_metrics_of_a_long_run_are_computed_from_time_to_time_and_at_its_end(tmp_path, monkeypatch, later_s, run):
    lines, seen = epochs(101), []
    watching = Watcher(write_run(tmp_path / "0"))
    for after_s, new, metadata in ((0, lines[:-2], {}), (1, lines[-2:], {}), (later_s, [], run)):
        monkeypatch.setattr(watcher, "time", SimpleNamespace(time=lambda now_s=NOW_S + after_s: now_s))
        write_run(tmp_path / "0", new, **metadata)
        seen.append(watching.read().active[0].splits["mean"].title)
    assert seen == ["mean 2-100", "mean 2-100", "mean 2-101"]


@pytest.mark.parametrize(
    ("record", "state", "reason"),
    [
        ({}, "preparing", ""),
        ({"model": {"parameters": 1}}, "training", ""),
        ({"lines": epochs(3)}, "training", ""),
        ({"lines": epochs(3), "silent_s": 40}, "stalled", "no new record for 40 s; its process is alive (PID)"),
        ({"lines": [window("epoch", 0, 70, 20.0, energy_j=1.0), *epochs(3), window("epoch", 3, 14, 8.0, energy_j=1.0)],
          "silent_s": 40}, "training", ""),
        ({"lines": epochs(3), "silent_s": 40, "host": "node7"}, "stalled", "no new record for 40 s; its host is node7"),
        ({"lines": epochs(3), "silent_s": 40, **GONE}, "killed",
         f"no new record for 40 s; the process {GONE['pid']} is gone"),
        ({"summary": {"state": "completed"}}, "completed", ""),
        ({"summary": {"state": "killed", "failure": {"message": "stopped by Ctrl-C\nhint: x"}}}, "killed",
         "stopped by Ctrl-C"),
        ({"summary": {"state": "failed", "failure": {"message": "no memory"}}, **GONE}, "failed", "no memory"),
        ({"summary": {"state": "failed", "failure": Problem("no memory", "less", "oom").to_fields()}}, "failed",
         "no memory"),
        ({"summary": {"state": "failed", "failure": {"code": "of another version"}}}, "failed", ""),
    ],
)  # fmt: skip
def test_state_and_its_reason(tmp_path, record, state, reason):
    snapshot = look(write_run(tmp_path / "0", **record))
    assert (snapshot.state, snapshot.reason) == (state, reason.replace("PID", str(os.getpid())))
    assert snapshot.active[0].failure == read_problem(record.get("summary", {}).get("failure"))


def test_a_run_that_is_gone_has_a_note_if_its_disk_is_full(tmp_path, monkeypatch):
    folder, free = write_run(tmp_path / "0", epochs(1), **GONE), [0, 2**30]
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free.pop(0)))
    reasons = [look(folder).reason for _ in range(2)]
    assert [reason.endswith("disk of the run folder is full") for reason in reasons] == [True, False]


def test_a_record_that_is_written_or_damaged_shows_its_readable_part(tmp_path):
    folder = write_run(tmp_path / "0", epochs(2))
    own = Watcher(folder)
    assert own.read().active[0].progress.recorded == 2
    with open(folder / "epochs.jsonl", "ab") as file:
        file.write(b'{"window": "epoch"}\n\xff\n{"window": "epoch", "epoch": 2, "met')
    view = own.read().active[0]
    assert view.progress.recorded == 2
    assert view.warnings[0] == "2 of the lines of epochs.jsonl cannot be read"
    (folder / "epochs.jsonl").unlink()
    write_run(folder, epochs(1))
    view = own.read().active[0]
    assert (view.progress.recorded, view.warnings) == (1, []), "the run was started again"


def test_a_file_that_is_a_link_or_a_pipe_is_named_and_not_read(tmp_path):
    (tmp_path / "private").write_text('{"window": "epoch"}\n')
    folder = write_run(tmp_path / "0", epochs(1))
    for name, make in (("epochs.jsonl", lambda path: path.symlink_to(tmp_path / "private")), ("power.csv", os.mkfifo)):
        (folder / name).unlink(missing_ok=True)
        make(folder / name)
    view = look(folder).active[0]
    assert view.progress.recorded == 0
    assert view.warnings[:2] == [
        "epochs.jsonl cannot be read: it is a link, and links are not followed",
        "power.csv cannot be read: it is not a regular file",
    ]


def test_looking_changes_nothing_in_the_folder(tmp_path):
    folder = write_run(tmp_path / "0", epochs(2))
    os.chmod(folder, 0o500)

    def times_ns():
        return {path: path.stat().st_mtime_ns for path in [folder, *folder.iterdir()]}

    before = times_ns()
    look(folder)
    assert times_ns() == before


def test_a_search_has_the_runs_that_it_plans_and_the_keys_that_differ_so_far(tmp_path):
    write_json(tmp_path / "search.json", {"runs": 3})
    write_ended(tmp_path, 0, 4.0, 10.0, batch=8, epochs=6)
    snapshot = look(tmp_path)
    assert (snapshot.counts, snapshot.fraction) == ({"completed": 1, "planned": 2}, 1 / 3)
    write_ended(tmp_path, 1, 5.0, 9.0, batch=16, epochs=6)
    assert [row.overrides for row in look(tmp_path).runs] == [{"batch": "8"}, {"batch": "16"}, {}]
    write_run(tmp_path / "2", number=2)
    assert look(tmp_path).remaining_s == 0, "it has taken longer than the completed runs"


def test_a_sweep_that_no_process_continues_is_stalled_or_killed(tmp_path):
    write_points(tmp_path, ["batch=8"], ["batch=16"], ["batch=32"])
    write_ended(tmp_path, 0, 4.0, 10.0, batch=8)
    os.utime(tmp_path / "points.json", (NOW_S - 600, NOW_S - 600))
    for silent_s, state in ((600, "stalled"), (5, "preparing")):
        os.utime(tmp_path / "0", (NOW_S - silent_s, NOW_S - silent_s))
        assert look(tmp_path).state == state
    write_run(tmp_path / "1", epochs(3), silent_s=40, number=1, **GONE)
    snapshot = look(tmp_path)
    assert (snapshot.state, snapshot.runs[1].state) == ("killed", "killed")
    assert snapshot.reason == "the process of the sweep is gone; run the command again to resume"
    assert snapshot.runs[1].duration_s == 60  # to the last record
    write_points(tmp_path / "stopped", ["batch=8"], ["batch=16"])
    write_ended(tmp_path / "stopped", 0, 4.0, 10.0, state="killed", batch=8)
    assert look(tmp_path / "stopped").state == "killed"


def test_power_is_on_the_wall_clock_and_absent_samples_have_a_reason(tmp_path):
    folder = write_run(tmp_path / "0", epochs(1))
    (folder / "power.csv").write_text(f"monotonic_ns,total_w\n{4990 * SECOND},12.5\n")
    view = look(folder).active[0]
    assert (view.power["total_w"].times_s, view.power["total_w"].latest) == ([NOW_S - 10], 12.5)
    assert (dict(view.gauges), view.missing) == ({}, {"gauges": "the record has no gauges.csv"})


@pytest.mark.parametrize(
    ("energy", "missing", "cost_per_j"),
    [
        ({"source": "none", "reason": "no sensor"}, {"energy": "no sensor"}, None),
        ({"source": "estimated", "reason": "by tdp"}, {"energy": "by tdp"}, None),
        ({"source": "counter", "reason": None}, {"power": "the meter reads counters only"}, 0.36 * 1.5 / 3.6e6),
    ],
)
def test_without_a_meter_one_reason_explains_energy_and_power(tmp_path, energy, missing, cost_per_j):
    job = {**JOB, "footprint": {"price": 0.36, "currency": "EUR", "pue": 1.5}}
    view = look(write_run(tmp_path / "0", epochs(1), job=job, energy=energy)).active[0]
    assert view.missing == {**missing, "gauges": "the record has no gauges.csv"}
    assert (view.cost_per_j, view.currency) == (cost_per_j and pytest.approx(cost_per_j), "EUR")


def test_notes_that_differ_in_their_numbers_are_shown_once(tmp_path):
    lines = [{**line, "notes": [f"epoch {line['epoch'] + 1}: {why}" for why in ("slow", "hot")]} for line in epochs(3)]
    view = look(write_run(tmp_path / "0", lines, flags={"throttled": "heat"})).active[0]
    assert view.warnings == ["heat", "epoch 3: hot", "epoch 3: slow"]


@pytest.mark.parametrize("make", [lambda path: None, Path.mkdir, Path.touch])
def test_a_folder_without_runs_is_refused(tmp_path, make):
    make(tmp_path / "other")
    with pytest.raises(InputError, match="hint: give the folder of a run"):
        Watcher(tmp_path / "other")


def test_without_a_completed_run_the_active_one_is_typical(tmp_path):
    write_points(tmp_path, ["batch=8"], ["batch=16"], ["batch=32"])
    for number in range(2):
        write_run(tmp_path / str(number), epochs(3), number=number)
    snapshot = look(tmp_path)
    assert snapshot.remaining_s == pytest.approx((2 * 26 + 100 + 26) / 2), "two runs at a time"
    assert snapshot.remaining_j == pytest.approx(2 * 2.6 * 90 + 270 + 2.6 * 90)


def test_ended_runs_are_read_once_and_again_after_a_change(tmp_path, monkeypatch):
    write_points(tmp_path, ["batch=8"], ["batch=16"])
    write_ended(tmp_path, 0, 4.0, 10.0, batch=8)
    own = Watcher(tmp_path)
    assert own.read().counts == {"completed": 1, "planned": 1}
    monkeypatch.setattr("epochmeter.watch.watcher.load_run", lambda folder: pytest.fail("read again"))
    assert own.read().counts == {"completed": 1, "planned": 1}
    monkeypatch.undo()
    (tmp_path / "0/completed.json").unlink()
    (tmp_path / "0/summary.json").unlink()
    assert Watcher(tmp_path).read().runs[0].state == own.read().runs[0].state == "preparing"
