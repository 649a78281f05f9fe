"""The number of cores that a run may use, by affinity and by the quota of scripted control groups."""

import os

import pytest
from project import put

from epochmeter.machine.cores import physical_cores, quota_cores, usable_cores

GROUPS_2, GROUPS_1 = {"proc/self/cgroup": "0::/pod/box\n"}, {"proc/self/cgroup": "4:cpu,cpuacct:/docker/1f\n0::/\n"}
V1 = "sys/fs/cgroup/cpu,cpuacct/"


def quota_1(quota_us, folder=""):
    return {f"{V1}{folder}cpu.cfs_quota_us": f"{quota_us}\n", f"{V1}{folder}cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    ("files", "quota", "usable"),
    [
        ({}, None, 8),
        ({**GROUPS_2, "sys/fs/cgroup/pod/box/cpu.max": "max 100000\n"}, None, 8),
        ({**GROUPS_2, "sys/fs/cgroup/pod/box/cpu.max": "250000 100000\n"}, 2.5, 2),
        ({**GROUPS_2, "sys/fs/cgroup/pod/cpu.max": "50000 100000\n"}, 0.5, 1),
        ({**GROUPS_2, "sys/fs/cgroup/pod/cpu.max": "150000 50000", "sys/fs/cgroup/pod/box/cpu.max": "400000 100000\n"},
         3.0, 3),
        ({**GROUPS_1, **quota_1(200000, "docker/1f/")}, 2.0, 2),
        ({**GROUPS_1, **quota_1(-1, "docker/1f/"), **quota_1(1600000)}, 16.0, 8),
        ({**GROUPS_1, **quota_1(-1)}, None, 8),
    ],
    ids=["no groups", "no quota", "quota", "group above", "smallest", "version 1", "larger", "version 1, none"],
)  # fmt: skip
def test_usable_cores_are_the_whole_cores_of_the_smallest_quota(tmp_path, monkeypatch, files, quota, usable):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    root = put(tmp_path, files)
    assert (quota_cores(root), usable_cores(root)) == (quota, usable)


def test_second_hardware_threads_are_no_physical_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 4, 5})
    assert physical_cores(tmp_path) == 4, "Linux does not list which are on the same core"
    files = {f"sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list": f"{n % 4},{n % 4 + 4}\n" for n in range(8)}
    assert physical_cores(put(tmp_path, files)) == 2
    put(tmp_path, {**GROUPS_2, "sys/fs/cgroup/pod/box/cpu.max": "100000 100000\n"})
    assert physical_cores(tmp_path) == 1
