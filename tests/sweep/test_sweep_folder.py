import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from epochmeter.sweep import sweep_folder

SOURCE = Path(__file__).parents[2] / "src"
NOON, LATER = datetime(2026, 11, 20, 12, 0, 0), datetime(2026, 11, 20, 12, 5, 0)
COMMAND = ["batch=8,16", "model=lenet"]
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
    """folder(command, resume, now) -> what a command's process works in; it has ended when this returns."""
    monkeypatch.setattr(sweep_folder, "_held_locks", [])

    def of(command=COMMAND, resume=False, now=NOON):
        made = sweep_folder.open_sweep_folder(multirun, now, command, many=True, again=not resume)
        while sweep_folder._held_locks:
            os.close(sweep_folder._held_locks.pop())
        return made

    return of


def start(multirun, how="new"):
    """A process that works in its sweep's folder until it is ended."""
    return subprocess.Popen(
        [sys.executable, "-c", START, str(multirun), how, *COMMAND],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )


def test_a_folder_tells_when_it_was_started_and_by_what(folder, multirun):
    made = folder()
    assert made.is_dir()
    assert made == multirun / f"2026-11-20_12-00-00-{sweep_folder.command_hash(COMMAND, many=True)}"


def test_two_commands_of_one_second_never_share_a_folder(folder):
    made = [folder() for _ in range(3)]
    assert [path.name.partition("-" + sweep_folder.command_hash(COMMAND, many=True))[0] for path in made] == [
        "2026-11-20_12-00-00",
        "2026-11-20_12-00-00.2",
        "2026-11-20_12-00-00.3",
    ]


def test_two_processes_started_at_once_never_share_a_folder(multirun):
    processes = [start(multirun, how) for how in ("new", "resume", "new")]
    # One that resumes may say before that another's folder is in use.
    folders = {next(line.strip() for line in process.stdout if line[0] == "/") for process in processes}
    for process in processes:
        process.communicate("")
    assert len(folders) == 3
    assert folders == {str(path) for path in multirun.iterdir()}


def test_a_command_that_resumes_goes_on_in_the_newest_folder_of_its_own(folder):
    folder(now=NOON)
    newest = folder(now=LATER)
    folder(["batch=32"], now=datetime(2026, 11, 20, 13, 0, 0))
    assert folder(resume=True, now=datetime(2026, 11, 21, 12, 0, 0)) == newest


def test_the_newest_of_one_second_is_the_one_made_last(folder):
    folder()
    second = folder()
    assert folder(resume=True, now=LATER) == second


def test_more_than_nine_of_one_second_are_in_the_order_in_which_they_were_made(folder):
    last = [folder() for _ in range(11)][-1]
    assert folder(resume=True, now=LATER) == last


def test_what_is_made_once_the_clock_was_set_back_is_the_newest_all_the_same(folder):
    folder(now=LATER)
    made = folder(now=NOON)
    assert made.name.startswith("2026-11-20_12-05-00.2-")
    assert folder(resume=True, now=NOON) == made


def test_a_folder_that_was_renamed_is_the_oldest_and_gives_no_other_its_name(folder, multirun):
    renamed = folder()
    renamed = renamed.rename(multirun / f"mine-{renamed.name[-8:]}")
    assert folder(resume=True) == renamed
    made = folder(now=NOON)
    assert made.name.startswith("2026-11-20_12-00-00-")
    assert folder(resume=True) == made


def test_a_single_run_that_resumes_goes_on_in_its_own_folder_and_in_no_sweeps(folder, multirun):
    folder()
    single = sweep_folder.open_sweep_folder(multirun, NOON, COMMAND, many=False, again=True)
    os.close(sweep_folder._held_locks.pop())  # its process has ended
    assert sweep_folder.open_sweep_folder(multirun, LATER, COMMAND, many=False, again=False) == single


def test_a_command_that_does_not_resume_measures_anew(folder):
    assert folder(now=NOON) != folder(now=LATER)


def test_with_nothing_to_resume_a_folder_is_made(folder):
    assert folder(resume=True).is_dir()


def test_a_folder_that_another_process_is_at_work_in_is_left_to_it(folder, multirun):
    with start(multirun) as process:
        theirs = Path(process.stdout.readline().strip())
        assert folder(resume=True, now=LATER) != theirs
        process.communicate("")


def test_a_command_goes_on_in_the_newest_folder_that_is_free_and_says_which_is_not(folder, multirun, capsys):
    free = folder(now=datetime(2026, 11, 20, 11, 0, 0))
    with start(multirun) as process:
        theirs = Path(process.stdout.readline().strip())
        assert theirs.name > free.name
        assert folder(resume=True, now=LATER) == free
        process.communicate("")
    assert capsys.readouterr().out == f"Another process runs the same command in {theirs.name}; using another folder.\n"


def test_a_folder_whose_process_was_killed_can_be_resumed(folder, multirun):
    with start(multirun) as process:
        theirs = Path(process.stdout.readline().strip())
        process.kill()
    assert folder(resume=True, now=LATER) == theirs


@pytest.mark.parametrize(
    "same",
    [
        ["model=lenet", "batch=8,16"],
        [*COMMAND, "tracking=none"],
        [*COMMAND, "tracking.experiment=mine"],
        [*COMMAND, "sweep.again=true"],
        [*COMMAND, "machine.lock_dir=/tmp"],
        [*COMMAND, "sweep.cooldown_s=60", "sweep.max_failures=5", "sweep.timeout_s=3600"],
    ],
)
def test_a_command_is_the_same_in_any_order_and_with_any_keys_that_change_no_measurement(same):
    assert sweep_folder.command_hash(same, many=True) == sweep_folder.command_hash(COMMAND, many=True)


@pytest.mark.parametrize(
    "other",
    [
        ["batch=8,16"],
        ["batch=8,32", "model=lenet"],
        [*COMMAND, "trackings=1"],
        [*COMMAND, "sweep.sample=2"],
        [*COMMAND, "sweep.seed=1"],
        [*COMMAND, "sweep.order=random"],
        [*COMMAND, "sweep.repeats=3"],
    ],
)
def test_a_command_that_measures_something_else_is_another(other):
    assert sweep_folder.command_hash(other, many=True) != sweep_folder.command_hash(COMMAND, many=True)


def test_the_same_command_on_another_host_is_another(monkeypatch):
    here = sweep_folder.command_hash(COMMAND, many=True)
    monkeypatch.setattr(sweep_folder.platform, "node", lambda: "elsewhere")
    assert sweep_folder.command_hash(COMMAND, many=True) != here


def test_what_a_cluster_makes_is_the_same_from_any_of_its_login_nodes(monkeypatch):
    sent = [*COMMAND, sweep_folder.SLURM_OVERRIDE]
    here = sweep_folder.command_hash(sent, many=True)
    monkeypatch.setattr(sweep_folder.platform, "node", lambda: "elsewhere")
    assert sweep_folder.command_hash(sent, many=True) == here


@pytest.mark.parametrize("key", ["hydra.launcher.partition", "device.slurm.constraint", "hydra.launcher.options"])
def test_another_kind_of_node_is_another_command(key):
    one, other = ([*COMMAND, sweep_folder.SLURM_OVERRIDE, f"{key}={kind}"] for kind in ("a100", "h100"))
    assert sweep_folder.command_hash(one, many=True) != sweep_folder.command_hash(other, many=True)


@pytest.mark.parametrize("key", ["hydra.launcher.account", "hydra.launcher.time", "+device.slurm.python"])
def test_who_pays_and_how_long_one_waits_are_no_part_of_the_command(key):
    sent = [*COMMAND, sweep_folder.SLURM_OVERRIDE]
    assert sweep_folder.command_hash([*sent, f"{key}=1"], many=True) == sweep_folder.command_hash(sent, many=True)


def test_a_single_run_and_a_sweep_of_the_same_keys_are_two_commands():
    assert sweep_folder.command_hash(COMMAND, many=True) != sweep_folder.command_hash(COMMAND, many=False)


def test_a_grid_whose_keys_are_typed_in_another_order_has_other_numbers_and_is_another_command():
    one, other = ["batch=8,16", "workers=0,4", "seed=1"], ["workers=0,4", "batch=8,16", "seed=1"]
    assert sweep_folder.command_hash(one, many=True) != sweep_folder.command_hash(other, many=True)
    assert sweep_folder.command_hash(one, many=True) == sweep_folder.command_hash(["seed=1", *one[:2]], many=True)


@pytest.mark.parametrize("at", range(3))
def test_repeats_are_the_same_command_as_the_repeat_that_they_stand_for(at):
    typed = [*COMMAND[:at], "sweep.repeats=3", *COMMAND[at:]]
    assert sweep_folder.command_hash(typed, many=True) == sweep_folder.command_hash(
        ["repeat=0,1,2", *COMMAND], many=True
    )


def test_of_a_single_run_what_concerns_many_says_nothing():
    typed = [*COMMAND, "sweep.repeats=3", "sweep.order=random"]
    assert sweep_folder.command_hash(typed, many=False) == sweep_folder.command_hash(COMMAND, many=False)


def test_points_that_are_noted_are_read_with_what_tells_them_apart_and_which_were_completed(tmp_path):
    typed = [["batch=8", "workers=0"], ["batch=16", "workers=0"]]
    sweep_folder.write_points(tmp_path, typed)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "completed.json").write_text("{}")
    assert sweep_folder.read_points(tmp_path) == (typed, {"batch=8", "batch=16"}, {1})


@pytest.mark.parametrize("text", [None, "", '{"points": [["batch=8"'], ids=["none", "empty", "cut short"])
def test_points_that_are_not_noted_are_none(tmp_path, text):
    if text is not None:
        (tmp_path / "points.json").write_text(text)
    assert sweep_folder.read_points(tmp_path) == ((), frozenset(), frozenset())


@pytest.mark.parametrize("resume", [False, True])
def test_folder_of_a_command_that_made_no_run_is_removed(folder, multirun, monkeypatch, resume):
    monkeypatch.setattr(sweep_folder, "_created_folders", [])
    made = folder(resume=resume)
    sweep_folder.write_points(made, [["batch=8"], ["batch=16"]])
    (made / "0").mkdir()
    sweep_folder.remove_empty()
    assert not multirun.exists()


def test_folder_of_a_run_is_kept_with_its_points(folder, monkeypatch):
    monkeypatch.setattr(sweep_folder, "_created_folders", [])
    made = folder()
    sweep_folder.write_points(made, [["batch=8"], ["batch=16"]])
    (made / "1").mkdir()
    (made / "1" / "job.json").touch()
    (made / "0").mkdir()
    sweep_folder.remove_empty()
    assert sorted(path.name for path in made.iterdir()) == [".again", "1", "points.json"]
