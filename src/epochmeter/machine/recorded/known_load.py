"""The process of a known load, `epochmeter.worker.known_load`, in the Python that trains."""

import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

from epochmeter.config.installation import python_path

START_LIMIT_S = 120.0  # how long torch may take to load, from a card of a board
END_LIMIT_S = 10.0
POLL_S = 0.02
STEADY = b'{"steady": true}\n'


class KnownLoad:
    """A running load.

    Attributes:
        facts: What it computes, and at the end how often; empty until it has begun.
        reason: Why there is none; empty if it computes.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", errors: IO[bytes]) -> None:
        self._process, self._errors = process, errors
        self.facts: dict[str, Any] = {}
        self.reason = ""

    def begin(self, meanwhile: Callable[[float], None]) -> None:
        """Wait until it computes; `meanwhile` is called with the seconds until it is asked again."""
        limit_s = time.monotonic() + START_LIMIT_S
        while not self._has_output() and time.monotonic() < limit_s:
            meanwhile(POLL_S)
        self._read()
        if not self.reason and self._process.stdin:
            with suppress(BrokenPipeError):  # the next line says why
                self._process.stdin.write(STEADY)
                self._process.stdin.flush()

    def end(self) -> None:
        """End it, and add how many operations it computed between which times."""
        if not self.reason:
            self._close_input()
            self._read()

    def _read(self) -> None:
        """Read the next line; without one, it has failed, and the reason is the last line of its error output."""
        line = b""
        if self._process.stdout and select.select([self._process.stdout], [], [], END_LIMIT_S)[0]:
            line = self._process.stdout.readline()
        found = json.loads(line) if line.startswith(b"{") else {}
        if found and "error" not in found:
            self.facts |= found
            return
        self._process.kill()
        self._process.wait()
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().splitlines()[-1:] or ["it does not begin"]
        self.reason = f"the load failed: {found.get('error', last[0])}"

    def _has_output(self) -> bool:
        return bool(self._process.stdout and select.select([self._process.stdout], [], [], 0)[0])

    def _close_input(self) -> None:
        if self._process.stdin:
            with suppress(BrokenPipeError):
                self._process.stdin.close()


@contextmanager
def known_load(python: str) -> Iterator[KnownLoad]:
    """Start the load, and end it with the block."""
    command = [python, "-m", "epochmeter.worker.known_load"]
    environment = {**os.environ, "PYTHONPATH": python_path()}
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            start_new_session=True,  # it gets no Ctrl-C
        ) as process,
    ):
        try:
            yield KnownLoad(process, errors)
        finally:
            process.kill()
