"""Invalid input and missing or damaged data, through the command: errors with remedies, and nothing is lost."""

import pytest


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
