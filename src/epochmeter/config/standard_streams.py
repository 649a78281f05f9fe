"""The output of a command: it may be closed, or on a full disk, which must not end a run.

This module must be readable by Python 3.6, the default `python3` of older Jetsons.
"""

import io
import os
import signal
import sys
from typing import Any

from epochmeter.shared.problem import Problem, format_problem

DESCRIPTORS = {"stdout": 1, "stderr": 2}


class Output(io.FileIO):
    """Standard output or error that drops what cannot be written, and keeps the first error.

    The end of a reader, such as `head`, is still raised as BrokenPipeError: it ends the command.
    """

    error = None  # type: OSError | None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            self.error = self.error or error
            return len(data)


def install() -> None:
    """Use `Output` for both streams; where one is closed, open the null device, or the next file would get its output.

    Characters that the locale lacks are replaced.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor, which is this one
    for name, descriptor in DESCRIPTORS.items():
        given = getattr(sys, name)
        if given is None or isinstance(given, io.TextIOWrapper):
            setattr(sys, name, _opened(descriptor, given))


def write_problem() -> str:
    """Return why standard output could not be written, with a hint; empty if it could."""
    print(end="", flush=True)
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", getattr(sys.stdout, "buffer", None))
    error = getattr(raw, "error", None)
    return "" if error is None else format_write_problem(error)


def format_write_problem(error: OSError) -> str:
    """Return why standard output could not be written, with a hint."""
    hint = "free disk space, or redirect the output to another file"
    return format_problem(Problem(f"cannot write the output: {error.strerror}", hint), "error")


def end_without_reader() -> None:
    """End after the reader of the output, such as `head`."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), DESCRIPTORS["stdout"])
    sys.exit(128 + signal.SIGPIPE)


def _opened(descriptor: int, given: "io.TextIOWrapper | None") -> io.TextIOWrapper:
    raw = Output(descriptor, "wb", closefd=False)
    if given is None:
        return io.TextIOWrapper(io.BufferedWriter(raw), errors="replace")
    given.flush()
    is_unbuffered = isinstance(given.buffer, io.RawIOBase)  # PYTHONUNBUFFERED
    return io.TextIOWrapper(
        raw if is_unbuffered else io.BufferedWriter(raw),
        encoding=given.encoding,
        errors="replace" if descriptor == DESCRIPTORS["stdout"] else given.errors,
        line_buffering=given.line_buffering,
        write_through=is_unbuffered,
    )
