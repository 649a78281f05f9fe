import math
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml
from power.conftest import ScriptedPowers

from epochmeter.power.instrument import Domain, Instrument, shortest_s
from epochmeter.power.meter import EnergyMeter, open_meter
from epochmeter.power.meters.rails import filter_response
from epochmeter.power.power_series import PowerSeries
from epochmeter.power.uncertainty import UNKNOWN
from epochmeter.testing import check_absent_meter

CONF = Path(__file__).parents[2] / "conf/meter"


def test_failed_counter_is_logged_once_and_not_replaced_by_sampled_power(caplog):
    """They start at different moments, so that a window with both would have an arbitrary energy."""
    gone = Mock(side_effect=OSError("No such device"))
    domain, powers = Domain("counter", 0.1, "all"), ScriptedPowers(None, gpu0=0.0)
    counted = {"cpu0": Instrument(domain, float), "gpu0": Instrument(domain, gone)}
    meter = EnergyMeter(counters=counted, powers=powers, total=["cpu0", "gpu0"], covers="all")
    assert [meter.read(), meter.read()] == [{"cpu0": 0.0}] * 2
    (message,) = caplog.messages
    assert message.endswith("gpu0: No such device")
    gone.side_effect = [1.0, OSError("No such device")]
    assert [meter.read().keys(), meter.read().keys()] == [{"cpu0", "gpu0"}, {"cpu0"}]
    assert len(caplog.messages) == 2


def test_samples_of_a_part_are_not_the_power_of_the_total():
    """One of two GPUs has a counter, the other only sampled power."""
    samples = PowerSeries({"gpu1": Domain("sampled", 0.1, "board")}, total=["gpu1"], bridge_s=1.0)
    for at_ns in range(0, 500_000_001, 100_000_000):
        samples.add(at_ns, {"gpu1": 200.0})
    counter = Instrument(Domain("counter", 0.1, "board"), float)
    both = {"counters": {"gpu0": counter}, "powers": samples, "total": ["gpu0", "gpu1"], "covers": "all"}
    assert EnergyMeter(**both).sampling(0, 500_000_000).peak_w == 200.0
    in_part = EnergyMeter(**both, sampled_in_part=True)
    assert in_part.sampling(0, 500_000_000).peak_w is None
    drained = in_part.drain(500_000_000)
    assert (drained.watts["gpu1"].tolist(), [*map(math.isnan, drained.total_w)]) == ([200.0] * 5, [True] * 5)


def test_shortest_window_is_that_of_the_documentation():
    for source, response, least_s in (
        ("sampled", filter_response(0.0066, 64), 2.1),  # an INA3221 that averages 64 samples
        ("sampled", UNKNOWN, 0.4),  # an NVIDIA GPU without a counter
        ("counter", UNKNOWN, 1.0),
    ):
        assert shortest_s(Domain(source, 0.1, "all", response=response)) == pytest.approx(least_s, rel=0.01)


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_configured_meter_opens_on_a_machine_without_sensors(path, board):
    spec = {key: value for key, value in yaml.safe_load(path.read_text()).items() if key != "rails"}  # a board's own
    assert spec["name"] == path.stem
    check_absent_meter(lambda: open_meter(spec, gpus=[], root=board.root))
