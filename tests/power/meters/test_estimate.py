import pytest

from epochmeter.power.meters.estimate import open_estimate


def test_half_busy_cpu_is_estimated_at_half_its_rated_power(machine, energy):
    machine.ticks(busy=1000, idle=9000, cores=4)
    meter = open_estimate(gpus=[], root=machine.root, tdp_w=65)
    before = meter.read()
    machine.ticks(busy=1000 + 2000, idle=9000 + 2000, cores=4)  # ten seconds of four cores
    assert energy(before, meter.read(), meter, 10) == {"estimated_energy_j": pytest.approx(10 * 65 / 2)}
    assert meter.energy == {
        "source": "estimated",
        "covers": "CPU: busy fraction of 65 W",
        "domains": ["cpu"],
        "reason": "meter=estimate: an estimate, not a measurement.",
    }


def test_estimate_without_rated_power_or_proc_stat_is_absent_with_the_reason_and_zero_is_refused(machine):
    unreadable = open_estimate(gpus=[], root=machine.root, tdp_w=65).energy
    machine.ticks(busy=1000, idle=9000)
    unrated = open_estimate(gpus=[], root=machine.root).energy
    assert unreadable["source"] == unrated["source"] == "none"
    assert "cannot be estimated" in unreadable["reason"]
    assert unrated["reason"].endswith("meter.tdp_w=65")
    with pytest.raises(ValueError, match=r"meter\.tdp_w=0 is not a rated power"):
        open_estimate(gpus=[], root=machine.root, tdp_w=0)
