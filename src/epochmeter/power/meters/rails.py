"""Energy of a Jetson's power rails from its INA3221 and INA238 sensors, by kernel files that every user may read.

JetPack 4 presents a sensor as an IIO device, later versions as hwmon. The sensors measure the module (on Thor the
input of its carrier board), not wall power: carrier board, drives and USB are not included.
"""

import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from math import prod
from pathlib import Path

from epochmeter.machine.slurm import sharing_reason
from epochmeter.machine.sysfs import read_text
from epochmeter.power.meter import Domain, Instrument, Meter, NullMeter
from epochmeter.power.meters.board_total import RailTable, rails_meter
from epochmeter.power.meters.jtop import open_jtop
from epochmeter.power.uncertainty import Response, Sensors, response_of

SHUNT_STEP_V = 40e-6
"""Resolution of the INA3221's shunt voltage, and thus of the current: 40 uV."""
INA3221_US = [(140, 204, 332, 588, 1100, 2116, 4156, 8244)] * 2
"""The conversion times that an INA3221 can be set to, for a channel's shunt and its bus voltage (its datasheet)."""
INA238_US = [(50, 84, 150, 280, 540, 1052, 2074, 4120)] * 3
"""The same for an INA238: its bus voltage, its shunt and its temperature (its datasheet)."""


Rails = Iterator[tuple[str, Instrument]]
"""Power rails by name. A rail's scope is not known yet."""


def open_rails(
    *, gpus: Sequence[str], root: Path, period_s: float, rails: RailTable | None = None, sensors: Sensors | None = None
) -> Meter:
    """Open the meter of a board's rails, one domain per rail; through jtop's service without sensor files.

    `sensors` is the device's table of sensor responses by chip name, for drivers that do not report them.
    """
    if others := sharing_reason():
        return NullMeter(others)
    try:
        board = dict(find_rails(root, (rails or RailTable()).get("shunt_ohm"), sensors, period_s))
        if not board:
            by_jtop = open_jtop(gpus=gpus, root=root, rails=rails)
            reason = f"No INA3221 or INA238 power sensor below {root}."
            by_jtop.energy["reason"] = " ".join(filter(None, (reason, by_jtop.energy["reason"])))
            return by_jtop
        return rails_meter(board, rails, period_s)
    except ValueError as error:  # from the table of sensors or of rails
        return NullMeter(str(error))


def find_rails(
    root: Path, shunt_ohm: float | None = None, sensors: Sensors | None = None, period_s: float = 0.01
) -> Rails:
    """Find every rail that a sensor below `root` measures."""
    for sensor in sorted((root / "sys/bus/i2c/devices").glob("*")):
        kind = read_text(sensor / "name")
        domain = Domain("sampled", period_s, "", response=response_of(sensors, kind))
        hwmons = sorted(sensor.glob("hwmon/hwmon*"))
        if kind.startswith("ina3221"):
            for folder in sorted(sensor.glob("iio:device*")):
                yield from _iio_rails(folder, shunt_ohm, domain)
            for folder in hwmons:
                yield from _hwmon_rails(folder, domain)
        elif kind.startswith("ina238"):
            yield from (_carrier_rail(folder, domain) for folder in hwmons)


def _iio_rails(folder: Path, shunt_ohm: float | None, domain: Domain) -> Rails:
    """Rails of an IIO device (JetPack 4): channels 0 to 2, in milliwatts."""
    for channel in range(3):
        name = read_text(folder / f"rail_name_{channel}")
        milliwatts = str(folder / f"in_power{channel}_input")
        if name and name != "NC" and os.path.exists(milliwatts):
            step_w = _step_w(folder / f"in_voltage{channel}_input", shunt_ohm)
            yield name, Instrument(domain._replace(step=step_w), partial(_watts, (milliwatts,), 1e-3))


def _hwmon_rails(folder: Path, domain: Domain) -> Rails:
    """Rails of a hwmon device (JetPack 5 and later): channels 1 to 3, in millivolts and milliamperes."""
    enabled = [channel for channel in range(1, 4) if read_text(folder / f"in{channel}_enable") != "0"]
    response = _shown_response(folder, INA3221_US, len(enabled)) or domain.response
    for channel in enabled:
        name = read_text(folder / f"in{channel}_label")
        if name and name != "NC":
            files = (str(folder / f"in{channel}_input"), str(folder / f"curr{channel}_input"))
            step_w = _step_w(folder / f"in{channel}_input", _number_or_0(folder / f"shunt{channel}_resistor") / 1e6)
            yield name, Instrument(domain._replace(step=step_w, response=response), partial(_watts, files, 1e-6))


def _carrier_rail(folder: Path, domain: Domain) -> tuple[str, Instrument]:
    """The input rail of Thor's carrier board, in microwatts."""
    read = partial(_watts, (str(folder / "power1_input"),), 1e-6)
    shown = _shown_response(folder, INA238_US, 1) or domain.response
    return read_text(folder / "in1_label") or "VIN", Instrument(domain._replace(response=shown), read)


def _watts(files: Sequence[str], unit: float) -> float:
    """Power as the product of the files' numbers, times a unit in watts."""
    return prod(map(_number, files)) * unit


def _step_w(millivolts: Path, shunt_ohm: float | None) -> float:
    """Resolution of a channel's power in watts: one step of its current at its present voltage; 0: unknown."""
    return SHUNT_STEP_V / shunt_ohm * _number_or_0(millivolts) / 1e3 if shunt_ohm else 0.0


def _shown_response(folder: Path, conversions_us: Sequence[Sequence[int]], channels: int) -> Response | None:
    """The response of a chip from its driver's files `samples` and `update_interval`; None if they are missing.

    The chip renews its registers after `samples` conversions of every enabled channel. `update_interval` is the time of
    all of them in Linux before 6.7, and of one round later. The chip's possible conversion times show which it is; if
    both fit, the longer is assumed.
    """
    samples, interval_ms = _number_or_0(folder / "samples"), _number_or_0(folder / "update_interval")
    rounds_us = [channels * sum(times) for times in product(*conversions_us)]
    possible_us = [us * samples for us in rounds_us if interval_ms in (round(us / 1e3), round(us * samples / 1e3))]
    if samples <= 0 or not possible_us or not interval_ms:
        return None
    # A single sample is no mean: a channel's conversion takes a sixth of the round.
    renewal_s = max(possible_us) / 1e6
    return Response(renewal_s if samples > 1 else 0.0, renewal_s=renewal_s)


def _number_or_0(file: Path) -> int:
    try:
        return _number(str(file))
    except (OSError, ValueError):
        return 0


def _number(file: str) -> int:
    """Read the integer in a sensor's file; OSError or ValueError if there is none."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        text = os.read(descriptor, 32)
    finally:
        os.close(descriptor)
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{file} is not a number: {text.decode(errors='replace').strip()!r}") from None
