"""What an analysis of stalls says, as sentences and tables."""

from __future__ import annotations

from collections.abc import Sequence

from trainmeter.report.bottleneck import COMPUTE, PREPROCESSING, STORAGE, UNDECIDED, Verdict
from trainmeter.report.estimates import MATTERS
from trainmeter.report.pages import Name, Page, Section
from trainmeter.report.stalls import Analysis, Incomplete
from trainmeter.report.supplies import CONDITIONS, FROM_STORAGE
from trainmeter.report.what_if import Prediction
from trainmeter.report.words import Grid, interval, number, plain_values, seconds, spread

NAME: Name = "stalls"
WHAT_TO_RUN = "python src/train.py -m experiment=stalls model=... dataset=..."
SUPPLIES = {"tensors": "ready tensors", "warm": "all in the page cache", "cold": "none in the page cache"}


def page(found: Sequence[Analysis | Incomplete]) -> Page | None:
    """Where the stalls of each job come from, and what is lacking to tell; None where no analysis is whole."""
    whole = [told for told in found if isinstance(told, Analysis)]
    if not whole:
        return None
    sections = [
        Section(sentences(told), grids(told)) if isinstance(told, Analysis) else Section([incomplete(told)])
        for told in found
    ]
    numbers = [number for told in whole for runs in told.numbers.values() for number in runs]
    return Page(NAME, "Stalls", sections, plain_values(found), sorted(numbers))


def sentences(told: Analysis) -> list[str]:
    """All that is said of an analysis beside its tables, the answer first."""
    said = [answer(told)]
    if told.verdict.why:
        said.append(undecided(told.verdict))
    if told.conditions and not told.lives_in_memory:
        said.append(f"That holds on condition: {'; '.join(told.conditions)}.")
    if not told.lives_in_memory:
        why = (
            f" ({undecided(told.in_memory).rstrip('.')})" if told.in_memory.why not in (None, told.verdict.why) else ""
        )
        said.append(f"With the dataset in memory: {told.in_memory.bound}{why}.")
    helps = best(told)
    if helps:
        said.append(helps)
    said += [f"{note[0].upper()}{note[1:]}." for note in told.notes]
    if told.energy.reason:
        said.append(f"No energy of the stalls: {told.energy.reason.rstrip('.')}.")
    elif told.energy.fetch and told.energy.preprocessing:
        joules = told.energy.cold_j or 0.0
        fetch = "" if told.lives_in_memory else f"{interval(told.energy.fetch, joules, unit='J')} for storage, "
        said.append(
            f"Energy ({told.energy.covers}): of {number(joules, joules)} J an epoch, {fetch}"
            f"{interval(told.energy.preprocessing, joules, unit='J')} for preprocessing."
        )
    return said


def answer(told: Analysis) -> str:
    """The first line: what bounds the job, and what of an epoch waits for what."""
    epoch = told.times_s[FROM_STORAGE].value
    if told.lives_in_memory:
        waits = f"of {seconds(epoch)} an epoch, {interval(told.preprocessing, epoch)} wait for preprocessing"
        return f"{told.title}: {bound(told.verdict)}: {waits}. The dataset lives in memory: storage plays no part."
    waits = (
        f"of {seconds(epoch)} an epoch, {interval(told.fetch, epoch)} wait for storage, "
        f"{interval(told.preprocessing, epoch)} for preprocessing"
    )
    return f"{told.title}: {bound(told.verdict)}: {waits}."


def bound(verdict: Verdict) -> str:
    return "undecided what bounds it" if verdict.bound == UNDECIDED else verdict.bound


def undecided(verdict: Verdict) -> str:
    if verdict.bound != UNDECIDED:
        return ""
    more = f"; about {verdict.repeats} repeats of each would tell" if verdict.repeats else ""
    return f"Undecided: {verdict.why}{more}."


def best(told: Analysis) -> str | None:
    """What would help most of all that was asked; None where the verdict does not allow for one."""
    if told.verdict.bound == UNDECIDED:
        return None
    epoch = told.times_s[FROM_STORAGE].value
    wanted: tuple[str, ...] = {STORAGE: ("storage", "in memory"), PREPROCESSING: ("workers",)}.get(
        told.verdict.bound, ()
    )
    if told.rates.workers == 0:
        wanted = (*wanted, "workers")  # without any, nothing overlaps
    asked = [prediction for prediction in told.predictions if prediction.question in wanted]
    if told.verdict.bound == COMPUTE:
        return "Neither storage nor more loader processes would help: a faster device or a smaller model would."
    if not asked:
        return None
    first = min(asked, key=lambda prediction: prediction.epoch_s)
    if first.epoch_s > (1 - MATTERS) * epoch:
        if told.verdict.bound == PREPROCESSING:
            return (
                "More loader processes would not help, as the host has no more cores: "
                "less preprocessing would, such as images kept at the size that they are trained at."
            )
        return "Of what was asked, nothing would help."
    # Of all that help as much, the least that is asked for.
    least = next(other for other in asked if other.epoch_s <= first.epoch_s * 1.005)
    choice, soon = _choice(least, told.rates.ranks), _predicted(least)
    said = f"Most would help: {choice}, for {soon} s an epoch in place of {seconds(epoch)}."
    if told.verdict.bound == STORAGE and told.full_cache_share is not None and 0 < told.full_cache_share < 1:
        said += f" No fetch stall is left from {100 * told.full_cache_share:.0f} % of the dataset in memory on."
    return said


def grids(told: Analysis) -> list[Grid]:
    """The tables of an analysis."""
    return [_times(told), _definitions(told), _what_if(told)]


def incomplete(told: Incomplete) -> str:
    """What a stall analysis lacks, and what to run."""
    missing = ", ".join(told.missing)
    there = "; ".join(f"{name} ran on {', '.join(hosts)}" for name, hosts in told.elsewhere.items())
    here = f" on that host, beside which no other's stands ({there})" if there else ""
    return f"{told.title}: no stall analysis: no whole run of supply={missing}{here}. Run: {WHAT_TO_RUN}"


def _times(told: Analysis) -> Grid:
    joules = {"tensors": told.energy.tensors_j, "warm": told.energy.warm_j, "cold": told.energy.cold_j}
    epoch = told.times_s[FROM_STORAGE].value
    rows = []
    for name in CONDITIONS:
        runs = ", ".join(map(str, told.numbers[name]))
        rows.append([name, SUPPLIES[name], runs, spread(told.times_s[name], epoch), number(joules[name])])
    return Grid("Epochs", ["supply", "samples come from", "runs", "s an epoch (95 %)", "J"], rows)


def _definitions(told: Analysis) -> Grid:
    rows = []
    for name, agreement in {"cold": told.cold, "warm": told.warm}.items():
        values = (agreement.measured_s, agreement.model_s, agreement.differential_s)
        largest = max(abs(value) for value in values if value is not None)
        rows.append([name, *(number(value, largest) for value in values)])
    columns = ["runs", "measured", "model", "differential"]
    return Grid("Stall of an epoch by its three definitions, s (preprocessing included)", columns, rows)


def _what_if(told: Analysis) -> Grid:
    rows = []
    for asked in told.predictions:
        now = asked.question == "workers" and asked.choice == str(told.rates.workers)
        rows.append(
            [asked.question, asked.choice + (" (now)" if now else ""), _predicted(asked), number(asked.energy_j)]
        )
    return Grid("What if (predicted)", ["what", "how much", "s an epoch", "J"], rows)


def _choice(asked: Prediction, ranks: int) -> str:
    if asked.question == "workers":
        each = " a rank" if ranks > 1 else ""
        return f"{asked.choice} loader process{'' if asked.choice == '1' else 'es'}{each}"
    if asked.question == "storage":
        return f"a storage {asked.choice}"
    return f"{asked.choice} of the dataset in memory"


def _predicted(asked: Prediction) -> str:
    return f"{asked.bound} {number(asked.epoch_s)}" if asked.bound else number(asked.epoch_s)
