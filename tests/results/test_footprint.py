"""Carbon footprint and cost of scripted windows: worked examples, bad input, and absence."""

from datetime import datetime, timezone

import pytest
from default_jobs import job_of
from metadata import run_info

from epochmeter.console.sentences import footprint_line
from epochmeter.results.footprint import check_footprint, country_means, epoch_footprint, evaluate, forecast_cost
from epochmeter.shared.problem import InputError

SEVEN_S = datetime(2026, 11, 23, 7, tzinfo=timezone.utc).timestamp()
RUN = run_info(clock={"wall_s": SEVEN_S, "monotonic_ns": 5_000})
HOURS = "utc,g_per_kwh\n2026-11-23T07:00Z,100\n2026-11-23 08:00,300\n2026-11-23T09:00+00:00,500\n"
KWH = 3_600_000.0


def window(number, begin_min, minutes, energy_j, kind="epoch", **metrics):
    """A window that begins `begin_min` after 7:00 UTC; without energy if `energy_j` is None."""
    borders = {"opened_ns": 5_000 + round(begin_min * 60e9), "closed_ns": 5_000 + round((begin_min + minutes) * 60e9)}
    energy = {} if energy_j is None else {"energy_j": energy_j, "energy_uncertainty_j": energy_j / 20}
    values = {"e2e_s": 60.0 * minutes, "steps": 0, **energy, **metrics}
    named = {f"{kind}/{name}": value for name, value in values.items()}
    return {"window": kind, "epoch": number, "metrics": named, "energy": {**borders, "joules": {}, "term": energy}}


def footprint_of(windows, **keys):
    """Return the metrics and the notes of a warm-up; `keys` are those of `footprint`, and other keys of the job."""
    own = {key: keys.pop(key) for key in ("intensity", "price", "pue") if key in keys}
    return evaluate(windows, RUN, job_of(footprint={"currency": "EUR", **own}, warmup_epochs=9, **keys))


@pytest.fixture
def hours(tmp_path):
    """Write an hourly file and return its path."""

    def write(text=HOURS):
        path = tmp_path / "hours.csv"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


# Windows as (start in minutes after 7:00, minutes, joules); the hours have 100, 300 and 500 g/kWh.
WORKED = [
    ([(0, 60, KWH)], {"intensity": 56, "price": 0.25}, 56.0, 0.25),
    ([(0, 1, 1000.0)], {"intensity": 381.0, "price": 0.4}, 0.105833, 0.000111111),
    ([(0, 60, 2 * KWH)], {"intensity": "FRA", "price": 0.1, "pue": 1.2}, 134.4, 0.24),
    ([(0, 10, 0.5 * KWH), (20, 5, 0.25 * KWH)], {"intensity": "nor", "price": 0.2, "pue": 1.5}, 33.8625, 0.225),
    ([(0, 60, KWH)], {"intensity": "hours", "price": 0.3}, 100.0, 0.3),
    ([(30, 60, KWH)], {"intensity": "hours", "price": 0.3}, 200.0, 0.3),
    ([(45, 60, 2 * KWH)], {"intensity": "hours", "price": 1}, 500.0, 2.0),
    ([(30, 120, KWH)], {"intensity": "hours", "price": 0, "pue": 2}, 600.0, 0.0),
    ([(50, 5, KWH / 10), (55, 10, KWH / 5), (130, 30, KWH)], {"intensity": "hours", "price": 0.5}, 550.0, 0.65),
    ([(0, 60, KWH)], {"intensity": 0, "price": 0.25}, 0.0, 0.25),
]


@pytest.mark.parametrize(("windows", "keys", "grams", "cost"), WORKED)
def test_worked_examples(hours, windows, keys, grams, cost):
    keys = {**keys, "intensity": hours()} if keys["intensity"] == "hours" else keys
    metrics, notes = footprint_of([window(number, *values) for number, values in enumerate(windows)], **keys)
    assert ([metrics["total/co2e_g"], metrics["total/cost"]], notes) == (pytest.approx([grams, cost], rel=1e-3), [])
    # The energies of all windows are uncertain by 5 % in the same direction.
    uncertainties = metrics["total/co2e_uncertainty_g"], metrics["total/cost_uncertainty"]
    assert uncertainties == pytest.approx((grams / 20, cost / 20), rel=1e-3)


def test_hours_are_those_after_a_suspension_of_the_machine(hours):
    """The lid was closed for an hour after the first epoch, from 7:30 to 8:30; the monotonic clock shows none of it."""
    first, second = window(0, 0, 30, KWH), {**window(1, 30, 30, KWH), "suspended_s": 3600.0}
    metrics, _ = footprint_of([first, second], intensity=hours())
    assert metrics["total/co2e_g"] == pytest.approx(100 + 300)
    assert epoch_footprint(second, RUN, job_of(footprint={"intensity": hours()}).footprint) == {
        "epoch/co2e_g": pytest.approx(300.0)
    }


def test_evaluations_count_and_windows_up_to_the_target_have_their_own_carbon(hours):
    windows = [window(0, 0, 60, KWH, loss=2.0), window(0, 60, 30, KWH, kind="val", loss=0.9), window(1, 90, 30, KWH)]
    metrics, _ = footprint_of(windows, intensity=hours(), price=0.5, target_loss=1.0)
    assert metrics == pytest.approx({
        "total/co2e_g": 700.0, "total/co2e_uncertainty_g": 35.0, "total/intensity_g_per_kwh": 700 / 3,
        "total/intensity_min_g_per_kwh": 100.0, "total/intensity_max_g_per_kwh": 300.0, "total/cost": 1.5,
        "total/cost_uncertainty": 0.075, "total/co2e_to_target_g": 400.0, "total/cost_to_target": 1.0,
    })  # fmt: skip
    line = footprint_line(metrics, "EUR")
    assert line == "Footprint of this energy: 700 g CO2e (100 to 300 g/kWh), 1.50 EUR."
    assert footprint_line({"total/energy_j": 100.0}, None) == ""


def test_recorded_run_is_evaluated_as_if_it_had_been_configured(hours):
    job = job_of(footprint={"intensity": hours(), "price": 0.5, "currency": "EUR"}, warmup_epochs=1)
    windows = [window(0, 0, 60, KWH, co2e_g=7.0), window(1, 60, 30, KWH), window(2, 120, 30, 2 * KWH)]
    assert epoch_footprint(windows[1], RUN, job.footprint) == pytest.approx({"epoch/cost": 0.5, "epoch/co2e_g": 300.0})
    metrics, _ = evaluate(windows, RUN, job)
    assert (metrics["steady/co2e_g"], metrics["steady/cost"]) == pytest.approx((650.0, 0.75))
    assert (metrics["total/co2e_g"], metrics["total/cost"]) == pytest.approx((1400.0, 2.0))
    assert evaluate(windows, RUN, job_of()) == ({}, [])


def test_energy_that_was_not_measured_has_no_footprint():
    estimated = window(0, 0, 60, None, estimated_energy_j=KWH)
    estimated["energy"]["term"] = {"estimated_energy_j": KWH}
    assert footprint_of([estimated], intensity=56, price=0.25) == (
        {}, ["no carbon footprint and no cost: the run has no measured total energy"],
    )  # fmt: skip
    assert epoch_footprint(estimated, RUN, job_of(footprint={"intensity": 56}).footprint) == {}
    assert footprint_of([estimated]) == ({}, [])


def test_cost_of_a_forecast_needs_energy_and_price():
    forecast = {"forecast/e2e_s": 60.0, "forecast/energy_j": 7.2e6, "forecast/energy_uncertainty_j": 3.6e5}
    paid = job_of(footprint={"price": 0.25, "currency": "EUR", "pue": 1.2}).footprint
    costs = {"forecast/cost": pytest.approx(0.6), "forecast/cost_uncertainty": pytest.approx(0.03)}
    assert forecast_cost(forecast, paid) == costs
    assert forecast_cost({"forecast/e2e_s": 60.0}, paid) == forecast_cost(forecast, job_of().footprint) == {}


def test_hour_that_is_missing_is_not_extrapolated(hours):
    metrics, notes = footprint_of([window(0, 150, 60, KWH)], intensity=hours(), price=0.25)
    assert notes == [f"no carbon footprint: `{hours()}` has no hour 2026-11-23T10:00Z"]
    assert metrics == {"total/cost": pytest.approx(0.25), "total/cost_uncertainty": pytest.approx(0.0125)}
    assert footprint_of([window(0, -30, 60, KWH)], intensity=hours())[0] == {}


def test_table_of_countries_is_plausible_and_dated():
    means = country_means()
    assert [means[code][0] for code in ("FRA", "DEU", "USA")] == ["France", "Germany", "United States"]
    assert all(2022 <= year <= 2023 and 0 < grams < 1500 for _, year, grams in means.values())
    plausible = {"FRA": (40, 70), "DEU": (330, 430), "POL": (600, 750), "USA": (340, 400), "NOR": (20, 40)}
    assert all(low < means[code][2] < high for code, (low, high) in plausible.items())


def refusal(**keys):
    with pytest.raises(InputError) as refused:
        check_footprint(job_of(footprint=keys).footprint)
    return refused.value.problems[0]


def test_unknown_country_is_refused_with_near_matches_and_a_price_without_currency():
    for country, similar in {"Germany": "DEU", "polnd": "POL"}.items():
        problem = refusal(intensity=country)
        assert problem.message == f"`footprint.intensity={country}` is neither a country of the table nor a file"
        assert f"`footprint.intensity={similar}`" in problem.hint
    assert "has no currency" in refusal(price=0.25).message


def test_hourly_file_that_is_not_valid_is_refused(hours):
    for text, why in (
        ("", "it has no hours"),
        ("time,g_per_kwh\n2026-11-23T07:00Z,1\n", "it has no column 'utc'"),
        ("utc,g_per_kwh\n2026-11-23T07:00Z,-1\n", "`2026-11-23T07:00Z,-1` is not a full hour, is repeated, or"),
        ("utc,g_per_kwh\n2026-11-23T07:00Z,inf\n", "`2026-11-23T07:00Z,inf` is not a full hour"),
        ("utc,g_per_kwh\n2026-11-23T07:00+05:30,1\n", "`2026-11-23T07:00+05:30,1` is not a full hour"),
        (HOURS + "2026-11-23T08:00+01:00,5\n", "`2026-11-23T08:00+01:00,5` is not a full hour, is repeated"),
        ("utc,g_per_kwh\nyesterday,1\n", "Invalid isoformat string"),
        ("utc,g_per_kwh\n" + 10_000_000 * " ", "it is larger than 10,000,000 bytes"),
    ):
        assert why in refusal(intensity=hours(text)).message
