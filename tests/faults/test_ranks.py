"""If one of two ranks fails, hangs or is killed, the run and all processes end within seconds."""

import re
import signal
import time

import pytest

pytestmark = pytest.mark.system
PROMPT_S = 10


@pytest.fixture
def begun(project):
    """begun(overrides) -> the command, record and processes of a run of two ranks in the middle of an epoch."""

    def begin(**overrides):
        arguments = project.long(**{"strategy": "ddp", "device": "cpu", **overrides})
        command = project.start("train", *arguments)
        record = project.until_in_training()
        return command, record, ranks(project.at_work_in(record.folder))

    return begin


def ranks(processes):
    """Return processes by rank, and torchrun, without DataLoader workers."""
    by_rank = {}
    for process in processes:
        environment = process.environ()
        launcher = "epochmeter.worker.torchrun" in process.cmdline()
        if launcher or process.parent().pid in [other.pid for other in processes if "torchrun" in str(other.cmdline())]:
            by_rank["torchrun" if launcher else int(environment["RANK"])] = process
    return by_rank


def ended(project, command, record, killed_s):
    """Wait for the end of the run, check that no process is left, and return the output as one line."""
    out, err = command.communicate(timeout=60)
    took_s = time.monotonic() - killed_s
    assert "Traceback" not in out + err
    assert project.at_work_in(record.folder) == []
    assert took_s < PROMPT_S
    return " ".join(out.split())


def test_killed_rank_ends_the_run_and_is_named(project, begun):
    """The first rank, which sends the requests; tests/system/test_cluster.py kills the second."""
    command, record, running = begun(workers=1)
    assert running.keys() == {"torchrun", 0, 1}
    running[0].send_signal(signal.SIGKILL)
    output = ended(project, command, record, time.monotonic())
    assert command.returncode == 1
    assert "error: rank 0 was killed by SIGKILL" in output
    assert record.summary()["failure"] == {"kind": "killed", "message": "rank 0 was killed by SIGKILL"}
    assert record.summary()["metrics"]["total/epochs"] >= 1


def test_killed_torchrun_ends_its_ranks(project, begun):
    command, record, running = begun(workers=1)
    running["torchrun"].send_signal(signal.SIGKILL)
    assert "error: torchrun was killed by SIGKILL" in ended(project, command, record, time.monotonic())


def test_hanging_rank_ends_the_run_after_the_time_limit(project, begun):
    command, record, running = begun(**{"strategy.timeout_s": 4})
    running[1].suspend()
    out, _ = command.communicate(timeout=60)
    output = " ".join(out.split())
    assert command.returncode == 1
    assert re.search(r"error: rank 0: .*(Timed out|Rank 1)", output), output
    assert project.at_work_in(record.folder) == []


RAISING = '''
import os

from epochmeter.worker.models.lenet import LeNet


class Raising(LeNet):
    """Raises in its tenth step on the second rank."""

    steps = 0

    def forward(self, images):
        self.steps += self.training
        if self.steps == 10 and os.environ["RANK"] == "1":
            raise KeyError('no such layer')
        return super().forward(images)
'''


def test_error_of_the_failing_rank_is_reported_and_no_other(project):
    (project.root / "src" / "raising.py").write_text(RAISING)
    arguments = project.quick(strategy="ddp", device="cpu", **{"model._target_": "raising.Raising", "batch": 32})
    done = project.run("train", *arguments)
    record = project.record()
    assert done.returncode == 1
    assert record.summary()["failure"]["kind"] == "exception"
    assert "no such layer" in record.summary()["failure"]["message"]
    assert project.at_work_in(record.folder) == []
