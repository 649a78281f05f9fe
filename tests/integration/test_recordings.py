"""Runs on a replayed recording, as commands: they measure the recorded machine, and are rehearsals."""

import csv
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import boards
import psutil
import pytest
from project import put
from recordings import MACHINES

from epochmeter.machine.recorded import archive as archives
from epochmeter.machine.recorded.archive import write_archive
from epochmeter.machine.recorded.recorder import record_machine
from epochmeter.machine.recorded.tree import read_tree

PERIOD_S, LOW = 2.0, 0.4
MEAN = (1 + LOW) / 2
PLAYER = "epochmeter.machine.recorded.player"


@pytest.fixture(scope="module")
def thor(tmp_path_factory) -> Path:
    """A recording of a Thor whose power alternates: a second at its watts, a second at 40 % of them."""
    folder = tmp_path_factory.mktemp("thor")
    tree = boards.write(folder / "machine", "thor")
    texts = [{file: text for _, some in tree.channels(share) for file, text in some.items()} for share in (1.0, LOW)]
    files = {
        str(file.relative_to(tree.root)): {"times_s": [0.0, PERIOD_S / 2], "values": [high, texts[1][file]]}
        for file, high in texts[0].items()
    }
    return write_recording(folder / "thor.tar.gz", tree.root, files)


@pytest.fixture
def nano(tmp_path) -> Path:
    """A recording of a Nano with a card in its slot, on which its system is, and a hard disk at a USB port."""
    root = boards.write(tmp_path / "machine", "nano").root
    card, disk = (tmp_path / "media" / name for name in ("sd", "hdd_usb"))
    soc = "devices/70000000.sdhci/mmc_host/mmc0/mmc0:aaaa/block/mmcblk0"
    usb = "devices/70090000.xusb/usb2/2-1/2-1:1.0/host0/target0:0:0/0:0:0:0/block/sda"
    for path, number, facts in (
        (soc, None, {"queue/rotational": 0, "device/type": "SD", "removable": 0}),
        (f"{soc}/mmcblk0p1", "179:1", {"partition": 1}),
        (usb, None, {"queue/rotational": 1, "device/model": "Portable", "removable": 0}),
        (f"{usb}/sda1", "8:1", {"partition": 1}),
    ):
        put(root / "sys" / path, {name: f"{text}\n" for name, text in facts.items()})
        for link in (f"class/block/{Path(path).name}", *([f"dev/block/{number}"] if number else [])):
            (root / "sys" / link).parent.mkdir(parents=True, exist_ok=True)
            (root / "sys" / link).symlink_to(os.path.relpath(root / "sys" / path, (root / "sys" / link).parent))
    mounts = (("179:1", "/", "mmcblk0p1"), ("179:1", card, "mmcblk0p1"), ("8:1", disk, "sda1"))
    lines = [f"25 1 {number} / {point} rw - ext4 /dev/{name} rw\n" for number, point, name in mounts]
    put(root, {"proc/self/mountinfo": "".join(lines)})
    for folder in (card, disk):
        folder.mkdir(parents=True)
    return write_recording(tmp_path / "nano.tar.gz", root)


def write_recording(path: Path, root: Path, files: Mapping[str, object] | None = None) -> Path:
    """Write the files of a machine as a recording, with the values of those that change."""
    entries = list(read_tree(root).entries.values())
    manifest = {
        "format": archives.FORMAT, "version": archives.VERSION, "date": "2026-11-29", "epochmeter": "0.1.0",
        "architecture": "riscv64", "duration_s": PERIOD_S, "entries": len(entries), "missing": {"sys/x": "gone"},
    }  # fmt: skip
    documents = {archives.MANIFEST: manifest, archives.SERIES: {"files": files or {}}}
    write_archive(path, {name: json.dumps(document).encode() for name, document in documents.items()}, entries)
    return path


def players(folder):
    """The processes that play a recording for a command with this folder for temporary files (`temporary`)."""
    found = []
    for process in psutil.process_iter():
        try:
            is_player = PLAYER in process.cmdline() and process.environ().get("TMPDIR") == str(folder)
            found += [process.pid] if is_player and process.status() != psutil.STATUS_ZOMBIE else []
        except psutil.Error:
            continue
    return found


def temporary(folder):
    return {"TMPDIR": str(folder)}


@pytest.mark.timed
def test_run_measures_the_recorded_board_changes_no_setting_and_is_a_rehearsal(project, thor, tmp_path):
    overrides = {"machine.root": thor, "device": "auto", "epochs": 1, "batch": 4000, "meter.idle_s": 0.3}
    overrides["power_limit"] = "15"
    done = project.run("train", *project.stubbed(**overrides), check=True, **temporary(tmp_path))
    record = project.record()
    settings, reason = sorted(record.run()["rehearsal"], key=lambda text: text.startswith("machine"))
    assert settings == "power_limit=15 requested, not applied"
    assert reason.startswith(f"machine.root={thor} is a recording of another machine (riscv64 machine")
    assert "and this machine is" in reason
    assert "REHEARSAL" in done.stdout + done.stderr
    (window,) = record.windows()
    assert window["metrics"]["epoch/power_mean_w"] == pytest.approx(MEAN * boards.BOARDS["thor"].total_w(), rel=0.05)
    host = json.loads((record.folder / "host.json").read_text())
    assert host["board"]["model"] == "NVIDIA Jetson AGX Thor Developer Kit"
    assert list(tmp_path.glob("epochmeter-run-*")) == [], "the unpacked files are removed"
    assert players(tmp_path) == []
    report = project.run("report", "tracking=none", check=True)
    assert "rehearsal" in report.stdout.lower(), "there is no other run"


@pytest.mark.timed
@pytest.mark.system
def test_sweep_over_the_storages_of_a_recorded_nano_is_compared(project, nano):
    overrides = {
        "machine.root": nano, "device": "nano", "device.accelerator": "cpu", "dataset": "digits", "cache": "cold",
        "storage": "sd,hdd_usb,nvme", "storage.root": f"{nano.parent}/media/${{storage.name}}", "batch": 1000,
        "meter.idle_s": 0.3,
    }  # fmt: skip
    (nano.parent / "media/nvme").mkdir()  # on the board, a folder of the card
    project.run("train", *project.stubbed("-m", **overrides), check=True)
    runs = [record.run() for record in project.records()]
    media = [(run["storage"]["medium"], run["storage"]["devices"]) for run in runs]
    assert media == [("sd", ["mmcblk0p1"]), ("hdd_usb", ["sda1"]), ("sd", ["mmcblk0p1"])]
    assert [run["storage"].get("model") for run in runs] == [None, ["Portable"], None]
    mismatches = [[reason for reason in run["rehearsal"] if reason.startswith("storage=")] for run in runs]
    assert mismatches == [[], [], [f"storage=nvme requested, {nano.parent}/media/nvme/digits is on sd"]]
    for record in project.records():
        first, second = (window["metrics"] for window in record.windows())
        assert first["epoch/page_cache_residency_before"] == 0
        assert "epoch/page_cache_residency_before" in second
        assert "epoch/read_bytes" not in first, "the disk of this machine is another one"
        assert any("disk reads are not counted" in note for note in record.summary()["notes"])
        assert first["epoch/power_mean_w"] == pytest.approx(boards.BOARDS["nano"].total_w(), rel=0.05)
    project.run("report", "tracking=none", "include=[rehearsals]", check=True)
    (sweep,) = project.sweeps()
    with open(sweep / "report.csv", newline="") as file:
        rows = [(row["storage.name"], row["run.storage.medium"]) for row in csv.DictReader(file)]
    assert rows == [("sd", "sd"), ("hdd_usb", "hdd_usb"), ("nvme", "sd")]
    names = {choice["configuration"] for choice in json.loads((sweep / "answer.json").read_text())["choices"]}
    assert names <= {"storage sd", "storage hdd_usb", "storage nvme"}
    energies = json.loads((sweep / "energy_rules.json").read_text())["runs"]
    assert [(energy["title"], energy["per_second_j"] > 0) for energy in energies[:1]] == [("storage sd", True)]


def test_recording_is_refused_where_rehearsals_are(project, thor):
    refused = project.run("train", *project.stubbed(**{"machine.root": thor, "device": "auto", "rehearse": "false"}))
    assert refused.returncode == 1
    assert "is a recording of another machine" in refused.stderr
    assert "hint: `rehearse=false` does not allow this" in " ".join(refused.stderr.split())


@pytest.mark.parametrize("content", [b"", b"text", "truncated"], ids=["empty", "foreign", "truncated"])
def test_other_archives_are_refused_with_a_hint(project, thor, tmp_path, content):
    path = tmp_path / "board.tar.gz"
    path.write_bytes(thor.read_bytes()[:-20] if content == "truncated" else content)
    commands = {"doctor": ["device=auto"], **({"train": project.stubbed(device="auto")} if content == b"" else {})}
    for command, arguments in commands.items():
        refused = project.run(command, *arguments, f"machine.root={path}", **temporary(tmp_path))
        assert refused.returncode == 1
        assert f"error: `machine.root={path}` is not replayed: it is truncated or damaged" in refused.stderr
        assert "hint: ask for another one" in refused.stderr
        assert "Traceback" not in refused.stderr
    assert list(tmp_path.iterdir()) == [path]


def test_killed_controller_leaves_no_player_and_the_next_one_removes_its_files(project, thor, tmp_path):
    overrides = {"machine.root": thor, "device": "auto"}
    process = project.start("train", *project.long_stubbed(**overrides), **temporary(tmp_path))
    project.until_in_training()
    assert players(tmp_path) != []
    process.send_signal(signal.SIGKILL)
    process.wait()
    project.until(lambda: players(tmp_path) == [])
    assert len(list(tmp_path.glob("epochmeter-run-*/root"))) == 1
    project.run("doctor", f"machine.root={thor}", "device=auto", "meter=none", check=True, **temporary(tmp_path))
    assert list(tmp_path.glob("epochmeter-run-*")) == []


@pytest.mark.timed
@pytest.mark.system
def test_recorded_gpu_is_metered_while_the_processor_trains(project, tmp_path):
    """An H100, whose driver is replayed."""
    pytest.importorskip("pynvml")
    from epochmeter.machine import amd, nvml

    machine, path = MACHINES["H100"], tmp_path / "h100.tar.gz"
    (root := tmp_path / "machine").mkdir()
    machine.write(root)
    nvml.replace_client(machine.nvml())
    try:
        record_machine(path, root, 2.0, None, "no load")
    finally:
        nvml.replace_client(None)
        amd.replace_client(None)
    overrides = {"machine.root": path, "device": "auto", "epochs": 1, "batch": 4000}
    project.run("train", *project.stubbed(**overrides), check=True)
    record = project.record()
    assert record.windows()[0]["metrics"]["epoch/power_mean_w"] == pytest.approx(machine.watts, rel=0.08)
    assert record.run()["energy"]["source"] == "counter"
    assert record.run()["rehearsal"]
