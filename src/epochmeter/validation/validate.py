"""Validate this machine: make the checks that are left, and keep their lines after each one."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from epochmeter.machine.cpu_load import CONTENDED, CpuLoad, describe
from epochmeter.machine.device_lock import lock_devices
from epochmeter.machine.gpu_processes import GpuProcessMonitor
from epochmeter.power.knobs.restore import restore_after_kill
from epochmeter.power.knobs.restore_journal import RestoreJournal
from epochmeter.power.meter import open_meter
from epochmeter.power.uncertainty import Response
from epochmeter.results import validation
from epochmeter.results.run_info import SensorResponse
from epochmeter.results.validation import FILE, SCHEMA, UNTESTED, Line, Validation
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.problem import MachineError, problem_of
from epochmeter.shared.units import NANOSECOND, percent
from epochmeter.validation.bench import Bench
from epochmeter.validation.checks import CHECKS, Check
from epochmeter.validation.line import Found, Untestable, line_of
from epochmeter.validation.this_machine import Machine, find_python, open_bench, versions_of

COMMAND = "validate"
OBSERVED_S = 2.0  # for which other processes are observed, if a check takes less
CONTINUE = "start the same command again: finished lines are kept"

Say = Callable[[str], None]


@dataclass
class Progress:
    """The document so far, and the file that keeps it."""

    document: Validation
    file: Path
    fresh: set[str] = field(default_factory=set)  # checks that were made now

    def lines(self, check: str) -> list[Line]:
        """Return the lines of a check."""
        return [line for line in self.document["lines"] if line["check"] == check]

    def is_finished(self, check: str) -> bool:
        """Whether a check has lines, of which none is to be tested again."""
        lines = self.lines(check)
        return bool(lines) and not any(line["again"] for line in lines)

    def put(self, check: Check, lines: Sequence[Line]) -> None:
        """Replace the lines of a check, and write the document."""
        order = [each.name for each in CHECKS]
        others = [line for line in self.document["lines"] if line["check"] != check.name]
        self.document["lines"] = sorted([*others, *lines], key=lambda line: order.index(line["check"]))
        self.document["validated"] = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self.fresh.add(check.name)
        write_json(self.file, self.document)


def validate(machine: Machine, folder: Path, say: Say) -> Validation:
    """Make the checks that are left, keep the validation for the runs of this machine, and return it.

    Raises:
        MachineError: A file cannot be written, or a lock not be taken.
    """
    config = machine.config
    journal = RestoreJournal(config.machine.state_dir, root=config.machine.root, command=COMMAND)
    restore_after_kill(journal, say)
    progress = Progress(begin(machine, folder / FILE), folder / FILE)
    with ExitStack() as stack:
        left = [check for check in CHECKS if not progress.is_finished(check.name)]
        if kept := len(CHECKS) - len(left):
            say(f"{kept} of {len(CHECKS)} checks are finished, with these versions and this machine.")
        if left:
            meter = stack.enter_context(
                closing(open_meter(config.meter.to_dict(), gpus=machine.names, root=config.machine.root))
            )
            bench = open_bench(machine, meter, journal, stack)
            make_checks(left, bench, progress, machine, say)
            progress.document["instruments"] = instruments_of(bench, progress)
            write_json(progress.file, progress.document)
    with suppress(OSError):
        validation.store(progress.document, machine.identity, config.machine.state_dir)
    return progress.document


def begin(machine: Machine, file: Path) -> Validation:
    """Return the earlier document if it is of this machine with the same versions, else a new one."""
    config = machine.config
    new: Validation = {
        "schema": SCHEMA, "validated": "", "minutes": config.minutes, "settings": config.settings,
        "meter": config.meter.name, "versions": versions_of(machine, find_python(machine)[0]),
        "machine": validation.machine_facts(machine.facts, machine.device.name), "instruments": [], "lines": [],
    }  # fmt: skip
    with suppress(OSError, ValueError):
        earlier = validation.read(file)
        same = ("versions", "machine", "meter", "settings")
        if all(earlier.get(key) == new.get(key) for key in same):
            return {**earlier, "minutes": config.minutes}
    return new


def make_checks(left: Sequence[Check], bench: Bench, progress: Progress, machine: Machine, say: Say) -> None:
    """Make checks in their order, as far as the time allows; each one's lines are written when it is finished."""
    ends_s = time.monotonic() + 60 * machine.config.minutes
    observer = Observer(machine, say)
    with closing(observer):
        for number, check in enumerate(left, 1):
            needed_s = check.seconds * bench.scale
            if time.monotonic() + needed_s > ends_s and check.seconds:
                why = f"no time was left of minutes={machine.config.minutes:g}"
                progress.put(check, [line_of(check.name, Untestable(why=why, hint=CONTINUE, again=True))])
                continue
            say(f"Check {number} of {len(left)}: {check.title}.")
            with locked(machine, check, say):
                found, disturbance = observer.find(check, bench)
            progress.put(check, [line_of(check.name, each, disturbance) for each in found])


@contextmanager
def locked(machine: Machine, check: Check, say: Say) -> Iterator[None]:
    """Lock the devices during a check, unless it starts runs, which lock them."""
    if check.uses_runs:
        yield
        return
    with lock_devices(machine.locks, machine.config.machine.lock_dir, COMMAND, say):
        yield


def find(check: Check, bench: Bench) -> list[Found]:
    """Return what a check finds, or why it cannot be made."""
    try:
        return list(check.find(bench))
    except (MachineError, OSError) as error:  # such as a socket or a file of a known program
        problem = problem_of(error)
        return [Untestable(why=problem.message, hint=problem.hint)]


class Observer:
    """Observes what other processes do during checks."""

    def __init__(self, machine: Machine, say: Say) -> None:
        self._say = say
        self._load, self._gpus = CpuLoad(always_names=True), GpuProcessMonitor(machine.names)
        self._last = ""

    def close(self) -> None:
        """Close the monitor of the GPUs."""
        self._gpus.close()

    def find(self, check: Check, bench: Bench) -> tuple[list[Found], str]:
        """Return what a check finds, and what others did meanwhile or when its readings were taken; empty if little."""
        if not check.needs_quiet:
            return find(check, bench), ""
        self._gpus.poll()
        self._load.mark()
        begun_ns = time.monotonic_ns()
        found = find(check, bench)
        has_values = any(not isinstance(each, Untestable) for each in found)
        if has_values and (time.monotonic_ns() - begun_ns) * NANOSECOND < OBSERVED_S and check.seconds:
            time.sleep(OBSERVED_S)
        self._load.mark()
        self._gpus.poll()
        use = self._load.window(begun_ns, time.monotonic_ns())
        others = self._gpus.drain()
        reasons = [f"{len(others)} other processes computed on the GPU"] if others else []
        if use.other_fraction is not None and use.other_fraction >= CONTENDED:
            reasons.append(f"other processes used {percent(use.other_fraction)} of the processor time")
            others += [describe(use.others)] if use.others else []
        if others:  # printed only: the document, which may be published, has no names of processes
            self._say(f"Other processes: {'; '.join(others)}.")
        inherited = "" if check.seconds else self._last  # its readings were taken by the check before
        self._last = "; ".join(reasons) or inherited
        return found, self._last


def instruments_of(bench: Bench, progress: Progress) -> list[validation.Instrument]:
    """Return the instruments with the measured responses that runs use: undisturbed ones only."""
    found = {each["name"]: each for each in progress.document.get("instruments", [])}
    if "averaging" not in progress.fresh:
        return [*found.values()]
    tested = {line["subject"] for line in progress.lines("averaging") if line["state"] != UNTESTED}
    instruments: list[validation.Instrument] = []
    for name, instrument in bench.instruments.items():
        domain = instrument.domain
        one: validation.Instrument = {
            "name": name, "source": domain.source, "covers": domain.covers, "assumed": as_record(domain.response),
        }  # fmt: skip
        if name in tested and (response := bench.used_response(name)):
            one["response"] = as_record(response)
        instruments.append(one)
    return instruments


def as_record(response: Response) -> SensorResponse:
    """Return a response as recorded."""
    return {
        "averaging_s": response.averaging_s, "lag_s": response.lag_s, "renewal_s": response.renewal_s,
        "is_filter": response.is_filter,
    }  # fmt: skip
