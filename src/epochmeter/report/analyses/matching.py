"""Match the configurations of two sweeps: equal ones on the same host, apart from keys that changed in all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from epochmeter.config.validation import format_value
from epochmeter.report.runs.configuration import NON_CONFIG_KEYS, Configuration
from epochmeter.report.runs.filter import flat

MAX_VALUES = 3
"""Values of a changed key that are listed."""


@dataclass(frozen=True)
class Matching:
    """Matched configurations of two sweeps.

    Attributes:
        pairs: Each configuration before, with its counterpart after.
        changed: Keys that changed in all configurations: `device` -> (`nano`, `agx`), or of the platform: `git commit`.
        unmatched: Numbers of configurations before and after without exactly one counterpart.
    """

    pairs: Sequence[tuple[Configuration, Configuration]]
    changed: Mapping[str, tuple[str, str]]
    unmatched: tuple[int, int]


def matching(before: Sequence[Configuration], after: Sequence[Configuration]) -> Matching:
    """Match configurations by all keys of which the two sweeps share any value."""
    old_jobs, new_jobs = ([_leaves(point) for point in side] for side in (before, after))
    disjoint = _disjoint_keys(old_jobs, new_jobs)
    old, new = _unique(before, old_jobs, disjoint), _unique(after, new_jobs, disjoint)
    pairs = [(point, new[job]) for job, point in old.items() if job in new]
    old_platforms, new_platforms = ([point.runs[0].platform for point in side] for side in (before, after))
    platform = {
        key: _value_texts(old_platforms, new_platforms, key) for key in _disjoint_keys(old_platforms, new_platforms)
    }
    changed = {**_changed_keys(old_jobs, new_jobs, disjoint), **platform}
    return Matching(pairs, changed, (len(before) - len(pairs), len(after) - len(pairs)))


def _leaves(point: Configuration) -> dict[str, str]:
    """Return a configuration and its host as dotted keys and texts."""
    job = {key: value for key, value in point.job.items() if key not in NON_CONFIG_KEYS}
    leaves = flat({"host": point.host, **job} if point.host else job)
    return {key: format_value(value) for key, value in leaves.items()}


def _disjoint_keys(before: Sequence[Mapping[str, str]], after: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the keys of which the two sides share no value; none if a side is empty."""
    if not (before and after):
        return []
    keys = dict.fromkeys(key for leaves in (*before, *after) for key in leaves)
    return [key for key in keys if not {leaves.get(key) for leaves in before} & {leaves.get(key) for leaves in after}]


def _unique(
    points: Sequence[Configuration], jobs: Sequence[Mapping[str, str]], ignored: Sequence[str]
) -> dict[str, Configuration]:
    """Return the configurations that are unique without the ignored keys, by their other keys."""
    kept = [json.dumps({key: job[key] for key in job if key not in ignored}, sort_keys=True) for job in jobs]
    groups: dict[str, list[Configuration]] = {}
    for job, point in zip(kept, points, strict=True):
        groups.setdefault(job, []).append(point)
    return {job: group[0] for job, group in groups.items() if len(group) == 1}


def _changed_keys(
    before: Sequence[Mapping[str, str]], after: Sequence[Mapping[str, str]], disjoint: Sequence[str]
) -> dict[str, tuple[str, str]]:
    """Return the changed keys and their values; a group whose name changed is one key."""
    named = {key.partition(".")[0] for key in disjoint if key.endswith(".name")}
    keys = [key for key in disjoint if key.partition(".")[0] not in named]
    return {
        key.removesuffix(".name"): _value_texts(before, after, key)
        for key in (*(f"{group}.name" for group in sorted(named)), *keys)
    }


def _value_texts(before: Sequence[Mapping[str, str]], after: Sequence[Mapping[str, str]], key: str) -> tuple[str, str]:
    old, new = (list(dict.fromkeys(leaves.get(key, "absent") for leaves in side)) for side in (before, after))
    return _list_values(old), _list_values(new)


def _list_values(values: Sequence[str]) -> str:
    return " / ".join([*values[:MAX_VALUES], *(["..."] if len(values) > MAX_VALUES else [])])
