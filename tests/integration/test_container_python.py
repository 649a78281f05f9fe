"""Training by a Python in a container: the program of docs/clusters.md, and a stand-in for Apptainer on PATH."""

import re
import signal

import psutil
import pytest
import stub
from project import ROOT
from stub import executable

APPTAINER = """#!/bin/sh
# As Apptainer, it gets the environment except PATH, and stays the parent of the program in the container.
[ "$1" = exec ] || exit 90
echo "$@" >> {calls}
while [ "$1" != python3 ]; do shift; done
shift
PATH=/usr/bin:/bin {python} "$@"
exit $?
"""


@pytest.fixture
def container(project, tmp_path):
    """Return the overrides, the environment, and the file that has the arguments of all calls of Apptainer."""
    page = (ROOT / "docs/clusters.md").read_text()
    (recipe,) = re.findall(r"^```sh\n(#!/bin/sh\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    calls, programs = tmp_path / "calls", tmp_path / "bin"
    programs.mkdir()
    executable(programs / "apptainer", APPTAINER.format(calls=calls, python=stub.program(project.root)))
    python = executable(tmp_path / "rocm-python", recipe)
    return {"device.python": python}, {"PATH": f"{programs}:/usr/bin:/bin"}, calls


def test_run_is_measured_with_the_python_of_a_container(project, container):
    overrides, environment, calls = container
    project.run("train", *project.stubbed(**overrides, batch=200), check=True, **environment)
    record = project.record()
    assert record.is_completed()
    assert [window["metrics"]["epoch/e2e_s"] > 0.19 for window in record.windows()] == [True, True]
    *_, training = calls.read_text().splitlines()
    assert training.startswith("exec --rocm --bind /scratch,/tmp /scratch/project/pytorch-rocm.sif python3 -m")
    assert training.endswith(f"epochmeter.worker {record.folder}")


def test_program_that_is_missing_in_the_container_is_the_reason(project, container, tmp_path):
    overrides, environment, _ = container
    executable(tmp_path / "bin/apptainer", "#!/bin/sh\necho 'FATAL: no image' >&2\nexit 255\n")
    refused = project.run("train", *project.stubbed(**overrides), **environment)
    assert refused.returncode == 1
    assert "rocm-python is not Python 3.6 or newer with torch: FATAL: no image" in " ".join(refused.stderr.split())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_stopped_or_killed_command_leaves_no_process_in_the_container(project, container, number):
    overrides, environment, _ = container
    process = project.start("train", *project.long_stubbed(**overrides), **environment)
    record = project.until_in_training()
    inside = project.at_work_in(record.folder)
    assert len(inside) >= 2, "Apptainer and the training process"
    process.send_signal(number)
    process.wait()
    project.until(lambda: not psutil.wait_procs(inside, timeout=0)[1])
