"""The knobs of the device settings that a job requests."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from epochmeter.machine.jetson import runs_on_jetson
from epochmeter.power.knobs.gpu_clock import open_clock
from epochmeter.power.knobs.jetson import open_fan, open_jetson_clocks, open_nvpmodel
from epochmeter.power.knobs.knob import Knob, SettingTarget
from epochmeter.power.knobs.restore_journal import RestoreJournal
from epochmeter.power.knobs.watt_limit import open_amd_cap, open_nvml_limit, open_rapl_limit
from epochmeter.shared.problem import machine_error

AUTO = "auto"  # the value of `power_limit` with which the best limit is searched during training
NO_KNOB_MESSAGES = {
    "power_limit": "no power limit to set",
    "gpu_clock": "no GPU clock to set",
    "memory_clock": "no memory clock of a GPU to set",
    "clocks": "no jetson_clocks",
    "fan": "no fan to set",
}


def knob_openers(
    trains_on_gpu: bool, gpus: Sequence[Mapping[str, str]], journal: RestoreJournal
) -> Mapping[str, Callable[[], Knob | None]]:
    """Return the opener of each device setting by key, in the order of changes; None: this machine has none."""
    return {
        "power_limit": lambda: power_limit_knob(trains_on_gpu, gpus, journal.root),
        "gpu_clock": lambda: open_clock("gpu_clock", gpus, journal.root) if trains_on_gpu else None,
        "memory_clock": lambda: open_clock("memory_clock", gpus, journal.root) if trains_on_gpu else None,
        "clocks": lambda: open_jetson_clocks(journal.root, journal.folder),
        "fan": lambda: open_fan(journal.root),
    }


def requested_knobs(
    values: Mapping[str, str | float], trains_on_gpu: bool, gpus: Sequence[Mapping[str, str]], journal: RestoreJournal
) -> dict[str, Knob | None]:
    """Return the knobs of the requested device settings by key, in the order in which they are changed."""
    if values:
        refuse_replay(journal.root)
    openers = knob_openers(trains_on_gpu, gpus, journal)
    knobs = {key: opener() for key, opener in openers.items() if key in values}
    for knob in filter(None, knobs.values()):
        refuse_links_out(knob, journal.root)
    return knobs


def refuse_replay(root: str) -> None:
    """Refuse to change settings of a recorded board on a Jetson, whose own settings would change."""
    if root != "/" and runs_on_jetson():
        raise machine_error(
            f"cannot change device settings: machine.root={root} is a recorded board, and the change would affect "
            "this Jetson instead",
            "leave machine.root out, or add rehearse=true",
        )


def refuse_links_out(knob: Knob, root: str) -> None:
    """Refuse to write to a file that is a link out of the folder of a recorded board."""
    for file in knob.files:
        if not file.resolve().is_relative_to(Path(root).resolve()):
            raise machine_error(f"cannot set {knob.name}: {file} is a link out of {root}", "remove the link")


def power_limit_knob(trains_on_gpu: bool, gpus: Sequence[Mapping[str, str]], root: str) -> Knob | None:
    """Return the power limit of the training device; None if it has none."""
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
    raise machine_error(
        "cannot set power_limit: the driver does not report the UUID (NVIDIA) or PCI address (AMD) of each GPU used",
        "sudo nvidia-smi -pm 1 keeps NVIDIA's driver loaded; or leave power_limit out",
    )


def target_of(knob: Knob, requested: str | float, key: str = "power_limit") -> SettingTarget:
    """Return the setting to apply; for `auto` the current limit, RuntimeError if it is the only or not a common one."""
    if requested != AUTO:
        return knob.target_for(requested)
    now, limits = knob.get(), knob.limits()
    if len(limits) < 2:
        raise machine_error(f"{key}=auto: {knob.name} has no other limit than {now}", f"leave {key} out")
    for target in reversed(limits):  # a clock that is free is the last
        if knob.is_equal(target.setting, now):
            return target
    raise machine_error(f"{key}=auto: {knob.name} is at {now}", "set the same limit for all devices first")
