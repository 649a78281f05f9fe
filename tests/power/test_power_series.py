import math
import random
from collections.abc import Callable

import numpy as np
import pytest

from epochmeter.power.instrument import Domain
from epochmeter.power.power_series import PowerSeries, Sampling
from epochmeter.power.uncertainty import UNKNOWN, Response
from epochmeter.power.uncertainty import renewal_s as estimated_s

S = 1_000_000_000
BRIDGE_S = 0.8


def series(*names: str, total: tuple[str, ...] = (), step_w: float = 0.0, **responses: Response) -> PowerSeries:
    names = names or ("VDD_IN",)
    domains = {name: Domain("sampled", 0.01, name, step_w, responses.get(name, Response())) for name in names}
    return PowerSeries(domains, total=total or names, bridge_s=BRIDGE_S)


def sampled(watts: Callable[[float], float], times_s, **how) -> PowerSeries:
    """A series of one rail, sampled at the given seconds."""
    power = series(**how)
    for at_s in times_s:
        power.add(round(at_s * S), {"VDD_IN": watts(at_s)})
    return power


def joules(power: PowerSeries, until_s: float) -> float:
    return power.joules(round(until_s * S))["VDD_IN"]


def uneven(seconds: float, period_s: float, seed: int) -> list[float]:
    """Sample times from 0 to the end, with the jitter of a sampler."""
    chance, times = random.Random(seed), [0.0]
    while times[-1] < seconds:
        times.append(times[-1] + chance.uniform(0.5, 1.5) * period_s)
    return [*times[:-1], seconds]


def test_linear_power_is_integrated_exactly_with_a_rounding_error_of_one_sign():
    times_s = [1 + at_s for at_s in uneven(1.0, 0.02, seed=1)]
    for watts, step_w, half_width_j in (
        (lambda at_s: 10 * at_s - 5, 0.0, pytest.approx(0.0, abs=0.03)),
        (lambda at_s: 10.0, 0.04, pytest.approx(0.02)),
    ):
        power = sampled(watts, times_s, step_w=step_w)
        sampling = power.sampling(S, 2 * S)
        assert joules(power, 2.0) == pytest.approx(10.0)
        assert sampling.half_width_j == half_width_j
        if step_w:
            assert power.sampling(S, S * 3 // 2).half_width_j == pytest.approx(0.01)
        assert sampling.samples == len(times_s)  # including those at the borders


def test_known_delay_is_corrected_and_smoothing_is_in_the_uncertainty():
    """The sensor averages over 0.2 s. Power steps from 5 to 15 W 0.05 s before the end, so 0.5 J are read after it."""
    power, at_close_j = series(VDD_IN=Response(averaging_s=0.2)), 0.0
    for at_s in (0.01 * hundredth for hundredth in range(-100, 131)):
        power.add(round((2 + at_s) * S), {"VDD_IN": 5 + 10 * min(1.0, max(0.0, (at_s - 0.95) / 0.2))})
        at_close_j = joules(power, 3.0) if round(at_s, 6) == 1.0 else at_close_j
    sampling = power.sampling(2 * S, 3 * S)
    read_j = at_close_j - 5.0  # minus the second before the window
    true_j = 5.0 + 10 * 0.05
    assert read_j == pytest.approx(5.0 + 10 * 0.05**2 / 0.4, abs=0.001)
    assert true_j - read_j > 0.4
    assert abs(read_j + sampling.correction_j["VDD_IN"] - true_j) == pytest.approx(10 * 0.05**2 / 0.4, abs=0.01)
    assert 10 * 0.05**2 / 0.4 < sampling.half_width_j < 0.5
    assert power.settled_s == pytest.approx(0.2)


@pytest.mark.parametrize("order_s", [(2.05, 2.04), (2.06, 2.05)], ids=["added after it", "later, but added before it"])
def test_sample_of_another_thread_around_a_reading_does_not_change_the_energy(order_s):
    """A read takes a while and its sample is at its middle, so that it may arrive late."""
    power, readings_j = series(), []
    for at_s in (
        *(tenth / 10 for tenth in range(11)),
        1.05,
        *(1 + tenth / 10 for tenth in range(1, 11)),
        *order_s,
        2.1,
    ):
        if at_s in (1.05, 2.05):
            readings_j.append(joules(power, at_s))
        else:
            power.add(round(at_s * S), {"VDD_IN": 10 * at_s})
    correction_j = power.sampling(round(1.05 * S), round(2.05 * S)).correction_j["VDD_IN"]
    assert readings_j[1] - readings_j[0] + correction_j == pytest.approx(5 * (2.05**2 - 1.05**2))


def test_time_after_the_last_sample_is_in_the_uncertainty():
    power = sampled(lambda at_s: 5.0 if at_s < 1.5 else 15.0, [0.1 * tenth for tenth in range(41)])
    assert power.sampling(3 * S, 4 * S).half_width_j < 0.5
    after_end = power.sampling(3 * S, round(4.4 * S))
    assert (after_end.half_width_j >= 0.4 * 10, after_end.unavailable) == (True, {})


def test_error_of_a_power_drop_at_the_end_is_within_the_uncertainty():
    """The sample of the border is taken after the window, and the energy is read after that."""
    power = series()
    for hundredth in range(100):
        power.add(round((1 + 0.01 * hundredth) * S), {"VDD_IN": 10.0})
    power.add(round(2.0005 * S), {"VDD_IN": 0.0})
    read_j = joules(power, 2.001)
    sampling = power.sampling(S, 2 * S)
    error_j = read_j + sampling.correction_j["VDD_IN"] - 10.0
    assert error_j == pytest.approx(-10 * 0.0105 / 2 + 10 * 0.0005, abs=0.001)
    assert abs(error_j) < sampling.half_width_j


def test_part_time_sensor_has_the_full_variance_of_its_readings_as_uncertainty():
    def stated(**response):
        power = sampled(
            lambda at_s: 15.0 if at_s % 4 < 2 else 5.0,
            [0.05 * sample for sample in range(240)],
            VDD_IN=Response(renewal_s=0.1, **response),
        )
        return power.sampling(0, 10 * S).half_width_j

    assert stated(averaging_s=0.1) < 1.0
    assert stated(averaging_s=0.025) == pytest.approx(2 * 5 * math.sqrt(0.75 * 100) * 0.1, rel=0.15)
    assert stated(averaging_s=None) > stated(averaging_s=0.025)


def test_unknown_renewal_period_is_estimated_from_identical_readings():
    chance = random.Random(1)
    for renewal_s, period_s in ((0.1, 0.03), (0.1, 0.05), (0.02, 0.005)):
        levels = [chance.random() for _ in range(2000)]
        times = np.array(uneven(10.0, period_s, seed=2))
        estimate_s = estimated_s(times, np.array([levels[int(at_s / renewal_s)] for at_s in times]))
        assert renewal_s <= estimate_s < renewal_s + 2 * period_s
    assert estimated_s(np.array([0.0, 0.1, 0.2]), np.array([1.0, 1.0, 2.0])) is None
    changes_first = sampled(
        lambda at_s: at_s // 0.02 % 7 if at_s < 2 else 5.0, [0.005 * number for number in range(3000)], VDD_IN=UNKNOWN
    )
    settled_s = [changes_first.settled_s]
    for opened_s in (0, 13):  # later than the context of the first window
        changes_first.sampling(opened_s * S, (opened_s + 2) * S)
        settled_s.append(changes_first.settled_s)
    assert settled_s == [0.2, pytest.approx(0.05, abs=0.01), settled_s[1]], "it is kept for windows without changes"


def test_spikes_in_samples_before_the_window_are_in_its_uncertainty():
    spiky = [0.01 * hundredth for hundredth in range(-500, 101)]
    power, quiet = series(), sampled(lambda at_s: 5.0, [0.01 * hundredth for hundredth in range(101)])
    for number, at_s in enumerate(spiky):
        power.add(round((6 + at_s) * S), {"VDD_IN": 30.0 if at_s < 0 and number % 50 == 0 else 5.0})
    assert quiet.sampling(0, S).half_width_j == pytest.approx(0)
    power.drain(6 * S)
    assert power.sampling(6 * S, 7 * S).half_width_j > 25 * 0.01


def test_uncertainty_includes_one_missed_spike_per_rare_spike_that_was_sampled():
    power = sampled(lambda at_s: 30.0 if at_s == 0.5 else 5.0, [0.01 * hundredth for hundredth in range(101)])
    spike_j = 25 * 0.01
    stated_j = power.sampling(0, S).half_width_j
    assert stated_j == pytest.approx(math.hypot(1.96 * spike_j + spike_j, spike_j), rel=0.02)


def test_failed_reads_are_interpolated_up_to_the_bridge_and_unavailable_after_it():
    power, unavailable = series("VDD_IN", "VDD_SOC", total=("VDD_IN",)), []
    never_read = series()
    assert never_read.unavailable(9 * S) == {}, "sampling has not begun"
    for tenth in range(15):
        good, failed = {0: {"VDD_IN": 10.0}, 4: {"VDD_IN": 20.0}}.get(tenth, {}), {"VDD_IN": "No such device"}
        power.add(tenth * S // 10, {"VDD_SOC": 1.0, **good}, {} if good else failed)
        unavailable.append(power.unavailable(tenth * S // 10))
        never_read.add(tenth * S // 10, {}, {"VDD_IN": "No such device"})
        if tenth == 4:
            assert joules(power, 0.4) == pytest.approx(6.0)
    bridged = power.sampling(0, S * 4 // 10)
    assert (bridged.samples, bridged.failed, bridged.unavailable) == (2, 3, {})
    assert (bridged.gap_max_s, power.sampling(0, S * 3 // 10).failed) == (pytest.approx(0.4), 3)
    assert unavailable == [{}] * 13 + [failed] * 2  # 0.8 s after the last reading
    assert never_read.unavailable(S * 14 // 10) == failed
    assert power.joules(S * 14 // 10) == {"VDD_SOC": pytest.approx(1.4)}
    assert power.sampling(0, S * 14 // 10).unavailable == {"VDD_IN": "no reading for 1.0 s: No such device"}


NO_SAMPLE, NO_READING = "no reading for 2.0 s: no sample was taken", "no reading in the window: No such device"


@pytest.mark.parametrize(
    ("read_at_s", "failed_at_s", "reasons"),
    [
        pytest.param([], [0], {(0, 1): "No such device"}, id="never read"),
        pytest.param([0, 0.1], [0.2, 0.3, 0.4], {(0, 0.2): None, (0.2, 0.4): NO_READING}, id="all reads fail"),
        pytest.param(
            [0, 0.5, 1, 3, 3.5, 4],
            [],
            {(0, 1): None, (3, 4): None, **dict.fromkeys([(0, 4), (0, 2), (2, 4), (1.5, 2.5)], NO_SAMPLE)},
            id="a gap before it recovers",
        ),
    ],
)
def test_window_without_readings_has_no_energy_but_a_reason(read_at_s, failed_at_s, reasons):
    power = sampled(lambda at_s: 10.0, read_at_s)
    for at_s in failed_at_s:
        power.add(round(at_s * S), {}, {"VDD_IN": "No such device"})
    for drained_s in (0, 2):  # a gap is kept when its samples are drained
        power.drain(drained_s * S)
        for (opened_s, closed_s), reason in reasons.items():
            unavailable = power.sampling(round(opened_s * S), round(closed_s * S)).unavailable
            assert unavailable == ({"VDD_IN": reason} if reason else {})
    assert power.unavailable(round(max([*read_at_s, *failed_at_s]) * S)) == {}, "one failed read is not yet a failure"
    assert (power.unavailable(9 * S).keys(), power.joules(9 * S)) == ({"VDD_IN"}, {})


def test_total_is_sampled_only_if_all_its_domains_are():
    power = series("GPU", "CPU", "SOC", total=("GPU", "CPU"))
    for at_s, watts in enumerate(({"GPU": 3.0, "CPU": 1.0}, {"GPU": 9.0}, {"GPU": 4.0, "CPU": 2.0, "SOC": 50.0})):
        power.add(at_s * S // 10, watts)
    sampling = power.sampling(0, S // 5)
    assert (sampling.samples, sampling.peak_w, sampling.gap_max_s) == (2, 6.0, 0.2)
    assert sampling.samples_per_domain == {"GPU": 3, "CPU": 2, "SOC": 1}
    powers = power.drain(S)
    assert [power if power == power else None for power in powers.total_w] == [4.0, None, 6.0]
    assert math.isnan(powers.watts["CPU"][1])


def test_samples_are_drained_once_and_the_joules_continue():
    power = sampled(lambda at_s: 10.0, [0.0, 0.1, 0.2, 0.3])
    between = power.sampling(S * 11 // 100, S * 19 // 100)
    assert between == Sampling(0, pytest.approx(0.08), 0, {}, None, 0.0, 0.0, {"VDD_IN": 0.0}, {"VDD_IN": 0})
    assert joules(power, 0.3) == pytest.approx(3.0)
    drained = [power.drain(before_ns) for before_ns in (S // 5, S, 2 * S)]
    for at_s in (20, 21):  # so much later that those before are no context
        power.add(at_s * S, {"VDD_IN": 10.0})
    drained += [power.drain(before_ns) for before_ns in (21 * S, 22 * S)]
    assert [[at_ns / S for at_ns in powers.times_ns] for powers in drained] == [[0, 0.1], [0.2, 0.3], [], [20], [21]]
    assert [powers.watts["VDD_IN"].tolist() for powers in drained] == [[10.0, 10.0], [10.0, 10.0], [], [10.0], [10.0]]
    assert [powers.total_w for powers in drained] == [powers.watts["VDD_IN"] for powers in drained]


def test_drained_samples_have_the_common_response_of_the_total():
    fast, slow, unknown = Response(0.05), Response(0.1), Response(None, 0.0, None)
    pairs = ((fast, fast, fast), (fast, slow, None), (unknown, unknown, None), (Response(), Response(), None))
    for a, b, stated in pairs:
        assert series("a", "b", a=a, b=b).drain(1).response == stated
