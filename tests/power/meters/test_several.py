import math
import threading
from array import array

import pytest

from trainmeter.power.meter import Counter, Domain, Instruments
from trainmeter.power.meters.several import Sum, open_sum
from trainmeter.power.series import NO_POWERS, Powers, Sampling

GPU = Sampling(samples=90, gap_max_s=0.03, failed=1, lost={}, peak_w=250.0, half_width_j=2.0, inside={"gpu0": 90})
CPU = Sampling(samples=40, gap_max_s=0.09, failed=2, lost={"cpu0": "unread"}, peak_w=60.0, half_width_j=0.5,
               inside={"cpu0": 40})  # fmt: skip
NONE = {"_target_": "trainmeter.power.meter.open_none"}


class Scripted:
    """A sampled power whose samples and joules the test sets."""

    def __init__(self, name: str, sampling: Sampling, times_ns: list[int], watts: list[float]) -> None:
        self.domains = {name: Domain("sampled", 0.02, name)}
        self.sampled, self.closed = sampling, 0
        self.powers = Powers(array("q", times_ns), {name: array("d", watts)}, array("d", watts))

    def joules(self, *, fresh: bool = True) -> dict[str, float]:
        return dict.fromkeys(self.domains, 100.0)

    def sampling(self, opened_ns: int, closed_ns: int) -> Sampling:
        return self.sampled

    def drain(self, before_ns: int) -> Powers:
        powers, self.powers = self.powers, NO_POWERS
        return powers

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def gpu() -> Scripted:
    return Scripted("gpu0", GPU, [10, 30], [200.0, 210.0])


@pytest.fixture
def cpu() -> Scripted:
    return Scripted("cpu0", CPU, [20, 40], [50.0, 55.0])


@pytest.fixture
def both(gpu, cpu) -> Sum:
    return Sum(
        [Instruments(powers=part, total=[name], covers=name) for name, part in (("gpu0", gpu), ("cpu0", cpu))],
    )


def test_domains_stand_side_by_side_and_totals_are_added(both):
    assert both.domains.keys() == {"gpu0", "cpu0"}
    assert both.read() == {"gpu0": 100.0, "cpu0": 100.0}
    assert both.total({"gpu0": 200.0, "cpu0": 50.0}) == 250.0
    assert both.total({"gpu0": 200.0}) is None
    covers = {"covers": "gpu0 + cpu0", "domains": ["gpu0", "cpu0"]}
    assert both.energy == {"source": "sampled", **covers, "reason": None}


def test_a_sum_is_as_good_as_its_worst_part_and_gives_all_reasons():
    parts = {
        source: Instruments(
            counters={source: Counter(Domain(source, 0.1, source), float)},
            total=[source],
            covers=source,
            reason=f"by a {source}.",
        )
        for source in ("counter", "estimated")
    }
    made = Sum(list(parts.values()))
    assert made.energy["source"] == "estimated"
    assert made.energy["reason"] == "by a counter. by a estimated."


def test_a_stretch_is_sampled_as_its_worst_part_is_and_its_peak_is_not_known(both):
    assert both.sampling(0, 100) == Sampling(
        samples=40, gap_max_s=0.09, failed=3, lost={"cpu0": "unread"}, peak_w=None, half_width_j=2.5,
        inside={"gpu0": 90, "cpu0": 40}, parts=[GPU, CPU],
    )  # fmt: skip


def test_a_total_is_uncertain_by_what_its_parts_are_each_by_its_own_instruments(gpu):
    """A counter beside samples that only check it, at their peak; and one that nothing samples."""
    counter = Counter(Domain("counter", 0.05, "GPU board"), float)
    checked = Instruments(counters={"gpu1": counter}, powers=gpu, total=["gpu1"], covers="gpu1")
    plain = Instruments(
        counters={"cpu1": Counter(Domain("counter", 0.001, "CPU", step=0.5), float)}, total=["cpu1"], covers="cpu1"
    )
    made = Sum([checked, plain])
    half_width_j = made.half_width_j({"gpu1": 400.0, "cpu1": 100.0}, 4.0, made.sampling(0, 4))
    assert half_width_j == pytest.approx(250.0 * 0.05 + 25.0 * 0.001 + 0.5)
    assert checked.half_width_j({"gpu1": 400.0}, 4.0, GPU) == pytest.approx(250.0 * 0.05)


def test_a_sum_of_counters_is_uncertain_by_each(both):
    counted = Instruments(
        counters={"cpu1": Counter(Domain("counter", 0.1, "CPU"), float)}, total=["cpu1"], covers="cpu1"
    )
    assert Sum([counted]).half_width_j({"cpu1": 100.0}, 4.0, None) == pytest.approx(2.5)
    assert both.half_width_j({"gpu0": 1.0, "cpu0": 1.0}, 4.0, both.sampling(0, 4)) == pytest.approx(2.0 + 0.5)


def test_a_sum_of_counters_is_not_sampled():
    counters = {"cpu0": Counter(Domain("counter", 0.001, "CPU package"), float)}
    made = Sum([Instruments(counters=counters, total=["cpu0"], covers="CPU")])
    assert made.sampling(0, 100) is None
    assert list(made.drain(100).times_ns) == []


def test_samples_of_all_parts_stand_in_the_order_of_time_and_what_was_not_read_is_no_zero(both):
    powers = both.drain(100)
    assert list(powers.times_ns) == [10, 20, 30, 40]
    known = {name: [None if math.isnan(value) else value for value in part] for name, part in powers.watts.items()}
    assert known == {"gpu0": [200.0, None, 210.0, None], "cpu0": [None, 50.0, None, 55.0]}
    assert list(both.drain(100).times_ns) == []


def test_a_sum_closes_all_its_parts(both, gpu, cpu):
    both.close()
    assert (gpu.closed, cpu.closed) == (1, 1)


def test_a_sum_that_lacks_parts_is_no_meter_and_gives_their_reasons():
    lacking = ["There is no driver.", "RAPL is kept for root."]
    made = open_sum(gpus=[], root="/", parts=[{**NONE, "reason": reason} for reason in lacking])
    assert made.energy == {"source": "none", "covers": None, "domains": [], "reason": " ".join(lacking)}
    assert "there are none" in open_sum(gpus=[], root="/", parts=[]).energy["reason"]


def test_an_estimate_is_never_added_to_a_measurement(machine):
    machine.zone("intel-rapl:0", "package-0", 100.0)
    machine.ticks(busy=1000, idle=9000)
    counted = {"_target_": "trainmeter.power.meters.rapl.open_rapl"}
    guessed = {"_target_": "trainmeter.power.meters.estimate.open_estimate", "tdp_w": 65}
    made = open_sum(gpus=[], root=machine.root, parts=[counted, guessed])
    assert made.energy["source"] == "none"
    assert made.energy["reason"].startswith(
        "meter=sum adds no estimate to a measurement, and CPU, as its busy share of 65 W is but estimated: meter="
    )
    assert open_sum(gpus=[], root=machine.root, parts=[guessed]).energy["source"] == "estimated"


def test_a_sum_that_lacks_a_part_lets_go_of_the_others(tmp_path):
    (tmp_path / "power.csv").write_text("monotonic_ns,VDD_IN_w,total_w\n0,10,10\n60000000000,10,10\n")
    target = "trainmeter.power.meters.replay.open_replay"
    played = {"_target_": target, "file": str(tmp_path / "power.csv"), "period_s": 0.01}
    before = set(threading.enumerate())
    assert open_sum(gpus=[], root="/", parts=[played, {**NONE, "reason": "none"}]).energy["source"] == "none"
    for thread in set(threading.enumerate()) - before:
        thread.join(1)
    assert set(threading.enumerate()) <= before


def test_parts_are_opened_on_the_machine_below_the_root(machine):
    machine.zone("intel-rapl:0", "package-0", 100.0)
    spec = {"_target_": "trainmeter.power.meters.rapl.open_rapl"}
    made = open_sum(gpus=[], root=machine.root, parts=[spec])
    before = made.read()
    machine.zone("intel-rapl:0", "package-0", 130.0)
    assert made.read()["cpu0"] - before["cpu0"] == pytest.approx(30.0)
    made.close()
