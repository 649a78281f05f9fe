"""The console of all commands."""

from contextlib import suppress
from signal import SIGPIPE
from typing import Any

from rich.console import Console


class PlainConsole(Console):
    """A console that prints texts as they are, and ends the command if the reader of its output has ended."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, emoji=False, **options)

    def on_broken_pipe(self) -> None:
        """End the command, as SIGPIPE would, if the reader of its output has ended, such as `head`."""
        with suppress(SystemExit):
            super().on_broken_pipe()  # drops all later output
        raise SystemExit(128 + SIGPIPE)
