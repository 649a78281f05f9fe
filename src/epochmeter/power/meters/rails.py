"""Energy of a Jetson's power rails from its INA3221 and INA238 sensors, by kernel files or by jtop's service.

JetPack 4 presents a sensor as an IIO device, later versions as hwmon. The sensors measure the module (on Thor the
input of its carrier board), not wall power: carrier board, drives and USB are not included.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, TypedDict

from epochmeter.machine import jtop
from epochmeter.machine.energy_codes import EnergyCode
from epochmeter.machine.jtop import connect_client, service_problem
from epochmeter.machine.slurm import sharing_problem
from epochmeter.machine.sysfs import read_text
from epochmeter.power.cross_checks import CrossCheck
from epochmeter.power.instrument import Domain, Instrument
from epochmeter.power.meter import EnergyMeter, NullMeter, unmetered
from epochmeter.power.meters.rapl import other_meter_hint
from epochmeter.power.sampler import Sampler
from epochmeter.power.uncertainty import Response, Sensors, response_of
from epochmeter.shared.problem import input_error, problem_of

SHUNT_STEP_V = 40e-6  # resolution of the INA3221's shunt voltage, and thus of the current: 40 uV
INA3221_SAMPLES = (1, 4, 16, 64, 128, 256, 512, 1024)
INA3221_US = (140, 204, 332, 588, 1100, 2116, 4156, 8244)
"""Numbers of samples that an INA3221 can average, and times of a conversion in us (its datasheet, SBOS576)."""
INA3221_CONFIG = 0x7727  # assumed without a device tree: the default in the header of NVIDIA's driver (ina3221.h)
FILTER_WIDTH = 2.5
"""Width of the moving mean that approximates a low-pass filter, in time constants; intervals then cover 95 %."""
READS_PER_SAMPLE = 10  # of jtop's service: a reading is a sample that was taken up to one period ago
MAX_AGE_PERIODS = 1.5  # number of periods without a new sample after which the power is unavailable
MODULE, ALL_RAILS = "module", "sum of all rails"
INPUTS = {"VIN": "input of the carrier board", "VDD_IN": MODULE, "POM_5V_IN": MODULE}
"""NVIDIA's names of the rails that feed all others, with their scope, for boards without a rail table."""

Rails = Iterator[tuple[str, Instrument]]  # power rails by name; their scope is set later


class RailTable(TypedDict, total=False):
    """A board's table (`device.rails`); its other keys name a rail's scope, such as `gpu: VDD_GPU_SOC`."""

    total: list[str]
    covers: str


def open_rails(
    *, gpus: Sequence[str], root: Path, period_s: float, rails: RailTable | None = None, sensors: Sensors | None = None
) -> EnergyMeter:
    """Open the meter of a board's rails, one domain per rail; on a Jetson without sensor files through jtop's service.

    `sensors` is the device's table of sensor responses by chip name, for drivers that do not report them.
    """
    if others := sharing_problem():
        return unmetered(others)
    try:
        if board := dict(find_rails(root, sensors, period_s)):
            return rails_meter(board, rails, period_s)
    except ValueError as error:  # from the table of rails
        return unmetered(problem_of(error))
    by_jtop = open_jtop(gpus=gpus, root=root, rails=rails)
    reasons = f"No INA3221 or INA238 power sensor below {root}", by_jtop.energy["reason"]
    by_jtop.energy["reason"] = "; ".join(filter(None, reasons))
    return by_jtop


def open_jtop(*, gpus: Sequence[str], root: Path, period_s: float = 0.5, rails: RailTable | None = None) -> EnergyMeter:
    """Open the meter of a board's rails, sampled by jtop's service about every `period_s` seconds."""
    if others := sharing_problem():
        return unmetered(others)
    if reason := jtop.no_service(root):
        return NullMeter(reason, other_meter_hint(root) if reason == jtop.NO_JETSON else "")
    opened = ExitStack()
    try:
        client = opened.enter_context(connect_client(period_s))
        domain = Domain("sampled", client.interval, "", response=Response(None, renewal_s=client.interval))
        watts = service_reader(client)
        powers = {name: Instrument(domain, partial(watts, name)) for name in rail_watts(client.power)}
        if not powers:
            raise ValueError("jtop's service finds no power sensor on this board.")
        return rails_meter(powers, rails, client.interval / READS_PER_SAMPLE, close=opened.close)
    except Exception as error:  # a service of another version may send anything
        opened.close()
        is_known = isinstance(error, (RuntimeError, ValueError))
        return unmetered(problem_of(error) if is_known else service_problem(error))


def rail_watts(power: Mapping[str, Any]) -> dict[str, float]:
    """Watts of each rail; the service lists the rail that feeds the module separately, as `tot`."""
    module = power.get("tot", {})
    rails = {**power.get("rail", {}), **({module["name"]: module} if "name" in module else {})}
    return {name: rail["power"] / 1000 for name, rail in rails.items()}


def service_reader(client: Any) -> Callable[[str], float]:
    """Return a function that reads a rail's last power; OSError if the service has ended or sends no new samples."""
    uptime, renewed_s = client.uptime, time.monotonic()

    def watts(rail: str) -> float:
        nonlocal uptime, renewed_s
        try:
            client.ok(spin=True)  # without `spin` it would wait, and disconnect after a timeout
            power_w, last_uptime = rail_watts(client.power)[rail], client.uptime
        except Exception as error:  # the service may end or send anything; the run continues without it
            raise OSError(service_problem(error).message) from error
        if last_uptime != uptime:
            uptime, renewed_s = last_uptime, time.monotonic()
        elif time.monotonic() - renewed_s > MAX_AGE_PERIODS * client.interval:
            raise OSError("jtop's service sends no new sample")
        return power_w

    return watts


def rails_meter(
    powers: Mapping[str, Instrument], table: RailTable | None, period_s: float, close: Callable[[], None] = lambda: None
) -> EnergyMeter:
    """Build the meter of a board's rails; ValueError if the board's table names a missing one."""
    table = table or RailTable()
    total, covers, reason = total_of(list(powers), table)
    codes = [EnergyCode.MAY_OVERLAP] if covers == ALL_RAILS else []
    scoped = {}
    for name, power in powers.items():
        listed = ", ".join(domain for domain, rail in table.items() if rail == name)
        scope = listed or ("part of the module" if name in total else "within the module")
        scoped[name] = power._replace(domain=power.domain._replace(covers=covers if [name] == total else scope))
    sampler = Sampler(scoped, total=total, period_s=period_s)
    parts = tuple(name for name in powers if name in table.values() and name not in total)
    checks = [CrossCheck(parts, "at most", tuple(total))] if parts else []
    return EnergyMeter(
        powers=sampler, total=total, covers=covers, cross_checks=checks, reason=reason, codes=codes, close=close
    )


def total_of(available: Sequence[str], table: RailTable) -> tuple[list[str], str, str | None]:
    """Select the rails of the total: from the board's table (ValueError if one is missing), the input rail, or all.

    Returns them with their scope and the assumption that was made, if any.
    """
    if rails := list(table.get("total", ())):
        if missing := sorted(set(rails) - set(available)):
            raise input_error(
                f"The rail table names {', '.join(missing)} for the total, but there is only {', '.join(available)}",
                "name the rails of the total: device.rails.total=[...]",
            )
        return rails, table.get("covers", MODULE), None
    no_table = "No rail table for this board"
    if inputs := [name for name in INPUTS if name in available]:
        covers = INPUTS[inputs[0]]
        return inputs[:1], covers, f"{no_table}: {inputs[0]} is assumed to be the {covers}, by its name."
    rule = f"{no_table}: the sum of {', '.join(available)} may count a rail twice"
    return list(available), ALL_RAILS, f"{rule}. Name the rails of the total: device.rails.total=[...]"


def find_rails(root: Path, sensors: Sensors | None = None, period_s: float = 0.01) -> Rails:
    """Find every rail that a sensor below `root` measures.

    A name that several rails have is followed by the address of their sensor and their number in it.
    """
    places = {
        (sensor.name, number): rail
        for sensor in sorted((root / "sys/bus/i2c/devices").glob("*"))
        for number, rail in enumerate(_sensor_rails(sensor, sensors, period_s), 1)
    }
    counts = Counter(name for name, _ in places.values())
    for (address, number), (name, instrument) in places.items():
        yield name if counts[name] == 1 else f"{name}_{address}_{number}", instrument


def _sensor_rails(sensor: Path, sensors: Sensors | None, period_s: float) -> Rails:
    """The rails of a device on the I2C bus; none unless it is a power sensor."""
    kind = read_text(sensor / "name")
    domain = Domain("sampled", period_s, "", response=response_of(sensors, kind))
    if kind.startswith("ina3221"):
        for folder in sorted(sensor.glob("iio:device*")):
            yield from _iio_rails(folder, sensor / "of_node", domain)
    for folder in sorted(sensor.glob("hwmon/hwmon*")):
        if kind.startswith("ina3221"):
            yield from _hwmon_rails(folder, domain)
        elif kind.startswith("ina238"):  # the input rail of Thor's carrier board
            name = read_text(folder / "in1_label") or "VIN"
            yield from _rail(name, [folder / "power1_input"], 1e-6, domain)


def _iio_rails(folder: Path, tree: Path, domain: Domain) -> Rails:
    """Rails of an IIO device (JetPack 4): channels 0 to 2, in milliwatts; `tree` is its node of the device tree."""
    response = Response()  # in triggered mode, a read takes a sample
    if read_text(folder / "running_mode") != "0":
        config = _cell(tree, "ti,continuous-config") or INA3221_CONFIG
        channels, samples, *times = (config >> shift & 7 for shift in (12, 9, 6, 3))
        round_s = channels.bit_count() * sum(INA3221_US[time] for time in times) / 1e6
        response = filter_response(round_s, INA3221_SAMPLES[samples])
    for channel in range(3):
        shunt_ohm = _cell(tree, f"*@{channel}/ti,shunt-resistor-mohm") / 1e3
        step_w = _step_w(folder / f"in_voltage{channel}_input", shunt_ohm)
        name, milliwatts = read_text(folder / f"rail_name_{channel}"), folder / f"in_power{channel}_input"
        if milliwatts.exists():
            yield from _rail(name, [milliwatts], 1e-3, domain._replace(step=step_w, response=response))


def _hwmon_rails(folder: Path, domain: Domain) -> Rails:
    """Rails of a hwmon device (JetPack 5 and later): channels 1 to 3, in millivolts and milliamperes."""
    enabled = [channel for channel in range(1, 4) if read_text(folder / f"in{channel}_enable") != "0"]
    response = _driver_response(folder, len(enabled)) or domain.response
    for channel in enabled:
        millivolts, milliamperes = folder / f"in{channel}_input", folder / f"curr{channel}_input"
        step_w = _step_w(millivolts, _number_or_0(folder / f"shunt{channel}_resistor") / 1e6)
        name, shown = read_text(folder / f"in{channel}_label"), domain._replace(step=step_w, response=response)
        yield from _rail(name, [millivolts, milliamperes], 1e-6, shown)


def _rail(name: str, files: Sequence[Path], unit_w: float, domain: Domain) -> Rails:
    """The rail whose power is the product of the files' numbers, times a unit in watts; none if it is not connected."""
    paths = [str(file) for file in files]
    if name and name != "NC":
        yield name, Instrument(domain, lambda: prod(map(_number, paths)) * unit_w)


def _step_w(millivolts: Path, shunt_ohm: float) -> float:
    """Resolution of a channel's power in watts: one step of its current at its present voltage; 0: unknown."""
    return SHUNT_STEP_V / shunt_ohm * _number_or_0(millivolts) / 1e3 if shunt_ohm else 0.0


def _driver_response(folder: Path, channels: int) -> Response | None:
    """The response of an INA3221 from its driver's files `samples` and `update_interval`; None if they are missing.

    `update_interval` is the time of all samples in Linux before 5.14, and of one round of the channels later. The
    chip's possible conversion times show which it is; if both fit, the longer is assumed.
    """
    samples, interval_ms = _number_or_0(folder / "samples"), _number_or_0(folder / "update_interval")
    rounds_us = [channels * (bus_us + shunt_us) for bus_us in INA3221_US for shunt_us in INA3221_US]
    possible_us = [us for us in rounds_us if interval_ms in (round(us / 1e3), round(us * samples / 1e3))]
    is_known = interval_ms and possible_us and samples > 0
    return filter_response(max(possible_us) / 1e6, samples) if is_known else None


def filter_response(round_s: float, samples: int) -> Response:
    """The response of an INA3221, which converts all channels once per round and renews its registers each time.

    It averages by a low-pass filter with a time constant of `samples` rounds: a conversion changes the reading by the
    fraction 1 / `samples` of its difference from it (datasheet, "Averaging Function").
    """
    if samples == 1:  # not a mean: a channel's conversion takes a sixth of the round
        return Response(0.0, renewal_s=round_s)
    constant_s = samples * round_s
    memory_s = FILTER_WIDTH * constant_s
    return Response(memory_s - round_s, lag_s=constant_s - memory_s / 2, renewal_s=round_s, is_filter=True)


def _cell(tree: Path, pattern: str) -> int:
    """The number in the property of a device tree that matches a pattern; 0 without one."""
    return next((int.from_bytes(file.read_bytes(), "big") for file in tree.glob(pattern)), 0)


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
