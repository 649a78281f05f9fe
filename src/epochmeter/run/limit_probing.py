"""`power_limit=auto` and `gpu_clock=auto`: the search for the best limit while the training process trains.

A probe is a number of training steps at one limit. Its borders are progress messages, its energy is that between two
readings of the meter. Training never waits for it. The epochs in which limits are probed are marked as warm-up.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from epochmeter.config.schema import Auto
from epochmeter.console.console import Terminal
from epochmeter.power.knobs.applied_settings import AppliedSettings
from epochmeter.power.knobs.device_settings import AUTO
from epochmeter.power.knobs.gpu_clock import mhz_of
from epochmeter.power.limit_search import Choice, Cost, LimitSearch, Probe
from epochmeter.power.meter import EnergyMeter
from epochmeter.power.window_energy import Reading
from epochmeter.run.plan import Plan
from epochmeter.run.probe_meter import SETTLE_S, ProbeMeter, ProbeSums
from epochmeter.run.settling import Settling, piece_of
from epochmeter.shared.problem import Problem, format_problem, machine_error
from epochmeter.shared.protocol import WindowOpening
from epochmeter.shared.units import NANOSECOND, percent, percentage

CLOCK = "gpu_clock"
NAMES = {"power_limit": "power limit", CLOCK: "GPU clock"}
"""Key whose best value can be searched -> its name."""
CLOCK_EXPONENT = 3.0  # power at a lower clock falls at most with its cube: with the clock, and the voltage squared
SHIFT, SHIFT_DEVIATIONS = 0.1, 3.0
"""The limits are probed again if the time per step changes in two successive epochs. The change from the earlier
mean must be more than this fraction, and more than this number of standard deviations."""


class LimitProbing:
    """Probes power limits during training, and applies the best; the limit in use is the plan's target."""

    def __init__(
        self,
        plan: Plan,
        meter: EnergyMeter,
        settings: AppliedSettings,
        terminal: Terminal,
        clock_hz: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._plan, self._settings, self._terminal = plan, settings, terminal
        self._clock_hz = clock_hz
        self._key = searched_key(plan) or "power_limit"
        self._name = NAMES[self._key]
        self._auto, self._probe_meter = plan.job.auto, ProbeMeter(meter, terminal)
        self._refuse_impossible(meter)
        self._knob, in_use = plan.targets[self._key]
        self._targets = self._knob.limits()
        is_in_use = [self._knob.is_equal(target.setting, in_use.setting) for target in self._targets]
        self._limit = self._default = is_in_use.index(True)
        self._next_limit: int | None = None  # to be set at the end of the window
        self._training: int | None = None  # of the last epoch
        self._epoch_steps = 0  # of the last epoch; 0: not known yet
        self._change_s = 0.0  # the longest time that a change of the limit took
        self._devices = max(1, len(self._knob.devices))  # each has the limit; the energy is that of all
        self._start_search(None)

    def open_window(self, opened: WindowOpening, reading: Reading) -> None:
        """Note the start of a window."""
        self._opened = opened
        if opened.window == "epoch":
            self._epoch_steps = opened.steps or self._epoch_steps
        self._keep_last_epoch(opened.epoch)
        self._is_probing_epoch = opened.window == "epoch" and self._search is not None
        if self._is_probing_epoch:
            self._probe_meter.open_window(reading)

    def progress(self, steps: int, read: Callable[[], Reading]) -> None:
        """Begin or end a probe, if it is time; `read` returns the meter's reading at the end of the last step."""
        if not self._search or self._opened.window != "epoch" or self._next_limit is not None:
            return
        if probe := self._probe_meter.read_step(steps, read):
            remaining_s = (self._opened.steps - steps) * probe.seconds / probe.steps
            is_near_end = self._opened.steps > 0 and remaining_s < max(SETTLE_S, 3 * self._change_s)
            self._finish_probe(probe, is_near_end=is_near_end)

    def close_window(self, reading: Reading, closed: WindowOpening) -> None:
        """Note the end of an epoch or an evaluation. A probe that has begun continues in the next epoch."""
        if closed.window == "epoch":
            self._epoch_steps = closed.steps or self._epoch_steps  # a script's is known at its end
        if self._search and self._next_limit is not None:
            self._apply(self._next_limit)
        elif self._search and self._opened.window == closed.window == "epoch":  # a script's is known at its end
            probe = self._probe_meter.close_window(reading, closed.steps)
            if probe:
                self._finish_probe(probe)
        if closed.window == "epoch":
            self._keep_last_epoch(closed.epoch + 1)

    def note_training(self, training: int) -> None:
        """Note the training of a recorded epoch; the probes of an earlier one are of another model: search again."""
        earlier, self._training = self._training, training
        if earlier not in (None, training):
            self._terminal.info(f"Searching for the best {self._name} again: another training has begun.", style="dim")
            self._start_search(self._limit)

    def record_window(self, window: Mapping[str, Any]) -> dict[str, bool]:
        """Return the mark of an epoch in which limits were probed; search again if a measured one has shifted.

        Before and after the last epoch, which keeps the chosen limit, there is no further search.
        """
        if window["window"] != "epoch":
            return {}
        if self._is_probing_epoch:
            return {"warmup": True}
        metrics = window["metrics"]
        self._epochs_step_s.append(metrics["epoch/e2e_s"] / max(1, metrics["epoch/steps"]))
        is_due = self._auto.recheck_epochs is not None and len(self._epochs_step_s) >= self._auto.recheck_epochs
        is_ending = self._opened.epochs is not None and window["epoch"] >= self._opened.epochs - 2
        if not is_ending and (is_due or is_shifted(self._epochs_step_s)):
            reason = "`auto.recheck_epochs`" if is_due else "the time per step shifted"
            self._terminal.info(f"Searching for the best {self._name} again: {reason}.", style="dim")
            self._start_search(self._limit)
        return {}

    def end(self) -> None:
        """Note in the record that training ended before the search."""
        if self._search:
            self._choose("training ended before the search", is_applied=False)

    def _keep_last_epoch(self, next_epoch: int) -> None:
        """End the search before the last epoch, which is measured at the chosen limit, unless it is the only one."""
        if self._search and self._opened.epochs == next_epoch + 1 > 1:
            self._choose("the search ended before the last epoch")

    def _refuse_impossible(self, meter: EnergyMeter) -> None:
        """Refuse a search that is not possible; RuntimeError."""
        if self._plan.node.nodes > 1:
            raise machine_error(f"{self._key}=auto needs one node", "run it on one node, then set the chosen limit")
        needs_energy = self._auto.objective != "time" or self._auto.power_budget is not None
        if needs_energy and not self._probe_meter.has_energy:
            reason = meter.energy["reason"] or "the meter only estimates it"
            raise machine_error(
                f"{self._key}=auto: energy is not measured: {reason}",
                "select a meter (`python src/doctor.py` lists them), or set auto.objective=time",
            )

    def _start_search(self, start: int | None) -> None:
        is_clock = self._key == CLOCK
        values = [mhz_of(target.setting) if is_clock else target.watts for target in self._targets]
        self._search: LimitSearch | None = LimitSearch(
            [math.inf if value is None else value for value in values],
            self._default,
            cost_of(self._auto, max((target.watts or 0.0 for target in self._targets), default=0.0)),
            max_slowdown=self._auto.max_slowdown,
            power_budget_w=self._auto.power_budget and self._auto.power_budget / self._devices,
            confidence=self._auto.confidence,
            power_exponent=CLOCK_EXPONENT if is_clock else 1.0,
            start=None if start == self._default else start,
        )
        self._probes: list[tuple[str, ProbeSums]] = []
        self._settling = Settling(self._auto.settle_s)
        self._epochs_step_s: list[float] = []
        self._apply(self._default)

    def _apply(self, limit: int) -> None:
        """Apply a limit, and begin a new probe."""
        before_ns = time.monotonic_ns()
        if limit != self._limit:
            self._settings.change(self._knob, self._targets[limit].setting)
        self._limit, self._next_limit = limit, None
        self._change_s = max(self._change_s, (time.monotonic_ns() - before_ns) * NANOSECOND)
        self._probe_meter.restart()

    def _finish_probe(self, probe: ProbeSums, *, is_near_end: bool = False) -> None:
        """Add the probe to the search and apply the next limit.

        Near the end of a window whose length is known, the limit is changed after the window. A change may take long
        and would delay the reading of the counters.
        """
        search = self._search
        assert search
        if not self._settling.is_over:
            self._bound_settling(probe)
        if not self._settling.is_over:
            self._settle(probe)
            return
        search.add(Probe(self._limit, probe.seconds / probe.steps, probe.energy_j / probe.steps / self._devices))
        self._probes.append((self._targets[self._limit].setting, probe))
        self._next_limit = search.next_limit()
        if self._next_limit is None:
            self._choose()
        elif not is_near_end:
            self._apply(self._next_limit)

    def _bound_settling(self, probe: ProbeSums) -> None:
        """Let settling take a part of the expected training time only, as far as that is known."""
        if not (self._opened.epochs and self._epoch_steps):
            return
        training_s = self._opened.epochs * self._epoch_steps * probe.seconds / probe.steps
        self._settling.bound(training_s, probe.seconds)
        if self._settling.is_over:
            self._terminal.info(str(self._settling), style="dim")

    def _settle(self, probe: ProbeSums) -> None:
        """Compare a probe with the ones before it, instead of adding it to the search; probe again."""
        used = {"energy_j": probe.energy_j, "energy_uncertainty_j": probe.uncertainty_j}
        piece = piece_of(used if self._probe_meter.has_energy else {}, probe.seconds, self._clock_hz())
        self._settling.add(probe.seconds, piece)
        if self._settling.is_over:
            self._terminal.info(str(self._settling), style="dim")
        self._probe_meter.go_on()

    def _choose(self, reason: str = "", *, is_applied: bool = True) -> None:
        """Apply the best limit so far, and record the search; `reason`: why it ended early."""
        search = self._search
        assert search
        self._search = None
        if not search.probes:
            self._describe({"ended": reason, "chosen": self._targets[self._default].setting, "probes": []})
            hint = "let the script train longer" if self._plan.job.measure.command else "train longer: raise `epochs=`"
            problem = Problem(f"no {self._name} was probed: {reason}", hint)
            self._terminal.warn(format_problem(problem, "warning"))
            return
        choice = search.choice()
        target = self._targets[choice.limit]
        if is_applied:
            self._apply(choice.limit)
            self._plan.targets[self._key] = self._knob, target
            self._plan.record_settings(self._settings.applied)
        probing_j = math.fsum(probe.energy_j for _, probe in self._probes)
        self._describe(
            {
                **({"ended": reason} if reason else {}),
                "chosen": target.setting,
                "confidence": choice.confidence,
                "saving": choice.saving[0],
                "saving_interval": choice.saving[1:],
                "slowdown": choice.slowdown,
                "keeps_bounds": choice.is_allowed,
                "probing_s": math.fsum(probe.seconds for _, probe in self._probes),
                **({"probing_j": probing_j} if self._probe_meter.has_energy else {}),
                "probes": [self._entry(setting, probe) for setting, probe in self._probes],
            }
        )
        text = sentence(choice, target.setting, self._auto.objective, search, reason, self._name)
        self._terminal.info(text, style="bold")

    def _entry(self, setting: str, probe: ProbeSums) -> Mapping[str, object]:
        measured = {"setting": setting, "steps": probe.steps, "time_s": probe.seconds}
        energy = {"energy_j": probe.energy_j, "energy_uncertainty_j": probe.uncertainty_j}
        return {**measured, **energy} if self._probe_meter.has_energy else measured

    def _describe(self, search: Mapping[str, object]) -> None:
        key = {} if self._key == "power_limit" else {"key": self._key}
        settling = {"settling": self._settling.document()} if self._auto.settle_s else {}
        self._plan.run.power_limit_search.append({"objective": self._auto.objective, **key, **settling, **search})
        self._plan.describe()


def cost_of(auto: Auto, highest_w: float) -> Cost:
    """Return the cost of a step by the objective; `highest_w` is the highest limit, for `eta`."""
    costs: dict[str, Cost] = {
        "energy": lambda seconds, watts: seconds * watts,
        "time": lambda seconds, watts: seconds,
        "edp": lambda seconds, watts: seconds**2 * watts,
        "eta": lambda seconds, watts: seconds * (auto.eta * watts + (1 - auto.eta) * highest_w),
    }
    return costs[auto.objective]


def searched_key(plan: Plan) -> str | None:
    """Return the key whose best value a run searches; None if it searches none, as in a rehearsal."""
    return next((key for key in NAMES if getattr(plan.job, key) == AUTO and key in plan.targets), None)


def sentence(
    choice: Choice, setting: str, objective: str, search: LimitSearch, reason: str, name: str = "power limit"
) -> str:
    """Return a choice with its effect and confidence, for the terminal."""
    quantity = {"energy": "energy", "time": "time", "edp": "energy x time", "eta": "weighted cost"}[objective]
    saving, low, high = (percentage(value, 1) for value in choice.saving)
    effect = (
        f"{saving} % less {quantity} per step ({low} to {high} %), {choice.slowdown:.2f} times the time"
        if choice.limit != search.default
        else f"no other limit has less {quantity} per step"
    )
    return (
        f"{name[0].upper()}{name[1:]}: {setting} ({effect}). "
        f"{len(search.probes)} probes of {len(search.tried)} limits, "
        f"confidence {percent(choice.confidence, 0)}."
        + (f" {reason.capitalize()}." if reason else "")
        + ("" if choice.is_allowed else " No limit that was tried keeps the bounds.")
    )


def is_shifted(steps_s: Sequence[float]) -> bool:
    """Return whether the time per step of the last two epochs differs from that of the epochs before."""
    if len(steps_s) < 4:
        return False
    *before, first, second = map(math.log, steps_s)
    tolerated = max(math.log1p(SHIFT), SHIFT_DEVIATIONS * statistics.stdev(before))
    shifts = [value - statistics.fmean(before) for value in (first, second)]
    return min(shifts) > tolerated or max(shifts) < -tolerated
