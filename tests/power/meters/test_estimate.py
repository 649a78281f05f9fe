import pytest

from epochmeter.power.meters.estimate import open_estimate


def test_a_cpu_that_is_half_busy_is_estimated_at_half_its_rated_power(machine, energy):
    machine.ticks(busy=1000, idle=9000, cores=4)
    meter = open_estimate(gpus=[], root=machine.root, tdp_w=65)
    before = meter.read()
    machine.ticks(busy=1000 + 2000, idle=9000 + 2000, cores=4)  # ten seconds of four cores
    assert energy(before, meter.read(), meter, 10) == {"estimated_energy_j": pytest.approx(10 * 65 / 2)}
    assert meter.energy == {
        "source": "estimated",
        "covers": "CPU, as its busy share of 65 W",
        "domains": ["cpu"],
        "reason": "meter=estimate measures nothing.",
    }


def test_this_machine_can_be_estimated():
    joules = open_estimate(gpus=[], root="/", tdp_w=65).read()
    assert joules["cpu"] > 0


def test_without_the_rated_power_there_is_no_estimate_and_the_reason_says_what_to_give(machine):
    machine.ticks(busy=1000, idle=9000)
    meter = open_estimate(gpus=[], root=machine.root)
    assert meter.energy["source"] == "none"
    assert meter.energy["reason"].endswith("meter.tdp_w=65")


def test_without_proc_stat_there_is_no_estimate(machine):
    meter = open_estimate(gpus=[], root=machine.root, tdp_w=65)
    assert meter.energy["source"] == "none"
    assert "Nor can it be estimated" in meter.energy["reason"]


def test_a_rated_power_of_nothing_is_refused(machine):
    with pytest.raises(ValueError, match=r"meter\.tdp_w=0 is no CPU's rated power"):
        open_estimate(gpus=[], root=machine.root, tdp_w=0)
