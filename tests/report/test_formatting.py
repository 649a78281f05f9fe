"""Numbers as text, except those of the golden pages."""

from epochmeter.report.formatting import interval, join_or_more, number, percent, plural, quantity, ratio, with_bounds
from epochmeter.report.statistics import Estimate

WIDE = Estimate(6.3, 3e-5, 1.5e6)


def test_numbers_as_text():
    for shown, text in (
        (quantity(12_000, "s"), "3.33 h"),
        (quantity(2.3e9, "B"), "2.30 GB"),
        (quantity(1234, "samples/s"), "1234 samples/s"),
        (quantity(0.00000115, "EUR"), "1.15e-06 EUR"),
        ([number(value) for value in (123456789.0, 6.4e30)], ["123456789", "6.40e+30"]),
        ([ratio(Estimate(value)) for value in (1.05, 1.999, 2.0)], ["1.050", "1.999", "2.00"]),
        ([number(value) for value in (9.994, 9.996, 99.96, 999.6)], ["9.99", "10.0", "100", "1000"]),
        (quantity(0.0, "EUR"), "0.00 EUR"),
        (quantity(None, "s"), "-"),
        (quantity(float("nan"), "J"), "-"),
        # Parts are shown in the unit and digits of their total, without a minus sign before a zero.
        (quantity(6, "s", reference=600), "0.1 min"),
        (number(0.0004, reference=12.3), "0.0"),
        (number(-0.0004, reference=12.3), "0.0"),
        ([percent(fraction) for fraction in (0.314, 1, None)], ["31 %", "100 %", "-"]),
        ([with_bounds(estimate) for estimate in (WIDE, Estimate(6.3), None)], ["6.30 (few repeats)", "6.30", "-"]),
        # An interval is relative, unless it is wide or includes zero.
        (interval(Estimate(2.0, 1.4, 3.0), "s"), "2.00 s ± 50.0 %"),
        (interval(Estimate(1.0, 0.3, 9.0), "s"), "1.00 s (0.30 to 9.00)"),
        (interval(Estimate(1.0, 0.3, 11.0), "s"), "1.00 s (few repeats)"),
        ([join_or_more("abcd", limit, "; ") for limit in (4, 2)], ["a; b; c; d", "a; b; 2 more"]),
        ([plural(count, "run") for count in (0, 1, 3000)], ["0 runs", "1 run", "3,000 runs"]),
    ):
        assert shown == text
