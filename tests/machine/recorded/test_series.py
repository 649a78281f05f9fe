import pytest

from epochmeter.machine.recorded.series import Repeated, Series


def always(leaf, first):
    return True


def series(*values, every_s=1.0):
    made = Series()
    for number, value in enumerate(values):
        made.add(number * every_s, value)
    return made


def test_only_changes_are_kept():
    made = series("1\n", "1\n", "2\n", "2\n", None, "2\n")
    assert made.to_fields() == {"times_s": [0.0, 2.0, 4.0, 5.0], "values": ["1\n", "2\n", None, "2\n"]}


def test_values_are_repeated_at_their_times():
    repeated = Repeated(series("5\n", "7\n", None), 4.0)
    assert [repeated.at(at_s) for at_s in (0, 0.9, 1, 2.5, 3.9, 4, 5.5, 400, 402)] == [
        "5\n", "5\n", "7\n", None, None, "5\n", "7\n", "5\n", None,
    ]  # fmt: skip


def test_counter_continues_and_other_numbers_do_not():
    texts = ["cpu0 10 5\nbtime 3", "cpu0 20 9\nbtime 3", "cpu0 40 7\nbtime 3"]
    repeated = Repeated(series(*texts), 3.0, is_counter=always)
    assert [repeated.at(at_s) for at_s in (2, 3, 5, 302)] == [
        "cpu0 40 7\nbtime 3", "cpu0 40 5\nbtime 3", "cpu0 70 7\nbtime 3", f"cpu0 {40 + 100 * 30} 7\nbtime 3",
    ]  # fmt: skip


def test_steady_counter_has_the_same_rate_across_the_end():
    repeated = Repeated(series(*(f"{5 * second}\n" for second in range(20))), 20.0, is_counter=always)
    assert [int(repeated.at(second)) for second in (19, 20, 21, 39, 40)] == [95, 100, 105, 195, 200]
    joules = Repeated(series(*({"result": 5.5 * second} for second in range(20))), 20.0, is_counter=always)
    assert [joules.at(second)["result"] for second in (19, 20, 40)] == pytest.approx([104.5, 110.0, 220.0])


def test_counter_that_overflows_continues_within_its_range():
    repeated = Repeated(series("80\n", "95\n", "10\n", None, "25\n"), 5.0, is_counter=always, modulus=100)
    first, second = ([repeated.at(begin_s + at_s) for at_s in range(5)] for begin_s in (0, 5))
    assert first == ["80\n", "95\n", "10\n", None, "25\n"]
    assert second == ["25\n", "40\n", "55\n", None, "70\n"], "45 more in each repetition"


def test_counters_within_mappings_and_lists_continue_unless_the_rule_excludes_them():
    values = [{"result": {"acc": [1, 2], "hot": 40, "name": "a"}}, {"result": {"acc": [4, 8], "hot": 50, "name": "b"}}]
    repeated = Repeated(series(*values), 2.0, is_counter=lambda leaf, first: "acc" in leaf)
    assert repeated.at(3) == {"result": {"acc": [7, 14], "hot": 50, "name": "b"}}
    assert values[1]["result"]["acc"] == [4, 8], "the recorded values are unchanged"


def test_small_numbers_beside_a_counter_are_kept_by_the_rule():
    repeated = Repeated(series("273 W 10000 us", "280 W 20000 us"), 2.0, is_counter=lambda leaf, first: first >= 10_000)
    assert repeated.at(3) == "280 W 30000 us"


@pytest.mark.parametrize(
    ("times_s", "values", "duration_s"),
    [([], [], 1.0), ([0.0], ["1", "2"], 1.0), ([0.0, 2.0, 1.0], ["1", "2", "3"], 3.0), ([0.0], ["1"], 0.0),
     ([0.0], ["1"], float("nan"))],
)  # fmt: skip
def test_damaged_series_are_refused(times_s, values, duration_s):
    with pytest.raises(ValueError, match="a series"):
        Repeated(Series(times_s, values), duration_s)
