"""Other processes on a run's GPU, listed by the real client library from a stub of NVML."""

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
monitor.own_pids.add(child.pid)
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


def test_other_process_is_reported_and_warned_of_once(looks):
    (first, second), warned = looks(f"OWN:1000:50 CHILD:500:5 {OTHER}:3072:45")
    (text,) = first
    assert text.startswith(f"process {OTHER} (")
    assert text.endswith("also computes on gpu0: 3.0 GiB, 45% utilization")
    assert second == first, "without a newer sample the last known utilization holds"
    assert [line for line in warned if line.startswith("warning: ")] == [f"warning: {text}"]


def test_no_process_is_reported_on_an_unshared_gpu(looks):
    assert looks("OWN:1000:50 CHILD:500:5") == ([[], []], [])
    assert looks("") == ([[], []], [])


def test_unreported_values_are_unknown(looks):
    ((text,), _), _ = looks(f"{OTHER}:-1:45", stub="noutil")
    assert text.endswith("memory unknown, utilization unknown")


@pytest.mark.parametrize(
    ("listed", "count"),
    [("900001:10:1", 0), ("900001:10:1 900002:10:1 900003:10:1", 3), (f"OWN:10:1 {OTHER}:10:1", None)],
    ids=["one, which may be this run's", "more than this run's", "known by its own"],
)
def test_processes_with_hidden_ids_are_counted(looks, listed, count):
    (first, _), _ = looks(listed, pids="container")
    if count is None:
        assert first[0].startswith(f"process {OTHER} (")
    else:
        expected = "3 processes compute on gpu0, 2 more than this run's own; their IDs are hidden"
        assert first == ([expected] if count else [])


@pytest.mark.parametrize("stub", ["unsupported", "silent"])
def test_driver_without_a_process_list_is_no_error(looks, stub):
    assert looks(f"{OTHER}:3072:45", stub=stub) == ([[], []], [])
