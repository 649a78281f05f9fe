"""`power_limit=auto` on a simulated GPU: its clock, limit, step time and energy are known."""

import itertools
import math
from functools import partial
from types import SimpleNamespace

import pytest
from cases import case, cases
from default_jobs import job_of
from metadata import run_info

from epochmeter.power.instrument import Domain, Instrument, shortest_s
from epochmeter.power.knobs.applied_settings import AppliedSettings
from epochmeter.power.knobs.knob import SettingTarget
from epochmeter.power.knobs.restore_journal import RestoreJournal
from epochmeter.power.meter import OVER_MEAN, EnergyMeter, NullMeter
from epochmeter.power.window_energy import Reading
from epochmeter.run import limit_probing
from epochmeter.run.limit_probing import LimitProbing, is_shifted
from epochmeter.run.probe_meter import MAX_PROBE_S, MAX_UNCERTAINTY, MIN_STEPS, PROBE_S, SETTLE_S
from epochmeter.run.settling import PIECES, SPREAD, TOO_SHORT
from epochmeter.shared.protocol import WindowOpening

LIMITS_W = [100.0, 150.0, 200.0, 250.0]
PROGRESS_S = 0.5
COLDER, WARMING_S = 0.1, 20.0  # fraction of the power that a cold GPU uses less, and the time constant of its warming


class SimulatedGpu:
    """GPUs with the same power limit, which is their knob, and a clock that runs while they train."""

    name, files, commands, pending = "NVML", (), (), False

    def __init__(self, set_s=0.0, devices=1):
        self.devices = [f"GPU-{number}" for number in range(devices)]
        self.now_s = self.energy_j = 0.0
        self.limit_w, self.set_s, self.slower = 250.0, set_s, 1.0
        self.history = []

    def get(self):
        return f"{self.limit_w:g} W"

    def set(self, setting):
        self.limit_w = float(setting.removesuffix(" W"))
        self.now_s += self.set_s
        self.history.append(setting)

    def is_equal(self, setting, other):
        return setting == other

    def by_hand(self, setting):
        return f"nvidia-smi -pl {setting}"

    def limits(self):
        return [SettingTarget(f"{watts:g} W", watts, max_w=250.0) for watts in LIMITS_W]

    def step_s(self, watts=None):
        return self.slower * (0.037 + 0.013 * (250 / (watts or self.limit_w)) ** 2)

    def train_step(self):
        self.now_s += self.step_s()
        self.energy_j += self.step_s() * self.limit_w * len(self.devices)

    def read(self):
        return Reading(round(self.now_s * 1e9), {"gpu": self.energy_j})


class FailingGpu(SimulatedGpu):
    """A GPU of which every third energy reading fails, beginning with the first one."""

    def __init__(self):
        super().__init__()
        self.readings = itertools.count()

    def read(self):
        reading = super().read()
        return reading if next(self.readings) % 3 else reading._replace(joules={})


class ClockedGpu(SimulatedGpu):
    """A GPU whose clock can be locked: a step takes a part that follows the clock, and power rises with its cube."""

    name, mhz = "NVML-gpu_clock", (560, 680, 800, 920, 1040, 1160, 1280, 1400)

    def get(self):
        return self.setting

    def __init__(self, **options):
        self.setting = "free"
        super().__init__(**options)

    def set(self, setting):
        self.setting = setting
        self.history.append(setting)

    def limits(self):
        return [*(SettingTarget(f"{mhz} MHz") for mhz in self.mhz), SettingTarget("free")]

    def now_mhz(self, setting=None):
        text = setting or self.setting
        return 1400.0 if text == "free" else float(text.removesuffix(" MHz"))

    def step_s(self, setting=None):
        return 0.02 + 0.03 * 1400 / self.now_mhz(setting)

    def power_w(self, setting=None):
        return 80.0 + 220.0 * (self.now_mhz(setting) / 1400) ** 3

    def train_step(self):
        self.now_s += self.step_s()
        self.energy_j += self.step_s() * self.power_w()


class WarmingGpu(SimulatedGpu):
    """A GPU that uses less power when it is cold."""

    def train_step(self):
        self.now_s += self.step_s()
        self.energy_j += self.step_s() * self.limit_w * (1 - COLDER * math.exp(-self.now_s / WARMING_S))


class StuckGpu(SimulatedGpu):
    """A GPU whose energy counter does not advance."""

    def read(self):
        return super().read()._replace(joules={"gpu": 7.0})


def counter(period_s=0.001):
    """The meter of a GPU whose energy counter is renewed with this period; the simulated GPU has its readings."""
    instrument = Instrument(Domain("counter", period_s, "the GPU"), lambda: 0.0)
    return EnergyMeter(total=["gpu"], covers="the GPU", counters={"gpu": instrument})


class SimulatedRun:
    """A run of `epochs` epochs on a simulated GPU, with the probing under test."""

    def __init__(self, monkeypatch, folder, gpu, epochs=4, meter=None, key="power_limit", command=None, **auto):
        self.monkeypatch, self.gpu, self.epochs = monkeypatch, gpu, epochs
        self.run, self.texts, self.limits_at_start = run_info(), [], []
        self.said = []  # texts with the time of the GPU's clock
        journal = RestoreJournal(str(folder), root="/", command="train")
        target = SettingTarget(gpu.get(), gpu.limit_w)
        self.settings = AppliedSettings([(gpu, target)], journal, self.texts.append)
        plan = SimpleNamespace(
            targets={key: (gpu, target)},
            job=job_of(**{key: "auto"}, auto={"settle_s": 0, **auto}, measure={"command": command}),
            node=SimpleNamespace(nodes=1),
            record_settings=lambda applied: setattr(self.run, "applied", dict(applied)),
            run=self.run,
            describe=lambda: None,
        )
        self.meter = meter or counter()
        terminal = SimpleNamespace(info=lambda text, style="": self.say(text), warn=self.say)
        self.make = lambda: LimitProbing(plan, self.meter, self.settings, terminal)

    def say(self, text):
        self.texts.append(text)
        self.said.append((self.gpu.now_s, text))

    def train(self, steps, slower=lambda epoch: 1.0, is_announced=True, first=0, training=lambda epoch: 0):
        """Train all epochs from `first` on with progress messages as in a run; return the marks of the epochs.

        A script's numbers of steps and epochs may not be announced.
        """
        marks = []
        self.monkeypatch.setattr(limit_probing.time, "monotonic_ns", lambda: round(self.gpu.now_s * 1e9))
        with self.settings:
            probing = self.make()
            for epoch in range(first, self.epochs):
                self.gpu.slower = slower(epoch)
                announced = WindowOpening("epoch", epoch, steps, epochs=self.epochs)
                if not is_announced:
                    announced = announced._replace(steps=0, epochs=None)
                self.limits_at_start.append(self.gpu.get())
                probing.open_window(announced, self.gpu.read())
                opened_s = reported_s = self.gpu.now_s
                for step in range(1, steps + 1):
                    self.gpu.train_step()
                    if self.gpu.now_s - reported_s >= PROGRESS_S:
                        reported_s = self.gpu.now_s
                        probing.progress(step, self.gpu.read)
                probing.close_window(self.gpu.read(), announced)
                metrics = {"epoch/e2e_s": self.gpu.now_s - opened_s, "epoch/steps": steps}
                probing.note_training(training(epoch))
                marks.append(probing.record_window({"window": "epoch", "epoch": epoch, "metrics": metrics}))
                # A script's evaluation is known at its end only.
                probing.open_window(announced._replace(steps=3), self.gpu.read())
                self.gpu.now_s += 30.0
                probing.close_window(self.gpu.read(), WindowOpening("val", epoch, 3))
                assert probing.record_window({"window": "val", "metrics": {}}) == {}
            probing.end()
            self.limit_at_end = self.gpu.get()
        return marks

    @property
    def search(self):
        return self.run.power_limit_search[-1]


@pytest.fixture
def run(monkeypatch, tmp_path):
    return partial(SimulatedRun, monkeypatch, tmp_path)


@cases(
    case("within an epoch", period_s=0.1, epochs=4, steps=5000),
    case("in epochs of 2 s", period_s=0.1, epochs=600, steps=40),
    case("too slow counter", period_s=4.0, epochs=2, steps=25_000),
)
def test_probes_are_as_long_as_a_slow_counter_needs_and_no_longer(run, period_s, epochs, steps):
    """Without samples, power at the borders may be `OVER_MEAN` times the mean, for one period of the counter.

    So one piece is precise enough after `needed_s`. A probe is read after a time that doubles until then, at the next
    progress message. In shorter epochs it has one piece per epoch, whose uncertainties are independent.
    """
    simulated = run(SimulatedGpu(), epochs=epochs, meter=counter(period_s))
    simulated.train(steps)
    needed_s = OVER_MEAN * period_s / MAX_UNCERTAINTY
    read_s = max(PROBE_S, shortest_s(counter(period_s).domains["gpu"]))
    while read_s < min(needed_s, MAX_PROBE_S):
        read_s = min(2 * read_s, MAX_PROBE_S)
    for probe in simulated.search["probes"]:
        step_s, relative = probe["time_s"] / probe["steps"], probe["energy_uncertainty_j"] / probe["energy_j"]
        epoch_s = steps * step_s
        if epoch_s > MAX_PROBE_S:
            assert read_s <= probe["time_s"] <= read_s + PROGRESS_S + 2 * step_s
            assert relative == pytest.approx(OVER_MEAN * period_s / probe["time_s"])
        else:
            # The first piece may be short, if the limit was set within its epoch.
            pieces = next(n for n in itertools.count(2) if math.sqrt(n) * needed_s <= (n - 1) * epoch_s)
            assert probe["time_s"] <= pieces * epoch_s
            assert relative <= MAX_UNCERTAINTY
    check_probes(simulated)
    assert simulated.search["chosen"] == "150 W"


@pytest.mark.parametrize("max_slowdown", [None, 1.1])
def test_best_clock_is_found_and_is_the_target_of_its_key(run, max_slowdown):
    gpu = ClockedGpu()
    simulated = run(gpu, epochs=3, key="gpu_clock", max_slowdown=max_slowdown)
    simulated.train(4000)
    allowed = [mhz for mhz in gpu.mhz if gpu.step_s(f"{mhz} MHz") <= (max_slowdown or 9) * gpu.step_s("free")]
    costs = {mhz: gpu.step_s(f"{mhz} MHz") * gpu.power_w(f"{mhz} MHz") for mhz in allowed}
    best = min(costs, key=costs.get)
    chosen = int(simulated.search["chosen"].removesuffix(" MHz"))
    assert simulated.search["key"] == "gpu_clock"
    assert costs[chosen] <= 1.01 * costs[best]
    assert gpu.history[-1] == "free", "restored"
    assert {probe["setting"] for probe in simulated.search["probes"]} <= {target.setting for target in gpu.limits()}
    assert any(text.startswith(f"GPU clock: {chosen} MHz") for text in simulated.texts)


def settled_after_s(piece_s):
    """Seconds of training after which the last pieces of a `WarmingGpu` are within `SPREAD` of each other."""
    count, spread = PIECES - 1, 1.0
    while spread > SPREAD:
        count += 1
        middles_s = [(count - place - 0.5) * piece_s + SETTLE_S for place in range(PIECES)]
        powers = [1 - COLDER * math.exp(-at_s / WARMING_S) for at_s in middles_s]
        spread = (max(powers) - min(powers)) * PIECES / sum(powers)
    return count * piece_s


def test_first_probe_begins_when_a_cold_gpu_has_settled_or_after_the_longest_time(run):
    """Settling takes whole pieces, each at least `PROBE_S` and up to one progress message longer."""
    longest_s = PROBE_S + PROGRESS_S + SimulatedGpu().step_s()  # of a piece
    for settle_s, is_settled in ((600, True), (15, False)):
        simulated = run(WarmingGpu(), epochs=2, settle_s=settle_s)
        simulated.train(6000)
        settling = simulated.search["settling"]
        assert settling["is_settled"] == is_settled
        if is_settled:
            least_s, most_s = sorted(map(settled_after_s, (PROBE_S, longest_s)))
            assert least_s - longest_s <= settling["waited_s"] <= most_s + longest_s
        else:
            assert settle_s <= settling["waited_s"] < settle_s + longest_s
        noise = OVER_MEAN * simulated.meter.domains["gpu"].period_s / PROBE_S
        assert (settling["power_spread"] <= SPREAD + noise) == is_settled
        assert any(text.startswith("The device has") for text in simulated.texts)
    steady = run(SimulatedGpu(), epochs=2, settle_s=600)
    steady.train(6000)
    assert PIECES * PROBE_S <= steady.search["settling"]["waited_s"] <= PIECES * longest_s
    assert steady.search["probes"][0]["setting"] == "250 W"


def test_time_of_settling_is_all_of_the_training_until_then(run):
    """No training between two pieces is left out, so that it is not longer than `settle_s` says."""
    simulated = run(WarmingGpu(), epochs=1, settle_s=15)
    simulated.train(3000)
    over_s = next(at_s for at_s, text in simulated.said if text.startswith("The device has"))
    assert over_s == pytest.approx(simulated.search["settling"]["waited_s"] + SETTLE_S, abs=2 * PROGRESS_S)


def test_short_training_is_searched_without_settling_and_says_so(run):
    """Of 50 s of training, a fifth has no room for four probes of 3 s."""
    short = run(WarmingGpu(), epochs=20, settle_s=60)
    short.train(50)
    assert short.search["settling"] == {"waited_s": 0.0, "is_settled": False, "longest_s": 0.0, "reason": TOO_SHORT}
    assert len(short.search["probes"]) > 3
    long = run(WarmingGpu(), epochs=4, settle_s=60)
    long.train(1200)
    piece_s = PROBE_S + PROGRESS_S + long.gpu.step_s(100)
    assert 0 < long.search["settling"]["waited_s"] < long.search["settling"].get("longest_s", 60) + piece_s


def test_probe_begins_again_after_a_failed_reading_and_never_ends_on_a_stuck_counter(run):
    simulated = run(FailingGpu(), epochs=1)
    simulated.train(3000)
    assert simulated.search["chosen"] == "150 W"
    check_probes(simulated)
    simulated = run(StuckGpu(), epochs=300, meter=counter(0.1))
    simulated.train(15)
    assert (simulated.search["chosen"], simulated.search["probes"]) == ("250 W", [])
    assert len({*simulated.texts}) == len(simulated.texts), "a message is repeated"


def test_slow_change_of_the_limit_waits_for_the_end_of_the_epoch(run):
    simulated = run(SimulatedGpu(set_s=2.0), epochs=30)
    simulated.train(140)
    assert simulated.search["chosen"]
    check_probes(simulated)


def check_probes(simulated):
    """Each probe has the step time and the power of its limit."""
    for probe in simulated.search["probes"]:
        watts = float(probe["setting"].removesuffix(" W"))
        assert probe["steps"] >= MIN_STEPS
        assert probe["time_s"] / probe["steps"] == pytest.approx(simulated.gpu.step_s(watts), rel=1e-6)
        assert probe["energy_j"] / probe["time_s"] == pytest.approx(watts, rel=1e-6)


@pytest.mark.parametrize(("epochs", "steps", "is_announced"), [(4, 2000, True), (4, 2000, False), (40, 30, True)])
def test_limit_with_the_least_energy_is_found_while_training(run, epochs, steps, is_announced):
    """Probes are within an epoch, also if its number of steps is unknown, or extend over several epochs."""
    gpu = SimulatedGpu()
    simulated = run(gpu, epochs=epochs)
    marks = simulated.train(steps, is_announced=is_announced)
    best_w = min(LIMITS_W, key=lambda watts: gpu.step_s(watts) * watts)
    assert best_w == 150
    assert simulated.limit_at_end == simulated.search["chosen"] == f"{best_w:g} W"
    assert simulated.run.applied == {"NVML": f"{best_w:g} W"}
    saving = 1 - gpu.step_s(best_w) * best_w / (gpu.step_s(250) * 250)
    assert simulated.search["saving"] == pytest.approx(saving, abs=0.01)
    check_probes(simulated)
    probed = [bool(mark) for mark in marks]
    assert probed == sorted(probed, reverse=True), "probing comes first"
    assert sum(probed) == 1 if steps == 2000 else 0 < sum(probed) < len(probed)
    assert gpu.get() == "250 W", "the limit is restored"


def test_limit_in_use_is_one_of_the_limits_although_the_device_rounds_it(run):
    gpu = SimulatedGpu()
    gpu.limit_w = 249.9
    gpu.is_equal = lambda *settings: len({round(float(setting.removesuffix(" W"))) for setting in settings}) == 1
    simulated = run(gpu)
    simulated.train(2000)
    assert (simulated.search["chosen"], gpu.get()) == ("150 W", "249.9 W")


@pytest.mark.parametrize("auto", [{"objective": "eta", "eta": 0.97}, {"objective": "time", "power_budget": 170.0}])
def test_limits_of_several_devices_are_chosen_by_the_power_of_each(run, auto):
    one, two = run(SimulatedGpu(), **auto), run(SimulatedGpu(devices=2), **auto)
    if "power_budget" in auto:
        two = run(SimulatedGpu(devices=2), **{**auto, "power_budget": 2 * auto["power_budget"]})
    for simulated in (one, two):
        simulated.train(3000)
    assert one.search["chosen"] == two.search["chosen"] == "150 W"
    assert two.search["probing_j"] == pytest.approx(2 * one.search["probing_j"])


@cases(
    case(epochs=2, steps=200, marks=[{"warmup": True}, {}], ended="before the last epoch"),
    case(epochs=1, steps=150, marks=[{"warmup": True}], ended="before the search"),
)
def test_short_run_keeps_the_best_limit_so_far_for_its_last_epoch_if_there_is_one(run, epochs, steps, marks, ended):
    simulated = run(SimulatedGpu(), epochs=epochs)
    assert simulated.train(steps) == marks
    assert ended in simulated.search["ended"]
    assert len(marks) == 1 or simulated.limits_at_start[-1] == simulated.search["chosen"] != "250 W"
    for first, steps in ((0, 5), (1, 2000)):  # too few steps; a run that resumes in its last epoch
        too_short = run(SimulatedGpu(), epochs=first + 1)
        too_short.train(steps, first=first)
        assert (too_short.search["chosen"], too_short.search["probes"]) == ("250 W", [])
        assert any(text.startswith("warning: no power limit was probed") for text in too_short.texts)


@pytest.mark.parametrize("command", [None, ["train.py"]])
def test_hint_for_a_training_that_was_too_short_names_no_key_that_a_script_lacks(run, command):
    simulated = run(SimulatedGpu(), epochs=1, command=command)
    simulated.train(5)
    (warning,) = [text for text in simulated.texts if "was probed" in text]
    assert ("`epochs=`" in warning, "script" in warning) == (not command, bool(command))


@pytest.mark.parametrize(
    ("auto", "slower"), [({"recheck_epochs": 3}, lambda epoch: 1.0), ({}, lambda epoch: 1.0 if epoch < 7 else 1.5)]
)
def test_limits_are_probed_again_when_due_or_when_the_step_time_shifts(run, auto, slower):
    simulated = run(SimulatedGpu(), epochs=16, **auto)
    marks = [bool(mark) for mark in simulated.train(1500, slower)]
    assert len(simulated.run.power_limit_search) >= 2
    assert marks[0]
    assert any(not before and after for before, after in itertools.pairwise(marks))
    assert simulated.search["chosen"]


def test_limits_are_probed_again_for_another_training_without_earlier_probes(run):
    simulated = run(SimulatedGpu(), epochs=8)
    marks = simulated.train(2000, is_announced=False, training=lambda epoch: epoch // 4)
    assert [bool(mark) for mark in marks] == [True, False, False, False, False, True, False, False]
    first, second = simulated.run.power_limit_search
    assert first["probes"][0]["setting"] == second["probes"][0]["setting"] == "250 W"
    interrupted = run(SimulatedGpu(), epochs=2)
    interrupted.train(200, lambda epoch: 1.0 + epoch, is_announced=False, training=lambda epoch: epoch)
    assert interrupted.run.power_limit_search[-1]["probes"] == [], "those of the earlier training are left out"


def test_last_epoch_is_probed_if_the_number_of_epochs_is_not_known(run):
    assert run(SimulatedGpu(), epochs=2).train(200, is_announced=False) == 2 * [{"warmup": True}]


def test_limits_are_not_probed_again_if_only_the_last_epoch_follows(run):
    simulated = run(SimulatedGpu(), epochs=3, recheck_epochs=1)
    assert simulated.train(2000) == [{"warmup": True}, {}, {}]
    assert len(simulated.run.power_limit_search) == 1
    assert simulated.limits_at_start == ["250 W", "150 W", "150 W"]


def test_energy_that_is_not_measured_is_refused_unless_time_is_minimized(run):
    meter = NullMeter("no sensor")
    with pytest.raises(RuntimeError, match=r"(?s)no sensor.*hint: .*auto.objective=time"):
        run(SimulatedGpu(), meter=meter).train(10)
    simulated = run(SimulatedGpu(), meter=meter, objective="time")
    simulated.train(2000)
    assert simulated.search["chosen"] == "250 W"
    assert "probing_j" not in simulated.search
    assert all("energy_j" not in probe for probe in simulated.search["probes"])


def test_shift_is_beyond_the_spread_of_the_epochs_before():
    assert is_shifted([1.0, 1.01, 0.99, 1.2, 1.21])
    assert not is_shifted([1.0, 1.01, 0.99, 1.2, 1.0])
    assert not is_shifted([1.0, 1.3, 0.8, 1.2, 1.21])
    assert not is_shifted([1.0, math.e, math.e])
