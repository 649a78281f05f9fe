"""A report's calls of MLflow are made by a process of its own."""

import os
import signal
import sys
import time

import pytest

from epochmeter.shared.problem import InputError, MachineError, input_error
from epochmeter.tracking.mlflow_process import MlflowProcess

NONE = {"name": "none"}


@pytest.fixture
def process(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)  # the process, not this one, imports it
    return MlflowProcess(NONE)


def answer(value, *, doubled=False):
    return [os.getpid(), value * (1 + doubled)]


def refuse():
    raise input_error("no", "another")


def fail():
    raise type("Own", (Exception,), {})("own")  # which cannot be sent


def stop():
    os.kill(os.getpid(), signal.SIGKILL)


def test_results_and_errors_are_those_of_the_functions_and_the_process_goes_on(process):
    pid, value = process.call(60.0, answer, 2, doubled=True)
    assert (pid != os.getpid(), value) == (True, 4)
    with pytest.raises(InputError, match="no\n  hint: another"):
        process.call(60.0, refuse)
    with pytest.raises(RuntimeError, match="own"):
        process.call(60.0, fail)
    assert process.call(60.0, answer, 1) == [pid, 1]


def test_late_and_killed_processes_are_errors_that_are_not_waited_for(process):
    with pytest.raises(TimeoutError, match=r"no answer within 0\.1 s"):
        process.call(0.1, time.sleep, 60)
    assert process.call(60.0, answer, 1)[1] == 1, "by another process"
    killed = MlflowProcess(NONE)
    with pytest.raises(MachineError, match="has ended with exit code -9"):
        killed.call(60.0, stop)
    with pytest.raises(MachineError, match="has ended with exit code -9"):
        killed.call(60.0, answer, 1)
