"""Forecasts of scripted runs: known answers, and how often the intervals hold the truth."""

import math
import random
import statistics
from array import array
from collections import Counter

import pytest
from default_jobs import job_of
from scipy.stats import t as t_distribution

from epochmeter.results import forecast as forecasting
from epochmeter.results.forecast import Forecaster, expected_epoch, no_forecast_reason, predicted_sum
from epochmeter.results.running_totals import series_of
from epochmeter.results.summary import total_metrics

STEPS = 40


def window(kind, number, e2e_s, energy_j=None, **keys):
    term = {} if energy_j is None else {"energy_j": energy_j, "energy_uncertainty_j": 0.0}
    energy = {"opened_ns": 0, "closed_ns": round(e2e_s * 1e9), "joules": {}, "term": term}
    metrics = {f"{kind}/e2e_s": e2e_s, f"{kind}/steps": STEPS, f"{kind}/data_stall_s": keys.pop("stall_s", 0.0)}
    return {"window": kind, "epoch": number, "metrics": metrics, "energy": energy, **keys}


def rows(durations):
    return array("f", [part for seconds in durations for part in (seconds / 8, 99.0, seconds / 4, seconds * 5 / 8)])


def forecaster(*windows, steps=(0.25,) * STEPS, warmup_epochs=1):
    return Forecaster(windows, warmup_epochs, lambda count: rows(steps))


def simulated_run(number, epochs, std):
    """Return the rounds of a run with known noise, and the steps of its first epoch, whose warm-up takes longer."""
    noise = random.Random(number)
    rounds, first = [], []
    for epoch in range(epochs):
        own = noise.gauss(1, std)
        steps = [own * noise.gauss(0.1, 0.002) * (6 if not epoch and step < 5 else 1) for step in range(STEPS)]
        e2e_s, power_w = sum(steps) + 0.05, noise.gauss(50, 50 * std / 4)
        val_s = own * 0.4
        rounds.append([window("epoch", epoch, e2e_s, power_w * e2e_s), window("val", epoch, val_s, power_w * val_s)])
        first = first or steps
    return rounds, first


@pytest.mark.parametrize(("std", "after"), [(0.1, (1, 2, 3, 5, 9)), (0.01, (3, 5, 9))])
def test_intervals_hold_the_truth_of_as_many_runs_as_they_should(std, after):
    runs, held = 500, Counter()
    for number in range(runs):
        rounds, first = simulated_run(number, 10, std)
        truth = total_metrics([part for parts in rounds for part in parts])
        model = forecaster(steps=first)
        for completed, parts in enumerate(rounds, 1):
            for part in parts:
                model.add(part)
            if completed in after:
                metrics = model.metrics(10)
                for name, uncertainty in (("e2e_s", "e2e_uncertainty_s"), ("energy_j", "energy_uncertainty_j")):
                    error = abs(metrics[f"forecast/{name}"] - truth[name])
                    held[completed, name] += error <= metrics[f"forecast/{uncertainty}"]
    assert len(held) == 2 * len(after)
    # Few epochs do not show whether they are autocorrelated, so that their intervals are wider.
    most = {1: 0.99, 2: 0.99}
    assert {case: n for case, n in held.items() if not 0.90 <= n / runs <= most.get(case[0], 1)} == {}


def autocorrelated(chance, correlation, count):
    """Return a stationary series with mean 100 and standard deviation 1."""
    values = [chance.gauss(0, 1)]
    while len(values) < count:
        values.append(correlation * values[-1] + math.sqrt(1 - correlation**2) * chance.gauss(0, 1))
    return [100 + value for value in values]


@pytest.mark.parametrize(("correlation", "measured"), [(0.0, 20), (0.5, 10), (0.5, 20), (0.9, 20), (0.9, 50)])
def test_intervals_hold_the_sum_of_autocorrelated_epochs(correlation, measured):
    """Student's interval of independent epochs holds 76 % of the sums with 0.5, and 35 % with 0.9."""
    chance, remaining, held, widths = random.Random(0), 30, [], []
    for _ in range(400):
        series = autocorrelated(chance, correlation, measured + remaining)
        sample = series[:measured]
        expected, half_width = predicted_sum(series_of(sample), remaining)
        held.append(abs(expected - sum(series[measured:])) <= half_width)
        std = statistics.stdev(sample) * math.sqrt(remaining + remaining**2 / measured)
        widths.append(half_width / t_distribution.ppf(0.975, measured - 1) / std)
    assert statistics.fmean(held) >= 0.93
    if correlation == 0:
        assert statistics.median(widths) <= 1.2, "as many independent epochs have hardly wider intervals"


def test_sum_of_further_draws_has_the_interval_of_the_sample_or_of_the_prior(monkeypatch):
    monkeypatch.setattr(forecasting, "INDEPENDENT", 1.0)
    monkeypatch.setattr(forecasting, "FEW_EPOCHS", 1)
    assert predicted_sum(series_of([10.0, 12.0]), 3) == pytest.approx((33.0, 12.7062 * 2**0.5 * 7.5**0.5), rel=1e-4)
    assert predicted_sum(series_of([10.0]), 3) == pytest.approx((30.0, 1.95996 * 12**0.5), rel=1e-4)
    assert predicted_sum(series_of([10.0]), 3, error=0.2) == pytest.approx((30.0, 1.95996 * (12 + 36) ** 0.5), rel=1e-4)
    assert predicted_sum(series_of([7.0, 7.0]), 3) == (21.0, 0.0)


def test_later_epoch_is_expected_from_the_second_half_of_the_steps():
    assert expected_epoch({"epoch/e2e_s": 9.0}, rows([5, 1, 1, 1])) == (5.0, 0.0)
    stalled = {"epoch/e2e_s": 9.0, "epoch/data_stall_s": 2.0, "epoch/loader_start_s": 0.5}
    assert expected_epoch(stalled, rows([5, 1, 1, 1])) == pytest.approx((5.5, 1 / 5.5))
    assert expected_epoch({"epoch/e2e_s": 13.0}, rows([5, 1, 2, 4])) == pytest.approx((13.0, 4 / 13))
    assert expected_epoch(stalled, rows([9])) == pytest.approx((9.0, 1 / 9))


def test_forecast_begins_with_the_first_epoch_and_ends_before_the_last():
    model = forecaster(warmup_epochs=2)
    assert model.metrics(4) == {}
    model.add(window("val", 0, 2.0))  # a script's, before training
    model.add(window("epoch", 0, 15.0, 150.0))  # 5 s outside of the steps
    model.add(window("val", 0, 2.0, 10.0))
    model.add(window("read", 0, 99.0, 10.0))  # a script's own
    forecast = model.metrics(4)
    assert (forecast["forecast/e2e_s"], forecast["forecast/energy_j"]) == pytest.approx((4 * 17.0, 4 * 160.0))
    model.add(window("epoch", 1, 10.0))
    assert model.metrics(4)["forecast/e2e_s"] == pytest.approx(27.0 + 2 * 10.0)  # after warm-up, by the last epoch
    assert "forecast/energy_j" not in model.metrics(4)
    model.add(window("epoch", 2, 12.0))
    assert model.metrics(4)["forecast/e2e_s"] == pytest.approx(39.0 + 12.0)
    model.add(window("epoch", 3, 12.0))
    assert model.metrics(4) == {}
    # Epochs with other power limits, or of a resumed run's start, are no sample.
    probed = window("epoch", 0, 10.0, warmup=True)
    assert forecaster(probed).metrics(9) == {}
    resumed = forecaster(window("epoch", 0, 20.0), window("epoch", 1, 10.0), window("epoch", 2, 30.0, warmup=True))
    assert resumed.metrics(9)["forecast/e2e_s"] == pytest.approx(60.0 + 6 * 10.0)
    # Epochs of an earlier training are no sample, but part of the total.
    times = [(0, 9.0), (0, 5.0), (0, 5.0), (1, 9.0), (1, 2.0), (1, 2.0)]
    lines = [window("epoch", epoch, e2e_s, training=training, warmup=epoch == 3)
             for epoch, (training, e2e_s) in enumerate(times)]  # fmt: skip
    forecast = forecaster(*lines).metrics(8)
    assert (forecast["forecast/e2e_s"], forecast["forecast/e2e_uncertainty_s"]) == (32.0 + 2 * 2.0, 0.0)


def test_run_of_unknown_length_has_no_forecast():
    assert no_forecast_reason(job_of(), 6) == ""
    for changed, epochs in (
        ({}, None),
        ({"target_accuracy": 0.9}, 6),
        ({"target_loss": 0.1}, 6),
        ({"throughput": {"stop": 9, "exit": True}}, 6),
    ):
        assert no_forecast_reason(job_of(**changed), epochs)
