"""What bounds a point: its largest part, where that is known for sure."""

import pytest
from sweeps import trained

from trainmeter.report.bounds import bounds
from trainmeter.report.points import points


def spent(number=0, **seconds):
    """A run of an epoch of ten seconds."""
    return trained(number, 100.0, steady={"compute_s": None, **{f"{part}_s": told for part, told in seconds.items()}},
                   repeat=number)  # fmt: skip


def one(*runs):
    (bound,) = bounds(points(list(runs)))
    return bound


@pytest.mark.parametrize(
    ("seconds", "kind"),
    [
        ({"compute": 6.0, "copy": 1.0, "overhead": 1.0, "fetch_stall": 2.0}, "compute"),
        ({"compute": 1.0, "copy": 6.0, "overhead": 1.0, "fetch_stall": 2.0}, "copy"),
        ({"compute": 1.0, "copy": 1.0, "overhead": 6.0, "fetch_stall": 2.0}, "overhead"),
        ({"compute": 1.0, "fetch_stall": 9.0, "loader_read": 3.0, "loader_preprocess": 1.0}, "storage"),
        ({"compute": 1.0, "fetch_stall": 9.0, "loader_read": 1.0, "loader_preprocess": 3.0}, "preprocessing"),
        ({"compute": 1.0, "fetch_stall": 9.0}, "data"),
        ({"compute": 1.0, "fetch_stall": 9.0, "loader_read": 0.0, "loader_preprocess": 0.0}, "data"),
    ],
)
def test_the_largest_part_bounds(seconds, kind):
    assert one(spent(**seconds)).kind == kind


def test_shares_are_of_the_whole_epoch_and_a_stall_is_split_as_its_loader_spent_its_time():
    bound = one(spent(compute=4.0, copy=0.0, overhead=1.0, fetch_stall=5.0, loader_read=3.0, loader_preprocess=12.0))
    assert bound.shares == pytest.approx({"compute": 0.4, "copy": 0.0, "overhead": 0.1, "storage": 0.1,
                                          "preprocessing": 0.4})  # fmt: skip
    assert sum(bound.shares.values()) == pytest.approx(1.0)


def test_a_tie_is_the_first_of_the_parts_in_their_order():
    assert one(spent(compute=5.0, copy=5.0)).kind == "compute"


def test_a_stall_is_held_against_the_others_as_one():
    bound = one(spent(compute=4.0, fetch_stall=6.0, loader_read=9.0, loader_preprocess=11.0))
    assert bound.shares == pytest.approx({"compute": 0.4, "storage": 0.27, "preprocessing": 0.33})
    assert bound.kind == "preprocessing"


def test_repeats_count_as_their_mean():
    assert one(spent(0, compute=9.0, overhead=1.0), spent(1, compute=3.0, overhead=7.0)).shares == pytest.approx(
        {"compute": 0.6, "overhead": 0.4}
    )


def test_a_part_that_is_absent_may_be_the_largest():
    assert bounds(points([spent(compute=4.0)])) == []
    assert one(spent(compute=6.0)).kind == "compute"


def test_an_overhead_below_zero_is_none():
    assert one(spent(compute=9.9, overhead=-0.1)).shares["overhead"] == 0.0


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_without_a_time_there_is_no_bound(value):
    assert bounds(points([trained(0, 100.0, steady={"e2e_s": value, "compute_s": 9.0})])) == []


def test_what_is_not_finite_is_no_part():
    assert one(spent(compute=9.0, copy=float("nan"))).shares == pytest.approx({"compute": 0.9})
