"""A sweep's folder: `multirun/<date_time>-<command hash>`, which holds a run's folder for each number."""

from __future__ import annotations

import fcntl
import os
import platform
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from trainmeter.job import digest_of, measures

DRAWS = ("sweep.sample", "sweep.seed")
"""Keys that change no run's measurement, but which of a grid's points there is a run for."""
_held: list[int] = []
"""Locks of the folders that this process writes to, held until it ends."""


def folder(multirun: Path, now: datetime, command: Sequence[str], many: bool, again: bool) -> Path:
    """The folder for this command's runs, made and held for this process alone.

    The newest folder of the same command on this host, of `many` runs or of one, is opened again, unless another
    process is at work in it or all is to be measured `again`.
    """
    multirun.mkdir(parents=True, exist_ok=True)
    key = command_hash(command, many)
    if not again:
        for earlier in sorted(multirun.glob(f"*-{key}"), reverse=True)[:1]:
            if _hold(earlier):
                return earlier
    return _made(multirun, now.strftime("%Y-%m-%d_%H-%M-%S"), key)


def command_hash(command: Sequence[str], many: bool) -> str:
    """What makes two commands one: their overrides in any order, less those that change no measurement and no grid."""
    keys = ((override.partition("=")[0], override) for override in command)
    kept = sorted(override for key, override in keys if measures(key) or (many and key in DRAWS))
    return digest_of([kept, many, platform.node()])[:8]


def _made(multirun: Path, stamp: str, key: str) -> Path:
    for suffix in ("", *(f".{count}" for count in range(2, 1000))):
        made = multirun / f"{stamp}{suffix}-{key}"
        try:
            made.mkdir()
        except FileExistsError:
            continue
        if _hold(made):
            return made
    raise RuntimeError(f"no folder can be made in {multirun} for {stamp}: a thousand are there. Remove some.")


def _hold(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    _held.append(descriptor)
    return True
