"""The console of all commands."""

import re
import textwrap
from collections.abc import Iterable
from contextlib import suppress
from signal import SIGPIPE
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from epochmeter.config.printable import printable
from epochmeter.results.quantities import NO_BREAK, unbroken

if TYPE_CHECKING:
    from rich.table import Table


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

    def print_table(self, table: "Table") -> None:
        """Print a table, if it has a width, at this one; outside of a terminal, its lines do not end with spaces."""
        if self.is_terminal:
            self.print(table, crop=False)
            return
        options = self.options.update(max_width=max(self.width, table.width or 0))
        for line in self.render_lines(table, options, pad=False):
            self.print("".join(segment.text for segment in line).rstrip(), markup=False, soft_wrap=True)

    def on_broken_pipe(self) -> None:
        """End the command, as SIGPIPE would, if the reader of its output has ended, such as `head`."""
        with suppress(SystemExit):
            super().on_broken_pipe()  # drops all later output
        raise SystemExit(128 + SIGPIPE)


def wrap(text: str, width: int) -> list[str]:
    """Return the lines of a text, which break at spaces, but not between a number and its unit or within a command."""
    joined = re.sub("`[^`]*`", lambda command: command[0].replace(" ", NO_BREAK), unbroken(text))
    lines = textwrap.wrap(joined, width, break_on_hyphens=False, break_long_words=False)
    return [line.replace(NO_BREAK, " ") for line in lines]
