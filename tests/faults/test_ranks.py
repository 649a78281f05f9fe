"""Ranks that end before their time, one of two: the run ends within seconds, says which and how, and none is left."""

import re
import signal
import time

import pytest

PROMPT_S = 10


@pytest.fixture
def begun(project):
    """begun(overrides) -> a run of two ranks in the middle of an epoch: the command, its record, what runs by name."""

    def begin(**overrides):
        asked = project.long(**{"strategy": "ddp", "device": "cpu", **overrides})
        command = project.start("train", *asked)
        record = project.until_in_training()
        return command, record, ranks(project.at_work_in(record.folder))

    return begin


def ranks(processes):
    """Processes by the rank that each is; what started them has no rank, and loader processes are not their own."""
    found = {}
    for process in processes:
        environment = process.environ()
        launcher = "epochmeter.worker.torchrun" in process.cmdline()
        if launcher or process.parent().pid in [other.pid for other in processes if "torchrun" in str(other.cmdline())]:
            found["torchrun" if launcher else int(environment["RANK"])] = process
    return found


def ended(project, command, record, killed_s):
    """What the command says in the end, in one line: no process of its run is left."""
    out, err = command.communicate(timeout=60)
    took_s = time.monotonic() - killed_s
    assert "Traceback" not in out + err
    assert project.at_work_in(record.folder) == []
    assert took_s < PROMPT_S
    return " ".join(out.split())


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.system), 1])
def test_a_rank_that_is_killed_ends_the_run_and_is_named(project, begun, rank):
    command, record, running = begun(workers=1)
    running[rank].send_signal(signal.SIGKILL)
    said = ended(project, command, record, time.monotonic())
    assert command.returncode == 1
    assert f"error: rank {rank} was killed by SIGKILL" in said
    assert record.summary()["failure"] == {"kind": "killed", "message": f"rank {rank} was killed by SIGKILL"}
    assert record.summary()["metrics"]["total/epochs"] >= 1


@pytest.mark.system
def test_torchrun_that_is_killed_takes_its_ranks_along(project, begun):
    command, record, running = begun(workers=1)
    running["torchrun"].send_signal(signal.SIGKILL)
    assert "error: torchrun was killed by SIGKILL" in ended(project, command, record, time.monotonic())


@pytest.mark.system
def test_ranks_do_not_outlive_a_steward_that_is_killed(project, begun):
    command, record, running = begun(workers=1)
    assert running.keys() == {"torchrun", 0, 1}
    command.kill()
    command.communicate()
    project.until(lambda: project.at_work_in(record.folder) == [], limit_s=PROMPT_S)


@pytest.mark.system
def test_ctrl_c_ends_a_run_of_ranks_in_order(project, begun):
    command, record, _ = begun()
    command.send_signal(signal.SIGINT)
    assert "Stopped by Ctrl-C" in ended(project, command, record, time.monotonic())
    assert command.returncode == 130


@pytest.mark.system
def test_a_rank_that_hangs_ends_the_run_once_the_others_have_waited_long_enough(project, begun):
    command, record, running = begun(**{"strategy.timeout_s": 4})
    running[1].suspend()
    out, _ = command.communicate(timeout=60)
    said = " ".join(out.split())
    assert command.returncode == 1
    assert re.search(r"error: rank 0: .*(Timed out|Rank 1)", said), said
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
            raise {error}
        return super().forward(images)
'''


@pytest.mark.system
@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        ('RuntimeError("can\'t allocate memory: you tried to allocate 2000000000 bytes")', "oom", "ran out of memory"),
        ("KeyError('no such layer')", "exception", "no such layer"),
    ],
    ids=["memory", "code"],
)
def test_the_words_of_a_rank_that_fails_are_told_and_no_others(project, error, kind, says):
    (project.root / "src" / "raising.py").write_text(RAISING.format(error=error))
    asked = project.quick(strategy="ddp", device="cpu", **{"model._target_": "raising.Raising", "batch": 32})
    done = project.run("train", *asked)
    record = project.record()
    assert done.returncode == 1
    assert record.summary()["failure"]["kind"] == kind
    assert says in record.summary()["failure"]["message"]
    assert project.at_work_in(record.folder) == []


@pytest.mark.system
def test_a_rank_that_cannot_begin_tells_why(project):
    asked = project.quick(strategy="ddp", device="cpu", **{"dataset.open.files._target_": "nowhere.Images"})
    done = project.run("train", *asked)
    assert done.returncode == 1
    assert "error: cannot import _target_ 'nowhere.Images'" in done.stdout
    assert project.at_work_in(project.record().folder) == []
