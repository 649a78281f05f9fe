"""Numbers with their units and intervals; tests/report/test_formatting.py has more of their digits."""

from epochmeter.results.quantities import number, plus_minus, quantity, span, unbroken, within


def test_a_value_has_no_more_digits_than_its_interval_supports():
    for shown, text in (
        (number(0.91532, half=0.125), "0.92"),
        (number(0.91532, half=0.0004), "0.915"),
        (number(53.12, half=17.0), "53"),
        (number(53.12, half=0.0), "53.1"),
        (quantity(3515.0, "s", half=960.0), "59 min"),
        (within(3515.0, 960.0, "s"), "59 min ± 27 %"),
        (within(0.7, 0.0063, "s"), "0.700 s ± 0.9 %"),
        (plus_minus(3515.0, 96.0, "s"), "58.6 ± 1.6 min"),
    ):
        assert shown == text


def test_elapsed_times_are_in_whole_seconds_with_the_two_largest_units():
    seconds = (-1.0, 0.4, 59.6, 200.0, 3900.0, 183_600.0)
    assert [span(value) for value in seconds] == ["0 s", "0 s", "1 min 0 s", "3 min 20 s", "1 h 5 min", "2 d 3 h"]


def test_no_line_breaks_between_a_number_and_its_unit():
    for text, joined in (
        ("0.700 s ± 0.9 % per epoch", "0.700_s_±_0.9_% per epoch"),
        ("(41 %), 2.30 GB, 3 TFLOP/s.", "(41_%), 2.30_GB, 3_TFLOP/s."),
        ("5 runs of 2 sweeps, 3 more", "5 runs of 2 sweeps, 3 more"),
    ):
        assert unbroken(text).replace("\N{NO-BREAK SPACE}", "_") == joined
