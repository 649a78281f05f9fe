"""`python src/measure.py`: a training script with and without measuring."""

import os
import re
import signal
import subprocess
import sys

import pytest

from epochmeter.commands import measure
from epochmeter.config.errors import InputError

SCRIPT = """
import os, signal, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader

epochs, workers, pause_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
data = [(torch.full((10,), float(number)), number % 2) for number in range(64)]

def stop(number, frame):
    print("stopped by", number, flush=True)
    sys.exit(7)

def main():
    torch.manual_seed(0)
    signal.signal(signal.SIGTERM, stop)
    model = nn.Sequential(nn.Linear(10, 16), nn.Dropout(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train, val = DataLoader(data, 8, shuffle=True, num_workers=workers), DataLoader(data, 16)
    for epoch in range(epochs):
        for inputs, targets in train:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(pause_s)
        with torch.no_grad():
            right = sum((model(inputs).argmax(1) == targets).sum().item() for inputs, targets in val)
        print(epoch, loss.item().hex(), right, flush=True)
    print([parameter.double().sum().item().hex() for parameter in model.parameters()])
    print("EPOCHMETER" in "".join(os.environ), sys.path[1:3] == [path for path in sys.path[1:3] if "agent" not in path])
    print("input", sys.stdin.read(), file=sys.stderr)
    sys.exit(3)

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def project(new_project):
    project = new_project()
    (project.root / "own.py").write_text(SCRIPT)
    return project


def stopped_by(number, project, *script):
    """Send a signal to the command while the script trains; return its exit code and output."""
    command = project.start("measure", *keys(project), *script)
    project.until_in_training()
    os.kill(command.pid, number)
    out, err = command.communicate(timeout=60)
    return command.returncode, out, err


def keys(project, *more):
    return [f"machine.lock_dir={project.root / 'locks'}", "tracking=none", *more]


def test_script_has_the_same_output_losses_weights_and_exit_code_as_without(project):
    command = ["own.py", "3", "1", "0"]
    plain = subprocess.run(
        [sys.executable, *command],
        cwd=project.root,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    measured = project.run("measure", *keys(project), *command)
    assert (measured.returncode, measured.stdout) == (plain.returncode, plain.stdout)
    assert plain.stderr in measured.stderr
    record = project.record()
    kinds = [(window["window"], window["epoch"]) for window in record.windows()]
    assert kinds == [(kind, epoch) for epoch in range(3) for kind in ("epoch", "val")]
    assert record.summary()["failure"] == {"kind": "exception", "message": "the script ended with exit code 3"}
    assert "batch" not in record.job()
    assert record.job()["measure"]["command"] == command


def test_script_that_never_trains_is_reported_and_keeps_its_exit_code(project):
    (project.root / "other.py").write_text("print('no training')")
    done = project.run("measure", *keys(project), "other.py")
    assert (done.returncode, done.stdout) == (0, "no training\n")
    assert "error: no epoch of training was measured: no pass over a torch DataLoader was seen" in done.stderr


@pytest.mark.system
def test_script_continues_after_its_controller_was_killed(project):
    _, out, err = stopped_by(signal.SIGKILL, project, "own.py", "4", "0", "0.05")
    assert [line[0] for line in out.splitlines()] == ["0", "1", "2", "3", "[", "F"]
    assert err.count("epochmeter: measuring ended, the script continues") == 1


@pytest.mark.system
def test_signal_is_passed_to_the_script_whose_handler_decides(project):
    code, out, _ = stopped_by(signal.SIGTERM, project, "own.py", "1000", "0", "0.01")
    assert out.splitlines()[-1] == "stopped by 15"
    assert code == 7


@pytest.mark.parametrize(
    ("arguments", "overrides", "command"),
    [
        ("train.py --lr 0.1 a=b", [], ["train.py", "--lr", "0.1", "a=b"]),
        ("meter=none train.py meter=2", ["meter=none"], ["train.py", "meter=2"]),
        ("meter=none -- -m package.train", ["meter=none"], ["-m", "package.train"]),
        ("--cfg job meter=none", ["--cfg", "job", "meter=none"], []),
    ],
)
def test_keys_come_before_the_script_and_its_arguments_after_it(arguments, overrides, command):
    assert measure.split_arguments(arguments.split()) == (overrides, command)


@pytest.mark.parametrize(
    ("overrides", "command", "error"),
    [
        (["batch=8"], [__file__], "`batch=` has no effect on a script"),
        (["-m"], [__file__], "`-m` does not apply"),
        ([], ["missing.py"], "`missing.py` is not a file"),
        ([], [], "there is no script to measure"),
        ([], [sys.executable], "is not a Python script"),
    ],
)
def test_invalid_commands_are_refused(overrides, command, error):
    with pytest.raises(InputError, match=re.escape(error)):  # noqa: PT012 (one of the two)
        measure.check_keys(overrides)
        measure.find_script(command)
