"""What a recording contains, and what it leaves out."""

import errno
import gzip
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections import Counter
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import boards
import psutil
import pytest
from clocks import time_with
from controls import Board
from project import ROOT, put, wait_until
from recordings import SECRETS, pc, plant
from stub import executable

from epochmeter.commands import doctor
from epochmeter.machine.recorded import recorder, tree
from epochmeter.machine.recorded.recorder import Channel, architecture, record_machine, without_processes
from epochmeter.machine.recorded.root import find_recording, root_folder
from epochmeter.machine.recorded.tree import read_tree, resolve_below
from epochmeter.power.meters.rapl import open_rapl
from epochmeter.shared.problem import InputError, MachineError

SMI = """
==============NVSMI LOG==============
Driver Version                            : 580.65.06
GPU 00000000:01:00.0
    Serial Number                         : 1653023000001
    GPU Power Readings
        Average Power Draw                : 71.20 W
    Processes
        GPU instance ID                   : N/A
        Process ID                        : 4711
            Type                          : C
            Name                          : /home/kowalczyk/train.py
    Capabilities
        EGM                               : disabled
"""


def read(archive):
    """The documents and the members of an archive."""
    with tarfile.open(archive) as opened:
        members = {member.name: member for member in opened}
        texts = {name: opened.extractfile(member).read() for name, member in members.items() if member.isreg()}
    return {name: json.loads(text) for name, text in texts.items() if name.endswith(".json")}, members, texts


def recorded(tmp_path, root, seconds=0.2, python=None, reason="no torch"):
    archive = tmp_path / "board.tar.gz"
    record_machine(archive, root, seconds, python, reason)
    return read(archive)


def test_files_are_found_through_links_as_on_the_machine(tmp_path):
    board = boards.write(tmp_path / "machine", "orin_nano")
    _, members, texts = recorded(tmp_path, board.root)
    link = members[f"root/sys/class/hwmon/{board.folder(0).name}"]
    assert (link.type, link.linkname.startswith("../../bus/i2c/devices/1-0040")) == (tarfile.SYMTYPE, True)
    name = f"root/{board.folder(0).relative_to(board.root)}/in1_label"
    assert texts[name] == b"VDD_IN\n"
    assert "root/sys/bus/i2c/devices/0-0050/name" in members


def test_links_lead_below_the_root_or_nowhere(tmp_path):
    root = put(tmp_path / "machine", {"sys/devices/chip/name": "chip\n"})
    (root / "sys/class").mkdir()
    targets = {"absolute": "/sys/devices/chip", "out": "../../../outside", "loop": "loop", "inside": "../devices/chip"}
    targets |= {"own": f"{root}/sys/devices/chip", "twice": "inside"}
    for name, target in targets.items():
        (root / "sys/class" / name).symlink_to(target)
    places = {name: resolve_below(root, root / "sys/class" / name / "name") for name in targets}
    chip = "sys/devices/chip/name"
    assert {name: place for name, (place, _) in places.items()} == {
        "absolute": chip, "own": chip, "inside": chip, "twice": chip, "out": None, "loop": None,
    }  # fmt: skip
    assert {name: [link.target for link in links] for name, (place, links) in places.items() if place} == {
        "absolute": ["../devices/chip"], "own": ["../devices/chip"], "inside": ["../devices/chip"],
        "twice": ["inside", "../devices/chip"],
    }  # fmt: skip


def test_unreadable_files_are_listed_with_the_reason(tmp_path, monkeypatch):
    root = put(tmp_path / "machine", {
        "sys/class/powercap/intel-rapl:0/name": "package-0\n", "sys/class/powercap/intel-rapl:0/energy_uj": "5\n",
        "sys/class/hwmon/hwmon0/power1_input": "7\n", "sys/class/hwmon/hwmon0/large": "x" * (tree.MAX_FILE_BYTES + 1),
    })  # fmt: skip
    own = tree.read_content

    def refuse(file):
        errors = {"energy_uj": errno.EACCES, "power1_input": errno.ENODATA}
        if number := errors.get(os.path.basename(file)):
            raise OSError(number, os.strerror(number))
        return own(file)

    monkeypatch.setattr(tree, "read_content", refuse)
    documents, members, texts = recorded(tmp_path, root)
    assert documents["manifest.json"]["missing"] == {
        "sys/class/powercap/intel-rapl:0/energy_uj": "Permission denied",
        "sys/class/hwmon/hwmon0/power1_input": "No data available",
        "sys/class/hwmon/hwmon0/large": f"larger than {tree.MAX_FILE_BYTES} bytes",
    }
    assert members["root/sys/class/powercap/intel-rapl:0/energy_uj"].pax_headers["comment"] == ""
    assert texts["root/sys/class/powercap/intel-rapl:0/energy_uj"] == b""


def test_other_types_than_files_are_left_out(tmp_path):
    root = put(
        tmp_path / "machine", {"sys/class/hwmon/hwmon0/name": "chip\n", "sys/class/hwmon/hwmon0/temp1_input/x": ""}
    )
    os.mkfifo(root / "sys/class/hwmon/hwmon0/power1_input")
    assert list(read_tree(root).entries) == ["sys/class/hwmon/hwmon0/name"]


def test_sampled_files_have_a_series_with_failures(tmp_path, monkeypatch):
    power = "sys/class/hwmon/hwmon0/power1_input"
    root = put(tmp_path / "machine", {"sys/class/hwmon/hwmon0/name": "chip\n", power: "0\n"})
    readings = iter(["0\n", "5\n", "5\n", None, "6\n"])

    def scripted(file):
        text = next(readings, "9\n")
        if text is None:
            raise OSError(errno.EIO, "broken")
        return text.encode()

    monkeypatch.setattr(recorder, "read_content", scripted)
    documents, _, _ = recorded(tmp_path, root)
    assert documents["series.json"]["files"][power]["values"] == ["0\n", "5\n", None, "6\n", "9\n"]
    times_s = documents["series.json"]["files"][power]["times_s"]
    assert times_s == sorted(times_s)
    assert 0 <= times_s[0] < times_s[-1] <= documents["manifest.json"]["duration_s"]


def test_slow_gauges_do_not_delay_the_samples_of_power(monkeypatch):
    counts, now = Counter(), SimpleNamespace(s=100.0)

    def sleep(seconds):
        now.s += seconds

    def read(name, seconds):
        counts[name] += 1
        sleep(seconds)
        return counts[name]

    monkeypatch.setattr(recorder, "time", time_with(monotonic=lambda: now.s, sleep=sleep))
    gauges = [Channel(partial(read, number, 0.02), 0.5) for number in range(10)]
    recorder.Sampling([Channel(partial(read, "power", 0.0), 0.01), *gauges]).sample(0.75)
    assert counts["power"] == 8, "each slow reading is followed by a pause of four times its duration"
    assert [counts[number] for number in range(10)] == [1] * 8 + [0] * 2


def test_load_is_known_and_its_phases_are_recorded(tmp_path):
    pytest.importorskip("torch")
    documents, _, _ = recorded(tmp_path, put(tmp_path / "machine", pc("a CPU")), 0.6, sys.executable)
    manifest = documents["manifest.json"]
    load = manifest["load"]
    assert load["device"] == "cpu"
    assert load["flop"] >= 2 * load["size"] ** 3
    assert load["flop"] % (2 * load["size"] ** 3) == 0
    assert load["ended_s"] - load["begun_s"] >= 0.25
    phases = manifest["phases"]
    assert [phase["name"] for phase in phases] == ["idle", "start of the load", "load"]
    assert [phase["end_s"] - phase["begin_s"] >= 0.29 for phase in (phases[0], phases[2])] == [True, True]
    assert phases[2]["end_s"] <= manifest["duration_s"]


def test_machine_without_torch_is_recorded_idle_with_the_reason(tmp_path):
    python = executable(tmp_path / "python", "#!/bin/sh\necho 'borealis-ws7: no torch' >&2\nexit 1\n")
    root = plant(put(tmp_path / "machine", pc("a CPU")))
    documents, _, _ = recorded(tmp_path, root, 0.2, str(python))
    manifest = documents["manifest.json"]
    assert (manifest["load"], manifest["load_reason"]) == ({}, "the load failed: host1: no torch")
    assert {phase["name"] for phase in manifest["phases"]} == {"idle", "start of the load"}


def test_planted_identifiers_are_in_no_name_and_no_content(tmp_path):
    root = plant(put(tmp_path / "machine", pc("a CPU")))
    assert all(
        any(secret in text for text in [*map(str, root.rglob("*")), *texts_below(root)])
        for secret in SECRETS[:14] if "--" not in secret
    ), "they are there to be found"  # fmt: skip
    recorded(tmp_path, root)
    content = gzip.decompress((tmp_path / "board.tar.gz").read_bytes()).decode(errors="replace").lower()
    assert [secret for secret in SECRETS if secret.lower() in content] == []
    assert "ext4" in content
    assert "/home/user" in content


def texts_below(root):
    return [path.read_text() for path in root.rglob("*") if path.is_file()]


def test_list_of_nvidia_smi_has_no_processes():
    text = without_processes(SMI)
    assert "4711" not in text
    assert "kowalczyk" not in text
    assert "Average Power Draw" in text
    assert "EGM" in text


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"proc/cpuinfo": "vendor_id : GenuineIntel\n"}, "x86_64"),
        ({"proc/cpuinfo": "CPU implementer : 0x41\n"}, "aarch64"),
        ({"sys/firmware/devicetree/base/compatible": "nvidia,tegra234\0"}, "aarch64"),
        ({"proc/stat": "cpu 1\n"}, ""),
    ],
)
def test_architecture_is_that_of_the_recorded_machine(tmp_path, files, kind):
    root = put(tmp_path / "machine", files)
    assert architecture(root) == kind
    documents, _, _ = recorded(tmp_path, root)
    assert documents["manifest.json"]["architecture"] == kind


def test_recording_that_cannot_be_written_is_refused_before_it_begins(tmp_path):
    root = put(tmp_path / "machine", pc("a CPU"))
    (tmp_path / "there.tar.gz").write_text("another")
    for path, reason in (("there.tar.gz", "exists already"), ("missing/x.tar.gz", "there is no such folder")):
        with pytest.raises(InputError, match=reason):
            record_machine(tmp_path / path, root, 100.0, None)
    (empty := tmp_path / "empty").mkdir()
    with pytest.raises(MachineError, match="nothing to record"):
        record_machine(tmp_path / "x.tar.gz", empty, 100.0, None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_recording_leaves_no_file_and_no_process(tmp_path, number):
    root = put(tmp_path / "machine", pc("a CPU"))
    (here := tmp_path / "here").mkdir()
    command = [sys.executable, ROOT / "src/doctor.py", "record=board.tar.gz", f"machine.root={root}", "device=cpu"]
    with subprocess.Popen(command, cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("Recording this machine for 60 s")
        wait_until(lambda: psutil.Process(process.pid).num_threads() >= 1)
        process.send_signal(number)
        output, errors = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert "Traceback" not in output + errors
    assert list(here.iterdir()) == []


@contextmanager
def as_other_user():
    """Root may read everything, so root becomes another user."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_recording_without_permission_has_the_same_reason_and_remedy_for_the_missing_energy(tmp_path, open_folder):
    board = Board(open_folder / "machine").with_rapl()
    for counter in board.root.glob("sys/class/powercap/*/energy_uj"):
        counter.chmod(0o400 if os.geteuid() == 0 else 0)
    for limit in board.root.glob("sys/class/powercap/*/*_uw"):
        limit.chmod(0o444)
    archive = open_folder / "board.tar.gz"
    with as_other_user():
        live = open_rapl(gpus=[], root=board.root)
        record_machine(archive, board.root, 0.05, None, "no load")
        root = root_folder(archive)
        replayed = open_rapl(gpus=[], root=root)
        writable = [os.access(file, os.W_OK, effective_ids=True) for file in root.glob("sys/class/powercap/*/*_uw")]
    assert "Only root may read the RAPL counter" in live.energy["reason"]
    assert replayed.energy["reason"].replace(str(root), "ROOT") == live.energy["reason"].replace(
        str(board.root), "ROOT"
    )
    assert "sudo chmod a+r" in replayed.energy["hint"]
    assert writable
    assert not any(writable), "this user may not set the limits of the replay either"
    assert set(find_recording(archive).manifest["missing"].values()) == {"Permission denied"}


@pytest.mark.parametrize(
    ("load", "words"),
    [({"begun_s": 5.0, "ended_s": 35.2}, "30 s of it with a matrix product"), ({}, "without load: no torch")],
    ids=["load", "no load"],
)
def test_seconds_of_the_load_are_printed_or_why_there_is_none(tmp_path, capsys, load, words):
    doctor.print_recorded(recorder.Recorded(tmp_path / "a.tar.gz", 3, 0, 60.0, load, "no torch", {}))
    assert words in " ".join(capsys.readouterr().out.split())
