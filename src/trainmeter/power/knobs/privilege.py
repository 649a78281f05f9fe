"""What takes root, done as an ordinary user may: by sudo where it asks for no password, never by running as root."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from trainmeter.stopping import STOPPING

LIMIT_S = 30
GONE_S = 1
"""How long a program that was killed is waited for."""
REFUSAL = re.compile(
    r"^.*(?:password is required|authentication is required|terminal is required|not allowed to execute"
    r"|not in the sudoers|may not run sudo|command not found).*$",
    re.MULTILINE,
)
"""What sudo says where it does not run a program; what else it says, such as an unknown host, is no refusal."""


def answer(*command: str, typed: str | None = None) -> str:
    """What a program says, on both its outputs, with `typed` or nothing at all on its standard input.

    RuntimeError where there is no such program, or where it does not end in time. Its exit code is not asked: the
    vendors' programs end with 0 where they have done nothing.
    """
    # A Ctrl-C is sent to every program of the terminal: it must not end this one half way.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL if typed is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},
        )
    except OSError as error:
        raise RuntimeError(f"{command[0]} cannot be run: {error.strerror}.") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        return process.communicate(typed, timeout=LIMIT_S)[0]
    except subprocess.TimeoutExpired as error:
        with suppress(PermissionError, subprocess.TimeoutExpired):  # root's own process outlives us
            process.kill()
            process.wait(GONE_S)
        for pipe in filter(None, (process.stdin, process.stdout)):
            with suppress(BrokenPipeError):
                pipe.close()
        raise RuntimeError(f"`{shlex.join(command)}` did not end within {LIMIT_S} s.") from error


def as_root(*command: str, typed: str | None = None) -> str:
    """What a program says that takes root; RuntimeError, with the way out, where this user may not run it."""
    if os.geteuid() == 0:
        return answer(*command, typed=typed)
    asked = shlex.join(command)
    try:
        said = answer("sudo", "-n", *command, typed=typed)
    except RuntimeError as error:
        raise RuntimeError(f"`{asked}` takes root: {error}") from error
    if refusal := REFUSAL.search(said):
        raise RuntimeError(
            f"`{asked}` takes root, and sudo does not run it ({refusal[0].strip()}). Let it, without a password: "
            f"sudo visudo, NOPASSWD for {command[0]}."
        )
    return said


def read(file: Path) -> str:
    """A file of the machine's, stripped; RuntimeError where this user may not read it."""
    try:
        return file.read_text().strip()
    except OSError as error:
        raise unreadable(error) from error


def unreadable(error: OSError) -> RuntimeError:
    """The error of a file of the machine's that cannot be read, with what to do."""
    file = error.filename
    return RuntimeError(f"{file} cannot be read: {error.strerror}. Let this user: sudo chmod a+r {file}")


def write(file: Path, text: str) -> None:
    """Writes to a file of the kernel's, or has `sudo tee` do it; RuntimeError where it takes neither."""
    try:
        file.write_text(text)
    except PermissionError:
        said = as_root("tee", str(file), typed=text)
        if refused := re.search(r"^tee: (.+)", said, re.MULTILINE):
            raise RuntimeError(f"{refused[1]}.") from None
    except OSError as error:
        raise RuntimeError(f"{file} does not take {text}: {error.strerror}.") from error
