"""The device settings that a job requests, and the restoration of settings that killed runs left changed."""

from itertools import product
from unittest.mock import Mock

import pytest

from epochmeter.machine import jetson
from epochmeter.power.knobs import restore_journal
from epochmeter.power.knobs.device_settings import requested_knobs, target_of
from epochmeter.power.knobs.restore import restore_after_kill

NVIDIA = {"vendor": "nvidia", "bus": "0000:01:00.0", "uuid": "GPU-aaaa"}
AMD = {"vendor": "amd", "bus": "0000:03:00.0"}


@pytest.fixture
def requested(board, journal):
    """Function of (trains_on_gpu, gpus, values): the knobs that these values request on the board."""

    def of(trains_on_gpu=False, gpus=(), **values):
        return requested_knobs(values, trains_on_gpu, gpus, journal)

    return of


def test_power_limit_is_that_of_the_gpu_vendor_and_of_a_jetson_its_power_mode(board, requested, nvml):
    """A container may hide the GPUs; the CPU's limit must not be used instead."""
    board.with_rapl().with_amdgpu()
    for gpus, name in (([NVIDIA], "NVML"), ([AMD], "amdgpu"), ([], None)):
        knob = requested(True, gpus, power_limit=150)["power_limit"]
        assert (knob and knob.name) == name
    board.with_modes("nano")
    for trains_on_gpu, gpus in product((True, False), ([], [NVIDIA])):
        assert requested(trains_on_gpu, gpus, power_limit=5)["power_limit"].name == "nvpmodel"


def test_search_among_power_modes_that_all_need_a_reboot_is_refused(board, requested):
    board.with_modes("agx_orin")
    with pytest.raises(RuntimeError, match=r"no other limit than MODE_30W \(id:2\)"):
        target_of(requested(True, [], power_limit="auto")["power_limit"], "auto")


@pytest.mark.parametrize("gpus", [[{"vendor": "nvidia"}], [NVIDIA, AMD]])
def test_power_limit_of_gpus_without_identifiers_is_refused(board, requested, gpus):
    board.with_rapl()
    with pytest.raises(RuntimeError, match="does not report the UUID"):
        requested(True, gpus, power_limit=65)


def test_jetson_changes_mode_clocks_fan_and_restores_the_newest_first(board, requested, journal, no_jtop):
    """The power mode cannot change while the clocks are locked, so the clocks are restored first."""
    board.with_modes("nx").with_clocks().with_kernel_fan()
    values, changed = {"fan": "max", "clocks": "locked", "power_limit": "id:0"}, []
    for key, knob in requested(True, **values).items():
        entry = journal.note(knob.name, knob.devices, knob.get(), knob.by_hand(knob.get()))
        target = target_of(knob, values[key])
        knob.set(target.setting)
        journal.update(entry._replace(applied=target.setting, start_ticks="0"))
        changed.append((knob.name, target.setting))
    assert changed == [("nvpmodel", "MODE_15W_2CORE (id:0)"), ("jetson_clocks", "locked"), ("fan", "manual 255")]
    messages = []
    restore_after_kill(journal, messages.append)
    assert [text.split()[:2] for text in messages] == [["restored", name] for name, _ in reversed(changed)]
    assert (board.mode(), journal.unrestored()) == (5, [])


def test_setting_that_cannot_be_read_after_a_reboot_is_dropped_with_the_reason(journal):
    entry = journal.note("NVML", ["GPU-gone"], "250 W", "nvidia-smi -pl 250")
    journal.update(entry._replace(applied="150 W", boot_id="the boot before"))
    messages = []
    assert restore_after_kill(journal, messages.append) == journal.unrestored() == []
    assert "a reboot resets it, which cannot be checked: " in messages[0]


def test_journal_that_cannot_be_locked_is_a_warning(journal, monkeypatch):
    entry = journal.update(journal.note("RAPL", [], "95 W", "by hand")._replace(start_ticks="0"))
    monkeypatch.setattr(restore_journal, "lock_folder", Mock(side_effect=PermissionError(13, "Permission denied")))
    messages = []
    assert restore_after_kill(journal, messages.append) == [entry]
    assert messages[0].startswith("warning: settings that an earlier run changed are not restored")
    assert f"journal of original device settings, {journal.folder}: " in messages[0]


def test_jetson_that_replays_another_board_keeps_its_own_settings(board, requested, journal, monkeypatch):
    """The programs and jtop's service act on this machine, whatever the root."""
    board.with_modes("nano").put(jtop_socket="")
    journal.update(journal.note("nvpmodel", [], "MAXN (id:0)", "sudo nvpmodel -m 0")._replace(start_ticks="0"))
    monkeypatch.setattr(jetson, "JETSON_FILES", (str(board.root / "jtop_socket"),))
    with pytest.raises(RuntimeError, match="is a recorded board"):
        requested(power_limit=5)
    messages = []
    (entry,) = restore_after_kill(journal, messages.append)
    assert (entry.knob, board.mode()) == ("nvpmodel", 0)
    assert "is a recorded board" in messages[0]
    assert requested() == {}
