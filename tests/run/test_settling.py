"""Thermal settling, with scripted power and clocks."""

import math
from types import SimpleNamespace

import pytest
from cases import case, cases
from power.conftest import counters

from epochmeter.power.window_energy import Reading
from epochmeter.run import settling
from epochmeter.run.settling import PIECES, SHARE, SPREAD, TOO_SHORT, UNKNOWN, Piece, Settling, WarmUp

SECOND = 1_000_000_000


def settled_after(powers_w, clocks_hz, most_s=1000.0, uncertainty_w=0.0):
    """Number of pieces of 5 s until it is over, and the settling."""
    one = Settling(most_s)
    for number, (power_w, clock_hz) in enumerate(zip(powers_w, clocks_hz, strict=True), 1):
        one.add(5.0, Piece(power_w, uncertainty_w, clock_hz))
        if one.is_over:
            return number, one
    return None, one


WARMING = [200 * (1 - 0.2 * math.exp(-number / 4)) for number in range(60)]
STEADY, NONE = [200.0] * 60, [None] * 60


@cases(
    case("steady", powers=STEADY, clocks=[1.4e9] * 60, pieces=PIECES, is_settled=True),
    case("no clock", powers=STEADY, clocks=NONE, pieces=PIECES, is_settled=True),
    case("no power", powers=NONE, clocks=[1.4e9] * 60, pieces=PIECES, is_settled=True),
    case("falling clock", powers=STEADY, clocks=[1.4e9 - 2e7 * n for n in range(60)], pieces=None, is_settled=False),
    case("drifting power", powers=[200 + n for n in range(60)], clocks=[1.4e9] * 60, pieces=None, is_settled=False),
    case("nothing known", powers=NONE, clocks=NONE, pieces=PIECES, is_settled=False),
)
def test_device_has_settled_when_power_and_clock_are_within_the_margin(powers, clocks, pieces, is_settled):
    number, one = settled_after(powers, clocks)
    assert (number, one.is_settled) == (pieces, is_settled)


def test_warming_device_settles_when_what_is_left_is_below_the_margin():
    number, one = settled_after(WARMING, NONE)
    last = WARMING[number - PIECES : number]
    before = WARMING[number - PIECES - 1 : number - 1]
    assert (max(last) - min(last)) / 200 <= 1.02 * SPREAD < (max(before) - min(before)) / 200
    assert one.document()["waited_s"] == 5.0 * number


def test_longest_time_ends_it_with_the_spread_in_the_record():
    number, one = settled_after([200 + n for n in range(60)], NONE, most_s=30)
    assert number == 6
    document = one.document()
    assert (document["waited_s"], document["is_settled"]) == (30.0, False)
    assert document["power_spread"] == pytest.approx(3 / 203.5)
    assert "has not settled after 30 s (power within 1.5 %)" in str(one)


def test_uncertainty_of_the_power_is_no_spread():
    noisy = [200 + 3 * (-1) ** number for number in range(60)]
    assert settled_after(noisy, NONE)[0] is None
    assert settled_after(noisy, NONE, uncertainty_w=6.0)[0] == PIECES


def test_unknown_power_and_clock_end_it_with_the_reason():
    assert settled_after(NONE, NONE)[1].document() == {"waited_s": 20.0, "is_settled": False, "reason": UNKNOWN}


@cases(
    case("no room for its pieces", training_s=40, pieces=0, document={"longest_s": 0.0, "reason": TOO_SHORT}),
    case("a part of a short training", training_s=125, pieces=5, document={"longest_s": 25.0, "reason": TOO_SHORT}),
    case("a long training", training_s=1000, pieces=12, document={}),
)
def test_settling_takes_a_part_of_the_training_only(training_s, pieces, document):
    one, drifting = Settling(60.0), [200 + 10 * number for number in range(60)]
    for power_w in drifting:
        one.bound(training_s, 5.0)
        if one.is_over:
            break
        one.add(5.0, Piece(power_w, 0.0, None))
    assert one.document().items() >= {"waited_s": 5.0 * pieces, "is_settled": False, **document}.items()
    assert one.document()["waited_s"] <= max(SHARE * training_s, 0.0)
    assert "reason" in one.document() or not document


def test_device_that_settles_in_a_part_of_a_short_training_has_no_reason():
    one = Settling(60.0)
    one.bound(100.0, 5.0)
    for _ in range(PIECES):
        one.add(5.0, Piece(200.0, 0.0, None))
    assert (one.is_over, one.is_settled, one.document().get("reason")) == (True, True, None)


def test_nothing_is_waited_for_unless_it_is_requested():
    assert Settling(0).is_over
    assert not Settling(1).is_over


def warming_up(monkeypatch):
    """A clock, a reading of 150 W by it, and a warm-up at that power and a constant clock of the GPU."""
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(settling, "time", SimpleNamespace(monotonic_ns=lambda: round(now.s * SECOND)))

    def read():
        return Reading(round(now.s * SECOND), {"gpu0": 150 * now.s})

    return now, read, WarmUp(counters(gpu0=float), lambda: 1.4e9, 60.0)


def test_pieces_of_a_run_are_between_readings_at_its_progress(monkeypatch):
    now, read, warm_up = warming_up(monkeypatch)
    warm_up.progress(read)  # before an epoch has begun
    warm_up.begin(read())
    waited = []
    while not warm_up.settling.is_over:
        now.s += 1.0
        warm_up.progress(read)
        waited.append(warm_up.settling.document()["waited_s"])
    assert [*dict.fromkeys(waited)] == [0.0, 3.0, 6.0, 9.0, 12.0]
    assert warm_up.settling.document() == {
        "waited_s": 12.0, "is_settled": True, "power_spread": pytest.approx(0, abs=1e-9), "clock_spread": 0.0,
    }  # fmt: skip


def test_piece_extends_over_epochs_that_are_shorter(monkeypatch):
    """Epochs of 1 s with pauses of 10 s between them: three are a piece, and the pauses are no training."""
    now, read, warm_up = warming_up(monkeypatch)
    epochs = 0
    while not warm_up.settling.is_over:
        epochs += 1
        warm_up.begin(read())
        now.s += 1.0
        warm_up.progress(read)
        warm_up.end(read(), is_epoch=True)
        warm_up.begin(read())
        now.s += 10.0
        warm_up.end(read(), is_epoch=False)
    assert epochs == PIECES * 3
    document = warm_up.settling.document()
    assert (document["waited_s"], document["is_settled"]) == (12.0, True)


@pytest.mark.parametrize("epoch_s", [1.0, 4.0])
def test_epoch_whose_end_is_known_after_the_next_has_begun_counts_once(monkeypatch, epoch_s):
    """The start of the next epoch is repeated after the late end, as by the loop of a script."""
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(settling, "time", SimpleNamespace(monotonic_ns=lambda: round(now.s * SECOND)))

    def reading_at(at_s):
        return Reading(round(at_s * SECOND), {"gpu0": 150 * at_s})

    warm_up = WarmUp(counters(gpu0=float), lambda: 1.4e9, 600.0)
    warm_up.begin(reading_at(100.0))
    border_s, waited = 100.0, []
    while not warm_up.settling.is_over and now.s < 200:
        while now.s < border_s + epoch_s:
            now.s += 0.5
            warm_up.progress(lambda: reading_at(now.s))
        border_s += epoch_s
        warm_up.begin(reading_at(border_s))
        now.s += 0.5
        warm_up.progress(lambda: reading_at(now.s))
        warm_up.end(reading_at(border_s), is_epoch=True)
        warm_up.begin(reading_at(border_s))
        waited.append(warm_up.settling.document()["waited_s"])
    document = warm_up.settling.document()
    assert document["is_settled"]
    assert PIECES * 3.0 <= document["waited_s"] <= now.s - 100.0, "no part counts twice"
    assert document["power_spread"] == pytest.approx(0, abs=1e-9)
