"""The result of a run in a line: the time and the energy of its mean epoch, and its bottleneck."""

from collections.abc import Mapping, Sequence

from epochmeter.results.bottleneck import of_section, read_bottleneck
from epochmeter.results.intervals import half_width
from epochmeter.results.quantities import quantity, within

ENERGIES = {"energy_j": "", "estimated_energy_j": " (estimated)"}
"""Metric -> what is said beside its value."""


def headline(
    metrics: Mapping[str, float | None], bottleneck: str, epochs: Sequence[Mapping[str, float]] = ()
) -> list[str]:
    """Return texts such as `1.23 s ± 0.8 % per epoch`, `53.1 J ± 2.0 %`, `prep-bound`; empty if no time was measured.

    Without a mean epoch they are those of the whole run.

    Args:
        metrics: Those of a run, by full name; None if absent.
        bottleneck: The recorded word of the mean epoch; empty if it is not known.
        epochs: Metrics of the epochs that the mean epoch is the mean of, whose spread gives its interval.
    """
    section, per = ("total", "in total") if metrics.get("steady/e2e_s") is None else ("steady", "per epoch")
    known = of_section(metrics, section)
    if "e2e_s" not in known:
        return []
    verdict = read_bottleneck(bottleneck, metrics, section)
    half_s = _half_s(epochs) if section == "steady" else None
    halves = {"energy_j": known.get("energy_uncertainty_j")}
    return [
        f"{_with_interval(known['e2e_s'], half_s, 's')} {per}",
        *(
            _with_interval(known[name], halves.get(name), "J") + kind
            for name, kind in ENERGIES.items()
            if name in known
        ),
        *([verdict.label] if verdict else []),
    ]


def _half_s(epochs: Sequence[Mapping[str, float]]) -> float | None:
    """Return the 95 % interval (plus or minus) of the mean time of epochs; None if fewer than two are known."""
    times_s = [epoch["epoch/e2e_s"] for epoch in epochs if "epoch/e2e_s" in epoch]
    return half_width(times_s) if len(times_s) > 1 else None


def _with_interval(value: float, half: float | None, base: str) -> str:
    return within(value, half, base) if half and value > 0 else quantity(value, base)
