"""The result of a run in a line: the time and the energy of its mean epoch, and its bottleneck."""

from collections.abc import Mapping

from epochmeter.results.bottleneck import of_section, read_bottleneck
from epochmeter.results.quantities import quantity

ENERGIES = {"energy_j": "", "estimated_energy_j": " (estimated)"}
"""Metric -> what is said beside its value."""


def headline(metrics: Mapping[str, float | None], bottleneck: str) -> list[str]:
    """Return texts such as `1.23 s per epoch`, `53.1 J`, `prep-bound`; empty if no time was measured.

    Without a mean epoch they are those of the whole run.

    Args:
        metrics: Those of a run, by full name; None if absent.
        bottleneck: The recorded word of the mean epoch; empty if it is not known.
    """
    section, per = ("total", "in total") if metrics.get("steady/e2e_s") is None else ("steady", "per epoch")
    known = of_section(metrics, section)
    if "e2e_s" not in known:
        return []
    verdict = read_bottleneck(bottleneck, metrics, section)
    return [
        f"{quantity(known['e2e_s'], 's')} {per}",
        *(quantity(known[name], "J") + kind for name, kind in ENERGIES.items() if name in known),
        *([verdict.label] if verdict else []),
    ]
