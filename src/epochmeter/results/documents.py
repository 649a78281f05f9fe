"""Parse and check the documents of a record, which may be damaged, of another version or from another user.

A document is refused if a known key has a value of another type. Known keys may be absent, and others are kept. Reports
and the live view use `read` and `parse`, which make texts printable. `check` keeps texts as they are recorded.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache, partial
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    TypedDict,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from epochmeter.config.printable import printable_tree
from epochmeter.config.schema import Group, Section
from epochmeter.machine.energy_codes import EnergyReason
from epochmeter.shared.record_files import MAX_JSON_BYTES, parse_json, read_bytes
from epochmeter.shared.types import Document

if TYPE_CHECKING:
    from pydantic_core import CoreSchema, SchemaValidator

LARGEST_INTEGER = 2**63
EXACT_KEYS = ("ranks",)  # keys of groups that readers compute with
ESCAPES = (b"\\u", b"\\b", b"\\f", b"\\r")  # in JSON, of characters that may be control characters


@dataclass(kw_only=True)
class Fields:
    """A JSON object of known fields, as a dataclass derived from this one declares them.

    When it is read, a field with a default may be absent or null. When it is written, fields with their default are
    left out unless they are in `ALWAYS`.
    """

    ALWAYS: ClassVar[Collection[str]] = ()  # fields that are written also with their default
    other: dict[str, object] = field(default_factory=dict)  # fields of a newer version, or of the user's own

    def document(self) -> dict[str, object]:
        """Return the fields as a JSON object; the inverse of reading it."""
        document: dict[str, object] = {}
        for declared in _known_fields(type(self)):
            value = getattr(self, declared.name)
            if declared.name in self.ALWAYS or value != _default(declared):
                document[declared.name] = _plain(value)
        return {**document, **self.other}


class Failure(TypedDict, total=False):
    """The fields of a `Problem`; records of earlier versions have `kind` for `code`, and only the message besides."""

    code: str
    message: str | None
    hint: str
    where: dict[str, str]
    kind: str | None


class TrainingSummary(TypedDict, total=False):
    """One of several trainings of a run."""

    metrics: dict[str, float | None]
    bottleneck: str | None
    absent: dict[str, str]


class GainBound(TypedDict, total=False):
    at_most: float
    low: float | None
    high: float | None


class NextStepFields(TypedDict, total=False):
    """The fields of a `NextStep`."""

    rule: str
    text: str
    kind: str
    change: str
    why: str
    gain: GainBound | None


class ExcessFields(TypedDict, total=False):
    """A time per step beyond that of other ranks, and its 95 % interval (plus or minus)."""

    excess_s: float
    uncertainty_s: float


class StragglerFields(TypedDict, total=False):
    """The rank for which the others wait (results/stragglers.py)."""

    rank: int
    ranks: int
    host: str
    device: str
    excess_s: float
    uncertainty_s: float
    saving_s: float
    steps: int
    slowest_fraction: float
    causes: list[str]  # the largest first; empty if no part stands out
    parts: dict[str, ExcessFields]
    lower_clock: float  # fraction by which its clock is lower than the others', if that is why its compute is slow
    temperature_c: float  # highest of its device, in this case


class EnergyVerdict(TypedDict, total=False):
    """The verdict on an energy (machine/energy_codes.py)."""

    energy_valid: bool
    energy_reasons: list[EnergyReason]


class Summary(TypedDict, total=False):
    """`summary.json`."""

    state: str
    metrics: dict[str, float | None]
    trainings: list[TrainingSummary]
    bottleneck: str | None
    absent: dict[str, str]
    next_steps: list[NextStepFields]
    straggler: StragglerFields | None
    notes: list[str]
    failure: Failure | None
    ended: str
    energy: dict[str, EnergyVerdict]  # by section, `steady` and `total`; absent in records of earlier versions


class CompletionDetails(TypedDict, total=False):
    finished: str


class Completion(CompletionDetails):
    """`completed.json`."""

    identity: str


class PowerMode(TypedDict, total=False):
    id: int
    name: str
    cores: int | None
    cpu_hz: float | None
    gpu_hz: float | None
    emc_hz: float | None


class Cpu(TypedDict, total=False):
    model: str | None
    cores: int | None


class Model(TypedDict, total=False):
    model: str | None


class Git(TypedDict, total=False):
    commit: str
    dirty: bool | None


class Host(TypedDict, total=False):
    """`host.json`."""

    cpu: Cpu | None
    gpus: list[Model] | None
    board: Model | None
    git: Git | None
    governors: list[str] | None
    memory_bytes: int | None
    os: str | None
    kernel: str | None
    driver: str | None
    power_mode: PowerMode | None
    power_modes: list[PowerMode] | None


class PointsFile(TypedDict):
    """`points.json` of a sweep."""

    points: list[list[str]]


class Reference(TypedDict):
    """`reused.json`."""

    run: str
    folder: str
    record_id: str
    overrides: list[str]


class WindowEnergy(TypedDict, total=False):
    opened_ns: int
    closed_ns: int
    term: dict[str, float | None]


class WorkerDelay(TypedDict):
    """How long ready batches of other workers waited for those of a worker, which are counted from 0."""

    worker: int
    blocked_s: float


class Loading(TypedDict, total=False):
    """What an epoch of a script has on its loader besides metrics; each is absent if nothing is known."""

    delays: list[WorkerDelay]  # the longest first
    transforms: dict[str, float]  # of the dataset, in seconds: the slowest first


class WindowDetails(TypedDict, total=False):
    opened_ns: int
    closed_ns: int
    training: int
    rule: str  # of a script: why the window is of its kind
    warmup: bool  # for another reason than its number, as are the next two
    partial: bool
    paused: bool
    suspended_s: float  # how long the machine was suspended since the clock of its start; absent if it was not
    flags: dict[str, str]  # disturbance -> reason
    of_ranks: list[dict[str, float | None]]
    rank_steps: int
    other_processes: list[dict[str, object]]
    energy: WindowEnergy | None
    bottleneck: str | None
    absent: dict[str, str]
    notes: list[str]
    loading: Loading
    energy_valid: bool  # absent in records of earlier versions
    energy_reasons: list[EnergyReason]


class Window(WindowDetails):
    """A line of `epochs.jsonl`."""

    window: str
    epoch: int
    metrics: dict[str, float | None]


class Progress(TypedDict):
    """A line of `progress.jsonl`."""

    epoch: int
    epoch_steps: int
    steps: int
    parts: dict[str, float]


def read(path: Path | str, kind: Any) -> Any:
    """Return the value of a JSON file, checked by a type hint; OSError, or ValueError if it is damaged."""
    return parse(read_bytes(path, MAX_JSON_BYTES), kind)


def parse(text: bytes, kind: Any) -> Any:
    """Return the value of a JSON text, checked by a type hint; ValueError if it is damaged or of another type."""
    if is_printable(text):
        return _validated(lambda: _validator(kind).validate_json(text, strict=True))
    return check(printable_tree(parse_json(text)), kind)


def is_printable(text: bytes) -> bool:
    """Return whether a JSON text certainly has no control character that would have to be replaced."""
    has_escapes = b"\\" in text and any(escape in text for escape in ESCAPES)  # most texts have no backslash at all
    return text.isascii() and b"\x7f" not in text and not has_escapes


def check(value: object, kind: Any) -> Any:
    """Return a value of JSON, checked by a type hint; ValueError if it is of another type."""
    return _validated(lambda: _validator(kind).validate_python(value, strict=True))


def _validated(validate: Callable[[], Any]) -> Any:
    from pydantic_core import ValidationError

    try:
        return validate()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = ".".join(str(key) for key in first["loc"])
        raise ValueError(f"`{name}`: {first['msg']}" if name else first["msg"]) from None


@cache
def _validator(kind: Any) -> "SchemaValidator":
    from pydantic_core import SchemaValidator

    return SchemaValidator(_schema(kind))


def _schema(kind: Any) -> "CoreSchema":
    """Return the schema of a type hint for pydantic. A word of another version, which a Literal lacks, is accepted."""
    from pydantic_core import core_schema as schema

    integer = schema.int_schema(ge=-LARGEST_INTEGER, lt=LARGEST_INTEGER)
    simple = {
        Any: schema.any_schema(),
        object: schema.any_schema(),
        bool: schema.bool_schema(),
        int: integer,
        float: _union([integer, schema.float_schema()]),  # an integer stays one
        str: schema.str_schema(),
    }
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType, Literal):
        kinds = dict.fromkeys(map(type, parts) if origin is Literal else parts)
        choices = [_schema(member) for member in kinds if member is not NoneType]
        choice = choices[0] if len(choices) == 1 else _union(choices)
        return schema.nullable_schema(choice) if NoneType in kinds else choice
    if origin is list:
        return schema.list_schema(_schema(parts[0]))
    if origin in (dict, Mapping):
        return schema.dict_schema(schema.str_schema(), _schema(parts[1]))
    if isinstance(kind, type) and issubclass(kind, Fields):
        names = frozenset(declared.name for declared in _known_fields(kind))
        return schema.no_info_after_validator_function(partial(_made, kind, names), _fields_schema(kind))
    if is_typeddict(kind) or (isinstance(kind, type) and issubclass(kind, Section)):
        required, kinds = getattr(kind, "__required_keys__", ()), get_type_hints(kind)
        if isinstance(kind, type) and issubclass(kind, Group):
            kinds = {
                name: key_kind if name in EXACT_KEYS else _of_an_option(key_kind) for name, key_kind in kinds.items()
            }
        keys = {
            name: schema.typed_dict_field(_schema(key_kind), required=name in required)
            for name, key_kind in kinds.items()
        }
        return schema.typed_dict_schema(keys, extra_behavior="allow")
    return simple[kind]


def _union(choices: list["CoreSchema"]) -> "CoreSchema":
    from pydantic_core import core_schema as schema

    error = "it has another type"
    return schema.union_schema([*choices], custom_error_type="other_type", custom_error_message=error)


def _fields_schema(kind: type[Fields]) -> "CoreSchema":
    from pydantic_core import core_schema as schema

    keys, kinds = {}, get_type_hints(kind)
    for declared in _known_fields(kind):
        required, value = _default(declared) is MISSING, _schema(kinds[declared.name])
        keys[declared.name] = schema.typed_dict_field(
            value if required else schema.nullable_schema(value), required=required
        )
    return schema.typed_dict_schema(keys, extra_behavior="allow")


def _made(kind: type[Fields], names: Collection[str], document: Document) -> Fields:
    """Return the dataclass of a checked document; `names` are those of its fields."""
    known = {name: value for name, value in document.items() if name in names and value is not None}
    return kind(**known, other={name: value for name, value in document.items() if name not in names})


def _known_fields(kind: type[Fields]) -> list[Field[Any]]:
    return [declared for declared in fields(kind) if declared.name != "other"]


def _default(declared: Field[Any]) -> object:
    """Return the default of a field, MISSING without one."""
    return declared.default if declared.default_factory is MISSING else declared.default_factory()


def _plain(value: object) -> object:
    """Return a field's value for JSON."""
    if isinstance(value, Fields):
        return value.document()
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _of_an_option(kind: Any) -> Any:
    """Return the type of a group's key in any file of the user's: any simple value in place of a text or a number."""
    is_container = any(get_origin(member) in (dict, list, Mapping) for member in (kind, *get_args(kind)))
    return kind if is_container else str | int | float | bool | None
