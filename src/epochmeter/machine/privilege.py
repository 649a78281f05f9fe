"""Commands that need root, run by an ordinary user through `sudo -n`, without a password prompt."""

import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from epochmeter.machine.signals import STOP_SIGNALS
from epochmeter.machine.sysfs import match_group, read_text
from epochmeter.shared.problem import MachineError, machine_error

LIMIT_S = 60
SECURE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # in which sudo searches for programs
SYSFS, PROCESS = Path("/sys"), Path("/proc/self")
CAP_FOWNER, CAP_SYS_ADMIN = 3, 21  # as in capability.h of Linux
TEE_ERROR = re.compile(r"^tee: (.+)", re.MULTILINE)
KILL_WAIT_S = 1  # longest wait for a killed program, in seconds
REFUSAL = re.compile(
    r"^.*(?:password is required|authentication is required|terminal is required|not allowed to execute"
    r"|not in the sudoers|may not run sudo|command not found).*$",
    re.MULTILINE,
)
"""Messages of sudo if it does not run a program; others, such as of an unknown host, are warnings."""


def run_program(*command: str, stdin: str | None = None) -> str:
    """Run a program and return its output, standard error included; RuntimeError without it or after `LIMIT_S`.

    The exit code is ignored, since the vendors' programs exit with 0 even if they have done nothing.
    """
    # Ctrl-C goes to every program of the terminal and must not interrupt this one.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},
        )
    except OSError as error:
        raise RuntimeError(f"cannot run {command[0]}: {error.strerror}") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        return process.communicate(stdin, timeout=LIMIT_S)[0]
    except subprocess.TimeoutExpired as error:
        with suppress(PermissionError, subprocess.TimeoutExpired):  # a user may not kill root's process
            process.kill()
            process.wait(KILL_WAIT_S)
        for pipe in filter(None, (process.stdin, process.stdout)):
            with suppress(BrokenPipeError):
                pipe.close()
        raise RuntimeError(f"`{shlex.join(command)}` did not end within {LIMIT_S} s") from error


def run_as_root(*command: str, stdin: str | None = None, allow: str | None = None) -> str:
    """Run a program that needs root, directly or by `sudo -n`; RuntimeError with a hint if this user may not.

    The hint is `allow`, by default a sudoers rule for exactly this command.
    """
    if os.geteuid() == 0:
        return run_program(*command, stdin=stdin)
    text = shlex.join(command)
    try:
        output = run_program("sudo", "-n", *command, stdin=stdin)
    except RuntimeError as error:
        raise RuntimeError(f"`{text}` needs root: {error}") from error
    if refusal := REFUSAL.search(output):
        raise machine_error(
            f"`{text}` needs root, and sudo refuses it ({refusal[0].strip()})", allow or sudoers_rule([command])
        )
    return output


def sudoers_rule(commands: Sequence[Sequence[str]]) -> str:
    """Return the command to paste that lets this user run these commands as root without a password.

    The rule has the exact arguments, since `tee` or `nvpmodel` with any arguments could write any file.
    """
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # as in a container
        user = f"#{os.getuid()}"
    line = f"{user} ALL=(root) NOPASSWD: {', '.join(map(in_sudoers, commands))}"
    return f"echo {shlex.quote(line)} | sudo EDITOR='tee -a' visudo -f /etc/sudoers.d/epochmeter"


def in_sudoers(command: Sequence[str]) -> str:
    """Return a command with exact arguments in the syntax of sudoers(5)."""
    program, *arguments = command
    path = shutil.which(program, path=SECURE_PATH) or f"/usr/sbin/{program}"  # no folder that the user can change
    escaped = [re.sub(r"([,:=\\ *?!\[\]])", r"\\\1", text) for text in (path, *arguments)]
    return " ".join(escaped if arguments else [*escaped, '""'])


def can_open_for_writing(file: Path) -> bool:
    """Whether this process may open a file for writing; root may not if the file is on a read-only mount."""
    return os.access(file, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def may_write(file: Path) -> bool:
    """Whether `write_file` may write to one of the kernel's files, checked without writing anything.

    The same command is run without input: `tee` then only opens and closes the file. That would truncate a file outside
    sysfs, as of a recorded board; such a file counts as writable only if this process may write it directly.
    """
    if can_open_for_writing(file):
        return True
    with suppress(OSError, RuntimeError):
        return file.stat().st_dev == SYSFS.stat().st_dev and not TEE_ERROR.search(run_as_root("tee", str(file)))
    return False


def has_capability(number: int) -> bool:
    """Whether this process has a capability on the host; root in a container may lack it."""
    mapped = read_text(PROCESS / "uid_map").split()
    effective = int(match_group(r"^CapEff:\s*([0-9a-f]+)", read_text(PROCESS / "status")) or "0", 16)
    return bool(effective >> number & 1) and mapped in ([], ["0", "0", str(2**32 - 1)])


def read_file(file: Path) -> str:
    """Read a kernel or configuration file, stripped; RuntimeError if this user may not read it."""
    try:
        return file.read_text().strip()
    except OSError as error:
        raise unreadable_error(error) from error


def unreadable_error(error: OSError) -> MachineError:
    file = str(error.filename)
    return machine_error(f"cannot read {file}: {error.strerror}", f"sudo chmod a+r {shlex.quote(file)}", file=file)


def write_file(file: Path, text: str) -> None:
    """Write to a kernel file, directly or by `sudo tee`; RuntimeError if both fail."""
    try:
        file.write_text(text)
        return
    except PermissionError:
        refused = TEE_ERROR.search(run_as_root("tee", str(file), stdin=text))
        reason = refused[1] if refused else None
    except OSError as error:
        reason = str(error.strerror)
    if reason:
        remedy = "in a container, start it with --privileged; else the firmware (BIOS setup) may have locked it"
        raise machine_error(f"cannot write {text} to {file}: {reason}", remedy)
