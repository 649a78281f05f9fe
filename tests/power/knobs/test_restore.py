"""The contract of knobs: every test with a bench runs for every knob."""

import json
import os
import signal
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
from controls import Board

from epochmeter.machine import privilege
from epochmeter.power.knobs import jetson, knob, restore_journal
from epochmeter.power.knobs.applied_settings import AppliedSettings
from epochmeter.power.knobs.jetson import open_fan, open_jetson_clocks, open_nvpmodel
from epochmeter.power.knobs.restore import refuse_unrestored, restore_after_kill
from epochmeter.power.knobs.restore_journal import RestoreJournal
from epochmeter.power.knobs.watt_limit import open_amd_cap, open_nvml_limit, open_rapl_limit


class Case(NamedTuple):
    """A knob on a simulated machine, with the requested value and the settings before and after the change."""

    machine: Callable[[Board], Board]
    opened: Callable[[Path, Path], Any]
    requested: Any
    original: str
    applied: str
    other: str  # a setting by someone else during the run


GPUS = ["GPU-aaaa", "GPU-bbbb"]
WATT_LIMITS = ["nvpmodel", "RAPL", "amdgpu", "NVML"]
CASES = {
    "nvpmodel": Case(
        lambda board: board.with_modes("nx").with_clocks(), lambda root, _: open_nvpmodel(root), 15,
        "MODE_10W_DESKTOP (id:5)", "MODE_15W_6CORE (id:2)", "MODE_20W_2CORE (id:6)",
    ),
    "jetson_clocks": Case(Board.with_clocks, open_jetson_clocks, "locked", "free", "locked", "free"),
    "fan of the kernel": Case(
        Board.with_kernel_fan, lambda root, _: open_fan(root), "max", "temp_control 77", "manual 255", "manual 100"
    ),
    "fan of the service": Case(
        Board.with_service_fan, lambda root, _: open_fan(root), "max", "quiet 77", "manual 255", "manual 100"
    ),
    "RAPL": Case(Board.with_rapl, lambda root, _: open_rapl_limit(root), 65, "95 W", "65 W", "80 W, 95 W"),
    "amdgpu": Case(
        Board.with_amdgpu, lambda root, _: open_amd_cap(["0000:03:00.0"], root), 200, "250 W", "200 W", "210 W"
    ),
    "NVML": Case(lambda board: board, lambda *_: open_nvml_limit(GPUS), 150, "250 W", "150 W", "180 W, 250 W"),
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

    def changed(self, say: Callable[[str], None] | None = None) -> AppliedSettings:
        target = self.knob.target_for(self.case.requested)
        return AppliedSettings([(self.knob, target)], self.journal, say or self.messages.append)

    def entries(self) -> list[tuple[str, str | None]]:
        """The original and the applied setting of each entry of the journal."""
        entries = [json.loads(file.read_text()) for file in self.journal.folder.glob("*.json")]
        assert all(entry["pid"] == os.getpid() for entry in entries)
        return [(entry["original"], entry["applied"]) for entry in entries]

    def assert_restored(self) -> None:
        """Assert the original setting and an empty journal; the duty that a fan profile sets is ignored."""
        profile, _, duty = self.knob.get().partition(" ")
        now = f"{profile} 77" if profile == "quiet" and duty == "80" else self.knob.get()
        assert (now, self.entries()) == (self.case.original, [])

    def record_change(self, **changes):
        """Write the journal entry of a process that was killed before it changed the setting."""
        original = self.knob.get()
        entry = self.journal.note(self.knob.name, self.knob.devices, original, self.knob.by_hand(original))
        return self.journal.update(entry._replace(start_ticks="0", **changes))

    def left_by_a_dead_run(self, **changes):
        """Leave a changed setting and its journal entry, as a killed controller does."""
        entry = self.record_change(**changes)
        self.knob.set(self.case.applied)
        return self.journal.update(entry._replace(applied=self.knob.get()))

    @contextmanager
    def no_effect(self):
        """From now on the machine accepts settings, but they have no effect."""
        self.board.put(no_effect="")
        self.monkeypatch.setattr(privilege, "write_file", lambda file, text: None)
        self.monkeypatch.setenv("STUB", "no_effect")
        yield

    @contextmanager
    def forbidden(self):
        """Within the block, sudo refuses and files are read-only (also when the tests run as root)."""
        self.board.put(no_sudo="")
        self.monkeypatch.setenv("STUB", "nopermission")
        for file in self.board.root.rglob("sys/**/*"):
            file.chmod(0o755 if file.is_dir() else 0o444)
        if os.getuid() == 0:
            self.monkeypatch.setattr(restore_journal, "is_own", lambda status: True)  # of one person with two IDs
            os.seteuid(65534)
        try:
            yield
        finally:
            if os.getuid() == 0:
                os.seteuid(0)


def make_journal(root: Path) -> RestoreJournal:
    return RestoreJournal(str(root / "state"), root=str(root), command="python src/train.py")


@pytest.fixture(params=CASES)
def bench(request, open_folder, no_jtop, monkeypatch):
    monkeypatch.setattr(knob, "SETTLE_LIMIT_S", 0.1)
    if request.param == "NVML":
        request.getfixturevalue("nvml")
    return Bench(request.param, Board(open_folder), monkeypatch)


@pytest.mark.parametrize("end", [None, ValueError, RuntimeError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_setting_is_restored_however_the_block_ends_and_in_the_journal_meanwhile(bench, end):
    bench.assert_restored()
    with pytest.raises(end) if end else nullcontext(), bench.changed() as holding:
        assert holding.applied == {bench.knob.name: bench.case.applied} == {bench.knob.name: bench.knob.get()}
        assert (holding.drift_messages(), bench.entries()) == ([], [(bench.case.original, bench.case.applied)])
        if end:
            raise end
    bench.assert_restored()
    assert bench.messages == []


def test_change_by_someone_else_is_reported_and_kept(bench):
    with bench.changed() as holding:
        bench.knob.set(bench.case.other)
        theirs = bench.knob.get()
        (drift,) = holding.drift_messages()
    assert drift.startswith(f"{bench.knob.name} was set to {bench.case.applied}")
    assert drift.endswith(f" {theirs}.")
    assert (bench.knob.get(), bench.entries()) == (theirs, [])
    if theirs != bench.case.original:
        (message,) = bench.messages
        assert message.startswith(f"{bench.knob.name} is not restored to {bench.case.original}")
        assert f"changed it to {theirs}" in message


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Bench.no_effect, r"(?s)^cannot set .* to .*: the device is at .*\n  hint: "),
        (Bench.forbidden, r"(?s)(needs root.*(NOPASSWD|-aG jtop))|zeusd"),
    ],
    ids=["without effect", "not permitted"],
)
def test_setting_that_cannot_be_changed_is_an_error_and_leaves_no_journal_entry(bench, fault, reason):
    with fault(bench), pytest.raises(RuntimeError, match=reason), bench.changed():
        pytest.fail("entered the block without the setting")
    bench.assert_restored()


@pytest.mark.parametrize("error", [None, OSError(5, "Input/output error"), BrokenPipeError(), SystemExit(1)])
def test_failed_restoration_is_an_error_with_the_command_also_without_a_terminal(bench, error):
    def say(text):
        bench.messages.append(text)
        if error:
            raise error

    with pytest.raises(RuntimeError, match=r"cannot restore .* to ") as failure, bench.changed(say), bench.no_effect():
        pass
    (file,) = bench.journal.folder.glob("*.json")
    by_hand = json.loads(file.read_text())["by_hand"]
    assert bench.messages == [str(failure.value)]
    assert str(failure.value).endswith(f"\n  hint: {by_hand} && rm {file}")
    assert "sudo " in by_hand


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
    bench.assert_restored()


def test_settings_are_restored_in_reverse_order_also_after_a_failure(tmp_path, monkeypatch):
    limits = [open_rapl_limit(Board(tmp_path / name).with_rapl().root) for name in ("first", "second")]
    (first, second), changes, set_limit = limits, [], type(limits[0]).set
    second.name = "another"

    def changed():
        return AppliedSettings([(limit, limit.target_for(65)) for limit in limits], make_journal(tmp_path), print)

    def record(knob, setting):
        changes.append((knob.name, setting))
        set_limit(knob, setting)

    monkeypatch.setattr(type(first), "set", record)
    with changed() as holding, monkeypatch.context() as patch:
        patch.setattr(first, "get", Mock(side_effect=OSError("Input/output error")))
        assert holding.drift_messages() == ["cannot read RAPL, which was set to 65 W: Input/output error"]
    assert changes == [("RAPL", "65 W"), ("another", "65 W"), ("another", "95 W"), ("RAPL", "95 W")]
    with pytest.raises(RuntimeError, match="cannot restore another to 95 W: of a library's"), changed():
        second.get = Mock(side_effect=SystemExit("of a library's"))
    assert (changes[4:], first.get()) == ([("RAPL", "65 W"), ("another", "65 W"), ("RAPL", "95 W")], "95 W")


@pytest.mark.parametrize("is_killed", [True, False])
def test_pending_request_to_jtop_is_reverted(open_folder, monkeypatch, is_killed):
    """jtop's service applies requests in order and late, so the original is requested although it is still set."""
    board, requested = Board(open_folder).with_modes("nx").with_clocks(), []
    monkeypatch.setenv("PATH", board.on_path())
    monkeypatch.setattr(knob, "SETTLE_LIMIT_S", 0.1)
    monkeypatch.setattr(jetson, "request_mode", lambda number, name: requested.append(number))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    journal, mode = make_journal(board.root), open_nvpmodel(board.root)
    if is_killed:
        entry = journal.note("nvpmodel", (), mode.get(), "sudo nvpmodel -m 5")
        journal.update(entry._replace(start_ticks="0"))
        assert restore_after_kill(journal, print) == []
    else:
        late = pytest.raises(RuntimeError, match="the device is at")
        with late, AppliedSettings([(mode, mode.target_for("id:0"))], journal, print):
            pytest.fail("entered the block without the setting")
    assert requested == ([5] if is_killed else [0, 5])


@pytest.mark.parametrize("killed", ["before the change", "after the change", "after the journal was updated"])
def test_next_run_restores_the_setting_of_a_killed_run(bench, killed):
    if killed == "before the change":
        bench.record_change()
    else:
        entry = bench.left_by_a_dead_run()
        bench.journal.update(entry if "journal" in killed else entry._replace(applied=None))
    assert restore_after_kill(bench.journal, bench.messages.append) == []
    bench.assert_restored()
    assert bench.messages[0].startswith(f"restored {bench.knob.name} to {bench.case.original}")


def test_change_that_was_never_made_leaves_no_journal_entry(bench):
    """After a power cut between journal and change, for a user who has lost the permission."""
    with bench.forbidden():
        bench.record_change()
        assert restore_after_kill(bench.journal, bench.messages.append) == []
    bench.assert_restored()


def test_unrestored_setting_is_a_warning_and_blocks_further_changes(bench):
    entry = bench.left_by_a_dead_run()
    with bench.no_effect():
        failed = restore_after_kill(bench.journal, bench.messages.append)
    assert failed == bench.journal.unrestored() == [entry]
    assert bench.knob.get() == bench.case.applied
    assert bench.messages[0].startswith(f"warning: cannot restore {bench.knob.name} to {bench.case.original}: ")
    assert bench.messages[0].endswith(f"\n  hint: {bench.journal.by_hand(entry)}")
    assert restore_after_kill(bench.journal, pytest.fail, failed) == failed
    with pytest.raises(RuntimeError, match=f"cannot set {bench.knob.name}: .* restored to"):
        refuse_unrestored([bench.knob], bench.journal)
    bench.journal.remove(entry)
    refuse_unrestored([bench.knob], bench.journal)


def test_setting_that_is_still_set_after_a_reboot_is_restored(bench):
    """A service may set a limit at each start of the machine, also one that the device itself forgets."""
    bench.left_by_a_dead_run(boot_id="the boot before")
    assert restore_after_kill(bench.journal, bench.messages.append) == []
    bench.assert_restored()
    assert [text.split()[0] for text in bench.messages] == ["restored"]


def test_setting_that_is_reset_or_another_one_after_a_reboot_is_kept(bench):
    for now in (bench.case.original, bench.case.other):
        bench.left_by_a_dead_run(boot_id="the boot before")
        bench.knob.set(now)
        after_reboot = bench.knob.get()
        assert restore_after_kill(bench.journal, bench.messages.append) == []
        assert (bench.knob.get(), bench.entries()) == (after_reboot, [])
        assert bench.messages.pop()
    assert bench.messages == []


def test_unfinished_change_of_a_lasting_setting_only_is_undone_after_a_reboot(bench):
    """The power mode and the fan may take a request late, and keep it; the others start at their defaults."""
    entry = bench.left_by_a_dead_run(boot_id="the boot before")
    bench.journal.update(entry._replace(applied=None))
    restore_after_kill(bench.journal, bench.messages.append)
    if bench.knob.name in ("nvpmodel", "fan"):
        bench.assert_restored()
    else:
        assert (bench.knob.get(), bench.entries()) == (bench.case.applied, [])
    assert len(bench.messages) == 1


@pytest.mark.parametrize("bench", WATT_LIMITS, indirect=True)
def test_every_limit_can_be_set_in_turn_and_is_in_the_journal_before(bench, monkeypatch):
    set_limit, original, limits = type(bench.knob).set, bench.case.original, bench.knob.limits()

    def set_if_in_the_journal(knob, setting):
        assert bench.entries() == [(original, None)]
        set_limit(knob, setting)

    assert len(limits) > 2
    assert [limit.watts for limit in limits] == sorted(limit.watts for limit in limits)
    assert original in [limit.setting for limit in limits]
    with bench.changed() as holding, monkeypatch.context() as patch:
        patch.setattr(type(bench.knob), "set", set_if_in_the_journal)
        for setting in (*(limit.setting for limit in limits), original):
            holding.change(bench.knob, setting)
            assert holding.applied == {bench.knob.name: setting} == {bench.knob.name: bench.knob.get()}
            assert (holding.drift_messages(), bench.entries()) == ([], [(original, setting)])
    bench.assert_restored()
    assert bench.messages == []
