"""On another system than Linux, measuring is refused in one line; the other commands do not need its calls."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from project import ROOT

from epochmeter.machine import platforms
from epochmeter.machine.cores import usable_cores

DARWIN = ROOT / "tests/platforms/darwin"


@pytest.mark.parametrize("system", ["darwin", "win32", "freebsd14"])
def test_only_commands_that_measure_are_refused_elsewhere(monkeypatch, system):
    monkeypatch.setattr(sys, "platform", system)
    for command in ("train", "measure", "doctor", "validate"):
        assert platforms.OTHERS.get(system, system) in platforms.unsupported(command, ["epochs=1"]).message
        assert platforms.unsupported(command, ["--help"]) is None
        assert platforms.unsupported(command, ["epochs=1", "--cfg", "job"]) is None
    for option in ("--help", "-c", "--version"):
        assert platforms.unsupported("measure", ["batch=1", "train.py", option]) is not None, "of the script"
    assert [platforms.unsupported(command, []) for command in ("report", "watch", "publish")] == [None] * 3


def test_linux_measures_also_in_wsl(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    assert platforms.unsupported("train", []) is None


def test_missing_folders_are_named(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(os.path, "exists", lambda path: path == "/sys")
    assert platforms.unsupported("train", []).message.endswith("this is macOS, which lacks /proc")


def test_all_cores_count_where_no_affinity_is_known(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert (platforms.allowed_cores(), usable_cores(tmp_path)) == ({*range(6)}, 6)


def test_file_is_opened_again_by_its_descriptor_without_proc(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("content")
    with (tmp_path / "file").open() as file:
        monkeypatch.setattr(os.path, "lexists", lambda path: False)
        assert Path(platforms.path_of_descriptor(file.fileno())).read_text() == "content"


@pytest.mark.parametrize("entry", ["train", "measure"])
def test_command_on_macos_ends_with_one_error_and_its_hint(tmp_path, entry):
    environment = {**os.environ, "PYTHONPATH": str(DARWIN)}
    command = [sys.executable, str(ROOT / f"src/{entry}.py"), "script.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: times and energy are measured with counters of Linux, and this is macOS")
    assert hint.startswith("  hint: ")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("leads", [True, False])
def test_a_session_has_the_priority_of_the_process_that_leads_it(leads):
    if not Path(platforms.AUTOGROUP).exists():
        pytest.skip("this kernel does not share the processor between sessions")
    source = f"""
import os
from epochmeter.machine.platforms import lower_priority
if not {leads}:
    os.fork() and os._exit(os.wait()[1])
lower_priority(5)
print(os.nice(0) - {os.nice(0)}, open({platforms.AUTOGROUP!r}).read().split()[-1])
"""
    environment = {"PYTHONPATH": str(ROOT / "src")}
    lowered = subprocess.run(
        [sys.executable, "-c", source], env=environment, capture_output=True, text=True, start_new_session=True
    )
    assert lowered.stdout.split() == ["5", "5" if leads else "0"]
