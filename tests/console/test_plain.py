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


def test_lines_of_a_table_end_with_spaces_in_a_terminal_only():
    for options, ends in (({}, ["", "ab", "c"]), ({"force_terminal": True, "color_system": None}, ["", "ab", "c "])):
        table = Table("", box=None, padding=0, show_header=False)
        for text in ("", "ab", "c"):
            table.add_row(text)
        file = io.StringIO()
        PlainConsole(file=file, width=60, **options).print_table(table)
        found = file.getvalue().splitlines()
        assert found == (ends if not options else ["  ", *ends[1:]])
