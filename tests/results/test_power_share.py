from dataclasses import replace

import pytest
from metadata import run_info

from epochmeter.results.power_share import PowerShare, limit_fraction, power_share
from epochmeter.results.run_info import Energy

MEASURED = Energy(source="counter", covers="GPUs used (whole boards)", domains=["gpu0", "gpu1"], limit_w=1000.0)
POWER = {"steady/power_mean_w": 600.0}


@pytest.mark.parametrize(
    ("changes", "metrics", "expected"),
    [
        ({}, POWER, 0.6),
        ({"power_limit_w": 400.0, "power_limit_max_w": 500.0, "power_limit_devices": 2}, POWER, 0.75),
        ({}, {}, None),
        ({"energy": replace(MEASURED, limit_w=None)}, POWER, None),
        ({"energy": replace(MEASURED, source="estimated")}, POWER, None),
        ({"training": {"places": [{"rank": 0, "host": "a"}, {"rank": 1, "host": "b"}]}}, POWER, None),
    ],
    ids=["highest", "applied", "no power", "no limit", "estimated", "limits of the first node only"],
)
def test_share_is_of_the_applied_limit_or_else_of_the_highest(changes, metrics, expected):
    fraction = limit_fraction(metrics, replace(run_info(), **{"energy": MEASURED, **changes}))
    assert fraction == (None if expected is None else pytest.approx(expected))


def test_gpu_that_a_driver_counts_as_busy_is_fully_used_only_if_it_draws_power():
    used, waiting, idle = (
        PowerShare(power_w, 500.0, utilization) for power_w, utilization in ((300.0, 1.0), (120.0, 0.98), (60.0, 0.2))
    )
    assert [share.is_fully_used for share in (used, waiting, idle)] == [True, False, False]
    texts = [share.sentence.replace("\N{NO-BREAK SPACE}", " ") for share in (used, waiting, idle)]
    assert "300 W, 60 % of the limit of 500 W: fully used" in texts[0]
    assert "98 %" in texts[1]
    assert "driver" not in texts[2]


def test_share_is_read_from_the_means_of_a_run():
    metrics = {**POWER, "total/power_limit_fraction": 0.6, "steady/gpu_utilization": 0.9}
    assert power_share(metrics.get) == PowerShare(600.0, 1000.0, 0.9)
    assert power_share(POWER.get) is None
