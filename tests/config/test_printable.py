from epochmeter.config.errors import format_error
from epochmeter.config.printable import printable, printable_tree
from epochmeter.shared.problem import Problem

DANGEROUS = ["\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "a\rb", "a\x00b", "a\b", "\x7f", "\u202etxt", "\u2028", "\ud800"]
PLAIN = "Größe µ 漢字 👩\u200d🔬 a\u00a0b\n\tc"


def test_only_characters_that_command_a_terminal_or_cannot_be_encoded_are_replaced():
    for text in DANGEROUS:
        shown = printable(f"<{text}>")
        assert shown.encode()
        assert shown.count("\N{REPLACEMENT CHARACTER}") == (2 if "title" in text else 1)
        assert format_error(Problem(f"cannot read `{text}`")).encode()
    assert printable(PLAIN) == PLAIN


def test_texts_and_keys_of_nested_values_are_replaced():
    tree = {"a\x1b": ["\x00", 1, None, {"b": "\r"}], "c": True}
    assert printable_tree(tree) == {"a\ufffd": ["\ufffd", 1, None, {"b": "\ufffd"}], "c": True}
