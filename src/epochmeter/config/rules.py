"""Rules: the allowed values of a key, derived from its type or attached to it, `Annotated[int, POSITIVE_COUNT]`."""

import math
import os
import re
import sys
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

TARGET_KEY = "_target_"  # key of the dotted path of a class or a function
MAX_INTEGER = 10**9  # largest count: more is a typing error, and exceeds the 32-bit integers in PyTorch
MAX_BYTES = 2**63 - 1  # largest size of a file
MAX_SEED = 2**32 - 1  # largest seed of NumPy's generators
MAX_SECONDS = 1e9  # longest wait: more is a typing error, and exceeds the limit of the operating system
ABSOLUTE_ZERO_C = -273.15
MAX_NAME_BYTES = 255  # longest name of a file in all common file systems
ONE_OF = "one of "  # begins a list of words
EXPORTERS = ("wandb", "trackio", "comet")  # trackers that get the metrics of MLflow as well


class Rule(NamedTuple):
    """The allowed values of a key; `allowed` describes them and follows "give" in a hint."""

    allowed: str
    is_allowed: Callable[[object], bool]


def whole_number(low: int, high: float = math.inf) -> Rule:
    most = "" if high == math.inf else f", at most {high:,}"
    return Rule(f"a whole number, {low} or more{most}", lambda value: type(value) is int and low <= value <= high)


def finite_number(low: float = -math.inf, high: float = math.inf, unit: str = "a number", above: bool = False) -> Rule:
    """Return the rule for finite numbers from `low`, or above it, to `high`."""
    least = "" if low == -math.inf else f", above {low:g}" if above else f", {low:g} or more"
    most = "" if high == math.inf else f", and at most {high:g}"

    def is_allowed(value: Any) -> bool:
        return is_finite(value) and low <= value <= high and not (above and value == low)

    return Rule(f"{unit}{least}{most}", is_allowed)


def positive(unit: str = "a number", high: float = math.inf) -> Rule:
    return finite_number(0, high, unit, above=True)


def one_of(*words: str) -> Rule:
    return Rule(f"{ONE_OF}{', '.join(words)}", lambda value: isinstance(value, str) and value in words)


def or_null(rule: Rule) -> Rule:
    return Rule(f"{rule.allowed}, or null", lambda value: value is None or rule.is_allowed(value))


def either(allowed: str, *rules: Rule) -> Rule:
    return Rule(allowed, lambda value: any(rule.is_allowed(value) for rule in rules))


def is_finite(value: object) -> bool:
    """Return whether a value is a number that a float can hold; true and false are not numbers."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def is_patterns(value: object) -> bool:
    """Return whether a value is a mapping whose values are valid regular expressions."""
    try:
        return isinstance(value, Mapping) and all(map(re.compile, value.values()))
    except (re.error, TypeError):
        return False


def is_location(value: object) -> bool:
    """Return whether a value can be a path: `~` is the home of an existing user, and no name is too long for a file."""
    path = os.path.expanduser(value) if isinstance(value, str) else ""
    has_valid_names = all(len(os.fsencode(name)) <= MAX_NAME_BYTES for name in path.split("/"))
    return bool(path.strip()) and not path.startswith("~") and has_valid_names


def is_archive(value: object) -> bool:
    """Return whether a value is the name of a recording of a machine."""
    return isinstance(value, str) and value.endswith(ARCHIVE)


def is_sensor(value: object) -> bool:
    """Return whether a value is the response of a power sensor, in seconds; null, also in a field, means unknown."""
    return value is None or (
        isinstance(value, Mapping)
        and value.keys() <= SENSOR_FIELDS
        and all(NOT_NEGATIVE.is_allowed(number) or (number is None and key != "lag_s") for key, number in value.items())
    )


def is_constructed(value: object) -> bool:
    """Return whether a value names a class or a function, which is called with the other keys as arguments."""
    return isinstance(value, Mapping) and TARGET_KEY in value


def is_opened(value: object) -> bool:
    """Return whether a value is constructed, or a mapping of layouts to constructed values, null for a script's."""
    has_layouts = (
        isinstance(value, Mapping) and bool(value) and all(map(or_null(CONSTRUCTED).is_allowed, value.values()))
    )
    return is_constructed(value) or has_layouts


def is_normalization(value: object) -> bool:
    """Return whether a value has lists of numbers `mean` and `std`, by which samples can be normalized."""
    lists = [value.get(name, []) for name in ("mean", "std")] if isinstance(value, Mapping) else [[]]
    has_numbers = all(isinstance(numbers, list) and numbers and all(map(is_finite, numbers)) for numbers in lists)
    return has_numbers and min(lists[-1]) > 0


COUNT, POSITIVE_COUNT = whole_number(0, MAX_INTEGER), whole_number(1, MAX_INTEGER)
SEED, BYTES = whole_number(0, MAX_SEED), whole_number(0, MAX_BYTES)
NOT_NEGATIVE, FRACTION, WATTS = finite_number(0), finite_number(0, 1), positive("watts")
FLAG = Rule(f"{ONE_OF}true, false", lambda value: isinstance(value, bool))
TEXT = Rule("a non-empty text", lambda value: isinstance(value, str) and bool(value.strip()))
LOCATION = Rule("the path of a folder, with names of up to 255 bytes, in which ~ is the home of a user", is_location)
FOLDER = Rule("an existing folder", lambda value: isinstance(value, str) and os.path.isdir(value))
ARCHIVE = ".tar.gz"  # ends the name of a recording
RECORDING = Rule(f"the name of a file that ends with {ARCHIVE}", lambda value: is_location(value) and is_archive(value))
MACHINE_ROOT = Rule(
    f"an existing folder, or a file that `doctor.py record=board{ARCHIVE}` has written",
    lambda value: FOLDER.is_allowed(value) or (is_archive(value) and os.path.isfile(str(value))),
)
PRIOR = Rule(
    "folders of sweeps, such as multirun/SWEEP or [multirun/A,multirun/B]",
    lambda value: all(map(FOLDER.is_allowed, value if isinstance(value, list) and value else [value])),
)
PATH = Rule("an existing file or folder", lambda value: isinstance(value, str) and os.path.exists(value))
MAPPING = Rule("a mapping, {key: value}", lambda value: isinstance(value, Mapping))
NAME = either("a name or a path", TEXT, whole_number(0))
SWEEPS = Rule(
    "a name, a path or a pattern, or a list of them, [a,b], or null",
    lambda value: value != [] and all(map(or_null(NAME).is_allowed, value if isinstance(value, list) else [value])),
)
SWEEPS_OR_NONE = either(SWEEPS.allowed, SWEEPS, Rule("[]", lambda value: value == []))
BASELINE = either("{key: value}, defaults", one_of("defaults"), MAPPING)
PATTERNS = Rule("host facts with valid regular expressions, {model: Jetson}", is_patterns)
SENSOR_FIELDS = {"averaging_s", "lag_s", "renewal_s"}
SENSORS = Rule(
    "seconds by sensor, {ina3221: {averaging_s: 0.1, lag_s: 0, renewal_s: 0.1}}",
    lambda value: isinstance(value, Mapping) and all(map(is_sensor, value.values())),
)
NORMALIZATION = Rule("mean and std, {mean: [0.5], std: [0.5]}, with std above 0", is_normalization)
LOADER = Rule(
    "a class of the script or of a library, package.module:Class",
    lambda value: isinstance(value, str) and bool(re.fullmatch(r"[^\W\d][\w.]*:[^\W\d][\w.]*", value)),
)
EXPORTER = Rule(
    f"one of {', '.join(EXPORTERS)}, or a class of your own, package.module:Class",
    lambda value: value in EXPORTERS or LOADER.is_allowed(value),
)
NAMES = Rule("a list of names, [a,b]", lambda value: isinstance(value, list) and all(map(TEXT.is_allowed, value)))
CONSTRUCTED = Rule("a class or a function with its arguments, {_target_: ...}", is_constructed)
OPENED = Rule("a class or a function, {_target_: ...}, or one for each layout", is_opened)
METERS = Rule(
    "a list of meters, [{_target_: ...}]",
    lambda value: isinstance(value, list) and bool(value) and all(map(is_constructed, value)),
)
MILESTONES = Rule(
    "a list of ascending numbers of epochs, [30,60]",
    lambda value: (
        isinstance(value, list)
        and bool(value)
        and all(map(POSITIVE_COUNT.is_allowed, value))
        and value == sorted(set(value))
    ),
)
WATTS_OR_MODE = either("watts above 0, a power mode such as MAXN, auto", TEXT, positive())
CLOCK = whole_number(1, 10_000)
CLOCK_OR_AUTO = or_null(either("auto, or a whole number of MHz, 1 to 10,000", one_of("auto"), CLOCK))
INTENSITY = either("grams of CO2e per kWh, 0 or more, a country such as FRA, or a CSV file", TEXT, NOT_NEGATIVE)
SECONDS = finite_number(0, MAX_SECONDS, unit="seconds")
POSITIVE_SECONDS = positive("seconds", MAX_SECONDS)
JOULES, GRAMS, PRICE = positive("joules"), positive("grams"), positive("an amount of money")
WORKERS = either("auto, or a whole number, 0 or more", one_of("auto"), COUNT)
THREADS = or_null(either("auto, or a whole number, 1 or more", one_of("auto"), POSITIVE_COUNT))
SLOWDOWN = finite_number(1, unit="a multiple of the time without a new limit")
CELSIUS = finite_number(ABSOLUTE_ZERO_C, unit="degrees Celsius", above=True)
PUE, RATIO = finite_number(1, unit="a ratio"), positive("a ratio")
EXPERIMENT = Rule(
    f"a name of at most {MAX_NAME_BYTES} bytes",
    lambda value: TEXT.is_allowed(value) and is_location(str(value).replace("/", "%2F").replace("~", "")),
)
ALSO = Rule(
    f"{EXPORTER.allowed}, a list of different ones, or null",
    lambda value: (
        value is None
        or EXPORTER.is_allowed(value)
        or (isinstance(value, list) and all(map(EXPORTER.is_allowed, value)) and len({*value}) == len(value))
    ),
)
TARGET = Rule(
    "the dotted path of a class or a function",
    lambda value: isinstance(value, str) and all(name.isidentifier() for name in value.split(".")),
)
ANY_VALUE = Rule(
    "a finite number, a non-empty text, or null",
    lambda value: value != "" and not (isinstance(value, float) and not math.isfinite(value)),
)

Count = Annotated[int, COUNT]
PositiveCount = Annotated[int, POSITIVE_COUNT]
Seed = Annotated[int, SEED]
Seconds = Annotated[float, SECONDS]
PositiveSeconds = Annotated[float, POSITIVE_SECONDS]
NotNegative = Annotated[float, NOT_NEGATIVE]
Fraction = Annotated[float, FRACTION]
Watts = Annotated[float, WATTS]
Intensity = Annotated[float | str, INTENSITY]
Location = Annotated[str, LOCATION]
AnyMapping = Annotated[Mapping[str, Any], MAPPING]
Constructed = Annotated[Mapping[str, Any], CONSTRUCTED]


def rule_of(kind: Any) -> Rule | None:
    """Return the rule of a type hint; None if it, or a part of a union, has none. `X | None` also allows null."""
    if get_origin(kind) is Annotated:
        return next((rule for rule in kind.__metadata__ if isinstance(rule, Rule)), None)
    if get_origin(kind) is Literal:
        return one_of(*get_args(kind))
    if get_origin(kind) not in (Union, UnionType):
        return {bool: FLAG, str: TEXT}.get(kind)
    parts = get_args(kind)
    found = [rule_of(member) for member in parts if member is not NoneType]
    rules = [rule for rule in found if rule]
    if len(rules) < len(found):
        return None
    words = ", ".join(rule.allowed.removeprefix(ONE_OF) for rule in rules)  # of a Literal and a bool
    rule = rules[0] if len(rules) == 1 else either(ONE_OF + words, *rules)
    return or_null(rule) if NoneType in parts else rule
