"""The command that a Slurm job executes on its nodes."""

import sys

import pytest

from epochmeter.cluster.node import exec_train


@pytest.fixture
def line(monkeypatch):
    """line(arguments, nodes) -> the program that replaces the process, and its arguments."""
    executed = []
    monkeypatch.setattr("os.execvp", lambda program, arguments: executed.append(arguments))
    monkeypatch.setenv("EPOCHMETER_REFUSAL", "")

    def call(arguments, nodes):
        exec_train("/project", arguments, "/refusal", nodes)
        return executed.pop()

    return call


def test_run_on_several_nodes_is_a_step_with_a_task_on_each(line):
    arguments = ["batch=8", "hydra.mode=RUN"]
    single = line(arguments, 1)
    assert single == [sys.executable, "/project/src/train.py", *arguments]
    program, *options = line(arguments, 3)[: -len(single)]
    assert program == "srun"
    assert {"--nodes=3", "--ntasks=3", "--ntasks-per-node=1"} <= {*options}
    assert line(["nodes=3", "--", "own.py"], 3)[-4:] == ["/project/src/measure.py", "nodes=3", "--", "own.py"]
