"""Which point of one sweep is which of another: the same job on the same host, but for what differs as a whole."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from epochmeter.config.validation import format_value
from epochmeter.report.runs.configuration import NON_CONFIG_KEYS, Configuration
from epochmeter.report.runs.filter import flat

FEW = 3
"""So many values of what changed are told."""


@dataclass(frozen=True)
class Matching:
    """Points of two sweeps that are the same but for what differs between the sweeps as a whole."""

    pairs: Sequence[tuple[Configuration, Configuration]]
    changed: Mapping[str, tuple[str, str]]
    """What differs as a whole: `device` -> (`nano`, `agx`), or a fact of the host: `git commit`."""
    unmatched: tuple[int, int]
    """How many points before and after have no counterpart, or more than one."""


def matching(before: Sequence[Configuration], after: Sequence[Configuration]) -> Matching:
    """Matches points by their jobs and hosts, less the keys that share no value between the two sweeps."""
    old_jobs, new_jobs = ([_flat(point) for point in side] for side in (before, after))
    apart = _apart(old_jobs, new_jobs)
    old, new = _alone(before, old_jobs, apart), _alone(after, new_jobs, apart)
    pairs = [(point, new[job]) for job, point in old.items() if job in new]
    old_facts, new_facts = ([point.runs[0].platform for point in side] for side in (before, after))
    facts = {key: _values(old_facts, new_facts, key) for key in _apart(old_facts, new_facts)}
    changed = {**_spoken(old_jobs, new_jobs, apart), **facts}
    return Matching(pairs, changed, (len(before) - len(pairs), len(after) - len(pairs)))


def _flat(point: Configuration) -> dict[str, str]:
    """A job and its host as dotted keys and texts, without what makes no point of its own."""
    job = {key: value for key, value in point.job.items() if key not in NON_CONFIG_KEYS}
    leaves = flat({"host": point.host, **job} if point.host else job)
    return {key: format_value(value) for key, value in leaves.items()}


def _apart(before: Sequence[Mapping[str, str]], after: Sequence[Mapping[str, str]]) -> list[str]:
    """The keys of which the two sides share no value; where one has no points there are none."""
    if not (before and after):
        return []
    keys = dict.fromkeys(key for each in (*before, *after) for key in each)
    return [key for key in keys if not {each.get(key) for each in before} & {each.get(key) for each in after}]


def _alone(
    points: Sequence[Configuration], jobs: Sequence[Mapping[str, str]], apart: Sequence[str]
) -> dict[str, Configuration]:
    """Job less some keys -> the point, where it is the only one."""
    less = set(apart)
    kept = [json.dumps({key: value for key, value in job.items() if key not in less}, sort_keys=True) for job in jobs]
    groups: dict[str, list[Configuration]] = {}
    for job, point in zip(kept, points, strict=True):
        groups.setdefault(job, []).append(point)
    return {job: group[0] for job, group in groups.items() if len(group) == 1}


def _spoken(
    before: Sequence[Mapping[str, str]], after: Sequence[Mapping[str, str]], apart: Sequence[str]
) -> dict[str, tuple[str, str]]:
    """What changed in a few words: a group of keys by its name, where that changed too."""
    named = {key.partition(".")[0] for key in apart if key.endswith(".name")}
    keys = [key for key in apart if key.partition(".")[0] not in named]
    return {key.removesuffix(".name"): _values(before, after, key)
            for key in (*(f"{top}.name" for top in sorted(named)), *keys)}  # fmt: skip


def _values(before: Sequence[Mapping[str, str]], after: Sequence[Mapping[str, str]], key: str) -> tuple[str, str]:
    """What a key is on each side."""
    found = [list(dict.fromkeys(each.get(key, "absent") for each in side)) for side in (before, after)]
    told = [" / ".join([*values[:FEW], *(["..."] if len(values) > FEW else [])]) for values in found]
    return told[0], told[1]
