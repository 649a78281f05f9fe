import io

from rich.markup import escape
from rich.table import Table

from epochmeter.console.plain import PlainConsole

FOREIGN = "a\x1b[31mb\x9b2J\ud800"


def test_texts_of_others_cannot_command_the_terminal_and_its_own_colors_remain():
    table = Table(FOREIGN)
    table.add_row(FOREIGN)
    for options, own in (({}, 0), ({"force_terminal": True, "color_system": "standard"}, 2)):
        file = io.StringIO()
        PlainConsole(file=file, width=60, **options).print(escape(FOREIGN), style="red")
        assert file.getvalue().count("\x1b") == own
        file = io.StringIO()
        PlainConsole(file=file, width=60).print(table)
        assert file.getvalue().encode()
        assert not {"\x1b", "\x9b"} & set(file.getvalue())
