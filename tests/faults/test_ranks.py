"""If one of two ranks fails, hangs or is killed, the run and all processes end within seconds."""

import re
import signal
import time

import pytest

pytestmark = pytest.mark.system
PROMPT_S = 10


@pytest.fixture
def begun(project):
    """begun(overrides) -> command, record, and torchrun and ranks of a run of two ranks in the middle of an epoch."""

    def begin(**overrides):
        command = project.start("train", *project.long(**{"strategy": "ddp", "device": "cpu", **overrides}))
        record = project.until_in_training()
        processes = project.at_work_in(record.folder)
        (torchrun,) = (process for process in processes if "epochmeter.worker.torchrun" in process.cmdline())
        ranks = {f"rank {process.environ()['RANK']}": process for process in torchrun.children()}
        assert ranks.keys() == {"rank 0", "rank 1"}
        return command, record, {"torchrun": torchrun, **ranks}

    return begin


@pytest.mark.parametrize("name", ["rank 0", "torchrun"])
def test_killed_process_ends_the_run_and_is_named(project, begun, name):
    """Rank 0 sends the requests; tests/system/test_cluster.py kills the other one."""
    command, record, running = begun(workers=1)
    running[name].send_signal(signal.SIGKILL)
    killed_s = time.monotonic()
    out, err = command.communicate(timeout=60)
    assert time.monotonic() - killed_s < PROMPT_S
    assert "Traceback" not in out + err
    assert project.at_work_in(record.folder) == []
    assert command.returncode == 1
    assert f"error: {name} was killed by SIGKILL" in " ".join(out.split())
    failure = record.summary()["failure"]
    assert (failure["code"], failure["message"]) == ("killed", f"{name} was killed by SIGKILL")
    assert record.summary()["metrics"]["total/epochs"] >= 1


def test_hanging_rank_ends_the_run_after_the_time_limit(project, begun):
    command, record, running = begun(**{"strategy.timeout_s": 4})
    running["rank 1"].suspend()
    out, _ = command.communicate(timeout=60)
    output = " ".join(out.split())
    assert command.returncode == 1
    assert re.search(r"error: rank 0: .*(Timed out|Rank 1)", output), output
    assert project.at_work_in(record.folder) == []


RAISING = """
import os
from epochmeter.worker.models.lenet import LeNet
class Raising(LeNet):
    steps = 0
    def forward(self, images):
        self.steps += self.training
        if self.steps == 10 and os.environ["RANK"] == "1":
            raise KeyError("no such layer")
        return super().forward(images)
"""


def test_error_of_the_failing_rank_is_reported_and_no_other(project):
    (project.root / "src" / "raising.py").write_text(RAISING)
    arguments = project.quick(strategy="ddp", device="cpu", **{"model._target_": "raising.Raising", "batch": 32})
    done = project.run("train", *arguments)
    record = project.record()
    assert done.returncode == 1
    assert record.summary()["failure"]["code"] == "exception"
    assert "no such layer" in record.summary()["failure"]["message"]
    assert project.at_work_in(record.folder) == []
