"""What an analysis of stalls says, as sentences and tables."""

from __future__ import annotations

from collections.abc import Sequence

from epochmeter.report.analyses.stalls import Analysis, Incomplete
from epochmeter.report.analyses.what_if import Prediction
from epochmeter.report.pages import Name, Page, Section
from epochmeter.report.runs.data_source import CONDITIONS, FROM_STORAGE
from epochmeter.report.statistics import MIN_EFFECT
from epochmeter.report.words import Grid, interval, number, plain_values, seconds, spread
from epochmeter.results.bottleneck import FETCH_STALL, PREP_STALL, Bottleneck

NAME: Name = "stalls"
WHAT_TO_RUN = "python src/train.py -m experiment=stalls model=... dataset=..."
DATA_SOURCES = {
    "synthetic": "synthetic batches",
    "cached": "all in the page cache",
    "storage": "none in the page cache",
}


def page(found: Sequence[Analysis | Incomplete]) -> Page | None:
    """Where the stalls of each job come from, and what is lacking to tell; None where no analysis is complete."""
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
    if why := undecided(told.verdict):
        said.append(why)
    if told.conditions and not told.lives_in_memory:
        said.append(f"That holds on condition: {'; '.join(told.conditions)}.")
    if not told.lives_in_memory:
        why = f" ({told.in_memory.why})" if told.in_memory.why not in (None, told.verdict.why) else ""
        said.append(f"With the dataset in memory: {told.in_memory.text}{why}.")
    helps = best(told)
    if helps:
        said.append(helps)
    said += [f"{note[0].upper()}{note[1:]}." for note in told.notes]
    if told.energy.reason:
        said.append(f"No energy of the stalls: {told.energy.reason.rstrip('.')}.")
    elif told.energy.fetch and told.energy.preprocessing:
        joules = told.energy.storage_j or 0.0
        fetch = "" if told.lives_in_memory else f"{interval(told.energy.fetch, joules, unit='J')} for storage, "
        said.append(
            f"Energy ({told.energy.covers}): of {number(joules, joules)} J an epoch, {fetch}"
            f"{interval(told.energy.preprocessing, joules, unit='J')} for preprocessing."
        )
    return said


def answer(told: Analysis) -> str:
    """Return the first line: the bottleneck, and the stalls in seconds per epoch."""
    epoch = told.times_s[FROM_STORAGE].value
    prep, fetch = (interval(stall, epoch) for stall in (told.preprocessing, told.fetch))
    stalls = f"Prep stall {prep}" if told.lives_in_memory else f"Fetch stall {fetch}, prep stall {prep}"
    where = " The dataset is in memory: there is no fetch stall." if told.lives_in_memory else ""
    return f"{told.title}: {told.verdict.text}. {stalls} of {seconds(epoch)} per epoch.{where}"


def undecided(verdict: Bottleneck) -> str | None:
    """Return why the bottleneck is undecided, or how many repeats would decide between several; None if it is clear."""
    if verdict.why:
        return f"Undecided: {verdict.why}."
    if len(verdict.parts) > 1 and verdict.repeats:
        return (
            f"About {verdict.repeats} repeats of each would make the difference between the largest parts significant."
        )
    return None


def best(told: Analysis) -> str | None:
    """Return the change that is predicted to help most; None while the bottleneck is undecided.

    More workers are judged by their predicted time if the storage is saturated.
    """
    if not told.verdict.parts:
        return None
    epoch = told.times_s[FROM_STORAGE].value
    first_s = min(prediction.worst_s for prediction in told.predictions)
    if first_s > (1 - MIN_EFFECT) * epoch:
        return _no_help(told)
    # Of all that help as much, the least that is asked for.
    least = next(other for other in told.predictions if other.worst_s <= (1 + MIN_EFFECT) * first_s)
    now, at_most = seconds(epoch), "at most " if least.at_most or least.saturated_s else ""
    said = f"Most would help: {_choice(least, told.pipeline.ranks)}, for {at_most}{number(least.worst_s)} s per epoch "
    said += f"instead of {now}."
    if FETCH_STALL in told.verdict.parts and told.full_cache_share is not None and 0 < told.full_cache_share < 1:
        said += f" No fetch stall is left from {100 * told.full_cache_share:.0f} % of the dataset in memory on."
    return said


def _no_help(told: Analysis) -> str:
    pipeline = told.pipeline
    is_full = pipeline.cores is not None and pipeline.workers * pipeline.ranks >= pipeline.cores
    if told.verdict.parts[0] == PREP_STALL and is_full:
        return (
            "More DataLoader workers would not help, as the host has no more cores. "
            "Less preprocessing would help, such as images that are stored at the size used in training."
        )
    return "No change of data loading would help: a faster device or a smaller model would."


def grids(told: Analysis) -> list[Grid]:
    """The tables of an analysis."""
    return [_times(told), _definitions(told), _what_if(told)]


def incomplete(told: Incomplete) -> str:
    """What a stall analysis lacks, and what to run."""
    missing = ", ".join(told.missing)
    there = "; ".join(f"{name} ran on {', '.join(hosts)}" for name, hosts in told.elsewhere.items())
    here = f" on that host, beside which no other's stands ({there})" if there else ""
    return f"{told.title}: no stall analysis: no completed run of data_source={missing}{here}. Run: {WHAT_TO_RUN}"


def _times(told: Analysis) -> Grid:
    joules = {"synthetic": told.energy.synthetic_j, "cached": told.energy.cached_j, "storage": told.energy.storage_j}
    epoch = told.times_s[FROM_STORAGE].value
    rows = []
    for name in CONDITIONS:
        runs = ", ".join(map(str, told.numbers[name]))
        rows.append([name, DATA_SOURCES[name], runs, spread(told.times_s[name], epoch), number(joules[name])])
    return Grid("Epochs", ["data source", "samples come from", "runs", "s an epoch (95 %)", "J"], rows)


def _definitions(told: Analysis) -> Grid:
    rows = []
    for name, agreement in {"storage": told.storage, "cached": told.cached}.items():
        values = (agreement.measured_s, agreement.model_s, agreement.differential_s)
        largest = max(abs(value) for value in values if value is not None)
        rows.append([name, *(number(value, largest) for value in values)])
    columns = ["runs", "measured", "model", "differential"]
    return Grid("Stall of an epoch by its three definitions, s (preprocessing included)", columns, rows)


def _what_if(told: Analysis) -> Grid:
    limited = any(asked.saturated_s for asked in told.predictions)
    rows = []
    for asked in told.predictions:
        now = asked.question == "workers" and asked.choice == str(told.pipeline.workers)
        cells = [asked.question, asked.choice + (" (now)" if now else ""), _predicted(asked)]
        rows.append([*cells, *([number(asked.saturated_s)] if limited else []), number(asked.energy_j)])
    saturated = ["s if the storage is saturated"] if limited else []
    return Grid("What if (predicted)", ["what", "how much", "s per epoch", *saturated, "J"], rows)


def _choice(asked: Prediction, ranks: int) -> str:
    if asked.question == "workers":
        each = " per rank" if ranks > 1 else ""
        return f"{asked.choice} DataLoader worker{'' if asked.choice == '1' else 's'}{each}"
    if asked.question == "storage":
        return f"storage {asked.choice}"
    return f"{asked.choice} of the dataset in memory"


def _predicted(asked: Prediction) -> str:
    return f"at most {number(asked.epoch_s)}" if asked.at_most else number(asked.epoch_s)
