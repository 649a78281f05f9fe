"""The account of a run against what is known."""

import pytest


def assert_account_has_the_energy_of(power_w, record):
    """Assert that the joules of the account's rows add up to those of a constant power, within their uncertainty."""
    metrics, moments = record.summary()["metrics"], record.run()["moments"]
    process_s = (moments["ended_ns"] - moments["process_ns"]) * 1e-9
    rows_j = [value for name, value in metrics.items() if name.startswith("run/") and name.endswith("_energy_j")]
    assert len(rows_j) >= 3
    assert sum(rows_j) == pytest.approx(metrics["run/energy_j"])
    assert metrics["run/energy_j"] == pytest.approx(power_w * process_s, abs=metrics["run/energy_uncertainty_j"])
    assert 0 < metrics["run/energy_uncertainty_j"] < metrics["run/energy_j"]
