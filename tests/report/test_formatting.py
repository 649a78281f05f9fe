"""Numbers as text, except those of the golden pages."""

from epochmeter.report.formatting import beside, interval, join_or_more, percent, plural, ratio, with_bounds
from epochmeter.report.statistics import Estimate
from epochmeter.results.quantities import number, quantity

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
        ([percent(fraction) for fraction in (0.0314, 0.0994, 0.0995, -0.0004)], ["3.1 %", "9.9 %", "10 %", "0.0 %"]),
        ([percent(0.9634, 1), percent(float("nan"))], ["96.3 %", "-"]),
        ([quantity(rate, "FLOP/s") for rate in (0.0, 2.5e12)], ["0.00 GFLOP/s", "2.50 TFLOP/s"]),
        ([quantity(value, unit) for value, unit in ((1.2e9, "Hz"), (3e6, "B/s"))], ["1.20 GHz", "3.00 MB/s"]),
        ([with_bounds(estimate) for estimate in (WIDE, Estimate(6.3), None)], ["6.30 (few repeats)", "6.30", "-"]),
        # Two quantities and their ratio are shown next to each other.
        ([beside(0.503, "s", 0.0978), beside(0.0978, "s", 0.503)], ["0.5030 s", "0.09780 s"]),
        ([beside(14_400.0, "s", 1.0), beside(1.0, "s", 14_400.0)], ["4.000 h", "2.78e-04 h"]),
        (beside(None, "s", 1.0), "-"),
        # An interval is relative, unless it is wide or includes zero.
        (interval(Estimate(2.0, 1.4, 3.0), "s"), "2.0 s ± 50 %"),
        (interval(Estimate(1.0, 0.3, 9.0), "s"), "1.0 s (0.3 to 9.0)"),
        (interval(Estimate(1.0, 0.3, 11.0), "s"), "1.00 s (few repeats)"),
        ([join_or_more("abcd", limit, "; ") for limit in (4, 2)], ["a; b; c; d", "a; b; 2 more"]),
        ([plural(count, "run") for count in (0, 1, 3000)], ["0 runs", "1 run", "3,000 runs"]),
    ):
        assert shown == text
