"""Other processes on a run's GPU, listed by a stub of the driver's library under the real client library."""

import json
import os

import pytest

LOOK = """
import json, logging, os, subprocess, sys
from epochmeter.machine import gpu_processes

logging.basicConfig(format="%(message)s", stream=sys.stdout)
child = subprocess.Popen(["sleep", "60"])
listed = sys.argv[1].replace("OWN", str(os.getpid())).replace("CHILD", str(child.pid))
os.environ["STUB_PROCESSES"] = listed
gpu_processes.in_hosts_pid_namespace = lambda: sys.argv[2] == "host"
monitor = gpu_processes.open_gpu_monitor(["GPU-aaaa"])
monitor.own.add(child.pid)
looks = []
for again in range(2):
    monitor.poll()
    looks.append(monitor.drain())
child.kill()
monitor.close()
print(json.dumps(looks))
"""
OTHER = os.getpid()
"""Of the tests themselves: no descendant of the program that looks."""


@pytest.fixture
def looks(with_nvml):
    """What two looks find, and what was warned of, where these processes compute on gpu0."""

    def two(listed, pids="host", stub=""):
        *warned, found = with_nvml(LOOK, listed, pids, stub=stub).splitlines()
        return json.loads(found), warned

    return two


def test_another_process_is_reported_with_memory_and_utilization_and_warned_of_once(looks):
    (first, second), warned = looks(f"OWN:1000:50 CHILD:500:5 {OTHER}:3072:45")
    (text,) = first
    assert text.startswith(f"process {OTHER} (")
    assert text.endswith("also computes on gpu0: 3.0 GiB, 45% utilization")
    assert second == first, "without a newer sample the last known utilization holds"
    assert [line for line in warned if line.startswith("warning: ")] == [f"warning: {text}"]


def test_no_process_is_reported_for_a_run_alone_on_its_gpu(looks):
    assert looks("OWN:1000:50 CHILD:500:5") == ([[], []], [])
    assert looks("") == ([[], []], [])


def test_values_that_the_driver_does_not_report_are_unknown_not_0(looks):
    ((text,), _), _ = looks(f"{OTHER}:-1:45", stub="noutil")
    assert text.endswith("memory unknown, utilization unknown")


@pytest.mark.parametrize(
    ("listed", "count"),
    [("900001:10:1", 0), ("900001:10:1 900002:10:1 900003:10:1", 3), (f"OWN:10:1 {OTHER}:10:1", None)],
    ids=["one, which may be this run's", "more than this run's", "known by its own"],
)
def test_in_a_container_that_hides_the_hosts_process_ids_processes_are_counted(looks, listed, count):
    (first, _), _ = looks(listed, pids="container")
    if count is None:
        assert first[0].startswith(f"process {OTHER} (")
    else:
        expected = "3 processes compute on gpu0, 2 more than this run's own; their IDs are hidden"
        assert first == ([expected] if count else [])


@pytest.mark.parametrize("stub", ["unsupported", "silent"])
def test_a_driver_that_lists_no_processes_is_no_error(looks, stub):
    assert looks(f"{OTHER}:3072:45", stub=stub) == ([[], []], [])
