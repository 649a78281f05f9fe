"""Folders of sweeps: names, resume, locks, and the identity of a command."""

import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from epochmeter.results.sweep_order import start_key
from epochmeter.sweep import sweep_folder
from epochmeter.sweep.sweep_folder import SLURM_OVERRIDE, command_hash

SOURCE = Path(__file__).parents[2] / "src"
NOON, LATER = datetime(2026, 11, 20, 12, 0, 0), datetime(2026, 11, 20, 12, 5, 0)
COMMAND = ["batch=8,16", "model=lenet"]
HASH = command_hash(COMMAND, many=True)
START = """
import sys
from datetime import datetime
from pathlib import Path
from epochmeter.sweep import sweep_folder
multirun, how, *command = sys.argv[1:]
now = datetime(2026, 11, 20, 12, 0, 0)
print(sweep_folder.open_sweep_folder(Path(multirun), now, command, many=True, again=how != "resume"), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def multirun(tmp_path):
    return tmp_path / "multirun"


@pytest.fixture
def folder(multirun, monkeypatch):
    """folder(command, resume, now) -> the folder of a command whose process has ended."""
    monkeypatch.setattr(sweep_folder, "_held_locks", [])

    def open_folder(command=COMMAND, resume=False, now=NOON, many=True):
        opened = sweep_folder.open_sweep_folder(multirun, now, command, many=many, again=not resume)
        while sweep_folder._held_locks:
            os.close(sweep_folder._held_locks.pop())
        return opened

    return open_folder


def start(multirun, how="new"):
    """Start a process that keeps the folder of its sweep until it is ended."""
    command, environment = [sys.executable, "-c", START, str(multirun), how, *COMMAND], {"PYTHONPATH": str(SOURCE)}
    piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env={**os.environ, **environment}, **piped)


def test_folder_is_named_after_time_and_command_with_a_counter_within_a_second(folder, multirun):
    names = [f"2026-11-20_12-00-00{counter}-{HASH}" for counter in ("", ".2", ".3")]
    assert [folder() for _ in range(3)] == [multirun / name for name in names]


def test_processes_that_start_together_have_different_folders(multirun):
    processes = [start(multirun, how) for how in ("new", "resume", "new")]
    # A process that resumes may first print that another process uses a folder.
    folders = {next(line.strip() for line in process.stdout if line[0] == "/") for process in processes}
    for process in processes:
        process.communicate("")
    assert len(folders) == 3
    assert folders == {str(path) for path in multirun.iterdir()}


def test_command_resumes_in_its_newest_folder_although_the_clock_was_set_back(folder):
    assert folder(resume=True).is_dir()
    newest = folder(now=LATER)
    single = folder(["batch=32"], many=False)
    folder(["batch=32"], now=datetime(2026, 11, 20, 13, 0, 0))
    assert folder(["batch=32"], many=False, resume=True, now=LATER) == single
    assert folder(resume=True, now=datetime(2026, 11, 21, 12, 0, 0)) == newest
    newest = folder(now=NOON)
    assert newest.name.startswith("2026-11-21_12-00-00.2-")
    assert folder(resume=True, now=NOON) == newest


def test_resumed_folder_is_the_newest_although_the_clock_was_wrong(folder, multirun):
    first, wrong = folder(), folder(["batch=32"], now=datetime(2099, 1, 1))
    third = folder(["batch=64"], now=LATER)

    def by_start():
        return sorted(multirun.iterdir(), key=start_key)

    assert by_start() == [first, wrong, third]
    assert folder(resume=True, now=datetime(1970, 1, 1)) == first
    assert by_start() == [wrong, third, first]
    assert folder(resume=True, now=NOON) == first, "it is the newest already"
    assert folder(["batch=32"], resume=True, now=NOON) == wrong
    assert by_start() == [third, first, wrong]
    folder(["batch=7"]).rename(multirun / "renamed")
    assert by_start() == [multirun / "renamed", third, first, wrong]
    assert folder(["batch=8"]) == by_start()[-1]
    (first / ".started").write_text("damaged")
    assert by_start()[:2] == [multirun / "renamed", first]


def test_newest_folder_has_the_last_name_although_a_board_has_lost_its_clock(folder, multirun, capsys):
    folder(["batch=32"], now=NOON)
    (multirun / "reports").mkdir()
    assert capsys.readouterr().out == ""
    created = [folder(now=datetime(1970, 1, 1, 0, 2, second)) for second in range(2)]
    assert [path.name[:-9] for path in created] == ["2026-11-20_12-00-00.2", "2026-11-20_12-00-00.3"]
    assert "The clock is behind" in capsys.readouterr().out
    assert folder(now=LATER).name == f"2026-11-20_12-05-00-{HASH}"


def test_folder_in_use_is_skipped_with_a_message_and_free_after_a_kill(folder, multirun, capsys):
    free = folder(now=datetime(2026, 11, 20, 11, 0, 0))
    with start(multirun) as process:
        used = Path(process.stdout.readline().strip())
        assert used.name > free.name
        assert folder(resume=True, now=LATER) == free
        process.kill()
    assert capsys.readouterr().out == f"Another process runs the same command in {used.name}; using another folder.\n"
    assert folder(resume=True, now=LATER) == used


def test_hash_is_that_of_the_keys_that_affect_a_measurement(monkeypatch):
    swept = ["batch=8,16", "workers=0,4", "seed=1"]
    repeated = command_hash(["repeat=0,1,2", *COMMAND], many=True)
    for same, expected in (
        (["model=lenet", "batch=8,16"], HASH),
        (["model=vgg11", *COMMAND], HASH),  # the last value counts
        ([*COMMAND, "tracking.experiment=mine", "machine.lock_dir=/tmp"], HASH),
        ([*COMMAND, "sweep.cool_below_c=60", "hydra.launcher.account=1"], HASH),
        ([swept[2], *swept[:2]], command_hash(swept, many=True)),
        *(([*COMMAND[:at], "sweep.repeats=3", *COMMAND[at:]], repeated) for at in range(3)),
    ):
        assert command_hash(same, many=True) == expected, same
    for other in ("trackings=1", "model=vgg11", "sweep.sample=2", "sweep.repeats=3", "hydra.launcher.partition=a100"):
        assert command_hash([*COMMAND, other], many=True) != HASH, other
    # The order of swept keys is the order of the runs.
    assert command_hash([swept[1], swept[0], swept[2]], many=True) != command_hash(swept, many=True)
    single = command_hash(COMMAND, many=False)
    assert single != HASH
    assert command_hash([*COMMAND, "sweep.repeats=3", "sweep.order=random"], many=False) == single
    on_cluster = [*COMMAND, SLURM_OVERRIDE]
    before = command_hash(on_cluster, many=True)
    monkeypatch.setattr(sweep_folder.platform, "node", lambda: "elsewhere")
    assert command_hash(COMMAND, many=True) != HASH, "on another host"
    assert command_hash(on_cluster, many=True) == before, "a cluster chooses the hosts"


@pytest.mark.parametrize(("resume", "has_run"), [(False, False), (True, False), (False, True)])
def test_only_the_folder_of_a_command_without_runs_is_removed(folder, multirun, monkeypatch, resume, has_run):
    monkeypatch.setattr(sweep_folder, "_created_folders", [])
    created = folder(resume=resume)
    sweep_folder.write_points(created, [["batch=8"], ["batch=16"]])
    for number in (0, 1):
        (created / str(number)).mkdir()
    if has_run:
        (created / "1" / "job.json").touch()
    sweep_folder.remove_empty()
    assert multirun.exists() == has_run
    assert not has_run or sorted(path.name for path in created.iterdir()) == [".again", "1", "points.json"]
