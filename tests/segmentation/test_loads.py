"""Batches that workers have loaded, matched with those of a pass: times, the worker that delays others, and gaps."""

import math

import pytest

from epochmeter.segmentation.loads import Loads
from epochmeter.segmentation.passes import Loader, Pass
from epochmeter.shared.events import COLLATED, LOAD_FAILED, LOADED, Event

MS = 1_000_000


def loader(workers, number=1, data=None, **facts):
    return Loader(number, data, workers=workers, facts=facts)


def loaded(loads, of, worker, begun, fetched, ready, waits=0.0, helped=0.0):
    """Add a batch that a worker has loaded, with times in ms."""
    loads.add(Event(fetched * MS, begun * MS, waits * MS, of.number, worker, 0, 0, 0, LOADED), of)
    loads.add(Event(ready * MS, fetched * MS, helped * MS, of.number, worker, 0, 0, 0, COLLATED), of)


def failed(loads, of, worker, begun):
    loads.add(Event((begun + 1) * MS, begun * MS, 0.0, of.number, worker, 0, 0, 0, LOAD_FAILED), of)


def passed(of, *batches, number=7, called=0):
    """Return a pass with these batches, requested and delivered at times in ms."""
    ended = Pass(number, of, called * MS, called * MS, None, 0)
    for requested, arrived in batches:
        ended.batches.arrived_ns.append(arrived * MS)
        ended.batches.waits_ns.append((arrived - requested) * MS)
        ended.batches.requested_ns.append(requested * MS)
    return ended


def milliseconds(parts):
    return {name.removeprefix("loader_").removesuffix("_s"): round(1e3 * value, 6) for name, value in parts.items()}


def test_times_of_a_training_process_are_sums_over_its_batches():
    loads, of = Loads(), loader(0)
    loaded(loads, of, 0, begun=0, fetched=6, ready=7, waits=4)
    loaded(loads, of, 0, begun=20, fetched=22, ready=25)
    parts = loads.take(passed(of, (0, 8), (19, 26))).parts(2)
    assert milliseconds(parts) == {"fetch": 8, "collate": 4, "read": 4, "preprocess": 8}


def test_worker_that_delays_ready_batches_is_named_with_the_lost_time():
    """Worker 2 is ready at 9, 20 and 30 ms, worker 1 at 25: from 20 on, its second batch is waited for."""
    loads, of = Loads(), loader(2)
    loaded(loads, of, 1, begun=0, fetched=4, ready=5)
    loaded(loads, of, 2, begun=0, fetched=8, ready=9)
    loaded(loads, of, 1, begun=5, fetched=24, ready=25)
    loaded(loads, of, 2, begun=9, fetched=19, ready=20)
    taken = loads.take(passed(of, (0, 5), (6, 9), (10, 25), (26, 26)))
    parts = milliseconds(taken.parts(4))
    assert (parts["blocked"], parts["queue"]) == (5, 6)
    assert taken.document(4) == {"delays": [{"worker": 0, "blocked_s": pytest.approx(0.005)}]}


def test_workers_without_a_further_batch_are_left_out_and_failed_batches_skipped():
    loads, of = Loads(), loader(3)
    loaded(loads, of, 1, begun=0, fetched=1, ready=2)
    failed(loads, of, 2, begun=0)
    loaded(loads, of, 3, begun=0, fetched=3, ready=4)
    loaded(loads, of, 2, begun=2, fetched=5, ready=6)  # worker 1 has no second batch
    loaded(loads, of, 3, begun=4, fetched=7, ready=8)
    taken = loads.take(passed(of, (0, 2), (3, 4), (5, 6), (7, 8)))
    assert milliseconds(taken.parts(4))["queue"] == 0


def test_batches_that_no_pass_has_taken_are_not_those_of_the_next_pass():
    loads, of = Loads(), loader(1)
    for begun in (0, 10, 20):  # prefetched, but the script has left the pass after one batch
        loaded(loads, of, 1, begun, begun + 5, begun + 6)
    assert milliseconds(loads.take(passed(of, (0, 6))).parts(1))["fetch"] == 5
    loaded(loads, of, 1, begun=41, fetched=43, ready=44)
    assert milliseconds(loads.take(passed(of, (41, 44), number=8, called=40)).parts(1))["fetch"] == 2


def test_pieces_of_a_pass_go_on_with_the_next_worker():
    loads, of = Loads(), loader(2)
    for begun, worker in ((0, 1), (1, 2), (10, 1), (12, 2)):
        loaded(loads, of, worker, begun, begun + worker, begun + 3)
    assert milliseconds(loads.take(passed(of, (0, 3), (4, 5), (6, 13))).parts(3))["fetch"] == 4
    piece = passed(of, (14, 15), called=14)
    assert milliseconds(loads.take(piece).parts(1))["fetch"] == 2


def test_loader_out_of_order_delivers_what_is_ready_and_no_worker_delays():
    loads, of = Loads(), loader(2, in_order=False)
    loaded(loads, of, 1, begun=0, fetched=20, ready=21)
    loaded(loads, of, 2, begun=0, fetched=3, ready=4)
    loaded(loads, of, 2, begun=4, fetched=8, ready=9)
    taken = loads.take(passed(of, (0, 4), (5, 9), (10, 21)))
    assert "loader_blocked_s" not in taken.parts(3)
    assert taken.document(3) == {}


def test_nothing_is_known_if_a_batch_is_missing_or_was_ready_too_late():
    loads, of = Loads(), loader(1)
    loaded(loads, of, 1, begun=0, fetched=1, ready=2)
    assert loads.take(passed(of, (0, 2), (3, 5))) is None
    loaded(loads, of, 1, begun=11, fetched=12, ready=30)
    assert loads.take(passed(of, (11, 20), number=8, called=10)) is None
    assert loads.take(passed(loader(None, number=5), (0, 1))) is None


@pytest.mark.parametrize(
    ("waits", "helped", "is_divided"),
    [(40.0, 1.0, True), (40.0, 4.0, False), (40.0, math.nan, True), (math.nan, 0.0, False)],
)
def test_waits_are_reading_unless_others_may_have_worked_for_them(waits, helped, is_divided):
    loads, of = Loads(), loader(0)
    loaded(loads, of, 0, begun=0, fetched=99, ready=100, helped=0.0)
    loads.take(passed(of, (0, 100)))
    loaded(loads, of, 0, begun=100, fetched=150, ready=151, waits=waits, helped=helped)
    parts = loads.take(passed(of, (100, 151), number=8, called=100)).parts(1)
    assert ("loader_read_s" in parts) == is_divided == ("loader_preprocess_s" in parts)
    assert milliseconds(parts)["fetch"] == 50


def test_transforms_are_scaled_from_the_timed_batches_to_all_and_the_slowest_is_first():
    loads, of = Loads(), loader(1)
    for begun in (0, 10, 20):
        loaded(loads, of, 1, begun, begun + 8, begun + 9)
    loads.add_transforms(of, 10 * MS, {"Normalize": 1 * MS, "Crop": 4 * MS})
    loads.add_transforms(of, 99 * MS, {"Crop": 9 * MS})  # of a batch that is not there
    taken = loads.take(passed(of, (0, 9), (10, 19), (20, 29)))
    assert taken.document(3)["transforms"] == {"Crop": pytest.approx(0.012), "Normalize": pytest.approx(0.003)}
    assert [*taken.document(3)["transforms"]] == ["Crop", "Normalize"]
    assert milliseconds(taken.parts(3))["transform"] == 12


def test_short_batches_of_the_training_process_are_scaled_by_its_waits():
    loads, of = Loads(), loader(0)
    loaded(loads, of, 0, begun=0, fetched=4, ready=5, waits=1)
    loaded(loads, of, 0, begun=40, fetched=44, ready=45, waits=1)
    taken = loads.take(passed(of, (0, 5), (10, 15), (20, 25), (40, 45)))
    assert milliseconds(taken.parts(4)) == {"fetch": 16, "collate": 4, "read": 4, "preprocess": 16}
    assert milliseconds(taken.parts(2)) == {"fetch": 8, "collate": 2, "read": 2, "preprocess": 8}


def test_reading_is_not_known_if_a_batch_between_timed_ones_took_long():
    loads, of = Loads(), loader(0)
    loaded(loads, of, 0, begun=0, fetched=4, ready=5)
    failed(loads, of, 0, begun=16)
    loaded(loads, of, 0, begun=40, fetched=44, ready=45)
    parts = loads.take(passed(of, (0, 5), (10, 15), (20, 39), (40, 45))).parts(4)
    assert "loader_read_s" not in parts
    assert milliseconds(parts)["fetch"] == pytest.approx(34 * 8 / 10)


@pytest.mark.parametrize(("last_ms", "read"), [(4, 3 * 1), (40, None)])
def test_waits_of_some_batches_of_a_worker_are_scaled_unless_others_took_longer(last_ms, read):
    loads, of = Loads(), loader(1)
    loaded(loads, of, 1, begun=0, fetched=4, ready=5, waits=1)
    loaded(loads, of, 1, begun=10, fetched=14, ready=15, waits=math.nan, helped=math.nan)
    loaded(loads, of, 1, begun=20, fetched=20 + last_ms, ready=21 + last_ms, waits=math.nan, helped=math.nan)
    parts = milliseconds(loads.take(passed(of, (0, 5), (10, 15), (20, 70))).parts(3))
    assert parts["fetch"] == 8 + last_ms
    assert parts.get("read") == read


def test_loader_within_that_of_the_pass_is_known_by_its_data():
    loads, of, around = Loads(), loader(1, data=99), loader(0, number=2, data=99)
    loaded(loads, of, 1, begun=0, fetched=4, ready=5)
    loaded(loads, of, 1, begun=5, fetched=7, ready=8)
    parts = milliseconds(loads.take(passed(around, (0, 6), (7, 9))).parts(2))
    assert (parts["fetch"], parts["queue"]) == (6, 2)
    assert loads.take(passed(around, (10, 12), number=8, called=10)) is None
    loaded(loads, of, 1, begun=20, fetched=24, ready=25)
    loaded(loads, loader(1, number=3, data=99), 1, begun=20, fetched=24, ready=25)
    assert loads.take(passed(around, (20, 26), number=9, called=20)) is None
