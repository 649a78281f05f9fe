"""Which knobs a job asks for, which of them this machine has, and what a run that was killed has left turned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from epochmeter.machine.signals import undisturbed
from epochmeter.power.knobs.amd_cap import open_amd_cap
from epochmeter.power.knobs.fan import open_fan
from epochmeter.power.knobs.jetson_clocks import open_jetson_clocks
from epochmeter.power.knobs.knob import Knob, Say, Wish, by_hand, returned, unrestored
from epochmeter.power.knobs.nvml_limit import open_nvml_limit
from epochmeter.power.knobs.nvpmodel import open_nvpmodel
from epochmeter.power.knobs.permission import JTOP_SOCKET
from epochmeter.power.knobs.rapl_limit import open_rapl_limit
from epochmeter.power.knobs.restore_journal import Desk, Memo

UNTOUCHED = {"power_limit": None, "clocks": "keep", "fan": "keep"}
"""The keys that ask for a knob, and what leaves it as it is."""
LASTING = ("nvpmodel", "fan")
"""The knobs whose settings outlive a reboot; of a fan's, jtop's service sets what it was asked for anew."""
OF_A_JETSON = ("/etc/nv_tegra_release", JTOP_SOCKET)
"""What a Jetson has; in a container, jtop's socket may be all there is of it."""
ABSENT = {"power_limit": "no limit to set", "clocks": "no jetson_clocks", "fan": "no fan to set"}


class Demand(NamedTuple):
    """What a job asks for by one key, and the knob that this machine has for it."""

    key: str
    asked: Any
    knob: Knob | None

    @property
    def lack(self) -> str | None:
        """What to say where there is no such knob: it makes the run a rehearsal."""
        return None if self.knob else f"{self.key}={self.asked} asked for, this machine has {ABSENT[self.key]}"


def demanded(
    job: Mapping[str, Any], *, trains_on_gpu: bool, gpus: Sequence[Mapping[str, str]], root: str, desk: Desk
) -> list[Demand]:
    """What a job asks to be turned, in the order of turning; `gpus` are those used, as `host.describe` tells of them.

    RuntimeError where a knob is there but cannot be asked.
    """
    if any(job[key] != untouched for key, untouched in UNTOUCHED.items()):
        refuse_replay(root)
    asked = []
    if job["power_limit"] is not None:
        asked.append(Demand("power_limit", job["power_limit"], power_limit(trains_on_gpu, gpus, root)))
    if job["clocks"] != "keep":
        asked.append(Demand("clocks", job["clocks"], open_jetson_clocks(root, desk.folder)))
    if job["fan"] != "keep":
        asked.append(Demand("fan", job["fan"], open_fan(root)))
    return asked


def refuse_replay(root: str) -> None:
    """RuntimeError where the knobs of a recorded board would turn this machine's: its programs know no other root."""
    if root != "/" and any(Path(trace).exists() for trace in OF_A_JETSON):
        raise RuntimeError(
            f"machine.root={root} replays another board, and to set its power would turn this Jetson's own knobs. "
            "Leave machine.root out, or rehearse with rehearse=true."
        )


def power_limit(trains_on_gpu: bool, gpus: Sequence[Mapping[str, str]], root: str) -> Knob | None:
    """What limits the power of the device that trains: of a Jetson the whole module, whichever part of it trains."""
    if knob := open_nvpmodel(root):
        return knob
    if not trains_on_gpu:
        return open_rapl_limit(root)
    if not gpus:
        return None
    vendors = {gpu["vendor"] for gpu in gpus}
    if vendors == {"nvidia"} and all("uuid" in gpu for gpu in gpus):
        return open_nvml_limit([gpu["uuid"] for gpu in gpus])
    if vendors == {"amd"} and all("bus" in gpu for gpu in gpus):
        return open_amd_cap([gpu["bus"] for gpu in gpus], root)
    raise RuntimeError(
        "power_limit limits the GPUs used, and their driver does not tell their UUIDs, or places on the bus if they "
        "are AMD's. NVIDIA's does where it is kept up (sudo nvidia-smi -pm 1); or leave power_limit out."
    )


def wishes(demands: Sequence[Demand]) -> list[tuple[Knob, Wish]]:
    """What is to be turned to where; ValueError for what is out of range, RuntimeError for what takes a reboot."""
    return [(demand.knob, demand.knob.wish(demand.asked)) for demand in demands if demand.knob]


def put_back(desk: Desk, say: Say, tried: Sequence[Memo] = ()) -> list[Memo]:
    """Restore the settings that killed runs left changed, unless a person or a reboot has changed them since.

    A setting that cannot be restored causes a warning; runs that do not need the setting continue.

    Args:
        desk: The journal of settings to restore.
        say: Prints a message.
        tried: Entries that an earlier call could not restore; they are not tried again.

    Returns:
        The entries whose settings could not be restored, `tried` included.
    """
    failed = list(tried)
    said = [] if tried else [f"warning: {text}" for text in desk.damaged()]
    if any(memo not in failed for memo in desk.left()):
        try:
            with desk.alone():
                for memo in (memo for memo in desk.left() if memo not in failed):
                    with undisturbed():
                        try:
                            said.append(cleared(memo, desk))
                        except (Exception, SystemExit) as error:  # the other settings are restored anyway
                            failed.append(memo)
                            said.append(f"warning: {unrestored(memo, error, desk)}")
        except RuntimeError as error:
            said.append(f"warning: {error}")
            failed += [memo for memo in desk.left() if memo not in failed]
    for text in said:
        with suppress(Exception, SystemExit):  # the terminal may be gone
            say(text)
    return failed


def refuse_unrestored(knobs: Sequence[Knob], desk: Desk) -> None:
    """Refuse to change a setting that an earlier run left changed; RuntimeError, with the command that restores it.

    Call it after `put_back`. Another change would lose the original value.
    """
    for knob in knobs:
        if memo := desk.blocking(knob.name, knob.devices):
            raise RuntimeError(
                f"cannot set {knob.name}: an earlier run ({memo.when}: {memo.command}) changed it, and it could not be "
                f"restored to {memo.was}\nhint: {by_hand(memo, desk)}"
            )


def cleared(memo: Memo, desk: Desk) -> str:
    """Does what a memo left behind asks for, and says what that was."""
    gone = memo.boot_id != desk.boot_id and memo.knob not in LASTING
    if not gone:
        refuse_replay(memo.root)
    knob = None if gone else reopened(memo, desk)
    left = f"left at {memo.ours or 'another setting'} by a run that was killed"
    if knob is None:
        desk.drop(memo)
        return f"{memo.knob} was {left}; {'the machine has started anew' if gone else 'it is there no longer'} since."
    by = f"(pid {memo.pid}, {memo.when}: {memo.command})"
    return returned(knob, memo, desk) or f"{memo.knob} is back at {memo.was}; it was {left} {by}."


def reopened(memo: Memo, desk: Desk) -> Knob | None:
    """The knob that a memo tells of; None where the machine has it no longer."""
    match memo.knob:
        case "nvpmodel":
            return open_nvpmodel(memo.root)
        case "jetson_clocks":
            return open_jetson_clocks(memo.root, desk.folder)
        case "fan":
            return open_fan(memo.root)
        case "NVML":
            return open_nvml_limit(memo.devices)
        case "amdgpu":
            return open_amd_cap(memo.devices, memo.root)
        case "RAPL":
            return open_rapl_limit(memo.root)
        case _:
            raise RuntimeError(f"there is no knob {memo.knob}.")
