"""Match the configurations of two sweeps: equal ones on the same host, apart from keys that changed in all of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from epochmeter.config.validation import flatten, format_value
from epochmeter.report.runs.configuration import Configuration
from epochmeter.report.runs.run import NON_CONFIG_KEYS

Leaves = Mapping[str, str]
"""A configuration or a platform as dotted keys and texts."""
Values = tuple[Sequence[str], Sequence[str]]
"""Values of a key before and after."""


@dataclass(frozen=True)
class Matching:
    """Matched configurations of two sweeps.

    Attributes:
        pairs: Each configuration before, with its counterpart after.
        changed: Keys that changed in all configurations: `device`, or of the platform: `git commit`.
        unmatched: Numbers of configurations before and after without exactly one counterpart.
    """

    pairs: Sequence[tuple[Configuration, Configuration]]
    changed: Mapping[str, Values]
    unmatched: tuple[int, int]


def matching(before: Sequence[Configuration], after: Sequence[Configuration]) -> Matching:
    """Match configurations by all keys of which the two sweeps share any value."""
    old_jobs, new_jobs = ([_leaves(point) for point in side] for side in (before, after))
    old_platforms, new_platforms = ([point.runs[0].platform for point in side] for side in (before, after))
    changed = _changed(old_jobs, new_jobs)
    old, new = _unique(before, old_jobs, changed), _unique(after, new_jobs, changed)
    pairs = [(point, new[job]) for job, point in old.items() if job in new]
    groups = {key.partition(".")[0] for key in changed if key.endswith(".name")}
    shown = {
        key.removesuffix(".name"): values
        for key, values in changed.items()
        if key.partition(".")[0] not in groups or key.endswith(".name")  # a group whose name changed is one key
    }
    return Matching(
        pairs, {**shown, **_changed(old_platforms, new_platforms)}, (len(before) - len(pairs), len(after) - len(pairs))
    )


def _leaves(point: Configuration) -> Leaves:
    """Return a configuration and its host."""
    job = {key: value for key, value in point.job.items() if key not in NON_CONFIG_KEYS}
    leaves = flatten({"host": point.host, **job} if point.host else job)
    return {key: format_value(value) for key, value in leaves}


def _changed(before: Sequence[Leaves], after: Sequence[Leaves]) -> dict[str, Values]:
    """Return the keys of which the two sides share no value, with their values; none if a side is empty."""
    if not (before and after):
        return {}
    keys = dict.fromkeys(key for leaves in (*before, *after) for key in leaves)
    values = {key: (_values(before, key), _values(after, key)) for key in keys}
    return {key: (old, new) for key, (old, new) in values.items() if not {*old} & {*new}}


def _values(side: Sequence[Leaves], key: str) -> list[str]:
    return list(dict.fromkeys(leaves.get(key, "absent") for leaves in side))


def _unique(
    points: Sequence[Configuration], jobs: Sequence[Leaves], ignored: Mapping[str, Values]
) -> dict[str, Configuration]:
    """Return the configurations that are unique without the ignored keys, by their other keys."""
    kept = [json.dumps({key: job[key] for key in job if key not in ignored}, sort_keys=True) for job in jobs]
    counts = Counter(kept)
    return {job: point for job, point in zip(kept, points, strict=True) if counts[job] == 1}
