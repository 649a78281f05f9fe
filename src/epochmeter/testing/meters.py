"""The contract of a meter: what windows of energy rely on."""

import math
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from epochmeter.power.instrument import SOURCES
from epochmeter.power.meter import EnergyMeter

MAX_W = 20_000.0  # more than one machine uses: joules that are millijoules exceed it
LIMIT_S = 5.0  # how long a meter may take until all domains can be read, or its threads have ended
READERS, READINGS = 4, 20  # threads that read at once, and readings of each
SAMPLED_S = 0.1
NAME = re.compile(r"[A-Za-z]\w*")


class OpenMeter(Protocol):
    """The function that `_target_` in `conf/meter/NAME.yaml` names; it also gets the other keys of that file.

    Example:
        >>> from epochmeter.power.meter import NullMeter
        >>> from epochmeter.testing import check_absent_meter
        >>> def open_socket(*, gpus, root, file):
        ...     return NullMeter(f"there is no {file}")
        >>> check_absent_meter(lambda: open_socket(gpus=[], root=None, file="socket"))
    """

    def __call__(self, *, gpus: list[str], root: Path) -> EnergyMeter:
        """Open the meter of a machine.

        Args:
            gpus: UUIDs of the GPUs that are used, or their PCI addresses.
            root: Folder of the system's files, `/` unless a machine is replayed.
        """


def check_meter(
    open_meter: Callable[[], EnergyMeter],
    *,
    use: Callable[[], object] | None = None,
    fail: Callable[[], object] | None = None,
    max_w: float = MAX_W,
) -> None:
    """Check that a meter is described, counts in joules, never runs backwards, and survives errors and threads.

    Example:
        >>> from itertools import count
        >>> from epochmeter.power.instrument import Domain, Instrument
        >>> from epochmeter.power.meter import EnergyMeter
        >>> from epochmeter.testing import check_meter
        >>> def open_counter():
        ...     joules = count(1)
        ...     counter = Instrument(Domain("counter", 0.1, "the machine"), lambda: float(next(joules)))
        ...     return EnergyMeter(counters={"machine": counter}, total=["machine"], covers="the machine")
        >>> check_meter(open_counter)

    Args:
        open_meter: Opens it, such as `partial(open_socket, file=path, gpus=[], root=Path("/"))`.
        use: Uses energy, such as `lambda: time.sleep(2)`, or lets a simulated instrument count; the total must grow.
            None: it need not grow.
        fail: Makes an instrument of the total unreadable. None: errors are not checked.
        max_w: Largest possible mean power of the total.

    Raises:
        AssertionError: The meter is not as the tool needs it, with the reason.
    """
    threads = {*threading.enumerate()}
    meter = open_meter()
    try:
        _check_description(meter)
        _check_total(meter)
        _check_readings(meter, use, max_w)
        _check_samples(meter)
        _check_threads(meter)
        if fail is not None:
            _check_failure(meter, fail)
    finally:
        meter.close()
    _check_closed(meter, threads)


def check_absent_meter(open_meter: Callable[[], EnergyMeter]) -> None:
    """Check that the meter of a machine without its instrument states why, and has no energy rather than zero.

    Example:
        >>> from epochmeter.power.meter import NullMeter
        >>> from epochmeter.testing import check_absent_meter
        >>> check_absent_meter(lambda: NullMeter("there is no socket"))

    Args:
        open_meter: Opens it where there is no instrument; it must not raise.

    Raises:
        AssertionError: The meter has an energy, or no reason.
    """
    meter = open_meter()
    _require(meter.energy["source"] == "none", f"`energy['source']` is {meter.energy['source']!r}, not 'none'")
    _require(bool(meter.energy["reason"]), "`energy['reason']` does not state why there is no energy: use `NullMeter`")
    _require(bool(meter.energy.get("codes")), "`energy['codes']` is empty: use `NullMeter`")
    _require(meter.total(readings := _read(meter)) is None, f"its readings {readings} have a total")
    meter.close()


def _check_description(meter: EnergyMeter) -> None:
    energy, parts = meter.energy, _parts(meter)
    _require(bool(parts), "no domain is in the total; where there is no instrument, use `check_absent_meter`")
    _require(sorted(energy["domains"]) == sorted(parts), f"the total adds up {parts}, not {energy['domains']}")
    sources = [meter.domains[name].source for name in parts]
    for name, domain in meter.domains.items():
        _require(bool(NAME.fullmatch(name)), f"the domain {name!r} cannot be a part of the name of a metric")
        _require(domain.source in SOURCES, f"{name}: the source {domain.source!r} is none of {SOURCES}")
        _require(bool(domain.covers), f"{name}: `covers` does not state which part of the machine it measures")
        _require(domain.period_s > 0 <= domain.step, f"{name}: the period is not above 0, or the step is below 0")
        _require(all(value is None or value >= 0 for value in domain.response), f"{name}: a time of {domain.response}")
    least = max(sources, key=SOURCES.index)
    _require(energy["source"] == least, f"the source is {energy['source']!r}, but a domain of the total is {least!r}")
    _require(bool(energy["covers"]), "`covers` does not state which parts of the machine the total includes")
    is_estimate = energy["source"] == "estimated"
    _require(bool(energy.get("codes")) == is_estimate, "estimates have a code, and measured energies have none")


def _parts(meter: EnergyMeter) -> set[str]:
    """Return the domains that the total adds up."""
    everything = dict.fromkeys(meter.domains, 1.0)
    return {name for name in meter.domains if meter.total({**everything, name: 1.5}) != meter.total(everything)}


def _check_total(meter: EnergyMeter) -> None:
    parts = _parts(meter)
    joules = {name: float(2**number) for number, name in enumerate(meter.domains)}
    expected = sum(joules[name] for name in parts)
    _require(meter.total(joules) == expected, "the total is not the sum of its domains")
    _require(meter.total({name: joules[name] for name in parts}) == expected, "the total needs a domain outside of it")
    for name in parts:
        others = {other: value for other, value in joules.items() if other != name}
        _require(meter.total(others) is None, f"there is a total although {name} is missing")


def _check_readings(meter: EnergyMeter, use: Callable[[], object] | None, max_w: float) -> None:
    limit_s = time.monotonic() + LIMIT_S  # samples that only check a counter may arrive later
    while (before := _read(meter)).keys() != meter.domains.keys() and time.monotonic() < limit_s:
        time.sleep(0.01)
    missing = meter.domains.keys() - before.keys()
    _require(not missing, f"cannot be read within {LIMIT_S:g} s: {sorted(missing)} ({meter.failures})")
    opened_s, total_j = time.monotonic(), meter.total(before)
    if use is not None:
        use()
    after, lasted_s = _read(meter), time.monotonic() - opened_s
    _require(before.keys() == after.keys(), f"a later reading lacks {sorted(before.keys() - after.keys())}")
    _check_monotone(before, after)
    grown_j = (meter.total(after) or 0.0) - (total_j or 0.0)
    _require(grown_j > 0 or use is None, "the total has not grown while energy was used")
    period_s = max(meter.domains[name].period_s for name in meter.energy["domains"])  # of which a reading may have all
    largest_j = max_w * (lasted_s + period_s)
    _require(grown_j <= largest_j, f"the total grew by {grown_j:g}, more than {max_w:g} W: are these joules?")


def _read(meter: EnergyMeter) -> Mapping[str, float]:
    try:
        return meter.read()
    except Exception as error:
        reason = f"reading raises {error!r}: the reader of an instrument raises OSError or ValueError"
        raise AssertionError(reason) from error


def _check_monotone(before: Mapping[str, float], after: Mapping[str, float]) -> None:
    for name, joules in after.items():
        _require(math.isfinite(joules), f"{name}: {joules} is not a number of joules")
        _require(joules >= before.get(name, -math.inf), f"{name} runs backwards: {before.get(name)} J, then {joules} J")


def _check_samples(meter: EnergyMeter) -> None:
    opened_ns = time.monotonic_ns()
    meter.read()
    time.sleep(SAMPLED_S)  # a counter's power is sampled only between its readings
    meter.read()
    closed_ns = time.monotonic_ns()
    sampling, powers = meter.sampling(opened_ns, closed_ns), meter.drain(closed_ns + 1)
    times_ns = list(powers.times_ns)
    _require((sampling is not None) == bool(times_ns), "a meter has both samples and their statistics, or neither")
    _require(powers.watts.keys() <= meter.domains.keys(), "there are samples of unknown domains")
    counts = {len(values) for values in (*powers.watts.values(), powers.total_w)}
    _require(counts == {len(times_ns)}, f"{len(times_ns)} times have {counts} samples")
    _require(times_ns == sorted(times_ns), "samples are not in the order of time")
    if sampling:
        _require(sampling.samples >= 2, f"{sampling.samples} samples between two readings: each takes one")
        gap_s = sampling.gap_max_s
        _require(0 < gap_s <= (closed_ns - opened_ns) * 1e-9, f"the longest gap, {gap_s:g} s, is none of the window")
        _require(sampling.half_width_j >= 0, "the uncertainty is negative")
        _require(not sampling.failed and not sampling.unavailable, f"samples failed: {sampling.unavailable}")
    again = {*times_ns} & {*meter.drain(time.monotonic_ns()).times_ns}
    _require(not again, f"{len(again)} samples were drained twice")


def _check_threads(meter: EnergyMeter) -> None:
    errors: list[BaseException] = []

    def read_often() -> None:
        try:
            before = meter.read()
            for _ in range(READINGS):
                after = meter.read()
                _check_monotone(before, after)
                before = after
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read_often) for _ in range(READERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _require(not errors, f"reading in {READERS} threads at once: {errors[:1]}")


def _check_failure(meter: EnergyMeter, fail: Callable[[], object]) -> None:
    fail()
    opened_ns = time.monotonic_ns()
    limit_s = time.monotonic() + LIMIT_S  # sampled power is interpolated over short gaps
    while meter.total(reading := _read(meter)) is not None and time.monotonic() < limit_s:
        time.sleep(0.05)
    _require(meter.total(reading) is None, f"an instrument cannot be read, but the total is {meter.total(reading)} J")
    sampling = meter.sampling(opened_ns, time.monotonic_ns())
    reasons = {**meter.failures, **(sampling.unavailable if sampling else {})}
    _require(bool(reasons), "an instrument cannot be read, and nothing states why: its reader raises OSError")


def _check_closed(meter: EnergyMeter, before: set[threading.Thread]) -> None:
    meter.close()  # a second time, as at the end of a run that failed
    limit_s = time.monotonic() + LIMIT_S
    while (left := {*threading.enumerate()} - before) and time.monotonic() < limit_s:
        time.sleep(0.01)
    _require(not left, f"threads run after `close`: {[thread.name for thread in left]}")


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise AssertionError(reason)
