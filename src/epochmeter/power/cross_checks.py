"""Cross-checks of energies: two measurements of the same energy, or of a part and its total, must agree.

Each meter lists its checks as data, next to its domains. A disagreement beyond the uncertainties means that one of
the instruments is wrong, and not which one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

CALIBRATION = 0.05
"""Tolerated difference of two instruments, as a fraction of the larger energy: NVIDIA states 5 % for some sensors."""


class CrossCheck(NamedTuple):
    """An expected relation of the energies of domains in any window.

    Attributes:
        parts: Domains whose energies are added.
        relation: Whether they are equal to the energy of `reference`, or at most that.
        reference: Domains whose energies are added.
    """

    parts: tuple[str, ...]
    relation: Literal["equal to", "at most"]
    reference: tuple[str, ...]

    @property
    def domains(self) -> tuple[str, ...]:
        return (*self.parts, *self.reference)


class Disagreement(NamedTuple):
    """Energies that contradict a check: those of its parts and of its reference, in joules."""

    check: CrossCheck
    parts_j: float
    reference_j: float

    @property
    def difference_j(self) -> float:
        return abs(self.parts_j - self.reference_j)

    def __str__(self) -> str:
        parts, reference = (" + ".join(names) for names in (self.check.parts, self.check.reference))
        expected = f"{self.check.relation} {reference} expected, {self.reference_j:.4g} J"
        return f"{parts} measured {self.parts_j:.4g} J, {expected}"


def find_disagreements(
    checks: Sequence[CrossCheck], joules: Mapping[str, float], half_width_j: Callable[[Sequence[str]], float]
) -> Iterator[Disagreement]:
    """Yield the checks that energies contradict beyond the uncertainties and the calibration errors of instruments.

    Args:
        joules: Energy by domain; a check of a domain without energy is left out.
        half_width_j: Returns the half-width of the 95 % confidence interval of the energy of several domains.
    """
    for check in checks:
        if not joules.keys() >= set(check.domains):
            continue
        parts_j, reference_j = (sum(joules[name] for name in names) for names in (check.parts, check.reference))
        excess_j = abs(parts_j - reference_j) if check.relation == "equal to" else parts_j - reference_j
        # The intervals must not meet: errors of instruments that are sampled together may have opposite signs.
        uncertainty_j = half_width_j(check.parts) + half_width_j(check.reference)
        if excess_j > uncertainty_j + CALIBRATION * max(parts_j, reference_j):
            yield Disagreement(check, parts_j, reference_j)
