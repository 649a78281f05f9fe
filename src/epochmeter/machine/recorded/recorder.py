"""Record a machine: its files, the calls of its drivers, and both while it is idle and under a known load."""

import errno
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from epochmeter.machine.amd import find_cards
from epochmeter.machine.recorded import archive, inventory
from epochmeter.machine.recorded.driver_calls import DriverCalls, amd_calls, nvml_calls
from epochmeter.machine.recorded.identifiers import Identifiers, find_identifiers
from epochmeter.machine.recorded.jtop_calls import jtop_calls
from epochmeter.machine.recorded.known_load import KnownLoad, known_load
from epochmeter.machine.recorded.series import Series
from epochmeter.machine.recorded.tree import Entry, Tree, files_of, read_content, read_tree
from epochmeter.machine.sysfs import match_group, read_text
from epochmeter.shared.problem import input_error, machine_error
from epochmeter.shared.types import Document

NVIDIA_SMI_LIMIT_S = 30.0
PROCESSES = "Processes"  # the section of nvidia-smi with programs of all users
SHORT_S, IDLE_RATIO = 0.001, 4
"""Shortest pause after samples, in seconds, and as a multiple of the time that they took."""


@dataclass
class Channel:
    """A value that is sampled: how it is read, about how often, and its series."""

    read: Callable[[], Any]
    period_s: float
    series: Series = field(default_factory=Series)
    next_s: float = 0.0


class Phase(NamedTuple):
    """A part of the recording, in seconds since its begin."""

    name: str
    begin_s: float
    end_s: float


class Recorded(NamedTuple):
    """What a recording has; `reason` is why there is no load, `missing` has the files that could not be read."""

    path: Path
    files: int
    gpus: int
    seconds: float
    load: Document
    reason: str
    missing: Mapping[str, str]


class Sampled(NamedTuple):
    """The documents about drivers and files, and the phases; `reason` is why there is no load, if so."""

    nvml: Document
    amdsmi: Document
    jtop: Document
    files: Document
    phases: list[Phase]
    load: Document
    reason: str

    @property
    def duration_s(self) -> float:
        return self.phases[-1].end_s


class Sampling:
    """Samples of channels. They are read more rarely if that takes long, so that it changes the power little."""

    def __init__(self, channels: list[Channel]) -> None:
        self.phases: list[Phase] = []
        self._channels, self._begun_s = channels, time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._begun_s

    def sample(self, seconds: float) -> None:
        """Sample for some seconds: all that is due of power, and one other value at a time, which may be slow."""
        end_s = self.elapsed_s + seconds
        while (begun_s := self.elapsed_s) < end_s:
            due = [channel for channel in self._channels if channel.next_s <= begun_s]
            others = [channel for channel in due if channel.period_s > inventory.POWER_PERIOD_S]
            first = min(others, key=lambda channel: channel.next_s, default=None)
            for channel in due:
                if channel is first or channel.period_s <= inventory.POWER_PERIOD_S:
                    self._read(channel)
            next_s = min((channel.next_s for channel in self._channels), default=end_s)
            took_s = self.elapsed_s - begun_s
            time.sleep(max(SHORT_S, IDLE_RATIO * took_s, min(next_s, end_s) - self.elapsed_s))

    def phase(self, name: str, sample: Callable[[], None]) -> None:
        begin_s = self.elapsed_s
        sample()
        self.phases.append(Phase(name, round(begin_s, 6), round(self.elapsed_s, 6)))

    def _read(self, channel: Channel) -> None:
        before_s = self.elapsed_s
        value = channel.read()
        channel.series.add((before_s + self.elapsed_s) / 2, value)
        channel.next_s = before_s + max(channel.period_s, IDLE_RATIO * (self.elapsed_s - before_s))


def record_machine(path: Path, root: Path, seconds: float, python: str | None, no_python: str = "") -> Recorded:
    """Record the machine below a root into an archive.

    Args:
        seconds: Duration of the samples; the first half of them is without load.
        python: The Python that computes the load; None for `no_python`, the reason.

    Raises:
        InputError: The archive cannot be written there.
        MachineError: The machine has none of the files.
    """
    check_target(path)
    identifiers, tree = find_identifiers(root), read_tree(root)
    if not tree.entries:
        raise machine_error(f"there is nothing to record below {root}", "give the root of a system: `machine.root=/`")
    sampled = _sample_machine(root, tree, identifiers, seconds, python, no_python)
    entries = _without_identifiers(tree, identifiers)
    missing = {identifiers.replace(place): why for place, why in tree.missing.items()}
    manifest = {
        **_origin(root),
        "duration_s": sampled.duration_s,
        "phases": [phase._asdict() for phase in sampled.phases],
        "load": sampled.load,
        "load_reason": identifiers.replace(sampled.reason),
        "entries": len(entries),
        "missing": missing,
    }
    documents = {
        archive.MANIFEST: manifest,
        archive.SERIES: {"files": sampled.files},
        archive.NVML: sampled.nvml,
        archive.AMDSMI: sampled.amdsmi,
        archive.JTOP: sampled.jtop,
    }
    texts = {name: json.dumps(document).encode() for name, document in documents.items()}
    try:
        archive.write_archive(path, texts | _nvidia_smi(root, identifiers), entries)
    except OSError as error:
        raise _unwritable(path, error) from error
    gpus = len(sampled.nvml.get("gpus", ())) + len(sampled.amdsmi.get("gpus", ()))
    return Recorded(path, len(entries), gpus, sampled.duration_s, sampled.load, sampled.reason, missing)


def _sample_machine(
    root: Path, tree: Tree, identifiers: Identifiers, seconds: float, python: str | None, no_python: str
) -> "Sampled":
    """Ask the drivers, and sample them and the files."""
    with ExitStack() as opened:
        nvml, nvidia_gpus = nvml_calls(opened, identifiers)
        amdsmi, amd_gpus = amd_calls([card.bus for card in find_cards(root)], identifiers)
        jtop, service = jtop_calls(root, opened, identifiers)
        files = _file_channels(root, tree)
        nvidia = [_call_channels(calls) for calls in nvidia_gpus]
        amd = [_call_channels(calls) for calls in amd_gpus.values()]
        answers = _call_channels(service)
        sampling = Sampling([channel for group in (files, *nvidia, *amd, answers) for channel in group.values()])
        load, reason = _sample_all(sampling, seconds, python, no_python)
    nvidia_tables = [_table(calls, of) for calls, of in zip(nvidia_gpus, nvidia, strict=True)]
    amd_tables = {bus: _table(calls, of) for (bus, calls), of in zip(amd_gpus.items(), amd, strict=True)}
    return Sampled(
        {**nvml, **({"gpus": nvidia_tables} if nvidia_tables else {})},
        {**amdsmi, **({"gpus": amd_tables} if amd_tables else {})},
        jtop or _table(service, answers),
        _file_series(files, identifiers),
        sampling.phases,
        load,
        reason,
    )


def check_target(path: Path) -> None:
    """Refuse a path at which no archive can be written; InputError."""
    if path.exists():
        raise input_error(f"`record={path}` exists already", "give another name, or remove it")
    if not path.parent.is_dir():
        raise _unwritable(path, FileNotFoundError(errno.ENOENT, "there is no such folder"))
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise _unwritable(path, PermissionError(errno.EACCES, "its folder is read-only"))


def _unwritable(path: Path, error: OSError) -> Exception:
    return input_error(f"`record={path}` cannot be written: {error.strerror or error}", "give a file in another folder")


def _sample_all(sampling: Sampling, seconds: float, python: str | None, no_python: str) -> tuple[Document, str]:
    """Sample without and with the load; return its facts, and why there is none, if so."""
    if python is None:
        sampling.phase("idle", lambda: sampling.sample(seconds))
        return {}, no_python
    sampling.phase("idle", lambda: sampling.sample(seconds / 2))
    with known_load(python) as load:
        sampling.phase("start of the load", lambda: load.begin(sampling.sample))
        sampling.phase("idle" if load.reason else "load", lambda: sampling.sample(seconds / 2))
        load.end()
        return _facts(load), load.reason


def _facts(load: KnownLoad) -> Document:
    return {} if load.reason else load.facts


def _file_channels(root: Path, tree: Tree) -> dict[str, Channel]:
    """Return a channel for each file that is sampled."""

    def reader(name: str) -> Callable[[], bytes | None]:
        file = str(root.resolve() / name)

        def read() -> bytes | None:
            try:
                return read_content(file)
            except OSError:
                return None

        return read

    periods = ((inventory.GAUGES, inventory.GAUGE_PERIOD_S), (inventory.POWER, inventory.POWER_PERIOD_S))
    return {
        name: Channel(reader(name), period_s)
        for patterns, period_s in periods
        for name in files_of(root, tree, patterns)
    }


def _file_series(channels: Mapping[str, Channel], identifiers: Identifiers) -> Document:
    """Return the series of files that have changed, as texts without identifiers."""
    files = {}
    for name, channel in channels.items():
        series = Series()
        for at_s, content in zip(channel.series.times_s, channel.series.values, strict=True):
            replaced = None if content is None else identifiers.replace_content(name, content)
            series.add(at_s, None if replaced is None else replaced.decode("utf-8", "surrogateescape"))
        if len(series.values) > 1:
            files[identifiers.replace(name)] = series.to_fields()
    return files


def _call_channels(calls: DriverCalls) -> dict[str, Channel]:
    channels = {name: Channel(call, inventory.POWER_PERIOD_S) for name, call in calls.often.items()}
    return channels | {name: Channel(call, inventory.GAUGE_PERIOD_S) for name, call in calls.rarely.items()}


def _table(calls: DriverCalls, channels: Mapping[str, Channel]) -> Document:
    series = {name: each.series.to_fields() for name, each in channels.items() if len(each.series.values) > 1}
    return {"calls": calls.once, "series": series}


def _without_identifiers(tree: Tree, identifiers: Identifiers) -> list[Entry]:
    """Return the entries with identifiers replaced in their contents, names and targets."""
    entries = {}
    for entry in tree.entries.values():
        path = identifiers.replace(entry.path)
        content = entry.content and identifiers.replace_content(entry.path, entry.content)
        target = entry.target and identifiers.replace(entry.target)
        entries[path] = Entry(path, entry.mode, content, target, entry.access, entry.is_folder)
    return list(entries.values())


def _origin(root: Path) -> dict[str, Any]:
    """Return the facts of a recording: its format, when and by which version it was made, on what kind of machine."""
    try:
        own = version("epochmeter")
    except PackageNotFoundError:
        own = "(checkout)"
    return {
        "format": archive.FORMAT,
        "version": archive.VERSION,
        "epochmeter": own,
        "date": datetime.now(timezone.utc).date().isoformat(),
        "architecture": architecture(root),
        "as_root": os.geteuid() == 0,
    }


def architecture(root: Path) -> str:
    """Return the architecture of a machine, such as aarch64; empty if its files do not show it."""
    if root == Path("/"):
        return platform.machine()
    listing = read_text(root / "proc/cpuinfo")
    if match_group(r"^(vendor_id)\s*:", listing):
        return "x86_64"
    is_arm = match_group(r"^(CPU implementer)\s*:", listing)
    is_jetson = "nvidia,tegra" in read_text(root / "sys/firmware/devicetree/base/compatible")
    return "aarch64" if is_arm or is_jetson else ""


def _nvidia_smi(root: Path, identifiers: Identifiers) -> dict[str, bytes]:
    """Return the text of `nvidia-smi -q`, without the processes; nothing without that program."""
    program = shutil.which("nvidia-smi") if root == Path("/") else None
    if not program:
        return {}
    try:
        text = subprocess.run(
            [program, "-q"], capture_output=True, text=True, errors="replace", timeout=NVIDIA_SMI_LIMIT_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return {archive.NVIDIA_SMI: without_processes(identifiers.replace(text)).encode()}


def without_processes(text: str) -> str:
    """Return the text of `nvidia-smi -q` without the sections about processes."""
    kept: list[str] = []
    depth: int | None = None  # indentation of the section that is left out
    for line in text.splitlines():
        indentation = len(line) - len(line.lstrip())
        if depth is not None and (not line.strip() or indentation > depth):
            continue
        depth = indentation if PROCESSES in line or "Process ID" in line else None
        if depth is None:
            kept.append(line)
    return "\n".join([*kept, ""])
