"""Invalid input and missing or damaged data, through the command: errors with remedies, and nothing is lost."""

import re

import pytest

from epochmeter.config import errors


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        pytest.param(
            *("-m hydra/sweeper=optuna optimizer.lr=0.1", "there is nothing to search\n  hint: "),
            marks=pytest.mark.system,
        ),
        ("-m batch=8,0", "error: Nothing is trained: 1 of 2 configurations are refused\n`batch=0` is not valid"),
    ],
)
def test_invalid_input_is_refused_and_leaves_no_files(project, arguments, error):
    before = sorted(project.root.rglob("*"))
    done = project.run("train", *arguments.split(" "), f"machine.lock_dir={project.root}/locks")
    assert done.returncode == 1
    assert error in done.stderr
    assert "Traceback" not in done.stderr
    assert [line for line in done.stdout.splitlines() if not line.startswith("Composing configurations")] == []
    assert [path for path in sorted(project.root.rglob("*")) if "__pycache__" not in path.parts] == [
        path for path in before if "__pycache__" not in path.parts
    ]


@pytest.mark.system
def test_dataset_with_missing_images_fails_the_run_with_a_remedy(project):
    digits = project.own_data()
    for path in (digits / "train" / "3").iterdir():
        path.unlink()
    done = project.run("train", *project.quick())
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    failure = project.record().summary()["failure"]
    message = failure["message"]
    assert failure["kind"] == "exception"
    assert errors.format_error(message) in done.stdout
    assert re.match(rf"dataset folder {digits} has \d+ files of \d+ bytes; its manifest lists 1797 files", message)
    assert "Move that folder away" in message
