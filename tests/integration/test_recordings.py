"""Runs on a replayed recording, as commands: they measure the recorded machine, and are rehearsals."""

import json
import signal
from pathlib import Path

import boards
import psutil
import pytest
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
    entries = list(read_tree(tree.root).entries.values())
    manifest = {
        "format": archives.FORMAT, "version": archives.VERSION, "date": "2026-11-29", "epochmeter": "0.1.0",
        "architecture": "riscv64", "duration_s": PERIOD_S, "entries": len(entries), "missing": {"sys/x": "gone"},
    }  # fmt: skip
    documents = {archives.MANIFEST: manifest, archives.SERIES: {"files": files}}
    path = folder / "thor.tar.gz"
    write_archive(path, {name: json.dumps(document).encode() for name, document in documents.items()}, entries)
    return path


def players():
    """The command lines of all processes that play a recording."""
    lines = []
    for process in psutil.process_iter():
        try:
            lines += [process.pid] if PLAYER in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE else []
        except psutil.Error:
            continue
    return lines


def temporary(folder):
    return {"TMPDIR": str(folder)}


def test_run_measures_the_recorded_board_changes_no_setting_and_is_a_rehearsal(project, thor, tmp_path):
    before = players()
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
    assert set(players()) <= set(before)
    report = project.run("report", "tracking=none", check=True)
    assert "rehearsal" in report.stdout.lower(), "there is no other run"


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
    before = players()
    overrides = {"machine.root": thor, "device": "auto"}
    process = project.start("train", *project.long_stubbed(**overrides), **temporary(tmp_path))
    project.until_in_training()
    assert set(players()) > set(before)
    process.send_signal(signal.SIGKILL)
    process.wait()
    project.until(lambda: set(players()) <= set(before))
    assert len(list(tmp_path.glob("epochmeter-run-*/root"))) == 1
    project.run("doctor", f"machine.root={thor}", "device=auto", "meter=none", check=True, **temporary(tmp_path))
    assert list(tmp_path.glob("epochmeter-run-*")) == []


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
