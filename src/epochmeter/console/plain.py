"""The console of commands that print a result and end."""

from typing import Any

from rich.console import Console


class PlainConsole(Console):
    """A console that prints texts as they are, and raises BrokenPipeError if the reader of its output has ended."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, emoji=False, **options)

    def on_broken_pipe(self) -> None:  # called while the error is handled; rich would exit with code 1
        raise BrokenPipeError
