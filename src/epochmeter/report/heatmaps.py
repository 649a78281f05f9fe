"""Time and energy of an epoch by two keys, such as batch and power limit."""

from __future__ import annotations

from collections.abc import Sequence

from epochmeter.report.axes import Shown, apart, axis, by_covers, covers_told, lacking, natural, sentence, steady
from epochmeter.report.figures import Axis, Cell, Heatmap
from epochmeter.report.runs.configuration import on_several_hosts
from epochmeter.report.words import number

FIRST = ("batch", "power_limit", "workers")
"""Keys that a heatmap is drawn by before others."""
MOST = 24
"""Values of a key."""


def heatmaps(every: Sequence[Shown], varied: Sequence[str]) -> list[Heatmap]:
    """One for time, and for each thing that energy is that of; none where fewer than two keys take several values."""
    keys = sorted(filter(lambda key: _is_axis(key, every), varied), key=lambda key: (*FIRST, key).index(key))[:2]
    if len(keys) < 2:
        return []
    others = [_word(key) for key in varied if key not in keys]
    others += ["hosts"] if on_several_hosts([each.point for each in every]) else []
    told = [_heatmap("grid_time", "Time of an epoch", "e2e_s", "s", every, keys, others)]
    groups = by_covers(every)
    for place, cover in enumerate(groups):
        name, those = f"grid_energy{apart(place, groups)}", [each for each in every if each.covers in (cover, None)]
        told.append(_heatmap(name, "Energy of an epoch", "energy_j", "J", those, keys, others))
    return [each for each in told if each]


def _is_axis(key: str, every: Sequence[Shown]) -> bool:
    values = {each.point.value(key) for each in every}
    numbers = sum(not natural(value)[0] for value in values)
    return 1 < len(values) <= MOST and (key == "power_limit" or numbers >= len(values) - 1 > 0)


def _heatmap(
    name: str, label: str, metric: str, unit: str, every: Sequence[Shown], keys: Sequence[str], others: Sequence[str]
) -> Heatmap | None:
    """The least at each place of the grid; the place of a job that does not tell of it may stay empty."""
    across, up = keys
    known = [(each, value) for each in every if (each.covers or unit == "s") and (value := steady(each.point, metric))]
    places: dict[tuple[str, str], tuple[float, Shown]] = {}
    for each, value in known:
        place = each.point.value(up), each.point.value(across)
        if place not in places or value.mean < places[place][0]:
            places[place] = value.mean, each
    if any(len({place[side] for place in places}) < 2 for side in (0, 1)):
        return None
    rows, columns = (sorted({each.point.value(key) for each in every}, key=natural) for key in (up, across))
    values = [value for value, _ in places.values()]
    scale, size = axis(label, values, unit)

    def cell(row: str, column: str) -> Cell | None:
        if (row, column) not in places:
            return None
        value, each = places[row, column]
        told = each.told(f"{label.split()[0].lower()} {number(value)} {unit}")
        return Cell(value / size, number(value / size, min(values) / size), told, each.link)

    empty = "What is empty was not run, or does not tell." if len(places) < len(rows) * len(columns) else ""
    least = f"Each cell is the least over {', '.join(others)}." if others else ""
    covers = covers_told(every) if unit == "J" else ""
    left = lacking(every, len(known), f"{label[:1].lower()}{label[1:]}")
    return Heatmap(
        name, f"{label.split()[0]} by {_word(across)} and {_word(up)}",
        sentence("A steady epoch; dark is less.", empty, least, left, covers),
        _key_axis(across), _key_axis(up), scale, columns, rows,
        [[cell(row, column) for column in columns] for row in rows],
    )  # fmt: skip


def _word(key: str) -> str:
    return key.replace("_", " ")


def _key_axis(key: str) -> Axis:
    return Axis(_word(key).capitalize(), "W or mode" if key == "power_limit" else "")
