"""Renamed configuration keys, options and metrics, in one table: a rename is a row.

The old form works for one minor version, with a warning that names the new one, and is refused afterwards. Records of
earlier versions are read with the new names for good.
"""

import copy
import functools
import operator
import re
import warnings
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from epochmeter.shared.problem import Problem

KEY, OPTION, METRIC = "key", "option", "metric"
OF_EPOCHS = ("epoch", "steady", "std")
"""Sections that have each metric of an epoch."""


class Renamed(NamedTuple):
    """A rename.

    Attributes:
        kind: `KEY` (also of a group, or of all keys in a section), `OPTION` (`group=option`) or `METRIC`.
        old: The old form.
        new: The new form.
        since: The first version that has the new form: `0.2.0`.
    """

    kind: str
    old: str
    new: str
    since: str

    @property
    def removed(self) -> str:
        """The first version that refuses the old form: the next minor version."""
        major, minor, _ = self.since.split(".")
        return "{}.{}.0".format(major, int(minor) + 1)

    def warning(self) -> Problem:
        """Return what a user of the old form is told while it works."""
        end = "=" if self.kind == KEY else ""
        message = "`{}{}` has another name since {}, and {} will refuse it".format(
            self.old, end, self.since, self.removed
        )
        return Problem(message, "use `{}{}`".format(self.new, end))

    def refusal(self) -> Problem:
        """Return what a user of the old form is told afterwards."""
        end = "=" if self.kind == KEY else ""
        return Problem("`{}{}` has another name since {}".format(self.old, end, self.since), self.warning().hint)


RENAMED: Tuple[Renamed, ...] = (
    Renamed(KEY, "ready_batches", "synthetic_batches", "0.2.0"),
    Renamed(KEY, "supply", "data_source", "0.2.0"),
    Renamed(OPTION, "data_source=tensors", "data_source=synthetic", "0.2.0"),
    Renamed(OPTION, "data_source=warm", "data_source=cached", "0.2.0"),
    Renamed(OPTION, "data_source=cold", "data_source=storage", "0.2.0"),
    Renamed(OPTION, "storage=here", "storage=project", "0.2.0"),
    Renamed(METRIC, "epoch/cached_share_before", "epoch/page_cache_residency_before", "0.2.0"),
    Renamed(METRIC, "epoch/cached_share_after", "epoch/page_cache_residency_after", "0.2.0"),
    Renamed(METRIC, "epoch/fetch_stall_model_s", "epoch/data_stall_model_s", "0.2.0"),
)
"""Renames whose old form works: those since this minor version."""
REFUSED: Tuple[Renamed, ...] = ()
"""Earlier renames."""
OVERRIDE = re.compile(r"(\+{0,2}|~)([\w./]+)([@=].*)?", re.DOTALL)
Note = Callable[[Renamed], object]


def ignore(_: Renamed) -> None:
    """Note nothing: the old names in a record are no fault of its reader."""


def current_override(override: str, note: Note = ignore) -> str:
    """Return an override, also one with values to sweep over, with new names; any other argument unchanged.

    Args:
        override: Such as `+ready_batches=true` or `storage=here,ssd`.
        note: Called with each rename that applies.
    """
    parsed = OVERRIDE.fullmatch(override)
    if parsed is None:
        return override
    prefix, key, rest = parsed[1], parsed[2], parsed[3] or ""
    for row in _rows(KEY):
        if key == row.old or key.startswith(row.old + "."):
            note(row)
            key = row.new + key[len(row.old) :]
    for row in _rows(OPTION):
        (group, _, old), new = row.old.partition("="), row.new.partition("=")[2]
        if key == group:
            renamed = re.sub(r"(?<![\w./{{-]){}(?![\w./-])".format(re.escape(old)), new, rest)
            if renamed != rest:
                note(row)
            rest = renamed
    return prefix + key + rest


def current_keys(keys: Dict[str, Any], note: Note = ignore, prefix: str = "") -> Dict[str, Any]:
    """Return nested keys of a configuration with new names; those of a file have the `prefix` of its group.

    A key with an old name does not replace one with the new name. Keys without an old name are returned themselves.
    """
    current = keys
    for row in _rows(KEY) + _rows(OPTION):  # an option may be that of a group with another name
        path = _old_path(row, prefix)
        if not path or not _has(current, path, row):
            continue
        note(row)
        current = copy.deepcopy(keys) if current is keys else current
        *sections, old = path
        holder: Any = functools.reduce(operator.getitem, sections, current)
        if row.kind == OPTION:
            holder[old] = row.new.partition("=")[2]
            continue
        value, holder = holder.pop(old), current
        *sections, new = row.new[len(prefix) :].split(".")
        for section in sections:
            holder = holder.setdefault(section, {}) if isinstance(holder, dict) else None
        if isinstance(holder, dict):  # else the new section is damaged, which its reader finds
            holder.setdefault(new, value)
    return current


def current_choices(choices: Mapping[str, Any], note: Note = ignore) -> Dict[str, Any]:
    """Return keys with new names, each with a value, an override's text of values, or a list of values.

    A key with an old name does not replace one with the new name.
    """
    named: Dict[str, Tuple[str, object]] = {}
    for key, values in choices.items():
        new = current_override(str(key), note)
        if isinstance(values, list):
            named[key] = (new, [_current_value(new, value, note) for value in values])
        else:
            named[key] = (new, _current_value(new, values, note))
    moved = {new: values for key, (new, values) in named.items() if new != str(key)}
    return {**moved, **{new: values for key, (new, values) in named.items() if new == str(key)}}


def _current_value(key: str, value: object, note: Note) -> object:
    return current_override("{}={}".format(key, value), note).partition("=")[2] if isinstance(value, str) else value


def current_metrics(metrics: Dict[str, Any]) -> Dict[str, Any]:
    """Return metrics with new names; those without an old one are returned themselves."""
    renamed = _metric_rows(RENAMED + REFUSED)
    if renamed.keys().isdisjoint(metrics):
        return metrics
    moved = {renamed[name][0]: value for name, value in metrics.items() if name in renamed}
    return {**moved, **{name: value for name, value in metrics.items() if name not in renamed}}


class Metrics(Dict[str, float]):
    """Metrics by name, which an old name finds as well, with a warning."""

    def __missing__(self, name: str) -> float:
        return self._by_old_name(name)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or super().__contains__(_metric_rows(RENAMED).get(str(name), ("",))[0])

    def get(self, name: str, default: Any = None) -> Any:
        return self._by_old_name(name) if name in self else default

    def _by_old_name(self, name: str) -> float:
        """Return a metric by its new or its old name; a warning names the line of the caller's caller."""
        if super().__contains__(name):
            return super().__getitem__(name)
        new, row = _metric_rows(RENAMED).get(name, (name, None))
        if row is None or not super().__contains__(new):
            _, refused = _metric_rows(REFUSED).get(name, (name, None))
            raise KeyError(str(refused.refusal()) if refused else name)
        warnings.warn(str(row.warning()), FutureWarning, stacklevel=3)
        return super().__getitem__(new)


def _rows(kind: str) -> List[Renamed]:
    return [row for row in RENAMED + REFUSED if row.kind == kind]


def _old_path(row: Renamed, prefix: str) -> List[str]:
    """Return the path to a key, or to the name of an option, below a prefix; empty if it is elsewhere."""
    old, new = row.old.partition("=")[0].replace("/", "."), row.new.partition("=")[0].replace("/", ".")
    path = old + ".name" if row.kind == OPTION else old
    return path[len(prefix) :].split(".") if path.startswith(prefix) and (new + ".").startswith(prefix) else []


def _has(keys: Any, path: Sequence[str], row: Renamed) -> bool:
    """Whether keys have an old name at a path."""
    for name in path:
        if not isinstance(keys, Mapping) or name not in keys:
            return False
        keys = keys[name]
    return row.kind == KEY or bool(keys == row.old.partition("=")[2])


@functools.lru_cache(maxsize=4)
def _metric_rows(rows: Tuple[Renamed, ...]) -> Dict[str, Tuple[str, Renamed]]:
    """Return the old names of metrics, also of `steady/` and `std/`, with the new name and the rename."""
    found: Dict[str, Tuple[str, Renamed]] = {}
    for row in rows:
        section, slash, short = row.old.partition("/")
        for each in OF_EPOCHS if row.kind == METRIC and section == "epoch" else (section,) * (row.kind == METRIC):
            found[each + slash + short] = (each + slash + row.new.partition("/")[2], row)
    return found
