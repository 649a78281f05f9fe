"""What a person or a machine gets wrong: told with what was asked, what was found and what to do; nothing lost."""

import os
import re
import time

import pytest

from epochmeter.config import errors

UNPRIVILEGED = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
"""Root, to whom a file's permissions apply as to everyone else."""


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("bathc=8", "error: unknown key `bathc`\n  hint: did you mean `batch=`? keys: batch, cache,"),
        ("~batch", "error: `~batch` deletes a required key\n  hint: set the key instead: `batch=`"),
        ("batch=${nope}", "error: cannot resolve `batch=${nope}`: Interpolation key 'nope' not found\n  hint: "),
        ("batch=0", "error: `batch=0` is not valid\n  hint: give a whole number, 1 or more"),
        ("model=seq2seq", "error: model=seq2seq does not go with dataset=digits, which has no words\n  hint: "),
        ("sweep.sample=3", "error: `sweep.sample=3` is for sweeps, and this is a single run\n  hint: "),
        ("hydra.run.dir=conf/train.yaml/0", "conf/train.yaml/0`: Not a directory\n  hint: "),
        ("seed=1 -m batch=range(0,0)", "error: `batch=range(0,0)` has no values to sweep over\n  hint: "),
        ("-m hydra/sweeper=optuna optimizer.lr=0.1", "there is nothing to search\n  hint: "),
        ("-m batch=range(0,0)", "error: `batch=range(0,0)` has no values to sweep over\n  hint: "),
        ("-m batch=8,0", "error: Nothing is trained: 1 of 2 configurations are refused\n`batch=0` is not valid"),
    ],
)
def test_what_cannot_be_is_refused_in_words_and_leaves_nothing_behind(project, typed, says):
    before = sorted(project.root.rglob("*"))
    done = project.run("train", *typed.split(" "), f"machine.lock_dir={project.root}/locks")
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not [line for line in done.stdout.splitlines() if not line.startswith("Composing configurations")]
    assert [path for path in sorted(project.root.rglob("*")) if "__pycache__" not in path.parts] == [
        path for path in before if "__pycache__" not in path.parts
    ]


def failed(project, **overrides):
    """What a run says that fails with a record of its failure."""
    done = project.run("train", *project.quick(**overrides))
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    summary = project.record().summary()
    assert (summary["state"], summary["failure"]["kind"]) == ("failed", "exception")
    assert errors.format_error(summary["failure"]["message"]) in done.stdout
    return summary["failure"]["message"]


def test_a_storage_that_is_not_there_is_not_made(project):
    said = failed(project, **{"storage.root": project.root / "card"})
    assert said.startswith(f"`storage.root={project.root}/card` is not an existing folder")
    assert not (project.root / "card").exists()


def test_a_python_that_is_not_there_is_named(project):
    done = project.run("train", *project.quick(**{"device.python": "/nowhere/python"}))
    assert done.returncode == 1
    assert "error: `device.python=/nowhere/python`: there is no such program\n  hint: " in done.stderr
    assert project.records() == []


def test_a_dataset_folder_that_was_emptied_is_made_again(project):
    digits = project.own_data()
    for path in digits.iterdir():
        path.rename(project.root / path.name)
    done = project.run("train", *project.quick())
    assert done.returncode == 0, done.stdout
    assert f"preparing dataset digits in {digits}" in done.stdout
    assert project.record().run()["dataset"]["count"] == 1797


def test_a_dataset_that_lacks_images_is_told_with_what_was_found_and_what_to_do(project):
    digits = project.own_data()
    for path in (digits / "train" / "3").iterdir():
        path.unlink()
    said = failed(project)
    assert re.match(rf"dataset folder {digits} has \d+ files of \d+ bytes; its manifest lists 1797 files", said)
    assert "Move that folder away" in said


def test_an_image_that_was_truncated_is_named(project):
    image = project.own_data() / "train" / "7" / "0007.png"
    image.write_bytes(image.read_bytes()[:60])
    assert f"annot read {image}: " in failed(project)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_that_was_damaged_in_place_is_named_by_whoever_reads_it(project, workers):
    image = project.own_data() / "train" / "7" / "0007.png"
    image.write_bytes(bytes(image.stat().st_size))
    said = failed(project, workers=workers)
    assert f"cannot read image {image}: " in said
    assert "on_bad=skip" in said
    assert project.at_work_in(project.record().folder) == []


def test_a_dataset_that_may_not_be_read_is_told_with_what_to_do(project):
    digits = project.own_data()
    digits.chmod(0)
    done = project.run("train", *project.quick(), before=UNPRIVILEGED if os.geteuid() == 0 else ())
    digits.chmod(0o755)
    assert done.returncode == 1
    assert f"error: cannot read dataset folder {digits}: [Errno 13] Permission denied" in done.stdout
    assert "Check its permissions" in done.stdout


def test_a_server_that_is_away_costs_a_run_nothing_but_a_warning_and_publish_repairs_it(project):
    begun = time.monotonic()
    done = project.run("train", *project.quick(tracking="mlflow"), MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert time.monotonic() - begun < 40
    assert done.returncode == 0, done.stderr
    assert project.record().is_completed()
    repaired = publish_as_told(project, done.stdout)
    assert repaired.returncode == 0, repaired.stderr
    assert project.shown("status") == ["FINISHED"]
    assert project.rows("select count(*) from metrics where key = 'epoch/e2e_s'") == [(1,)]


def publish_as_told(project, output):
    """Types the command with which a run's warning ends."""
    (folder,) = re.findall(r"its record is complete; .*python src/publish\.py (\S+)$", output, re.MULTILINE)
    assert folder == str(project.record().folder)
    return project.run("publish", folder)
