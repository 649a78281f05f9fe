"""What if: the published model's rates, and what follows from them."""

import pytest
from sweeps import rows

from trainmeter.report.stalls import analyses
from trainmeter.report.what_if import Rates, fetch_rate, predictions, share_without_stall, speed


def one(found):
    (analysis,) = analyses(found)
    return analysis


def test_the_fetch_rate_of_the_paper():
    """T_f = D x / C + D (1 - x) / S: 100 samples/s from the disk, 1000 from memory, half from each: 5.5 ms a sample."""
    rates = Rates(1000, 400, 300, 100, 1000, workers=4, cores=8)
    assert fetch_rate(rates, 0.5) == pytest.approx(181.818, rel=1e-4)
    assert fetch_rate(rates, 0.0) == 100
    assert fetch_rate(rates, 1.0) == 1000


def test_with_memory_much_faster_the_fetch_rate_is_s_over_1_less_x():
    """J. Mohan et al., section 3: C >> S gives F ~ S / (1 - x); no fetch stall is left once F is above min(P, G)."""
    rates = Rates(1000, 400, 250, 100, None, workers=4, cores=8)
    assert fetch_rate(rates, 0.35) == pytest.approx(100 / 0.65)
    assert share_without_stall(rates) == pytest.approx(0.6)
    assert speed(rates, 0.6) == pytest.approx(250)
    assert speed(rates, 0.55) < 250
    assert speed(rates, 0.9) == 250


def test_no_cache_is_needed_where_the_storage_keeps_up():
    assert share_without_stall(Rates(1000, 400, 250, 300, None, workers=4, cores=8)) == 0


def asked(found, question):
    return {each.choice: each for each in found if each.question == question}


def test_a_faster_disk_helps_up_to_the_next_bound():
    found = one(rows([5.0, 5.0], [6.0, 6.0], [12.0, 12.0]))
    disk = asked(found.predictions, "storage")
    assert disk["2 times as fast"].epoch_s == pytest.approx(6.0)
    assert disk["10 times as fast"].epoch_s == pytest.approx(6.0)
    assert found.full_cache_share == pytest.approx(0.5)
    memory = asked(found.predictions, "in memory")
    assert [memory[share].epoch_s for share in ("25 %", "50 %", "75 %", "100 %")] == pytest.approx([9.0, 6.0, 6.0, 6.0])
    assert not any(each.bound for each in found.predictions if each.question != "workers")


def test_the_page_caches_own_rate_comes_from_the_loaders_timers():
    # 4 processes read 1000 samples in 8 s of their own: 500 samples/s; half of it cached: 1 / (0.001 + 0.006).
    found = one(rows([0.5, 0.5], [1.0, 1.0], [12.0, 12.0], steady={"loader_read_s": 8.0, "loader_decode_s": 4.0}))
    assert found.rates.cache == pytest.approx(500)
    assert asked(found.predictions, "in memory")["50 %"].epoch_s == pytest.approx(7.0)


def test_reading_that_holds_decoding_is_no_rate_of_the_page_cache():
    found = one(rows([0.5, 0.5], [1.0, 1.0], [12.0, 12.0], steady={"loader_read_s": 8.0}))
    assert found.rates.cache is None
    assert asked(found.predictions, "in memory")["50 %"].epoch_s == pytest.approx(6.0)


def test_more_workers_help_preprocessing_as_far_as_the_cores_go():
    found = one(rows([2.0, 2.0], [12.0, 12.0], [12.0, 12.0], cores=6))
    workers = asked(found.predictions, "workers")
    assert list(workers) == ["1", "2", "4", "6"]
    assert [each.epoch_s for each in workers.values()] == pytest.approx([48.0, 24.0, 12.0, 8.0])
    assert workers["6"].bound == "at least", "as storage may not keep up: it bounded nothing here"
    assert workers["2"].bound is None


def test_more_workers_than_cores_were_no_more_than_the_cores():
    found = one(rows([1.0, 1.0], [12.0, 12.0], [12.0, 12.0], cores=2))
    assert [each.epoch_s for each in asked(found.predictions, "workers").values()] == pytest.approx([24.0, 12.0, 12.0])


def distributed(*times, devices=2, **each):
    """Two ranks on each host, with four loader processes each."""
    return one(rows(*times, job_keys={"strategy": {"name": "ddp", "ranks": 2}}, devices=devices, **each))


def test_the_workers_of_all_ranks_share_the_cores():
    found = distributed([2.0, 2.0], [12.0, 12.0], [12.0, 12.0], cores=12)
    assert {choice: each.epoch_s for choice, each in asked(found.predictions, "workers").items()} == pytest.approx(
        {"1": 48.0, "2": 24.0, "4": 12.0, "6": 8.0}
    )
    found = distributed([2.0, 2.0], [12.0, 12.0], [12.0, 12.0], cores=8)
    assert list(asked(found.predictions, "workers")) == ["1", "2", "4"], "eight are at work"


@pytest.mark.parametrize(("devices", "processes"), [(2, 8), (4, 16)])
def test_the_time_of_reading_is_that_of_the_loaders_of_all_ranks_on_all_hosts(devices, processes):
    times = {"loader_read_s": 8.0, "loader_decode_s": 4.0}
    found = distributed([0.5, 0.5], [1.0, 1.0], [12.0, 12.0], devices=devices, steady=times)
    assert found.rates.cache == pytest.approx(1000 * processes / 8.0)


def test_what_bounded_nothing_is_known_as_a_lower_bound_only():
    found = one(rows([12.0, 12.0], [12.0, 12.0], [12.0, 12.0]))
    workers = asked(found.predictions, "workers")
    assert workers["1"].bound == "at most"
    assert workers["8"].epoch_s == pytest.approx(12.0)
    assert workers["8"].bound is None


def test_without_loader_processes_the_times_add_up():
    found = one(rows([5.0, 5.0], [8.0, 8.0], [12.0, 12.0], job_keys={"workers": 0}))
    assert asked(found.predictions, "storage")["2 times as fast"].epoch_s == pytest.approx(10.0)
    assert asked(found.predictions, "in memory")["100 %"].epoch_s == pytest.approx(8.0)
    assert asked(found.predictions, "workers")["1"].epoch_s == pytest.approx(5.0), "of 5, 3 and 4 s, all overlapped"


def test_without_a_processor_count_twice_the_workers_are_asked_about():
    rates = Rates(1000, 400, 250, 100, None, workers=4, cores=None)
    assert list(asked(predictions(rates, lambda _: None), "workers")) == ["1", "2", "4", "8"]
