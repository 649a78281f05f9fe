"""The contract of knobs: every test runs for every knob."""

import json
import os
import signal
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from controls import Board

from epochmeter.machine import privilege
from epochmeter.power.knobs import jtop_control, knob
from epochmeter.power.knobs.file_limits import open_amd_cap, open_rapl_limit
from epochmeter.power.knobs.jetson import open_fan, open_jetson_clocks, open_nvpmodel
from epochmeter.power.knobs.knob import AppliedSettings
from epochmeter.power.knobs.nvml_limit import open_nvml_limit
from epochmeter.power.knobs.requests import PERSISTENT_KNOBS, refuse_unrestored, restore_after_kill
from epochmeter.power.knobs.restore_journal import RestoreJournal


class Case(NamedTuple):
    """A knob on a simulated machine, with the requested value and the settings before and after the change."""

    machine: Callable[[Board], Board]
    opened: Callable[[Path, Path], Any]
    requested: Any
    original: str
    applied: str
    other: str  # a setting by someone else during the run
    invalid: Any = None
    choices: str = ""


GPUS = ["GPU-aaaa", "GPU-bbbb"]
WATT_LIMITS = ["nvpmodel", "RAPL", "amdgpu", "NVML"]
CASES = {
    "nvpmodel": Case(
        lambda board: board.with_modes("nx").with_clocks(), lambda root, _: open_nvpmodel(root), 15,
        "MODE_10W_DESKTOP (id:5)", "MODE_15W_6CORE (id:2)", "MODE_20W_2CORE (id:6)", 30,
        "MODE_15W_2CORE (id:0), MODE_15W_4CORE (id:1)",
    ),
    "jetson_clocks": Case(Board.with_clocks, open_jetson_clocks, "locked", "free", "locked", "free"),
    "fan of the kernel": Case(
        Board.with_kernel_fan, lambda root, _: open_fan(root), "max", "temp_control 77", "manual 255", "manual 100"
    ),
    "fan of the service": Case(
        Board.with_service_fan, lambda root, _: open_fan(root), "max", "quiet 77", "manual 255", "manual 100"
    ),
    "RAPL": Case(
        Board.with_rapl, lambda root, _: open_rapl_limit(root), 65, "95 W", "65 W", "80 W, 95 W", 150, "up to 120 W"
    ),
    "amdgpu": Case(
        Board.with_amdgpu, lambda root, _: open_amd_cap(["0000:03:00.0"], root), 200, "250 W", "200 W", "210 W", 400,
        "up to 303 W",
    ),
    "NVML": Case(
        lambda board: board, lambda *_: open_nvml_limit(GPUS), 150, "250 W", "150 W", "180 W, 250 W", 50, "100 to 300 W"
    ),
}  # fmt: skip


class Bench:
    """A knob, its machine and its journal."""

    def __init__(self, name: str, board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
        self.case, self.board, self.monkeypatch = CASES[name], board, monkeypatch
        self.case.machine(board)
        monkeypatch.setenv("PATH", board.on_path())
        self.journal = make_journal(board.root)
        self.knob = self.case.opened(board.root, self.journal.folder)
        self.messages: list[str] = []

    @contextmanager
    def changed(self):
        with AppliedSettings(
            [(self.knob, self.knob.target_for(self.case.requested))], self.journal, self.messages.append
        ) as holding:
            yield holding

    def entries(self) -> list[dict]:
        return [json.loads(file.read_text()) for file in self.journal.folder.glob("*.json")]

    def setting(self) -> str:
        """The current setting; the duty that a fan profile sets is ignored."""
        profile, _, duty = self.knob.get().partition(" ")
        return f"{profile} 77" if profile == "quiet" and duty == "80" else self.knob.get()

    def ignore_changes(self) -> None:
        """Make the machine accept settings without effect."""
        self.board.put(deaf="")
        self.monkeypatch.setattr(privilege, "write_file", lambda file, text: None)
        self.monkeypatch.setenv("STUB", "deaf")

    @contextmanager
    def forbidden(self):
        """Within the block, sudo refuses and files are read-only (also when the tests run as root)."""
        self.board.put(no_sudo="")
        self.monkeypatch.setenv("STUB", "nopermission")
        for file in self.board.root.rglob("sys/**/*"):
            file.chmod(0o755 if file.is_dir() else 0o444)
        if os.getuid() == 0:
            os.seteuid(65534)
        try:
            yield
        finally:
            if os.getuid() == 0:
                os.seteuid(0)


def make_journal(root: Path, boot_id: str = "this boot") -> RestoreJournal:
    return RestoreJournal(str(root / "state"), root=str(root), boot_id=boot_id, command="python src/train.py")


@pytest.fixture(params=CASES)
def bench(request, open_folder, no_jtop, monkeypatch):
    monkeypatch.setattr(knob, "SETTLE_LIMIT_S", 0.1)
    if request.param == "NVML":
        request.getfixturevalue("nvml")
    return Bench(request.param, Board(open_folder), monkeypatch)


def test_setting_is_changed_and_restored_and_its_original_is_in_the_journal_meanwhile(bench):
    assert bench.setting() == bench.case.original
    with bench.changed() as holding:
        assert holding.applied == {bench.knob.name: bench.case.applied}
        assert bench.knob.get() == bench.case.applied
        assert holding.drift_messages() == []
        (entry,) = bench.entries()
        assert (entry["was"], entry["ours"], entry["pid"]) == (bench.case.original, bench.case.applied, os.getpid())
    assert bench.setting() == bench.case.original
    assert (bench.entries(), bench.messages) == ([], [])


@pytest.mark.parametrize("end", [ValueError, RuntimeError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_setting_is_restored_after_any_exception(bench, end):
    with pytest.raises(end), bench.changed():
        raise end
    assert bench.setting() == bench.case.original
    assert bench.entries() == []


def test_change_by_someone_else_is_reported_and_kept(bench):
    with bench.changed() as holding:
        bench.knob.set(bench.case.other)
        theirs = bench.knob.get()
        (drift,) = holding.drift_messages()
    assert drift.startswith(f"{bench.knob.name} was set to {bench.case.applied}")
    assert drift.endswith(f" {theirs}.")
    assert bench.knob.get() == theirs
    if theirs != bench.case.original:
        (message,) = bench.messages
        assert message.startswith(f"{bench.knob.name} is not restored to {bench.case.original}")
        assert f"changed it to {theirs}" in message
    assert bench.entries() == []


def test_setting_without_effect_is_an_error_with_the_actual_setting(bench):
    bench.ignore_changes()
    with pytest.raises(RuntimeError, match=r"^cannot set .* to .*: the device is at "), bench.changed():
        pytest.fail("entered the block without the setting")
    assert bench.entries() == []


def test_missing_permission_is_an_error_with_a_remedy(bench):
    remedy = pytest.raises(RuntimeError, match=r"(?s)(needs root.*(NOPASSWD|-aG jtop))|zeusd")
    with bench.forbidden(), remedy, bench.changed():
        pytest.fail("entered the block without permission")
    assert bench.setting() == bench.case.original
    assert bench.entries() == []


@pytest.mark.parametrize("bench", WATT_LIMITS, indirect=True)
def test_invalid_value_is_refused_with_the_choices(bench):
    with pytest.raises(ValueError, match=f"={bench.case.invalid}") as error:
        bench.knob.target_for(bench.case.invalid)
    assert bench.case.choices in str(error.value)


def test_failed_restoration_is_an_error_with_the_command_and_stays_in_the_journal(bench):
    with pytest.raises(RuntimeError, match=r"cannot restore .* to ") as error, bench.changed():
        bench.ignore_changes()
    (entry,) = bench.entries()
    (file,) = bench.journal.folder.glob("*.json")
    assert bench.messages == [str(error.value)]
    assert str(error.value).endswith(f"\nhint: {entry['by_hand']} && rm {file}")
    assert entry["by_hand"].count("sudo ") >= 1


@pytest.fixture
def ctrl_c():
    """Enable Ctrl-C, which is ignored if the tests run in the background of a script."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_signal_during_restoration_is_deferred(bench, ctrl_c):
    turn, when = bench.knob.set, []

    def interrupted(setting):
        if setting == bench.case.original:
            signal.raise_signal(signal.SIGINT)
            when.append(bench.knob.get())
        turn(setting)

    bench.monkeypatch.setattr(bench.knob, "set", interrupted)
    with pytest.raises(KeyboardInterrupt), bench.changed():
        pass
    assert when == [bench.case.applied]
    assert bench.setting() == bench.case.original
    assert bench.entries() == []


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), BrokenPipeError(), SystemExit(1), ValueError()])
def test_settings_are_restored_without_a_terminal(bench, error):
    def gone(text):
        raise error

    target = bench.knob.target_for(bench.case.requested)
    with (
        pytest.raises(RuntimeError, match="cannot restore"),
        AppliedSettings([(bench.knob, target)], bench.journal, gone),
    ):
        bench.ignore_changes()


def two_limits(folder):
    knobs = [open_rapl_limit(Board(folder / name).with_rapl().root) for name in ("first", "second")]
    knobs[1].name = "another"
    return knobs


def test_other_settings_are_restored_if_a_library_exits(tmp_path):
    knobs = two_limits(tmp_path)

    def exits():
        raise SystemExit("of a library's")

    error = pytest.raises(RuntimeError, match="cannot restore another to 95 W: of a library's")
    with error, AppliedSettings([(knob, knob.target_for(65)) for knob in knobs], make_journal(tmp_path), print):
        knobs[1].get = exits
    assert knobs[0].get() == "95 W"


def test_setting_that_cannot_be_read_at_the_end_is_reported(tmp_path, monkeypatch):
    def unreadable():
        raise OSError("Input/output error")

    limit, _ = two_limits(tmp_path)
    changed = AppliedSettings([(limit, limit.target_for(65))], make_journal(tmp_path), print)
    with changed as holding, monkeypatch.context() as patch:
        patch.setattr(limit, "get", unreadable)
        (message,) = holding.drift_messages()
    assert message == "cannot read RAPL, which was set to 65 W: Input/output error"


def test_pending_request_of_a_killed_run_is_reverted(open_folder, monkeypatch):
    """jtop's service applies a request late, when the run that made it has ended."""
    board = Board(open_folder).with_modes("nx").with_clocks()
    monkeypatch.setenv("PATH", board.on_path())
    late = [2]  # the mode that was requested
    monkeypatch.setattr(jtop_control, "set_mode", lambda number, name: late.append(number) or "")
    monkeypatch.setattr(jtop_control.os, "geteuid", lambda: 1000)
    journal, was = make_journal(board.root), open_nvpmodel(board.root).get()
    entry = journal.note("nvpmodel", (), was, "sudo nvpmodel -m 5")
    journal.update(entry._replace(start_ticks="0"))
    assert restore_after_kill(journal, print) == []
    assert late == [2, 5]


def test_unrestored_setting_is_a_warning_and_blocks_further_changes(bench):
    left_by_a_dead_run(bench)
    bench.ignore_changes()
    failed = restore_after_kill(bench.journal, bench.messages.append)
    (entry,) = bench.journal.unrestored()
    assert failed == [entry]
    assert (entry.was, bench.knob.get()) == (bench.case.original, bench.case.applied)
    assert bench.messages[0].startswith(f"warning: cannot restore {bench.knob.name} to {bench.case.original}: ")
    assert bench.messages[0].endswith(f"\nhint: {bench.journal.by_hand(entry)}")
    assert restore_after_kill(bench.journal, pytest.fail, failed) == failed
    with pytest.raises(RuntimeError, match=f"cannot set {bench.knob.name}: .* restored to"):
        refuse_unrestored([bench.knob], bench.journal)
    bench.journal.remove(entry)
    refuse_unrestored([bench.knob], bench.journal)


def test_change_that_was_never_made_leaves_no_journal_entry(bench):
    """After a power cut between journal and change, for a user who has lost the permission."""
    with bench.forbidden():
        record_change(bench)
        assert restore_after_kill(bench.journal, bench.messages.append) == []
    assert bench.entries() == []
    assert bench.setting() == bench.case.original


def record_change(bench, **changes):
    """Write the journal entry of a process that was killed before it changed the setting."""
    original = bench.setting()
    entry = bench.journal.note(bench.knob.name, bench.knob.devices, original, bench.knob.by_hand(original))
    return bench.journal.update(entry._replace(start_ticks="0", **changes))


def left_by_a_dead_run(bench, **changes):
    """Leave a changed setting and its journal entry, as a killed controller does."""
    entry = record_change(bench, **changes)
    bench.knob.set(bench.case.applied)
    return bench.journal.update(entry._replace(ours=bench.knob.get()))


@pytest.mark.parametrize("killed", ["before the change", "after the change", "after the journal was updated"])
def test_next_run_restores_the_setting_of_a_killed_run(bench, killed):
    if killed == "before the change":
        record_change(bench)
    else:
        entry = left_by_a_dead_run(bench)
        bench.journal.update(entry if "journal" in killed else entry._replace(ours=None))
    assert restore_after_kill(bench.journal, bench.messages.append) == []
    assert bench.setting() == bench.case.original
    assert bench.entries() == []
    assert bench.messages[0].startswith(f"restored {bench.knob.name} to {bench.case.original}")


def test_only_lasting_settings_are_restored_after_a_reboot(bench):
    left_by_a_dead_run(bench, boot_id="the boot before")
    restore_after_kill(bench.journal, bench.messages.append)
    assert bench.setting() == (bench.case.original if bench.knob.name in PERSISTENT_KNOBS else bench.case.applied)
    assert bench.entries() == []
    assert len(bench.messages) == 1


def test_settings_are_restored_in_reverse_order(tmp_path, monkeypatch):
    changes, knobs = [], two_limits(tmp_path)
    monkeypatch.setattr(type(knobs[0]), "set", lambda knob, setting: changes.append((knob.name, setting)))
    monkeypatch.setattr(type(knobs[0]), "get", lambda knob: dict(changes).get(knob.name, "95 W"))
    with AppliedSettings([(limit, limit.target_for(65)) for limit in knobs], make_journal(tmp_path), print):
        pass
    assert changes == [("RAPL", "65 W"), ("another", "65 W"), ("another", "95 W"), ("RAPL", "95 W")]


@pytest.mark.parametrize("bench", WATT_LIMITS, indirect=True)
def test_every_limit_can_be_set_in_turn_and_is_in_the_journal_before(bench, monkeypatch):
    set_limit = type(bench.knob).set

    def set_if_in_the_journal(knob, setting):
        assert [(entry["was"], entry["ours"]) for entry in bench.entries()] == [(bench.case.original, None)]
        set_limit(knob, setting)

    limits = bench.knob.limits()
    assert len(limits) > 2
    assert [limit.watts for limit in limits] == sorted(limit.watts for limit in limits)
    assert bench.case.original in [limit.setting for limit in limits]
    with bench.changed() as holding, monkeypatch.context() as patch:
        patch.setattr(type(bench.knob), "set", set_if_in_the_journal)
        for setting in (*(limit.setting for limit in limits), bench.case.original):
            holding.change(bench.knob, setting)
            assert holding.applied == {bench.knob.name: setting} == {bench.knob.name: bench.knob.get()}
            assert holding.drift_messages() == []
            (entry,) = bench.entries()
            assert (entry["was"], entry["ours"]) == (bench.case.original, setting)
    assert bench.setting() == bench.case.original
    assert (bench.entries(), bench.messages) == ([], [])
