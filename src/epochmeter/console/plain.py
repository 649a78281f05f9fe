"""The console of all commands."""

from collections.abc import Iterable
from contextlib import suppress
from signal import SIGPIPE
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from epochmeter.config.printable import printable


class PlainConsole(Console):
    """A console that prints texts as they are, and ends the command if the reader of its output has ended.

    Control characters in texts, which may be from another user, are replaced.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a text, a table or the like."""
        for segment in super().render(renderable, options):
            is_command = bool(segment.control)  # of rich itself, such as to move the cursor
            yield segment if is_command else segment._replace(text=printable(segment.text))

    def on_broken_pipe(self) -> None:
        """End the command, as SIGPIPE would, if the reader of its output has ended, such as `head`."""
        with suppress(SystemExit):
            super().on_broken_pipe()  # drops all later output
        raise SystemExit(128 + SIGPIPE)
