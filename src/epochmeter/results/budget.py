"""Budgets of a run: it ends before the epoch that would exceed one, by the forecast of that epoch."""

from collections.abc import Iterable, Mapping, Sequence

from epochmeter.config.schema import Job
from epochmeter.results import footprint
from epochmeter.results.forecast import Forecaster
from epochmeter.results.quantities import quantity
from epochmeter.results.run_info import BudgetUse, RunInfo
from epochmeter.results.running_totals import RunningTotals
from epochmeter.results.summary import TRAINING_WINDOWS, Window, total_metrics
from epochmeter.shared.problem import input_error

TOTALS = {"energy_j": "energy_j", "time_s": "e2e_s", "carbon_g": "co2e_g", "cost": "cost"}
"""Key of a budget -> its quantity in `total/`."""
UNITS = {"energy_j": "J", "time_s": "s", "carbon_g": "g"}
"""Key of a budget -> its unit; that of a cost is the currency."""
OF_ENERGY = ("energy_j", "carbon_g", "cost")
NEEDS = {
    "carbon_g": ("intensity", "footprint.intensity=FRA"),
    "cost": ("price", "footprint.price=0.25 footprint.currency=EUR"),
}
"""Key of a budget -> the key of `footprint` that it needs, and an example."""
STOPPED = "budget reached: {}"
CONTINUED = "budget reached, and the script continued: {}"
UNKNOWN = "`budget.{}` could not be checked: it is not known what {} used"


def check_budget(job: Job) -> None:
    """Refuse a budget whose quantity the configuration does not give; raises InputError."""
    limits = job.budget.limits
    for key, (needed, example) in NEEDS.items():
        if key in limits and getattr(job.footprint, needed) is None:
            raise input_error(f"`budget.{key}={limits[key]:g}` needs `footprint.{needed}`", f"add it: `{example}`")
    if job.budget.stop and not job.measure.command:
        raise input_error("`budget.stop=true` is for scripts: other training ends by itself", "leave it out")
    if job.budget.stop and not limits:
        raise input_error("`budget.stop=true` has no budget", "add one, such as `budget.time_s=3600`")


def check_is_measured(job: Job, run: RunInfo) -> None:
    """Refuse a budget of energy, carbon or cost if this machine does not measure energy; raises InputError."""
    if run.energy.is_measured:
        return
    missing = run.energy.missing.message if run.energy.missing else "it is estimated"
    for key, limit in job.budget.limits.items():
        if key in OF_ENERGY:
            hint = "set a budget of time, `budget.time_s=`, or a meter that measures it (docs/energy.md)"
            raise input_error(f"`budget.{key}={limit:g}` needs measured energy: {missing}", hint)


def budget_notes(job: Job, run: RunInfo, windows: Sequence[Window]) -> list[str]:
    """Return notes on a run that has ended: that a budget was reached, or could not be checked."""
    tracker = BudgetTracker(job, run, windows)
    notes = [UNKNOWN.format(key, f"{count} of {tracker.epochs} epochs") for key, count in tracker.unknown().items()]
    if use := run.budget:
        is_stopped = job.budget.stop or not job.measure.command
        has_continued = tracker.epochs > use["epochs"] + is_stopped  # a stopped script has a partial epoch
        if has_continued or is_stopped:
            text = CONTINUED if has_continued else STOPPED
            notes.append(text.format(_use_text(use, job.footprint.currency)))
    return notes


def _use_text(use: BudgetUse, currency: str | None) -> str:
    """Return what training has used of a budget, and what one more epoch would need."""
    unit = UNITS.get(use["key"], currency or "")
    used, more = (quantity(value, unit) for value in (use["used"], use["expected"] - use["used"]))
    epochs = f"{use['epochs']} epoch{'s' if use['epochs'] > 1 else ''}"
    return f"`budget.{use['key']}={use['limit']:g}`, {used} used in {epochs}, and one more would need about {more}"


class BudgetTracker:
    """Adds up what a run uses, epoch by epoch with its evaluations; windows that a script has named do not count.

    Args:
        job: The configuration, with the budgets.
        run: The metadata, for the clock of an hourly carbon intensity.
        windows: Those before the run was resumed.
    """

    def __init__(self, job: Job, run: RunInfo, windows: Iterable[Window] = ()) -> None:
        self._job, self._run = job, run
        self._limits = job.budget.limits
        self._totals = RunningTotals()  # of each epoch with its evaluations
        self._last: list[Window] = []  # windows of the last epoch
        for window in windows:
            self.add(window)

    def add(self, window: Window) -> None:
        """Add a window that has ended."""
        if not self._limits or window["window"] not in TRAINING_WINDOWS:
            return
        if window["window"] == "epoch":
            self._last = []
            self._totals.begin()
        if self._totals.epochs:
            self._last.append(window)
            self._totals.last = self._totals_of_last()

    @property
    def epochs(self) -> int:
        """Number of epochs so far."""
        return self._totals.epochs

    def unknown(self) -> dict[str, int]:
        """Return the budgets whose quantity is not known of all epochs, with the number of those without."""
        counts = {key: self.epochs - self._totals.known(TOTALS[key]) for key in self._limits}
        return {key: count for key, count in counts.items() if count}

    def reached(self, forecaster: Forecaster) -> BudgetUse | None:
        """Return the first budget that one more epoch would exceed, by the forecast; None if there is none."""
        if not (self._limits and self.epochs):
            return None
        following = forecaster.metrics(self.epochs + 1)
        for key, limit in self._limits.items():
            used = self._totals.sum(TOTALS[key])
            if used is not None and (expected := used + self._next(key, following)) > limit:
                return {"key": key, "limit": limit, "used": used, "expected": expected, "epochs": self.epochs}
        return None

    def _next(self, key: str, following: Mapping[str, float]) -> float:
        """Return what one more epoch needs, carbon and cost in proportion to energy; without forecast, as the last."""
        total, last = TOTALS["energy_j" if key in OF_ENERGY else key], self._totals.last
        so_far, forecast = self._totals.sum(total), following.get(f"forecast/{total}")
        if so_far is None or forecast is None or not last[total]:
            return last[TOTALS[key]]
        return (forecast - so_far) * last[TOTALS[key]] / last[total]

    def _totals_of_last(self) -> dict[str, float]:
        values, _ = footprint.evaluate(self._last, self._run, self._job)
        return total_metrics(self._last) | {name.removeprefix("total/"): value for name, value in values.items()}
