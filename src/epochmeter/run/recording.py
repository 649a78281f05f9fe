"""The windows of a run in its record: their metrics, notes and flags, their forecasts, and their publication."""

import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from epochmeter.config.script import RANKS_HINT
from epochmeter.config.secrets import redact_tree
from epochmeter.console.console import Terminal
from epochmeter.machine import gpus
from epochmeter.machine.energy_codes import EnergyCode, Finding
from epochmeter.power.knobs.applied_settings import AppliedSettings
from epochmeter.power.knobs.device_settings import AUTO
from epochmeter.power.meter import EnergyMeter
from epochmeter.power.window_energy import Reading, take_reading
from epochmeter.results.budget import BudgetTracker
from epochmeter.results.footprint import epoch_footprint, forecast_cost
from epochmeter.results.forecast import Forecaster, no_forecast_reason
from epochmeter.results.processor import demand_of
from epochmeter.results.roofline import epoch_utilization
from epochmeter.results.run_info import training_facts
from epochmeter.results.summary import reaches_target
from epochmeter.run.instruments import WindowInstruments, write_gauges
from epochmeter.run.job_status import NOT_SENT, JobStatus
from epochmeter.run.plan import Plan
from epochmeter.run.settling import WarmUp
from epochmeter.run.stage_energy import StageMeter
from epochmeter.run.window_record import MIN_SUSPENSION_S, build_window
from epochmeter.run.window_verdict import with_changed_settings
from epochmeter.segmentation.windows import PhaseStretches
from epochmeter.shared import protocol
from epochmeter.shared.problem import machine_error
from epochmeter.shared.protocol import WindowOpening
from epochmeter.shared.record import rank_row_count, step_count

if TYPE_CHECKING:
    from epochmeter.run.limit_probing import LimitProbing

CLOCK_KEY = "gpu_clock_mean_hz"
OF_NODES = Finding(EnergyCode.OTHER_NODE, "the energy outside of windows is not measured on several nodes.")
ATTACHED = Finding(EnergyCode.NO_CONTROLLER, "the script had begun before its controller.")
GAUGES_WRITE_S = 10.0
"""Shortest time between two writes of gauges within a window, since they may delay reads of the same disk."""


class Recording:
    """Records the windows of a run, one after another: `open_window`, `progress`, `close_window`, `add`, `save`."""

    def __init__(
        self, plan: Plan, instruments: WindowInstruments, settings: AppliedSettings, terminal: Terminal,
        status: JobStatus = NOT_SENT,
    ) -> None:  # fmt: skip
        self._status = status
        self._plan, self._instruments = plan, instruments
        self._settings, self._terminal = settings, terminal
        earlier = plan.record.windows()
        self._steps, self._rank_rows = step_count(earlier), rank_row_count(earlier)
        self._forecaster = Forecaster(
            earlier, plan.job.warmup_epochs, lambda count: plan.record.steps(self._steps - count, count)
        )
        self._stages = StageMeter(instruments.meter)
        self._budget = BudgetTracker(plan.job, plan.run, earlier)
        self._forecast: dict[str, float] = {}
        self._probing: LimitProbing | None = None
        searched = {key for key in plan.targets if plan.job.device_settings.get(key) == AUTO}  # none in a rehearsal
        if searched:
            from epochmeter.run import limit_probing  # imports SciPy, which takes time

            self._probing = limit_probing.LimitProbing(plan, instruments.meter, settings, terminal, self._clock_hz)
        self._warm_up: WarmUp | None = None  # None: not requested, or over
        if plan.job.sweep.settle:
            self._warm_up = WarmUp(instruments.meter, self._clock_hz, plan.job.sweep.settle_s)
        self._unsaved: Mapping[str, Any] | None = None
        self._gauges_written_s = time.monotonic()

    def start(self, before: Reading) -> None:
        """Note that the process has started after a reading, and uses energy before its first window."""
        self._stages.begin(before)

    def begin(self, built: protocol.Built, pids: Sequence[int]) -> None:
        """Record what is known of the model and the training; RuntimeError if other GPUs are metered than train."""
        self._plan.run.model, self._plan.run.training = {**built.model}, training_facts(built.training)
        self._plan.describe()
        check_metered(self._plan, self._instruments.meter)
        self._instruments.own_processes(pids)
        write_gauges(self._instruments.gauges, self._plan.record)

    def open_window(self, opened: WindowOpening, reading: Reading) -> None:
        """Note that a window has begun with a reading of the meter."""
        if self._warm_up and opened.window == "epoch":
            self._warm_up.begin(reading)
        if self._probing:
            self._probing.open_window(opened, reading)

    def forecast(self, opened: WindowOpening) -> None:
        """Forecast the run's totals before an epoch; if there is no forecast, the reason is recorded."""
        plan, epochs = self._plan, opened.epochs
        reason = no_forecast_reason(plan.job, epochs)
        if reason and opened.epoch and plan.run.forecast is None:
            plan.run.forecast = {"reason": reason}
            plan.describe()
        metrics = {} if reason or epochs is None else self._forecaster.metrics(epochs)
        self._forecast = metrics | forecast_cost(metrics, plan.job.footprint)
        self._terminal.forecast(self._forecast, plan.job.footprint.currency)

    def progress(self, opened: WindowOpening, progress: protocol.Progress, read: Callable[[], Reading]) -> None:
        """Show and record the progress of the open window; `read` returns the reading at the end of the last step."""
        record = self._plan.record
        self._terminal.progress(progress.steps, progress.loss)
        self._status.progress(opened, progress.steps)
        if opened.window == "epoch":
            done = {"epoch": opened.epoch, "steps": progress.steps, "epoch_steps": opened.steps}
            record.append_progress({**done, "parts": progress.parts or {}})
        if time.monotonic() - self._gauges_written_s >= GAUGES_WRITE_S:
            write_gauges(self._instruments.gauges, record, durably=False)
            self._gauges_written_s = time.monotonic()
        if self._probing:
            self._probing.progress(progress.steps, read)
        if self._warm_up and opened.window == "epoch":
            self._warm_up.progress(read)

    def close_window(self, closed: WindowOpening, reading: Reading) -> None:
        """Note that a window, whose kind is known now, has ended with a reading of the meter."""
        self._plan.record.end_progress()
        if self._warm_up:
            self._warm_up.end(reading, is_epoch=closed.window == "epoch")
        if self._probing:
            self._probing.close_window(reading, closed)

    def add(
        self,
        opened: WindowOpening,
        measured: protocol.WindowMeasured,
        before: Reading,
        after: Reading,
        notes: Sequence[str] = (),
        *,
        rule: str = "",
        training: int | None = None,
        loading: Mapping[str, Any] | None = None,
        is_warmup: bool = False,
        timeline: "array[float] | None" = None,
        stretches: PhaseStretches | None = None,
    ) -> protocol.Recorded:
        """Add the measurements of a window that has ended, and return those for the training process.

        Args:
            notes: Further notes on the window.
            rule: Why it is a window of its kind, in a script.
            training: Number of its training, in a script.
            loading: How its batches were loaded, in a script.
            is_warmup: Whether it counts as warm-up for another reason than its number.
            timeline: Rows of its parts in order of time, in a script; None: those of its steps.
            stretches: Its phases in order of time, in a script.
        """
        plan = self._plan
        self._stages.add_window(before, after)
        demand = demand_of(plan.job, plan.run.training, plan.run.usable_cores)
        window = build_window(
            opened, measured, before, after, self._instruments, plan.record, self._steps,
            demand=demand, earlier_rank_rows=self._rank_rows, timeline=timeline, stretches=stretches,
        )  # fmt: skip
        self._steps += step_count([window.line])
        self._rank_rows += rank_row_count([window.line])
        metrics = {**window.line["metrics"], **self._derived_metrics(window.line, training)}
        drift = self._settings.drift_messages()  # device settings that another program changed meanwhile
        flags = {**window.flags, **({"setting_changed": " ".join(drift)} if drift else {})}
        texts = {"notes": [*notes, *window.notes, *drift], "flags": flags}
        if self._probing and training is not None and opened.window == "epoch":
            self._probing.note_training(training)
        remarks = {name: redact_tree(content) for name, content in texts.items() if content}
        is_settling = self._note_settling(window.line)
        is_warmup = is_warmup or is_settling or self._is_resumed(window.line)
        warmup = {"warmup": True} if is_warmup else self._probing_mark(window.line)
        of_script: dict[str, object] = {"rule": rule} if rule else {}
        of_script |= {} if training is None else {"training": training}
        of_script |= {"loading": loading} if loading and opened.window == "epoch" else {}
        validity = with_changed_settings(window.line, drift)
        suspended = self._suspension(opened.epoch, after)
        self._unsaved = {**window.line, "metrics": metrics, **validity, **of_script, **warmup, **suspended, **remarks}
        self._forecaster.add(self._unsaved)
        self._check_budget(self._unsaved)
        self._report(opened, self._unsaved)
        return self._reply(self._unsaved, window.no_energy)

    def _suspension(self, epoch: int, after: Reading) -> dict[str, float]:
        """Return how long the machine was suspended since the clock that times an epoch; empty if it was not."""
        clock = self._plan.run.start_of(epoch).clock
        if clock is None or clock.suspended_s is None:
            return {}
        suspended_s = after.suspended_s - clock.suspended_s
        return {"suspended_s": round(suspended_s, 3)} if suspended_s >= MIN_SUSPENSION_S else {}

    def _report(self, opened: WindowOpening, line: Mapping[str, Any]) -> None:
        """Report a window to the job scheduler; the rest is forecast when an epoch and its evaluation have ended."""
        is_followed = opened.window == "epoch" and self._plan.job.evaluate and not self._plan.job.measure.command
        if self._status is not NOT_SENT and opened.epochs and not is_followed:
            reason = no_forecast_reason(self._plan.job, opened.epochs)
            self._status.forecast(None if reason else self._forecaster.remaining_s(opened.epochs))
        self._status.add(opened, line)

    @property
    def last(self) -> Mapping[str, Any]:
        """The line of the window that was added last, until it is saved."""
        assert self._unsaved
        return self._unsaved

    def save(self) -> None:
        """Write the window that was added last, unless it was written before."""
        if self._unsaved is None:
            return
        line, self._unsaved = self._unsaved, None
        self._plan.record.append(line)
        write_gauges(self._instruments.gauges, self._plan.record)
        self._plan.set_flags(line.get("flags", {}))
        self._terminal.window_closed()
        self._terminal.window_measured(line, self._plan.job.epochs)

    def end(self) -> None:
        """Write what is left when training has ended."""
        self.save()
        if self._probing:
            self._probing.end()

    def process_ended(self) -> None:
        """Note that the process has ended now, and record what it used outside of windows."""
        self._stages.end(take_reading(self._instruments.meter), OF_NODES if self._plan.node.nodes > 1 else ATTACHED)
        self._plan.run.stage_energies, self._plan.run.stage_energy_reasons = self._stages.stages, self._stages.reasons

    def _reply(self, line: Mapping[str, Any], own_reason: str) -> protocol.Recorded:
        reasons = filter(None, (self._plan.run.energy.reason, own_reason))
        no_energy = " ".join(reasons) or "the window has no energy"
        has_energy = f"{line['window']}/energy_j" in line["metrics"]
        stop = reaches_target(line, self._plan.job) or self.has_reached_budget
        return protocol.Recorded(stop, line["metrics"], "" if has_energy else no_energy)

    @property
    def has_reached_budget(self) -> bool:
        """Whether one more epoch would exceed a budget."""
        return self._plan.run.budget is not None

    def _check_budget(self, line: Mapping[str, Any]) -> None:
        """Note the first budget that one more epoch would exceed, if a window is the last of its epoch."""
        job, run = self._plan.job, self._plan.run
        self._budget.add(line)
        has_evaluation = job.evaluate and not job.measure.command
        is_last = line["epoch"] + 1 == job.epochs and not job.measure.command
        if line["window"] != ("val" if has_evaluation else "epoch") or is_last or run.budget:
            return
        if reached := self._budget.reached(self._forecaster):
            run.budget = reached
            self._plan.describe()

    def _derived_metrics(self, line: Mapping[str, Any], training: int | None) -> Mapping[str, float]:
        """Return an epoch's utilization, carbon, cost and forecast; FLOPs are those of a script's first training."""
        if line["window"] != "epoch":
            return {}
        run, job = self._plan.run, self._plan.job
        measured = {name.removeprefix("epoch/"): value for name, value in line["metrics"].items()}
        utilization = {} if training else epoch_utilization(measured, run, job.roofline.flops)
        named = {f"epoch/{name}": value for name, value in utilization.items()}
        return {**named, **epoch_footprint(line, run, job.footprint), **self._forecast}

    def _is_resumed(self, line: Mapping[str, Any]) -> bool:
        """Return whether an epoch is one of the first after the run was resumed."""
        resumed, is_epoch = self._plan.run.resumed, line["window"] == "epoch"
        return bool(resumed) and is_epoch and line["epoch"] - resumed[-1].epoch < self._plan.job.warmup_epochs

    def _clock_hz(self) -> float | None:
        return self._instruments.gauges.current_value(CLOCK_KEY)

    def _note_settling(self, line: Mapping[str, Any]) -> bool:
        """Return whether the device had not settled when an epoch began, and record how it settles."""
        if line["window"] != "epoch" or self._warm_up is None:
            return False
        settling = self._warm_up.settling
        self._plan.run.settling = settling.document()
        self._plan.describe()
        if settling.is_over:
            self._warm_up = None
            self._terminal.info(str(settling), style="dim")
        return True

    def _probing_mark(self, line: Mapping[str, Any]) -> dict[str, bool]:
        return self._probing.record_window(line) if self._probing else {}


def check_metered(plan: Plan, meter: EnergyMeter) -> None:
    """Raise RuntimeError if the metered GPUs are not those that train; a replayed machine is not checked."""
    training = plan.run.training
    if not (meter.domains and plan.gpus) or plan.job.machine.root != "/":
        return
    on_cpu = training["accelerator"] == "cpu"
    reported = [] if on_cpu else training.get("gpus_here") or training.get("gpus") or [training["gpu"].get("uuid")]
    trained = sorted({uuid for uuid in reported if uuid})  # empty with an old torch
    are_metered = all(any(gpus.matches_uuid(uuid, name) for name in plan.gpus) for uuid in trained)
    # The GPUs of a script's other ranks are checked by `check_trained`.
    may_be_fewer = plan.job.measure.command and plan.job.strategy.ranks != 1
    are_complete = len(trained) == len(plan.gpus) or may_be_fewer
    if on_cpu or (trained and not (are_metered and are_complete)):
        training_gpus = ",".join(f"GPU-{uuid}" for uuid in trained)
        own = "select the GPUs that train with CUDA_VISIBLE_DEVICES and `strategy.ranks=`"
        raise machine_error(
            f"{training_gpus or 'the CPU'} trains, but {','.join(plan.gpus)} is metered",
            f"{RANKS_HINT if plan.job.measure.command else own}; if the CPU trains, set `device=cpu`, or "
            "`device.python=` to an interpreter whose torch finds the GPU",
        )
