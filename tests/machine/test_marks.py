from epochmeter.machine.marks import Marks

SECOND = 1_000_000_000


def marks(*times_s):
    made = Marks()
    for at_s in times_s:
        made.add(round(at_s * SECOND), at_s)
    return made


def at_borders(made, opened_s, closed_s):
    return made.at_borders(round(opened_s * SECOND), round(closed_s * SECOND))


def test_readings_of_a_window_are_those_nearest_to_its_borders():
    made = marks(1, 2.01, 5, 9.98, 10.05)
    assert at_borders(made, 2, 10) == (2.01, 9.98)
    assert at_borders(made, 0.97, 5.04) == (1, 5)


def test_a_reading_that_is_too_far_away_or_the_same_for_both_borders_is_none():
    made = marks(1, 2, 100)
    assert at_borders(made, 1.2, 2) is None
    assert at_borders(made, 1.99, 2.01) is None
    assert at_borders(made, 2, 98.5) == (2, 100), "1.5 % of the window"
    assert at_borders(made, 2, 97) is None
    assert at_borders(marks(), 1, 2) is None


def test_the_last_reading_before_a_moment_is_kept():
    made = marks(1, 2, 3)
    made.discard_before(3 * SECOND)
    assert [reading for _, reading in made] == [2, 3]
    made.discard_before(10 * SECOND)
    assert [reading for _, reading in made] == [3]
