"""The page of stall analyses: sentences and tables."""

from __future__ import annotations

from collections.abc import Sequence

from epochmeter.report.analyses.stalls import Analysis, Incomplete
from epochmeter.report.analyses.what_if import Prediction
from epochmeter.report.formatting import interval, number, quantity
from epochmeter.report.pages import Name, Page, Section
from epochmeter.report.runs.data_source import CONDITIONS, FROM_STORAGE
from epochmeter.report.statistics import MIN_EFFECT
from epochmeter.report.words import Grid, plain_values
from epochmeter.results.bottleneck import FETCH_STALL, PREP_STALL, Bottleneck

NAME: Name = "stalls"
WHAT_TO_RUN = "python src/train.py -m experiment=stalls model=... dataset=..."
DATA_SOURCES = {
    "synthetic": "synthetic batches",
    "cached": "all in the page cache",
    "storage": "none in the page cache",
}


def page(results: Sequence[Analysis | Incomplete]) -> Page | None:
    """Return the page of all analyses, with missing conditions; None if no analysis is complete."""
    complete = [result for result in results if isinstance(result, Analysis)]
    if not complete:
        return None
    sections = [
        Section(sentences(result), grids(result)) if isinstance(result, Analysis) else Section([incomplete(result)])
        for result in results
    ]
    numbers = [number for result in complete for runs in result.numbers.values() for number in runs]
    return Page(NAME, "Stalls", sections, plain_values(results), sorted(numbers))


def sentences(analysis: Analysis) -> list[str]:
    """Return the sentences on an analysis, the answer first."""
    texts = [answer(analysis)]
    if why := undecided(analysis.verdict):
        texts.append(why)
    if analysis.conditions and not analysis.lives_in_memory:
        texts.append(f"Assumptions: {'; '.join(analysis.conditions)}.")
    if not analysis.lives_in_memory:
        why = f" ({analysis.in_memory.why})" if analysis.in_memory.why not in (None, analysis.verdict.why) else ""
        texts.append(f"With the dataset in memory: {analysis.in_memory.text}{why}.")
    helps = best(analysis)
    if helps:
        texts.append(helps)
    texts += [f"{note[0].upper()}{note[1:]}." for note in analysis.notes]
    if analysis.energy.reason:
        texts.append(f"No energy of the stalls: {analysis.energy.reason.rstrip('.')}.")
    elif analysis.energy.fetch and analysis.energy.preprocessing:
        joules = analysis.energy.storage_j or 0.0
        fetch = "" if analysis.lives_in_memory else f"fetch stall {interval(analysis.energy.fetch, 'J', joules)}, "
        texts.append(
            f"Energy ({analysis.energy.covers}): {quantity(joules, 'J')} per epoch, of which {fetch}"
            f"prep stall {interval(analysis.energy.preprocessing, 'J', joules)}."
        )
    return texts


def answer(analysis: Analysis) -> str:
    """Return the first line: the bottleneck, and the stalls in seconds per epoch."""
    epoch = analysis.times_s[FROM_STORAGE].value
    prep, fetch = (interval(stall, "s", epoch) for stall in (analysis.preprocessing, analysis.fetch))
    stalls = f"Prep stall {prep}" if analysis.lives_in_memory else f"Fetch stall {fetch}, prep stall {prep}"
    where = " The dataset is in memory, so there is no fetch stall." if analysis.lives_in_memory else ""
    return f"{analysis.title}: {analysis.verdict.text}. {stalls} of {quantity(epoch, 's')} per epoch.{where}"


def undecided(verdict: Bottleneck) -> str | None:
    """Return why the bottleneck is undecided, or how many repeats would decide between several; None if it is clear."""
    if verdict.why:
        return f"Undecided: {verdict.why}."
    if len(verdict.parts) > 1 and verdict.repeats:
        return (
            f"About {verdict.repeats} repeats per condition would make the difference of the largest parts significant."
        )
    return None


def best(analysis: Analysis) -> str | None:
    """Return the change that is predicted to help most; None while the bottleneck is undecided.

    More workers are judged by their predicted time if the storage is saturated.
    """
    if not analysis.verdict.parts:
        return None
    epoch = analysis.times_s[FROM_STORAGE].value
    first_s = min(prediction.worst_s for prediction in analysis.predictions)
    if first_s > (1 - MIN_EFFECT) * epoch:
        return _no_help(analysis)
    # Of changes with nearly the same effect, the first and smallest.
    least = next(other for other in analysis.predictions if other.worst_s <= (1 + MIN_EFFECT) * first_s)
    change = _choice(least, analysis.pipeline.ranks)
    now, at_most = quantity(epoch, "s"), "at most " if least.at_most or least.saturated_s else ""
    text = f"Most effective change: {change}: {at_most}{quantity(least.worst_s, 's')} per epoch "
    text += f"instead of {now}."
    if (
        FETCH_STALL in analysis.verdict.parts
        and analysis.full_cache_share is not None
        and 0 < analysis.full_cache_share < 1
    ):
        text += (
            f" With {100 * analysis.full_cache_share:.0f} % of the dataset or more in memory, there is no fetch stall."
        )
    return text


def _no_help(analysis: Analysis) -> str:
    pipeline = analysis.pipeline
    is_full = pipeline.cores is not None and pipeline.workers * pipeline.ranks >= pipeline.cores
    if analysis.verdict.parts[0] == PREP_STALL and is_full:
        return (
            "More DataLoader workers would not help, as the host has no more cores. "
            "Less preprocessing would help, such as images that are stored at the size used in training."
        )
    return "No change of data loading would help: a faster device or a smaller model would."


def grids(analysis: Analysis) -> list[Grid]:
    """Return the tables of an analysis."""
    return [_times(analysis), _definitions(analysis), _what_if(analysis)]


def incomplete(result: Incomplete) -> str:
    """Return which conditions have no runs, and the command that runs them."""
    missing = ", ".join(result.missing)
    there = "; ".join(f"{name} ran on {', '.join(hosts)}" for name, hosts in result.elsewhere.items())
    here = f" on that host (runs of different hosts are not compared: {there})" if there else ""
    return f"{result.title}: no stall analysis: no completed run of data_source={missing}{here}. Run: {WHAT_TO_RUN}"


def _times(analysis: Analysis) -> Grid:
    joules = {
        "synthetic": analysis.energy.synthetic_j,
        "cached": analysis.energy.cached_j,
        "storage": analysis.energy.storage_j,
    }
    epoch = analysis.times_s[FROM_STORAGE].value
    rows = []
    for name in CONDITIONS:
        runs = ", ".join(map(str, analysis.numbers[name]))
        rows.append(
            [name, DATA_SOURCES[name], runs, interval(analysis.times_s[name], "s", epoch), quantity(joules[name], "J")]
        )
    return Grid("Epochs", ["data source", "samples", "runs", "time per epoch", "energy"], rows)


def _definitions(analysis: Analysis) -> Grid:
    rows = []
    for name, agreement in {"storage": analysis.storage, "cached": analysis.cached}.items():
        values = (agreement.measured_s, agreement.model_s, agreement.differential_s)
        largest = max(abs(value) for value in values if value is not None)
        rows.append([name, *(number(value, largest) for value in values)])
    columns = ["runs", "measured", "model", "differential"]
    return Grid("Data stall per epoch by three definitions, s (preprocessing included)", columns, rows)


def _what_if(analysis: Analysis) -> Grid:
    limited = any(prediction.saturated_s for prediction in analysis.predictions)
    rows = []
    for prediction in analysis.predictions:
        now = prediction.question == "workers" and prediction.choice == str(analysis.pipeline.workers)
        cells = [prediction.question, prediction.choice + (" (now)" if now else ""), _predicted(prediction)]
        rows.append(
            [*cells, *([quantity(prediction.saturated_s, "s")] if limited else []), quantity(prediction.energy_j, "J")]
        )
    saturated = ["if the storage is saturated"] if limited else []
    return Grid("What if (predicted)", ["change", "value", "time per epoch", *saturated, "energy"], rows)


def _choice(prediction: Prediction, ranks: int) -> str:
    if prediction.question == "workers":
        per_rank = " per rank" if ranks > 1 else ""
        return f"{prediction.choice} DataLoader worker{'' if prediction.choice == '1' else 's'}{per_rank}"
    if prediction.question == "storage":
        return f"storage {prediction.choice}"
    return f"{prediction.choice} of the dataset in memory"


def _predicted(prediction: Prediction) -> str:
    text = quantity(prediction.epoch_s, "s")
    return f"at most {text}" if prediction.at_most else text
