"""Other processes on a run's GPU, listed by the real client library from a stub of NVML."""

import os
from contextlib import closing

import pytest

from epochmeter.machine import gpu_processes

OWN, OTHER = os.getpid(), 1


@pytest.fixture
def looks(nvml, other_process, monkeypatch):
    """Function of processes on gpu0 and of whether process IDs are the host's: the texts of two polls."""

    def two(*listed, host=True, stub=""):
        monkeypatch.setenv("STUB", stub)
        monkeypatch.setenv("STUB_PROCESSES", " ".join(listed))
        monkeypatch.setattr(
            gpu_processes, "pid_namespace", lambda: gpu_processes.HOST_PID_NAMESPACE if host else "pid:[1]"
        )
        polls = []
        with closing(gpu_processes.GpuProcessMonitor(["GPU-aaaa"])) as monitor:
            monitor.own_pids.update([] if host else [other_process.pid])  # with the IDs of the host, it is a descendant
            for _ in range(2):
                monitor.poll()
                polls.append(monitor.drain())
        return polls

    return two


def test_other_process_is_reported_and_warned_of_once(looks, other_process, caplog):
    (text,), second = looks(f"{OWN}:1000", f"{other_process.pid}:500", f"{OTHER}:3072")
    assert text.startswith(f"process {OTHER} (")
    assert text.endswith("also computes on gpu0: 3.0 GiB")
    assert second == [text]
    (warning,) = caplog.messages
    assert warning.startswith(f"warning: {text}\n")


def test_processes_with_known_ids_are_told_from_hidden_ones(nvml, monkeypatch):
    for namespace, is_known in ((gpu_processes.HOST_PID_NAMESPACE, True), ("pid:[1]", False)):
        monkeypatch.setenv("STUB_PROCESSES", "900001:10 900002:10")
        monkeypatch.setattr(gpu_processes, "pid_namespace", lambda namespace=namespace: namespace)
        with closing(gpu_processes.GpuProcessMonitor(["GPU-aaaa"])) as monitor:
            monitor.poll()
            assert monitor.drain()
            assert monitor.are_identified == is_known
            monkeypatch.setenv("STUB_PROCESSES", "")
            monitor.poll()
            assert (monitor.drain(), monitor.are_identified) == ([], False)


def test_own_processes_the_mps_service_and_a_driver_without_a_list_are_not_reported(looks, other_process, monkeypatch):
    assert looks(f"{OWN}:1000", f"{other_process.pid}:500") == looks() == [[], []]
    for stub in ("unsupported", "silent"):
        assert looks(f"{OTHER}:3072", stub=stub) == [[], []]
    (text,), _ = looks(f"{OTHER}:-1")
    assert text.endswith("memory unknown")
    monkeypatch.setattr(gpu_processes, "command_name", lambda pid: "nvidia-cuda-mps-server")
    assert looks(f"{OWN}:1000", f"{OTHER}:3072") == [[], []]


def test_processes_with_hidden_ids_are_counted_and_named_if_the_ids_are_the_hosts(looks):
    """One process may be this run's own."""
    assert looks("900001:10", host=False) == [[], []]
    hidden = looks("900001:10", "900002:10", "900003:10", host=False)[0]
    assert hidden == ["3 processes compute on gpu0, 2 more than this run's own; their IDs are hidden"]
    (text,), _ = looks(f"{OWN}:10", f"{OTHER}:10", host=False)
    assert text.startswith(f"process {OTHER} (")
