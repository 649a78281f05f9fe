from datetime import datetime

import pytest

from epochmeter.console.eta import eta_text, humanize_s, median_or_none

NOON = datetime(2026, 11, 20, 12, 0, 0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "about 1 s"),
        (40.4, "about 40 s"),
        (59.6, "about 1 min"),
        (90, "about 2 min"),
        (3580, "about 1 h"),
        (12_000, "about 3 h 20 min"),
        (86_400, "about 1 day"),
        (86_399, "about 1 day"),
        (2 * 86_400 + 4 * 3600, "about 2 days 4 h"),
    ],
)
def test_durations_are_rounded(seconds, text):
    assert humanize_s(seconds) == text


def test_long_durations_have_the_time_of_day_at_their_end():
    assert eta_text(40, NOON) == "about 40 s"
    assert eta_text(720, NOON) == "about 12 min (until 12:12)"
    assert eta_text(13 * 3600, NOON) == "about 13 h (until 2026-11-21 01:00)"


def test_typical_duration_is_the_median():
    assert median_or_none([1, 100, 3]) == 3
    assert median_or_none([]) is None
