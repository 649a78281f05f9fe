"""Numbers as text."""

from types import SimpleNamespace

import pytest

from epochmeter.report import formatting


@pytest.mark.parametrize(
    ("value", "base", "text"),
    [
        (3515, "s", "58.6 min"),
        (0.7, "s", "0.700 s"),
        (0.0712, "s", "71.2 ms"),
        (117, "s", "117 s"),
        (12_000, "s", "3.33 h"),
        (0, "s", "0.00 s"),
        (774_177, "J", "774 kJ"),
        (2.3e9, "B", "2.30 GB"),
        (1234, "samples/s", "1234 samples/s"),
        (0.00000115, "EUR", "1.15e-06 EUR"),
        (0.0, "EUR", "0.00 EUR"),
        (None, "s", "-"),
        (float("nan"), "J", "-"),
    ],
)
def test_quantity_is_shown_in_a_readable_unit(value, base, text):
    assert formatting.quantity(value, base) == text


def test_ratios_have_their_bounds():
    estimates = (0.95, 0.941, 0.959), (6.3, 3e-5, 1.5e6), (6.3, None, None)
    ratio, wide, single = (SimpleNamespace(value=value, low=low, high=high) for value, low, high in estimates)
    assert formatting.percent(ratio) == "95.0 % (94.1 to 95.9)"
    assert formatting.times(ratio) == "0.950 times (0.941 to 0.959)"
    assert formatting.with_bounds(wide) == "6.30 (few repeats)"
    assert formatting.with_bounds(single) == "6.30"


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        # Parts are shown in the unit and digits of their total, without a minus sign before a zero.
        (formatting.quantity(6, "s", reference=600), "0.1 min"),
        (formatting.number(0.0004, reference=12.3), "0.0"),
        (formatting.number(-0.0004, reference=12.3), "0.0"),
        ([formatting.percent(fraction) for fraction in (0.314, 1, None)], ["31 %", "100 %", "-"]),
        ([formatting.join_or_more("abcd", limit, "; ") for limit in (4, 2)], ["a; b; c; d", "a; b; 2 more"]),
        ([formatting.plural(count, "run") for count in (0, 1, 3000)], ["0 runs", "1 run", "3,000 runs"]),
        (formatting.plural(2, "batch", "batches"), "2 batches"),
    ],
)
def test_other_numbers_as_text(shown, text):
    assert shown == text


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (3515, 3459, 3571, "58.6 min ± 1.6 %"),
        (2.0, 1.4, 3.0, "2.00 s ± 50.0 %"),
        (1.0, 0.3, 9.0, "1.00 s (0.30 to 9.00)"),
        (1.0, 0.3, 11.0, "1.00 s (few repeats)"),
        (0.12, -0.02, 0.26, "0.120 s (-0.020 to 0.260)"),
        (5.0, None, None, "5.00 s"),
    ],
)
def test_interval_is_relative_unless_it_is_wide_or_includes_zero(value, low, high, text):
    assert formatting.interval(SimpleNamespace(value=value, low=low, high=high), "s") == text
