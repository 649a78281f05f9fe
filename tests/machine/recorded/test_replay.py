"""Opening recordings: damaged ones are refused, and each has its own drivers."""

import json
import os
import subprocess
import sys

import pytest
from project import ROOT, put
from recordings import MACHINES, pc

from epochmeter.config.installation import python_path
from epochmeter.machine import host, nvml
from epochmeter.machine.recorded import archive as archives
from epochmeter.machine.recorded.archive import write_archive
from epochmeter.machine.recorded.recorder import record_machine
from epochmeter.machine.recorded.root import find_recording, root_folder, use_machine
from epochmeter.machine.recorded.tree import Entry
from epochmeter.shared.problem import InputError, problem_of

ENTRIES = (
    Entry("sys/class/hwmon/hwmon0/name", 0o444, b"chip\n", access="r"),
    Entry("sys/x", 0o644, b"1\n", access="rw"),
)
SERIES = {"times_s": [0.0, 0.5], "values": ["1\n", "2\n"]}


@pytest.fixture(autouse=True)
def _own_drivers():
    yield
    use_machine("/")
    nvml.replace_client(None)


@pytest.fixture
def made(tmp_path):
    """made(manifest={...}, series={...}, ...) -> an archive with these documents."""

    def make(name="board.tar.gz", manifest=None, series=None, nvml=None, amdsmi=None):
        first = {"format": archives.FORMAT, "version": archives.VERSION, "entries": 2, "duration_s": 1.0}
        documents = {archives.MANIFEST: {**first, **(manifest or {})}, archives.SERIES: {"files": series or {}}}
        documents |= {archives.NVML: nvml or {}, archives.AMDSMI: amdsmi or {}}
        path = tmp_path / name
        write_archive(path, {name: json.dumps(document).encode() for name, document in documents.items()}, ENTRIES)
        return path

    return make


@pytest.mark.parametrize(
    "damage",
    [
        {"manifest": {"duration_s": 0}}, {"manifest": {"duration_s": "x"}}, {"manifest": {"duration_s": None}},
        {"manifest": {"missing": [1]}}, {"series": {"sys/x": SERIES}, "manifest": {"duration_s": float("nan")}},
        {"series": [1]}, {"series": {"sys/x": {}}}, {"series": {"sys/x": {"times_s": [0, 1], "values": ["1"]}}},
        {"series": {"sys/x": {"times_s": [1, 0], "values": ["1", "2"]}}},
        {"series": {"sys/x": {**SERIES, "values": [1, 2]}}},
        {"series": {"sys/missing": SERIES}}, {"series": {"../outside": SERIES}}, {"nvml": {"gpus": [7]}},
        {"nvml": {"gpus": [{"calls": {"x": {"result": 1, "error": 2}}}]}}, {"amdsmi": {"gpus": [1]}},
        # the recording says that a folder is a file
        {"series": {"sys/class/hwmon/hwmon0": SERIES}},
    ],
)  # fmt: skip
def test_damaged_recording_is_refused(made, damage):
    path = made(**damage)
    with pytest.raises(InputError, match="it is damaged") as error:
        root_folder(path)
    assert problem_of(error.value).hint


def test_recording_names_its_machine_and_what_it_lacks(made):
    missing = {f"sys/{number}": "Permission denied" for number in range(5)}
    manifest = {"architecture": "riscv64", "date": "2026-11-29", "epochmeter": "0.1.0", "missing": missing}
    recording = find_recording(made(manifest=manifest))
    assert recording.origin == "riscv64 machine, recorded on 2026-11-29 by epochmeter 0.1.0; 1 s, repeated"
    assert recording.other_architecture == "riscv64"
    assert recording.missing == (
        "/sys/0 (Permission denied), /sys/1 (Permission denied), /sys/2 (Permission denied), and 2 more"
    )
    here = find_recording(made("here.tar.gz", manifest={"architecture": os.uname().machine}))
    assert (here.other_architecture, here.missing) == ("", "")


def test_folder_is_no_recording(tmp_path):
    assert find_recording(tmp_path) is None
    assert root_folder(str(tmp_path)) == tmp_path


def test_file_that_becomes_a_folder_while_it_is_recorded_is_missing(tmp_path, monkeypatch):
    from epochmeter.machine.recorded import tree

    root, own = put(tmp_path / "machine", pc("a CPU")), tree.read_content
    changed = root / "sys/class/hwmon/hwmon0/temp1_input"

    def read(file):
        if os.path.basename(file) == changed.name and changed.is_file():
            changed.unlink()
            changed.mkdir()
        return own(file)

    monkeypatch.setattr(tree, "read_content", read)
    record_machine(tmp_path / "board.tar.gz", root, 0.05, None, "no load")
    missing = find_recording(tmp_path / "board.tar.gz").manifest["missing"]
    assert missing == {"sys/class/hwmon/hwmon0/temp1_input": "Is a directory"}


def test_each_recording_has_its_own_drivers_and_a_folder_this_machines(tmp_path):
    pytest.importorskip("pynvml")
    paths = {}
    for name in ("H100", "A100", "EPYC"):
        machine, root = MACHINES[name], tmp_path / name
        root.mkdir()
        machine.write(root)
        nvml.replace_client(machine.nvml())
        paths[name] = tmp_path / f"{name}.tar.gz"
        record_machine(paths[name], root, 0.1, None, "no load")
    nvml.replace_client(None)
    for name in ("H100", "A100", "EPYC", "H100"):
        host.device_facts(paths[name])  # as each command asks first
        models = [gpu["model"] for gpu in nvml.read_gpus()]
        assert models == [gpu["calls"]["nvmlDeviceGetName()"]["result"] for gpu in MACHINES[name].gpus]
        assert nvml.is_replaced()
    host.device_facts("/")
    assert not nvml.is_replaced()


def test_forked_child_does_not_end_the_replay(made, tmp_path):
    code = f"""
import os, sys, time
from epochmeter.machine.recorded.root import root_folder
root = root_folder({str(made(series={"sys/x": SERIES}))!r})
if os.fork() == 0:
    sys.exit(0)
os.wait()
seen = set()
end = time.monotonic() + 20
while len(seen) < 2 and time.monotonic() < end:
    seen.add((root / "sys/x").read_text())
print(sorted(seen), root)
"""
    environment = {**os.environ, "PYTHONPATH": python_path(), "TMPDIR": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.startswith(r"['1\n', '2\n']")
    assert list(tmp_path.glob("epochmeter-run-*")) == []
