"""How well a validation finds the response of sensors, wrong sensors, and intervals that cover, on simulated machines.

The clock is scripted, so that the minutes of a switched load take a fraction of a second. The checks are those of
`validate.py`, and the energies of windows are those that a run computes.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import NamedTuple

from common.output import print_table, sized
from validation.simulated import A100_POWER, H100_COUNTER, Sensor, World, bench

from epochmeter.power.meters.rails import filter_response
from epochmeter.power.uncertainty import UNKNOWN, Response
from epochmeter.results.validation import FAILED, PASSED
from epochmeter.validation import window_lines
from epochmeter.validation.bench import Bench
from epochmeter.validation.checks import CHECKS
from epochmeter.validation.line import line_of

MACHINES, WRONG_MACHINES, RIGHT_MACHINES, COVERED_MACHINES = sized((20, 30, 100, 10), (1, 1, 1, 1))
PART_TIME, CONTINUOUS = A100_POWER.response, H100_COUNTER.response
CONSTANT_S = 64 * 0.0066
POWER_CHECKS = CHECKS[: [check.name for check in CHECKS].index("energy_per_work") + 1]
RESPONSES = {
    "part-time, 25 of 100 ms": Sensor(PART_TIME),
    "the same, period of 101 ms": Sensor(Response(0.025, 0.0, 0.1011)),
    "part-time, 80 ms late": Sensor(Response(0.025, 0.08, 0.1)),
    "continuous, 20 ms late": Sensor(CONTINUOUS),
    "mean of 1 s": Sensor(Response(1.0, 0.0, 0.1)),
    "10 of 20 ms": Sensor(Response(0.01, 0.0, 0.02)),
    "INA238, 50 ms": Sensor(Response(0.0505, 0.0, 0.0505)),
    "54 ms, 20 ms late, each read": Sensor(Response(0.054, 0.02, 0.0)),
}


class Found(NamedTuple):
    """Relative errors of averaging time and lag; of a lag of 0, in fractions of the sensor's memory."""

    averaging: float
    lag: float


def machine(seed: int, noise: float = 1.0, **options: object) -> Bench:
    """Return a machine whose load, noise and heating differ by its number."""
    world = World(seed, pause_w=40.0 + 7 * (seed % 9), load_w=220.0 + 30 * (seed % 7), drift=0.02 * (seed % 4))
    options = {"count": H100_COUNTER, "sample": A100_POWER, **options}
    for name in ("count", "sample"):
        if sensor := options[name]:
            options[name] = sensor._replace(noise_w=noise * (0.3 + 0.2 * (seed % 6)))
    return bench(seed, world=world, **options)


def errors(sensor: Sensor, *, is_counter: bool) -> Iterator[Found]:
    """Yield the errors of the response of a sensor on each machine."""
    for seed in range(MACHINES):
        options = {"count": sensor, "sample": None} if is_counter else {"count": None, "sample": sensor}
        found = machine(seed, **options).responses["gpu0"]
        if isinstance(found, str):
            yield Found(float("inf"), float("inf"))
            continue
        true = sensor.response
        lag_s = true.lag_s or true.memory_s
        yield Found(
            abs(found.response.averaging_s / true.averaging_s - 1), abs(found.response.lag_s - true.lag_s) / lag_s
        )


def filter_errors() -> Iterator[Found]:
    """Yield the errors of memory and mean age of a low-pass filter."""
    true = filter_response(0.0066, 64)
    for seed in range(MACHINES):
        found = machine(seed, count=None, sample=Sensor(Response(), filter_s=CONSTANT_S)).responses["gpu0"]
        if isinstance(found, str):
            yield Found(float("inf"), float("inf"))
        else:
            response = found.response
            yield Found(abs(response.memory_s / true.memory_s - 1), abs(response.delay_s / true.delay_s - 1))


def show_responses() -> None:
    """Print the largest errors of measured responses."""
    rows = []
    for name, sensor in RESPONSES.items():
        kinds = (False, True) if sensor.response.renewal_s else (False,)
        for is_counter in kinds:
            found = list(errors(sensor, is_counter=is_counter))
            rows.append([name, "counter" if is_counter else "power", *worst(found)])
    rows.append(["INA3221, 64 samples: memory, mean age", "power", *worst(list(filter_errors()))])
    columns = ("sensor", "read as", "averaging: largest error %", "lag: largest error %", "within 10 %")
    print_table(f"Measured responses, {MACHINES} machines each", columns, rows)


def worst(found: list[Found]) -> list[str]:
    """Return the cells of the largest errors."""
    largest = [max(errors) for errors in zip(*found, strict=True)]
    within = sum(max(each) <= 0.1 for each in found)
    return [*(f"{100 * error:.1f}" for error in largest), f"{within} of {len(found)}"]


WRONG: dict[str, Callable[[int], Bench]] = {
    "gain 1.1": lambda seed: machine(seed, sample=A100_POWER._replace(gain=1.1)),
    "lag 80 ms": lambda seed: machine(
        seed, sample=A100_POWER._replace(response=PART_TIME._replace(lag_s=0.08)), power_stated=PART_TIME
    ),
    "part-time 25 %": lambda seed: machine(seed, count=Sensor(PART_TIME), counter_stated=CONTINUOUS),
}


def failed_checks(of: Bench) -> list[str]:
    """Return the checks of energy that fail on a machine."""
    return [
        check.name
        for check in POWER_CHECKS
        if any(line_of(check.name, found)["state"] == FAILED for found in check.find(of))
    ]


def show_verdicts() -> None:
    """Print how many wrong sensors are found, and how many right ones fail."""
    rows = []
    for name, make in WRONG.items():
        failed = [failed_checks(make(seed)) for seed in range(WRONG_MACHINES)]
        named = sorted({check for checks in failed for check in checks})
        rows.append([name, f"{sum(map(bool, failed))} of {WRONG_MACHINES}", ", ".join(named)])
    failed = [failed_checks(machine(seed)) for seed in range(RIGHT_MACHINES)]
    named = sorted({check for checks in failed for check in checks})
    rows.append(["right sensors", f"{sum(map(bool, failed))} of {RIGHT_MACHINES}", ", ".join(named) or "none"])
    print_table("Machines on which a line fails", ("sensor", "machines", "lines that fail"), rows)


ASSUMED: dict[str, dict[str, object]] = {
    "counter, continuous; assumed to add up 25 of 100 ms": {"counter_stated": PART_TIME},
    "counter of an unknown GPU, continuous": {
        "counter_stated": UNKNOWN._replace(renewal_s=0.1), "sample": A100_POWER, "power_stated": UNKNOWN,
    },
    "counter, continuous, without sampled power": {"sample": None},
    "power, renewed each 20 ms, unknown": {
        "count": None, "sample": Sensor(Response(0.02, 0.0, 0.02)), "power_stated": UNKNOWN,
    },
    "power, mean of 100 ms, unknown": {
        "count": None, "sample": Sensor(Response(0.1, 0.0, 0.1)), "power_stated": UNKNOWN,
    },
    "power, 25 of 100 ms, unknown": {"count": None, "sample": A100_POWER, "power_stated": UNKNOWN},
    "power, 80 ms late, unknown": {
        "count": None, "sample": Sensor(Response(0.1, 0.08, 0.1)), "power_stated": UNKNOWN,
    },
}  # fmt: skip


def show_coverage() -> None:
    """Print coverage and width of intervals with the assumed and with the measured response."""
    (check,) = (check for check in CHECKS if check.name == "coverage")
    window_lines.KNOWN = 0.0  # the energy of a simulated load is exact
    rows = []
    for name, options in ASSUMED.items():
        lines = [line_of("coverage", found) for seed in range(COVERED_MACHINES)
                 for found in check.find(machine(seed, **options))]  # fmt: skip
        details = [line["details"] | {"covered": line["value"]} for line in lines if line["value"] is not None]
        assumed, measured = (
            statistics.median(each[f"{kind}median_half_width"] for each in details) for kind in ("assumed_", "")
        )
        windows = sum(each["windows"] for each in details)
        cells = [f"{100 * statistics.fmean(each[key] for each in details):.1f}"
                 for key in ("assumed_coverage", "covered")]  # fmt: skip
        widths = [f"{100 * half:.1f}" for half in (assumed, measured)]
        passed = sum(line["state"] == PASSED for line in lines)
        rows.append([name, f"{windows:.0f}", cells[0], widths[0], cells[1], widths[1],
                     f"{assumed / measured:.1f}", f"{passed} of {len(lines)}"])  # fmt: skip
    columns = ("sensor", "windows", "assumed: covered %", "half-width %", "measured: covered %", "half-width %",
               "narrower by", "lines that pass")  # fmt: skip
    print_table("Intervals of windows of 1 to 4 s with the assumed and with the measured response", columns, rows)


def main() -> None:
    show_responses()
    show_verdicts()
    show_coverage()


if __name__ == "__main__":
    main()
