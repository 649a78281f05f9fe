"""Growth of memory in simulated runs: leaks are found, and other changes are not taken for one."""

import math
import random
import statistics

import pytest

from epochmeter.results.memory_growth import growth_metrics, growth_notes, memory_growth

MB = 2**20


def noisy(values, noise_mb, number):
    """Return megabytes as bytes, above 1 GB, with noise, by the number of the epoch."""
    noise = random.Random(number)
    return [(epoch, 1e9 + MB * (value + noise.gauss(0, noise_mb))) for epoch, value in enumerate(values)]


def found(make, noise_mb=0.2, runs=60):
    """Return the growths that are found in runs, each with a random generator."""
    growths = (memory_growth(noisy(make(random.Random(number)), noise_mb, number)) for number in range(runs))
    return [growth for growth in growths if growth]


@pytest.mark.parametrize("epochs", [10, 20, 50])
@pytest.mark.parametrize("leak_mb", [1, 10, 100])
def test_leaks_are_found_and_their_interval_holds_the_truth(leak_mb, epochs):
    growths = found(lambda _: [leak_mb * epoch for epoch in range(epochs)])
    assert len(growths) >= 57
    assert statistics.fmean(abs(growth.bytes - leak_mb * MB) <= growth.half_bytes for growth in growths) >= 0.85


def sawtooth(noise, epochs):
    period, height = noise.randint(3, epochs // 2), noise.uniform(5, 100)
    return [height * (epoch % period) / period for epoch in range(epochs)]


def filling(noise, epochs):
    period, size = noise.uniform(1, epochs / 4), noise.uniform(10, 500)
    return [size * (1 - math.exp(-epoch / period)) for epoch in range(epochs)]


def stopping(noise, epochs):
    last, growth = noise.randint(1, epochs // 2), noise.uniform(1, 50)
    return [growth * min(epoch, last) for epoch in range(epochs)]


@pytest.mark.parametrize("epochs", [6, 10, 20, 50])
@pytest.mark.parametrize("make", [sawtooth, filling, stopping, lambda _, epochs: epochs * [0.0]])
@pytest.mark.parametrize("noise_mb", [0.2, 2.0])
def test_memory_that_is_freed_or_stops_to_grow_is_no_leak(make, epochs, noise_mb):
    assert len(found(lambda noise: make(noise, epochs), noise_mb)) <= 3


def test_growth_is_a_metric_and_a_note_also_if_epochs_or_their_memory_are_not_known():
    epochs = {number: {"epoch/process_memory_bytes": 1e9 + 3e6 * number + number % 2} for number in range(1, 13)}
    metrics = growth_metrics(epochs)
    assert metrics["total/memory_growth_bytes"] == pytest.approx(3e6, rel=1e-3)
    assert [*metrics] == ["total/memory_growth_bytes", "total/memory_growth_uncertainty_bytes"]
    (note,) = growth_notes(metrics)
    assert "MB per epoch" in note
    for unknown in ({4}, {2, 4, 6, 7}):
        known = {number: epochs[number] for number in epochs if number not in unknown}
        for some in (known, {**epochs, **{number: {} for number in unknown}}):
            assert growth_metrics(some)["total/memory_growth_bytes"] == pytest.approx(3e6, rel=1e-3)
    few = {number: epochs[number] for number in range(1, 6)}
    assert growth_metrics(few) == growth_metrics({**few, 6: {}, 7: {}}) == {}
    assert growth_notes({}) == []


def test_growth_over_many_epochs_is_found():
    """In an instant: a mean that is taken again for each epoch would need hours."""
    growth = memory_growth([(epoch, 1e9 + MB * epoch + epoch % 2) for epoch in range(100_000)])
    assert growth.bytes == pytest.approx(MB)
