"""Locked clocks of GPUs, with the stubs of NVML and amdsmi."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial

import pytest
from cases import case, cases
from project import ROOT

from epochmeter.machine import privilege
from epochmeter.power.knobs import gpu_clock, knob, restore
from epochmeter.power.knobs.applied_settings import AppliedSettings
from epochmeter.power.knobs.device_settings import target_of
from epochmeter.power.knobs.gpu_clock import ClockDevice, ClockLock, format_steps, nearest_steps, open_clock
from epochmeter.power.knobs.permission import permission
from epochmeter.power.knobs.restore_journal import RestoreJournal
from epochmeter.shared.problem import InputError, MachineError

NVIDIA = [{"vendor": "nvidia", "uuid": "GPU-aaaa"}, {"vendor": "nvidia", "uuid": "GPU-bbbb"}]
AMD = [{"vendor": "amd", "bus": "0000:c1:00.0"}]
ENDS = 40
"""Ends of a process at random instants while it locks a clock, trains and restores it."""


@pytest.fixture
def locks(open_folder, nvml):
    """locks() -> the locked clocks of the stub's GPUs, by file, in MHz."""

    def read():
        locked = {}
        for file in sorted(open_folder.glob("limit*.[gm]*")):
            with suppress(FileNotFoundError):  # another process has just unlocked it
                locked[file.name] = int(file.read_text().split()[1])
        return locked

    return read


@pytest.fixture(autouse=True)
def no_wait(monkeypatch):
    monkeypatch.setattr(knob, "SETTLE_LIMIT_S", 0.1)


def clocks(key="gpu_clock", gpus=NVIDIA):
    return open_clock(key, gpus, "/")


@pytest.mark.parametrize(
    ("key", "mhz", "files"),
    [("gpu_clock", 1200, ["limit.1.gpu", "limit.gpu"]), ("memory_clock", 405, ["limit.1.memory", "limit.memory"])],
)
def test_clock_is_locked_on_each_gpu_and_free_afterwards(locks, journal, key, mhz, files):
    lock = clocks(key)
    assert lock.get() == "free"
    with AppliedSettings([(lock, target_of(lock, mhz, key))], journal, pytest.fail) as settings:
        assert locks() == dict.fromkeys(files, mhz)
        assert (settings.applied, settings.drift_messages()) == ({f"NVML-{key}": f"{mhz} MHz"}, [])
    assert (locks(), lock.get()) == ({}, "free")


def test_clock_that_another_program_raises_is_a_drift_and_is_kept(locks, journal, monkeypatch):
    lock, said = clocks(), []
    with AppliedSettings([(lock, target_of(lock, 900, "gpu_clock"))], journal, said.append) as settings:
        monkeypatch.setenv("STUB", "held")
        assert settings.drift_messages() == ["NVML-gpu_clock was set to 900 MHz, but something changed it to 1410 MHz."]
    assert "changed it to 1410 MHz, which is kept" in said[0]


def test_lock_without_effect_is_an_error_and_is_undone(locks, journal, monkeypatch):
    monkeypatch.setenv("STUB", "no_effect")
    with (
        pytest.raises(MachineError, match="the device is at 1410 MHz"),
        AppliedSettings([(lock := clocks(), target_of(lock, 900, "gpu_clock"))], journal, pytest.fail),
    ):
        pytest.fail("the clock was not locked")
    assert journal.unrestored() == []


@pytest.mark.parametrize("stub", ["nopermission", "only0"])
def test_refused_lock_leaves_no_gpu_locked(locks, journal, monkeypatch, stub):
    monkeypatch.setenv("STUB", stub)
    lock = clocks()
    with (
        pytest.raises(MachineError) as refused,
        AppliedSettings([(lock, target_of(lock, 900, "gpu_clock"))], journal, lambda text: None),
    ):
        pytest.fail("the clock was not locked")
    assert "GPU-bbbb to 900 MHz" in str(refused.value)
    assert "run as root" in refused.value.problems[0].hint
    monkeypatch.setenv("STUB", "")
    restore.restore_after_kill(journal, lambda text: None)
    assert locks() == {}


@cases(
    case(key="gpu_clock", value=1203, gpus=NVIDIA, hint="give gpu_clock=1200 or gpu_clock=1215"),
    case(key="gpu_clock", value=9000, gpus=NVIDIA, hint="give gpu_clock=1410"),
    case(key="gpu_clock", value=1, gpus=NVIDIA, hint="give gpu_clock=210"),
    case(key="memory_clock", value=1000, gpus=NVIDIA, hint="give memory_clock=1215 or memory_clock=405"),
    case(key="gpu_clock", value=400, gpus=AMD, hint="give gpu_clock=500"),
)
def test_clock_that_is_not_supported_is_refused_with_the_nearest(nvml, amd_smi, key, value, gpus, hint):
    with pytest.raises(InputError) as refused:
        clocks(key, gpus).target_for(value)
    assert refused.value.problems[0].hint == hint


def test_supported_clocks_are_listed(nvml, amd_smi):
    assert clocks().choices() == "210 to 1410 in steps of 15 MHz"
    assert clocks("memory_clock").choices() == "405, 1215 MHz"
    assert clocks(gpus=AMD).choices() == "500 to 1700 MHz"


def test_search_tries_supported_clocks_from_40_percent_of_the_highest_and_the_free_one(nvml, amd_smi):
    for gpus, free in ((NVIDIA, "free"), (AMD, "500 to 1700 MHz (auto)")):
        lock = clocks(gpus=gpus)
        *locked, last = lock.limits()
        assert last.setting == free
        mhz = [gpu_clock.mhz_of(target.setting) for target in locked]
        assert mhz == sorted({*mhz})
        assert (mhz[-1], len(mhz)) == (lock.steps[-1], 8)
        assert 0.38 * mhz[-1] < mhz[0] < 0.42 * mhz[-1]
        assert all(lock.target_for(int(value)).setting == f"{value:g} MHz" for value in mhz)
        assert target_of(lock, "auto", "gpu_clock").setting == free


@pytest.mark.parametrize(("gpus", "stub"), [(NVIDIA, "noclocks"), (AMD, "noclocks"), ([], ""), ([*NVIDIA, *AMD], "")])
def test_gpu_without_lockable_clocks_has_no_such_setting(nvml, amd_smi, monkeypatch, gpus, stub):
    monkeypatch.setenv("STUB", stub)
    assert clocks(gpus=gpus) is None


def test_range_of_an_amd_gpu_and_its_performance_level_are_restored(amd_smi, journal):
    lock = clocks(gpus=AMD)
    assert lock.get() == "500 to 1700 MHz (auto)"
    with AppliedSettings([(lock, target_of(lock, 1200, "gpu_clock"))], journal, pytest.fail):
        assert lock.get() == "1200 MHz"
    assert lock.get() == "500 to 1700 MHz (auto)"


def test_amd_gpu_that_refuses_names_the_remedy(amd_smi, journal, monkeypatch):
    lock = clocks(gpus=AMD)
    monkeypatch.setenv("STUB", "refused")
    with pytest.raises(MachineError) as refused:
        lock.set("1200 MHz")
    assert refused.value.problems[0].hint == "run as root"


def test_only_root_may_lock_clocks(nvml, monkeypatch):
    monkeypatch.setattr(privilege, "has_capability", lambda number: True)
    assert permission(clocks()) == ("as root", None)
    monkeypatch.setattr(privilege, "has_capability", lambda number: False)
    how, remedy = permission(clocks())
    assert (how, remedy.startswith("run as root")) == ("", True)


def test_settings_of_gpus_that_differ_are_kept_apart():
    now = {"a": "500 to 1700 MHz (auto)", "b": "800 to 1700 MHz (manual)"}
    devices = {
        name: ClockDevice([500, 1700], True, partial(now.get, name), partial(now.__setitem__, name), str)
        for name in now
    }
    lock = ClockLock("gpu_clock", "amdgpu", devices)
    before = lock.get()
    lock.set("1200 MHz")
    assert (lock.get(), before) == ("1200 MHz", "500 to 1700 MHz (auto); 800 to 1700 MHz (manual)")
    lock.set(before)
    assert lock.get() == before


def test_clocks_at_equal_distances_are_a_range():
    assert format_steps([210, 225, 240, 255]) == "210 to 255 in steps of 15"
    assert format_steps([210, 225, 300, 315]) == "210, 225, 300, 315"
    assert [nearest_steps([1, 5, 9], value) for value in (0, 5, 6, 99)] == [[1], [5, 1], [5, 9], [9]]


HOLDERS = """
import ctypes, os, sys, time
import pynvml
from epochmeter.machine import nvml
from epochmeter.power.knobs.applied_settings import AppliedSettings
from epochmeter.power.knobs.device_settings import target_of
from epochmeter.power.knobs.gpu_clock import open_clock
from epochmeter.power.knobs.restore_journal import RestoreJournal
library, state = sys.argv[1:]
nvml.LIBRARY = library
pynvml.nvmlLib = ctypes.CDLL(library)

def hold(mhz):
    journal = RestoreJournal(state, root="/", command="train.py")
    gpus = [{"vendor": "nvidia", "uuid": name} for name in ("GPU-aaaa", "GPU-bbbb")]
    knobs = [(open_clock(key, gpus, "/"), key, value) for key, value in (("gpu_clock", mhz), ("memory_clock", 405))]
    targets = [(knob, target_of(knob, value, key)) for knob, key, value in knobs]
    print(os.getpid(), flush=True)
    with AppliedSettings(targets, journal, lambda text: None):
        time.sleep(0.05)

while line := sys.stdin.readline():
    if not (child := os.fork()):
        try:
            hold(int(line))
        finally:
            os._exit(0)
    sys.stdin.readline()
    os.waitpid(child, 0)
    print("ended", flush=True)
"""
"""For each line of its input, a process that locks clocks; the next line lets it be reaped. They import nothing."""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_clocks_are_restored_after_ends_at_random_instants(nvml, nvml_stub, locks, tmp_path, end):
    """After each end, the next start restores what is left, and no lock and no entry of the journal remain."""
    chance, library = random.Random(0), str(nvml_stub / "libnvidia-ml.so.1")
    journal = RestoreJournal(str(tmp_path / "state"), root="/", command="train.py")
    command = [sys.executable, "-c", HOLDERS, library, str(tmp_path / "state")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    interrupted = 0
    with subprocess.Popen(command, env=environment, bufsize=1, **pipes) as holders:
        for _ in range(ENDS // 2):
            mhz = chance.choice(clocks().steps)
            holders.stdin.write(f"{mhz}\n")
            holder = int(holders.stdout.readline())
            time.sleep(chance.uniform(0, 0.12))
            interrupted += bool(locks())
            assert {*locks().values()} <= {mhz, 405}
            os.kill(holder, end)
            holders.stdin.write("\n")
            assert holders.stdout.readline() == "ended\n"
            restore.restore_after_kill(journal, lambda text: None)
            assert (locks(), journal.unrestored(), journal.damaged()) == ({}, [], [])
    assert interrupted > 0, "no end was while a clock was locked"


def test_locks_that_a_power_failure_left_are_freed_by_the_next_start(nvml, locks, journal, monkeypatch):
    """The journal is of an earlier boot, and the driver still has the lock, as after a suspension to disk."""
    lock = clocks()
    settings = AppliedSettings([(lock, target_of(lock, 1200, "gpu_clock"))], journal, lambda text: None)
    settings.__enter__()
    monkeypatch.setattr(restore, "boot_id", lambda: "another")
    saved = journal._read(journal._file(lock.name, lock.devices))
    said = restore.restore_one(saved, journal)
    assert (locks(), "restored NVML-gpu_clock to free" in said) == ({}, True)
    settings.restore_all()
