"""The live view in the terminal."""

import os
import pty
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from golden import assert_text
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from rich.console import Console
from watched import JOB, NOW_S, SECOND, epochs, window, write_ended, write_points, write_run

from epochmeter.commands import watch as entry
from epochmeter.config import installation
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.problem import InputError, Problem
from epochmeter.shared.process_identity import this_process
from epochmeter.shared.record import Record
from epochmeter.tracking import queue
from epochmeter.watch import terminal, watcher
from epochmeter.watch.appended import Series
from epochmeter.watch.terminal import _screen, draw
from epochmeter.watch.watcher import Watcher

HOSTILE = "\x1b[31m[bold]name[/bold] \u202e\n\x07"
GAUGES = {
    "cpu_utilization": 0.985, "cpu0_utilization": 1.0, "cpu1_utilization": 0.5, "disk_reads_per_s": 12.0,
    "disk_read_bytes_per_s": 7.4e6, "disk_read_await_s": 0.0004, "disk_queue_requests": 1.25, "ram_used_bytes": 1.2e9,
    "gpu0_utilization": 0.4, "gpu0_clock_hz": 1.98e9, "gpu0_temperature_c": 67.0, "CPU_therm_temperature_c": 45.0,
}  # fmt: skip


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(watcher, "time", SimpleNamespace(time=lambda: NOW_S))


def picture(folder, width=80, height=None):
    return plain(draw(Watcher(folder).read(), width, height), Console(width=width, color_system=None))


def plain(lines, console):
    return [line.rstrip() for line in terminal._rendered(lines, console)]


def assert_screen(name, lines, width=80):
    """Compare a picture with a golden file, without the first line, which names the host or the folder."""
    assert max(map(len, lines)) <= width
    assert_text(Path(__file__).parent / "golden" / f"{name}.txt", "\n".join([*lines[1:], ""]))


@pytest.mark.parametrize("width", [80, 160])
def test_a_run_has_progress_split_power_cost_and_gauges_within_the_width(tmp_path, width):
    price = {"price": 3.6e6, "currency": "EUR", "pue": 1}
    moments = {"command_ns": 4890 * SECOND, "process_ns": 4910 * SECOND, "imported_ns": 4920 * SECOND}
    job = {**JOB, "footprint": price} if width == 160 else JOB
    folder = write_run(tmp_path / "0", epochs(3), job=job, moments=moments)
    (folder / "power.csv").write_text(f"monotonic_ns,total_w\n{4900 * SECOND},50\n{4990 * SECOND},100\n")
    header, row = ",".join(GAUGES), ",".join(map(str, GAUGES.values()))
    (folder / "gauges.csv").write_text(f"monotonic_ns,{header},throttling\n{4990 * SECOND},{row},none\n")
    parts = {"data_stall_s": 0.5, "copy_s": 0.0, "compute_s": 1.5, "overhead_s": 0.0}
    Record(folder).append_progress({"epoch": 3, "steps": 20, "epoch_steps": 90, "parts": parts})
    assert_screen(f"run_{width}", picture(folder, width), width)


def test_sentences_fit_a_narrow_terminal(tmp_path):
    folder = write_run(tmp_path / "0", epochs(3))
    narrow = picture(folder, 40)
    begin = next(place for place, line in enumerate(narrow) if line.startswith("Bottleneck: "))
    sentence = " ".join(narrow[begin : begin + 9])
    assert next(line for line in picture(folder, 200) if line.startswith("Bottleneck: ")) in sentence
    assert max(map(len, narrow)) <= 40
    assert picture(folder, 0), "with COLUMNS=0"


def test_a_narrow_terminal_shows_the_state_the_energy_and_all_of_a_warning(tmp_path):
    folder = write_run(tmp_path / "0", epochs(3))
    warning = "the disk was full, and " * 5 + "then it was not"
    Record(folder).write_summary({"state": "completed", "metrics": {}, "notes": [f"{warning}\n  hint: delete"]}, "id")
    narrow, wide = picture(folder, 60), picture(folder, 200)
    state = wide[0].split()[-3:]
    assert narrow[0].split()[-3:] == state
    rows = [next(line.split() for line in lines if line.startswith("mean")) for lines in (narrow, wide)]
    assert rows[0][:-1] == rows[1][:-1], "all but the mean power"
    assert warning in " ".join(narrow)
    assert "delete" not in " ".join(wide)


def test_a_narrow_terminal_shows_all_of_why_something_failed_or_is_missing(tmp_path):
    write_points(tmp_path, ["batch=8"], ["batch=16"])
    why = "the sensor is missing, and " * 5 + "there is no other"
    write_ended(tmp_path, 0, 1.0, 1.0, state="failed", failure={"kind": "exception", "message": why}, batch=8)
    write_run(tmp_path / "1", epochs(3), number=1, overrides=["batch=16"], rehearsal=[f"{why}!"])
    text = " ".join(" ".join(picture(tmp_path, 60)).split())
    assert f"run 0 failed: {why}" in text
    assert f"REHEARSAL: {why}!" in text


def test_a_script_that_does_not_state_its_epochs_shows_the_current_one_only(tmp_path):
    job = {key: value for key, value in JOB.items() if key != "epochs"}
    assert re.match(r"epoch 4 +─", picture(write_run(tmp_path / "0", epochs(3), job=job), 80)[1])
    write_points(tmp_path, ["batch=8"], ["batch=16"])
    assert " training 4  " in "\n".join(picture(tmp_path, 80))


def test_a_process_that_ran_already_has_no_epochs(tmp_path):
    job = {**{key: value for key, value in JOB.items() if key != "epochs"}, "measure": {"pid": 1234}}
    moments = {"command_ns": 4890 * SECOND, "process_ns": 4910 * SECOND, "opened_ns": 4911 * SECOND}
    header, *lines = picture(write_run(tmp_path / "0", job=job, moments=moments))
    assert " training on " in header
    assert lines[0].startswith("process 1234 ")
    assert lines[1].startswith("Run so far: 110 s: since the last epoch 81 %, preparation and analysis 18 %")
    assert "No step is recorded yet." not in lines


def test_a_terminal_that_is_too_small_shows_how_many_lines_are_hidden(tmp_path):
    console = Console(width=80, height=8, force_terminal=True, color_system=None)
    snapshot = Watcher(write_run(tmp_path / "0", epochs(3))).read()
    complete = draw(snapshot, 80)
    text = _screen(snapshot, "", console)
    *lines, last = re.split("\n|\x1b\\[[HJK]", text)
    assert (text.count("\x1b[K"), text.count("\n")) == (7, 7), "each line is cleared"
    assert [line for line in lines if line] == [line for line in plain(complete[:7], console) if line]
    assert re.search(r"(\d+) more lines", last)[1] == str(len(complete) - 7)


@pytest.mark.parametrize(("text", "shown"), [("abcdef", "abcd…"), ("ab世界世", "ab世…"), ("abcde", "abcde")])
def test_a_line_that_does_not_fit_ends_with_an_ellipsis_and_colors_are_the_terminals(text, shown):
    lines = [[(text[:2], "bold"), (text[2:], "green"), ("", "dim")]]
    assert plain(lines, Console(width=5, color_system=None)) == [shown]
    colored = Console(width=5, force_terminal=True, color_system="256", no_color=False)
    assert [*terminal._rendered(lines, colored)] == [f"\x1b[1m{shown[:2]}\x1b[0m\x1b[32m{shown[2:]}\x1b[0m"]
    assert plain(lines, Console(width=5, force_terminal=True, no_color=True)) == [shown]


def test_texts_of_users_cannot_command_the_terminal_or_use_markup(tmp_path):
    write_points(tmp_path, [f"note={HOSTILE}"], ["note=[red]b"])
    failure = {"kind": "exception", "message": HOSTILE}
    write_ended(tmp_path, 0, 1.0, 1.0, state="failed", failure=failure, note=HOSTILE)
    job = {**JOB, "footprint": {"price": 1, "currency": HOSTILE, "pue": 1}}
    write_run(tmp_path / "1", epochs(2), number=1, name=HOSTILE, flags={"x": HOSTILE}, rehearsal=[HOSTILE], job=job)
    for folder in (tmp_path, tmp_path / "1"):
        text = "\n".join(picture(folder, 160))
        assert "[bold]name[/bold]" in text
        assert not {"\x1b", "\x07", "\u202e"} & set(text)


def test_a_long_sweep_fits_the_terminal_and_shows_active_and_failed_runs_first(tmp_path):
    write_points(tmp_path, *([f"batch={number}"] for number in range(60)))
    for number in range(40):
        is_failed = number in (5, 6)
        write_ended(tmp_path, number, 2.0 + number, 3.0 + number, state="failed" if is_failed else "completed",
                    failure={"kind": "oom", "message": "no memory"} if is_failed else None, batch=number)  # fmt: skip
    write_run(tmp_path / "40", epochs(3), number=40, overrides=["batch=40"])
    assert_screen("long_sweep", picture(tmp_path, 80, terminal.OTHER_LINES + 5))


def test_a_sweep_has_all_runs_their_ends_the_front_so_far_and_the_time_to_go(tmp_path):
    write_points(tmp_path, *([f"batch={batch}", "epochs=6"] for batch in (8, 16, 32, 64, 128)))
    write_ended(tmp_path, 0, 4.0, 10.0, batch=8)
    write_ended(tmp_path, 1, 5.0, 12.0, batch=16)
    failure = Problem("no memory", "x", "oom").to_fields()
    write_ended(tmp_path, 2, 1.0, 1.0, batch=32, state="failed", failure=failure)
    write_run(tmp_path / "3", epochs(3), number=3, overrides=["batch=64", "sweep.resume=true"], model={})
    assert_screen("active_sweep", picture(tmp_path))


def test_runs_of_a_cluster_have_their_job_and_a_damaged_run_its_error(tmp_path):
    write_points(tmp_path, *([f"batch={batch}"] for batch in (8, 16, 32)))
    (tmp_path / "slurm").mkdir()
    jobs = {0: {"job": "71"}, 1: {"job": "72", "state": "NODE_FAIL", "node": "n2"}}
    write_json(tmp_path / "slurm/jobs.json", jobs)
    write_run(tmp_path / "2")
    (tmp_path / "2/job.json").write_text("{")
    assert_screen("cluster_sweep", picture(tmp_path))
    assert Watcher(tmp_path).read().remaining_s is None


def test_an_ended_sweep_of_rehearsals_is_marked_and_its_numbers_aligned(tmp_path):
    write_points(tmp_path, ["note=8"], ["note=世界"])
    for number, note in enumerate(("8", "世界")):
        write_ended(tmp_path, number, 4.0 + 10 * number, 10.0, note=note, rehearsal=["device=nano requested"])
    assert_screen("ended_sweep", picture(tmp_path))


def test_estimated_energy_of_a_sweep_is_marked(tmp_path):
    for number, name in enumerate(("energy_j", "estimated_energy_j")):
        summary = {"state": "completed", "metrics": {"steady/e2e_s": 1.0, f"steady/{name}": 5.0}}
        write_run(tmp_path / str(number), number=number, summary=summary)
    rows = Watcher(tmp_path).read().runs
    assert [(row.energy_j, row.estimated_energy_j) for row in rows] == [(5.0, None), (None, 5.0)]
    header, *cells = [line.split() for line in picture(tmp_path) if line.startswith(("run ", "0", "1"))]
    assert header[-5:] == ["J", "estimated", "energy", "J", "elapsed"]
    assert [row[-2:] for row in cells] == [["5.0", "-"], ["-", "5.0"]]


def test_long_keys_of_a_sweep_are_shortened_so_that_its_numbers_fit(tmp_path):
    keys = ("epochs", "dataset.preprocess", "optimizer.weight_decay")
    texts = ["run", "epochs", "dataset.p…", "optimizer…", "state", "time s", "stall", "energy J", "elapsed"]
    for number in range(2):
        write_ended(tmp_path, number, 4.0, 10.0, **dict.fromkeys(keys, number))
    (header,) = [line for line in picture(tmp_path) if line.startswith("run ")]
    assert re.split("  +", header) == texts


def test_a_sparkline_scales_from_zero_and_is_blank_without_samples():
    series = Series([0.0, 30.0, 58.0, 59.0], [1.0, 2.0, 3.0, 5.0], 5.0)
    assert terminal._sparkline(series, 6) == "▃  ▅ █"
    assert len(terminal._sparkline(series, 100)) == 30, "a character has a sample"


def test_a_damaged_record_is_drawn_as_far_as_it_is_readable(tmp_path):
    folder = write_run(tmp_path / "0", [{**window("epoch", 0, 14, 8.0), "metrics": {"epoch/copy_s": 1.0}}])
    (folder / "power.csv").write_text(f"monotonic_ns,total_w\n{4990 * SECOND},12.5\n{4991 * SECOND},inf\n")
    (folder / "gauges.csv").write_text(f"monotonic_ns,cpu_utilization,ram_used_bytes\n{4990 * SECOND},0.5,nan\n")
    assert_screen("damaged_run", picture(folder))


def test_output_that_is_no_terminal_gets_the_state_once_and_may_be_closed(tmp_path, monkeypatch, capsys):
    config = OmegaConf.load(installation.CONF / "watch.yaml")
    config.update(folder=str(write_run(tmp_path / "0", epochs(3), silent_s=40)), hydra=None, defaults=None)
    entry.task(config)
    out = capsys.readouterr().out
    assert ("\x1b" in out, "stalled" in out) == (False, True)

    def write(*lines, **options):
        raise BrokenPipeError

    monkeypatch.setattr(terminal, "print", write, raising=False)
    with pytest.raises(BrokenPipeError):
        entry.task(config)


@pytest.mark.parametrize("folder", ["multirun/a", "/tmp/it's a \\run", "runs, [1]"])
def test_an_argument_that_is_a_folder_needs_no_key(folder):
    (override,) = OverridesParser.create().parse_overrides([entry.with_key(folder)])
    assert (override.key_or_group, override.value()) == ("folder", folder)
    others = ["once=true", "--cfg", "k" * 5000 + "=1"]
    assert [*map(entry.with_key, others)] == others


def test_a_folder_is_a_path_or_the_name_of_a_sweep_and_else_the_newest(tmp_path):
    with pytest.raises(InputError, match="no runs yet\n  hint: start one"):
        entry.find_folder(None, tmp_path)
    for name in ("2026-11-20_12-00-00-1a2b3c4d", "2026-11-21_12-00-00-1a2b3c4d"):
        write_run(tmp_path / name / "0")
    assert entry.find_folder(None, tmp_path).name == "2026-11-21_12-00-00-1a2b3c4d"
    assert entry.find_folder("2026-11-20_12-00-00-1a2b3c4d", tmp_path) == tmp_path / "2026-11-20_12-00-00-1a2b3c4d"
    assert entry.find_folder(str(tmp_path), tmp_path / "other") == tmp_path
    assert entry.find_folder(2026, tmp_path) == Path("2026"), "a number, for Hydra"


def test_without_a_folder_a_running_sweep_comes_before_the_newest(tmp_path):
    older, newest = tmp_path / "2026-11-20_12-00-00-1a2b3c4d", tmp_path / "2026-11-21_12-00-00-1a2b3c4d"
    write_ended(newest, 0, 4.0, 10.0)
    for host, shown in (("another", newest), (this_process().host, older)):
        queue.enqueue(Record(write_run(older / "0", host=host)), "r")
        assert entry.find_folder(None, tmp_path) == shown
    assert [*(tmp_path / ".queue").iterdir()], "the queue is only read"


def test_without_a_folder_the_view_of_an_ended_sweep_changes_to_the_running_one(tmp_path):
    ended, *started = (tmp_path / f"2026-11-2{day}_12-00-00-1a2b3c4d" for day in range(3))
    write_run(ended / "0", summary={"state": "completed"})
    readers = entry.reader(None, tmp_path), entry.reader(str(ended), tmp_path)
    shown = [[Path(read().folder).parent for read in readers]]
    for sweep in started:
        queue.enqueue(Record(write_run(sweep / "0", record_id=sweep.name)), sweep.name)
        shown.append([Path(read().folder).parent for read in readers])
    write_run(started[0] / "0", record_id=started[0].name, summary={"state": "completed"})
    shown.append([Path(read().folder).parent for read in readers])
    assert shown == [[ended, ended], [started[0], ended], [started[0], ended], [started[1], ended]]


@pytest.mark.system
@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_a_key_leaves_the_view_with_exit_code_0(tmp_path, key):
    folder = write_run(tmp_path / "a run's folder" / "0", epochs(3))
    process, controller = pty.fork()
    if not process:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored by a shell's background processes, and inherited
        os.execv(sys.executable, [sys.executable, str(installation.ROOT / "src/watch.py"), str(folder)])
    seen = b""
    while b"q: leave" not in seen:
        seen += os.read(controller, 65536)
    os.write(controller, key)
    with suppress(OSError), open(controller, "rb", buffering=0) as terminal:  # OSError: the view has ended
        while terminal.read(65536):
            pass
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
