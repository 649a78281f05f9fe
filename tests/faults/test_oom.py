"""Out of memory: the run fails with the cause."""

import sys

import pytest

pytestmark = pytest.mark.system
ROOM = 600 << 20
ROOMY, HUGE = 16, 1437
LIMITED = """#!{python}
import resource, runpy, sys
import torch, torchvision
if sys.argv[1] == "-c":
    sys.exit()
sys.argv = sys.argv[2:]
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + {room}, -1))
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""An interpreter that trains with little more memory than torch itself takes: a step of all samples has no room."""


def test_too_large_batch_fails_with_the_cause(project):
    python = project.root / "python"
    python.write_text(LIMITED.format(python=sys.executable, room=ROOM))
    python.chmod(0o755)
    overrides = {"model": "resnet18", "dataset.size": 64, "synthetic_batches": "true", "workers": 0}
    one_step = {"throughput.start": 0, "throughput.stop": 1, "throughput.exit": "true"}
    batches = {"batch": f"{ROOMY},{HUGE}", "device.python": python}
    done = project.run("train", *project.quick("-m", **overrides, **one_step, **batches))
    fits, fails = project.records()
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode == 1
    assert fits.is_completed()
    failure = fails.summary()["failure"]
    assert failure["code"] == "oom"
    assert failure["message"].startswith(f"batch={HUGE} ran out of memory (")
    assert (failure["hint"], failure["where"]) == ("reduce the batch size", {"key": "batch"})
    assert f"error: run 1 failed: {failure['message']}\n  hint: reduce the batch size\n" in done.stdout
