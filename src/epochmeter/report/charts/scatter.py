"""Energy against time, of an epoch and to a target, with the Pareto front."""

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import chain, product
from typing import NamedTuple

from epochmeter.report.analyses.best import Best
from epochmeter.report.charts import vega
from epochmeter.report.charts.bars import time_bars
from epochmeter.report.charts.points import MeanSd, Palette, by_energy_scope, mean_sd, tooltip, without_energy
from epochmeter.report.charts.vega import HEIGHT_PX, Axis, Caption, Chart, Rows, channel, layer
from epochmeter.report.formatting import metric_title
from epochmeter.report.render import phrase, render_macro
from epochmeter.report.runs.configuration import Configuration, quality_target
from epochmeter.report.runs.costs import PER_EPOCH, TIME_TO_TARGET, TO_TARGET, costs, costs_to_target, pareto_front
from epochmeter.report.runs.run import grouped
from epochmeter.results.metrics import find

MAX_SVG_MARKS = 1000  # marks up to which the page draws them as SVG, with error bars; more are drawn on a canvas
MAX_FULL_MARKS = 150  # marks up to which they have their full size
HALO = {"style": "halo", "strokeWidth": 4, "strokeJoin": "round"}  # of a label, so that it can be read on marks
MAX_LABELS = 8  # points of a front that get a label
WIDTHS_PX, LINE_PX, LETTER_PX, LABEL_GAP_PX, MARK_PX = (480, 940), 14, 6.4, 12, 4
"""Widths of a narrow and a wide chart, sizes of labels, and half the size of a mark, by which labels are kept apart."""
PLACED = {name: {"expr": f"datum.{name}"} for name in ("align", "dx", "dy")}
"""Properties of texts whose rows are `placed_labels`."""
LABEL_PLACES = [(is_right, down) for down in (0, 1.2, -1.2, 2, -2) for is_right in (True, False)]
"""Places of a label in order of preference: right of its point or left of it, and lines below it."""


class Box(NamedTuple):
    """Place of a label or a point, in pixels from the chart's top left corner."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def overlaps(self, other: "Box") -> bool:
        is_clear = self.x_high <= other.x_low or other.x_high <= self.x_low
        return not (is_clear or self.y_high <= other.y_low or other.y_high <= self.y_low)


def energy_by_time(configurations: Sequence[Configuration], palette: Palette, best: Sequence[Best] = ()) -> list[Chart]:
    """Draw energy against time of a steady epoch, with labels at the best, unless there is only a single point."""
    ranked = costs(configurations)
    if sum(cost.energy is not None for cost in ranked) < 2:
        return []
    front = pareto_front(ranked)
    return _scatters("energy_by_time", phrase("energy_by_time"), PER_EPOCH, configurations, front, palette, best)


def to_target(configurations: Sequence[Configuration], palette: Palette, best: Sequence[Best] = ()) -> list[Chart]:
    """Draw energy against time to each target; time alone if there is no energy.

    The mean of a configuration that reached the target only in some runs is shown, but is not on the front.
    """
    with_target = [configuration for configuration in configurations if quality_target(configuration.job)]
    groups = grouped(
        with_target, lambda configuration: (quality_target(configuration.job), configuration.value("dataset"))
    )
    charts: list[Chart] = []
    for index, (key, group) in enumerate(groups.items()):
        name = f"target_{index}" if len(groups) > 1 else "target"
        title = render_macro("phrases.j2", "target_title", *key, is_plain=True).strip()
        reached = [result for configuration in group if (result := _reached(configuration))]
        missed = len(group) - len(reached)
        caption = {
            "never_reached": missed and (missed, len(group)),
            "partly_reached": len({*reached} - {*group}),
        }
        front = pareto_front(costs_to_target([result for result in reached if result in group]))
        with_energy = _scatters(name, title, TO_TARGET, reached, front, palette, best, caption)
        times_s = [
            (configuration, time) for configuration in reached if (time := mean_sd(configuration, TIME_TO_TARGET))
        ]
        charts += with_energy or ([time_bars(name, title, times_s, palette, caption)] if times_s else [])
    return charts


def _reached(configuration: Configuration) -> Configuration | None:
    """Return a configuration with only its runs that reached the target; None if there are none."""
    runs, count = [run for run in configuration.runs if TIME_TO_TARGET in run.metrics], len(configuration.runs)
    if not runs or len(runs) == count:
        return configuration if runs else None
    return Configuration(runs, phrase("partly_reached", title=configuration.title, reached=len(runs), runs=count))


def _scatters(
    name: str, title: str, metrics: tuple[str, str], shown: Sequence[Configuration],
    on_front: Set[Configuration], palette: Palette, best: Sequence[Best], more: Caption | None = None,
) -> list[Chart]:  # fmt: skip
    """Draw one chart per energy scope, of the configurations that have both metrics."""
    charts = []
    for suffix, scope, group in by_energy_scope(shown):
        values = {configuration: [mean_sd(configuration, metric) for metric in metrics] for configuration in group}
        measured = {
            configuration: (time, energy) for configuration, (time, energy) in values.items() if time and energy
        }
        if not measured:
            continue
        front = [configuration for configuration in measured if configuration in on_front]
        caption = {
            "each_mark": True,
            "colors": len({palette.kind(configuration) for configuration in measured}) > 1
            and palette.key.replace("_", " "),
            "front": len(front) > 1,
            "over_runs": any(value.sd is not None for pair in measured.values() for value in pair),
            "scope": scope,
            **(more or {}),
            "without_energy": None if suffix else without_energy(shown, len(measured)),
        }
        spec = _scatter(metrics, measured, front, palette, _texts(front, best))
        charts.append(Chart(f"{name}{suffix}", title, spec, caption))
    return charts


def _scatter(
    metrics: tuple[str, str], measured: Mapping[Configuration, tuple[MeanSd, MeanSd]],
    on_front: Sequence[Configuration], palette: Palette, texts: Mapping[Configuration, Mapping[str, object]],
) -> vega.Spec:  # fmt: skip
    """Return the specification of the points, the front, and the labels that have a place."""
    # A bar that ends near zero or below it would stretch the axis: it is cut.
    times, energies = ([max(end, value.mean / 2) for value in values for end in value.ends]
                       for values in zip(*measured.values(), strict=True))  # fmt: skip
    time_unit, energy_unit = (find(metric).unit for metric in metrics)
    x = vega.make_axis(metric_title(metrics[0]), times, time_unit)
    y = vega.make_axis(metric_title(metrics[1]), energies, energy_unit, margin=0.16)
    rows: dict[Configuration, dict[str, object]] = {}
    for configuration, (time, energy) in measured.items():
        row = {
            **tooltip(configuration, time=time.text(time_unit), energy=energy.text(energy_unit)),
            "kind": palette.kind(configuration),
        }
        for field, value, axis in (("x", time, x), ("y", energy, y)):
            row[field] = axis.value(value.mean)
            if value.sd:
                low, high = map(axis.value, value.ends)
                row |= {f"{field}_low": max(low, axis.domain[0]), f"{field}_high": high}
        rows[configuration] = row
    places = {configuration: {"x": row["x"], "y": row["y"]} for configuration, row in rows.items()}
    points, front = [*rows.values()], [places[configuration] for configuration in on_front]
    labels = placed_labels(
        [{**places[configuration], **text} for configuration, text in texts.items() if configuration in places],
        points,
        x,
        y,
    )
    return _spec(x, y, points, front, labels, palette)


def _texts(front: Sequence[Configuration], best: Sequence[Best]) -> dict[Configuration, dict[str, object]]:
    """Return labels: the criteria that a configuration is the best by, and the titles of others on the front."""
    words: dict[Configuration, list[str]] = {}
    for choice in best:
        if choice.name != "within_slowdown" or choice.configuration not in words:  # other criteria say more
            words.setdefault(choice.configuration, []).append(phrase(choice.name))
    texts = {configuration: "\n".join(dict.fromkeys(criteria)) for configuration, criteria in words.items()}
    if len(texts) == 1 and len({choice.name for choice in best}) > 2:
        texts = dict.fromkeys(texts, phrase("best_in_all"))
    titles = {
        configuration: {"text": configuration.title, "is_best": False}
        for configuration in front
        if len(front) <= MAX_LABELS
    }
    return {**titles, **{configuration: {"text": text, "is_best": True} for configuration, text in texts.items()}}


def _spec(x: Axis, y: Axis, rows: Rows, front: Rows, labels: Rows, palette: Palette) -> vega.Spec:
    is_large = len(rows) > MAX_SVG_MARKS
    place = {"x": x.channel("x"), "y": y.channel("y")}
    shown = [kind for kind in palette.kinds if kind in {row["kind"] for row in rows}]
    legend = {"title": None, "values": shown} if len(shown) > 1 else None
    marks = {"color": [*palette.colors.values()], "shape": vega.SHAPES[: len(palette.kinds)]}
    kinds = {
        name: channel("kind:N", scale={"domain": palette.kinds, "range": values}, legend=legend)
        for name, values in marks.items()
    }
    encoding = {**place, **kinds, **vega.on_hover("title", "time", "energy", "runs")}
    layers = []
    if len(front) > 1:
        layers.append(layer("front", "line", place, interpolate="step-after", strokeDash=[2, 4], style="front"))
    layers += [vega.error_bars("points", place, name) for name in place if not is_large]
    size, opacity = (24, 0.7) if len(rows) > MAX_FULL_MARKS else (95, 1)
    layers.append(layer("points", "point", encoding, filled=True, size=size, opacity=opacity, aria=not is_large))
    if labels:
        layers.append(layer("labels", "point", place, size=170, filled=False, style="front", aria=False))
        text = {**place, "text": channel("text:N")}
        layers += [layer("labels", "text", text, **PLACED, **more, aria=False) for more in (HALO, {})]
    datasets = {"points": rows, "front": front, "labels": labels}
    return vega.make_spec({"layer": layers, "height": HEIGHT_PX}, datasets, is_large=is_large)


def placed_labels(texts: Rows, points: Rows, x: Axis, y: Axis) -> list[dict[str, object]]:
    """Place each label next to its point, inside the chart and clear of labels, points and if possible bars.

    Labels of the best configurations are placed first, and may cover other points. Other labels are dropped if there is
    no free place.
    """

    def pixels(row: Mapping[str, object], width_px: float) -> tuple[float, float]:
        across, up = (axis.fraction(float(str(row[name]))) for name, axis in (("x", x), ("y", y)))
        return across * width_px, (1 - up) * HEIGHT_PX

    def bar(row: Mapping[str, object], name: str, width_px: float) -> Box:
        low, high = (pixels({**row, name: row[f"{name}_{end}"]}, width_px) for end in ("low", "high"))
        return Box(low[0], high[0], high[1], low[1])

    def is_free(box: Box, width_px: float, obstacles: Iterable[Sequence[Box]]) -> bool:
        is_inside = box.x_low >= 0 and box.x_high <= width_px and box.y_low >= 0 and box.y_high <= HEIGHT_PX
        return is_inside and not any(map(box.overlaps, chain(*obstacles)))

    bars = [(row, name) for row in points for name in ("x", "y") if f"{name}_low" in row]
    obstacles: dict[float, list[list[Box]]] = {}  # bars, points and labels, by the width of the chart
    for width_px in WIDTHS_PX:
        centers = [pixels(row, width_px) for row in points]
        marks = [Box(x_px - MARK_PX, x_px + MARK_PX, y_px - MARK_PX, y_px + MARK_PX) for x_px, y_px in centers]
        obstacles[width_px] = [[bar(*of, width_px) for of in bars], marks, []]
    placed: list[dict[str, object]] = []
    for text in sorted(texts, key=lambda text: not text["is_best"]):
        lines = str(text["text"]).split("\n")
        width, height = LETTER_PX * max(map(len, lines)), LINE_PX * len(lines)
        for ignored, (is_right, down) in product(range(3 if text["is_best"] else 2), LABEL_PLACES):
            boxes = {}
            for width_px in WIDTHS_PX:
                at_x, at_y = pixels(text, width_px)
                x_low = at_x + (LABEL_GAP_PX if is_right else -LABEL_GAP_PX - width)
                y_low = at_y + down * LINE_PX - height / 2
                boxes[width_px] = Box(x_low, x_low + width, y_low, y_low + height)
            if all(is_free(box, width_px, obstacles[width_px][ignored:]) for width_px, box in boxes.items()):
                side = {"align": "left", "dx": LABEL_GAP_PX} if is_right else {"align": "right", "dx": -LABEL_GAP_PX}
                placed.append({**text, "text": lines, **side, "dy": down * LINE_PX - (height - LINE_PX) / 2})
                for width_px, box in boxes.items():
                    obstacles[width_px][-1].append(box)
                break
    return placed
