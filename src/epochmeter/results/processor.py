"""Two causes of a scarce processor: the run has more threads ready to run than cores, or others use the cores."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from epochmeter.config.schema import Job
from epochmeter.results.run_info import OVERSUBSCRIBED, RunInfo, Training
from epochmeter.results.summary import Window
from epochmeter.shared.problem import Problem, format_problem
from epochmeter.shared.units import percent, percentage

CPU_SHARED = "cpu_shared"  # flag of windows and runs whose processor was shared with other processes
MIN_WAIT = 0.3
"""Fraction of the time in which the run's threads ran or were ready to run, from which waiting for a core is noted.

On two idle cores with two DataLoader workers, LeNet's threads waited 34 to 44 % with two threads of torch, and an epoch
took 1.3 to 1.5 times as long as with one (22 to 30 %). ResNet-18, for which two threads are faster, waited 6 %.
"""
MIN_USED = 0.1  # cores' time of others that is stated
MAX_NAMED = 3  # processes of a run that are named
INIT = 1  # pid of a process whose end is that of the machine, or of its container


class Demand(NamedTuple):
    """The threads of a run that want cores, and the cores that it may use.

    Attributes:
        workers: DataLoader workers per rank; None for a script, whose loaders are its own.
        threads: Threads of torch per rank; None if unknown.
    """

    workers: int | None
    threads: int | None
    ranks: int
    cores: int

    def __str__(self) -> str:
        """Return the demand as a text: `2 DataLoader workers + 2 threads on 2 cores`."""
        threads = [] if self.threads is None else [_plural(self.threads, "thread")]
        workers = [] if self.workers is None else [_plural(self.workers, "DataLoader worker")]
        text = " + ".join([*workers, *threads]) or "the threads"
        each = f" for each of {self.ranks} ranks" if self.ranks > 1 else ""
        of_script = " of torch" if threads and self.workers is None else ""
        return f"{text}{of_script}{each} on {_plural(self.cores, 'core')}"

    @property
    def remedy(self) -> str:
        """The setting with which the threads and DataLoader workers fit the cores, as far as it is known.

        Fewer DataLoader workers may also prepare too few batches: they are to be compared.
        """
        cores = self.cores // self.ranks
        if self.workers is None:
            return "set `OMP_NUM_THREADS=1`" if self.threads != 1 else "let the script start fewer DataLoader workers"
        fitting = max(1, cores - self.workers)
        if self.threads is None or self.threads > fitting:
            return f"set `threads={fitting}`"
        fewer = max(0, cores - self.threads)
        return f"compare with `workers={fewer}`" if fewer < self.workers else "use fewer ranks"


def demand_of(job: Job, training: Training, cores: int | None) -> Demand | None:
    """Return the threads of a run that want cores, as configured and as its training process has reported.

    None without the number of usable cores, which records of earlier versions lack.
    """
    if cores is None:
        return None
    workers = job.workers if isinstance(job.workers, int) and job.has_loader else 0
    return Demand(None if job.measure.command else workers, training.get("threads"), job.strategy.processes, cores)


def is_oversubscribed(metrics: Mapping[str, float], demand: Demand, *, is_contended: bool) -> bool:
    """Return whether the run itself had more threads ready to run than cores, and they waited much.

    Threads that wait for other processes are ready to run for longer. If the processor is contended, they are a cause
    only if torch has several threads, which wait for each other in each operator.

    Args:
        metrics: Those of an epoch without section.
        demand: The threads that want cores.
        is_contended: Whether other processes left no core free.
    """
    is_waiting = metrics.get("run_queue_wait_fraction", 0.0) >= MIN_WAIT
    exceeds = metrics.get("runnable_threads", 0.0) > demand.cores
    return is_waiting and exceeds and not (is_contended and demand.threads == 1)


def oversubscription(metrics: Mapping[str, float], demand: Demand, machine_cores: int) -> str:
    """Return why an epoch is oversubscribed, with the cores that others left free, as a text."""
    used = metrics.get("other_cpu_fraction", 0.0) * machine_cores
    free = max(0.0, min(demand.cores, machine_cores - used))
    others = f", of which other processes left {free:.1f} free" if used >= MIN_USED else ""
    waited = f"the threads waited {percent(metrics['run_queue_wait_fraction'])} of their time for a core"
    ready = f"{metrics['runnable_threads']:.1f} were ready to run on average"
    return f"oversubscribed: {demand}{others}; {ready}, and {waited}"


def processor_warnings(windows: Sequence[Window], job: Job, run: RunInfo) -> list[str]:
    """Return warnings on a scarce processor, one for each cause."""
    demand = demand_of(job, run.training, run.usable_cores)
    warnings = cpu_load_warning(windows, of_sweep=run.of_sweep)
    return warnings + (oversubscription_warning(windows, demand) if demand else [])


def oversubscription_warning(windows: Sequence[Window], demand: Demand) -> list[str]:
    """Return a warning with a remedy if the run itself had more threads ready to run than cores in some epochs."""
    epochs, texts = _flagged(windows, OVERSUBSCRIBED)
    if not epochs:
        return []
    text = texts[0].partition(": ")[2]  # without the epoch
    return [format_problem(Problem(f"{text} (in {_count(epochs, windows)})", demand.remedy), "warning")]


def cpu_load_warning(windows: Sequence[Window], *, of_sweep: bool = False) -> list[str]:
    """Return a warning if other processes took processor time from epochs, with the processes to end."""
    epochs, _ = _flagged(windows, CPU_SHARED)
    if not epochs:
        return []
    fractions = [epoch["metrics"]["epoch/other_cpu_fraction"] for epoch in epochs]
    used_percent = " to ".join(dict.fromkeys(percentage(end(fractions)) for end in (min, max)))
    used = f"other processes used {used_percent} % of the processor time in {_count(epochs, windows)}"
    *names, last = [f"{name} (pid {pid})" for name, pid in busiest_processes(epochs)] or ["them"]
    named = f"{', '.join(names)} and {last}" if names else last
    again = "measure again with `sweep.again=true`" if of_sweep else "measure again"
    hint = f"end {named}, and {again}; `sweep.wait_idle=600` waits for their end"
    return [format_problem(Problem(f"{used}, and no core was free", hint), "warning")]


def busiest_processes(epochs: Sequence[Window]) -> list[tuple[str, int]]:
    """Return the names and pids of the processes of others that used most processor time in these epochs.

    The first process of the machine is left out, as a hint says to end them.
    """
    used: dict[tuple[str, int], float] = defaultdict(float)
    for epoch in epochs:
        for process in epoch.get("other_processes", ()):
            seconds = epoch["metrics"]["epoch/e2e_s"]
            used[process["name"], process["pid"]] += process["fraction"] * seconds
    return sorted((who for who in used if who[1] != INIT), key=lambda who: -used[who])[:MAX_NAMED]


def _flagged(windows: Sequence[Window], flag: str) -> tuple[list[Any], list[str]]:
    """Return the epochs with a flag, and the texts of the flag."""
    epochs = [window for window in windows if window["window"] == "epoch" and flag in window.get("flags", {})]
    return epochs, [epoch["flags"][flag] for epoch in epochs]


def _count(some: Sequence[Window], windows: Sequence[Window]) -> str:
    return f"{len(some)} of {sum(window['window'] == 'epoch' for window in windows)} epochs"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
