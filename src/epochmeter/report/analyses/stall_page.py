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


def page(results: Sequence[Analysis | Incomplete]) -> Page | None:
    """Where the stalls of each job come from, and what is lacking to tell; None where no analysis is complete."""
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
    """All that is said of an analysis beside its tables, the answer first."""
    texts = [answer(analysis)]
    if why := undecided(analysis.verdict):
        texts.append(why)
    if analysis.conditions and not analysis.lives_in_memory:
        texts.append(f"That holds on condition: {'; '.join(analysis.conditions)}.")
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
        fetch = "" if analysis.lives_in_memory else f"{interval(analysis.energy.fetch, joules, unit='J')} for storage, "
        texts.append(
            f"Energy ({analysis.energy.covers}): of {number(joules, joules)} J an epoch, {fetch}"
            f"{interval(analysis.energy.preprocessing, joules, unit='J')} for preprocessing."
        )
    return texts


def answer(analysis: Analysis) -> str:
    """Return the first line: the bottleneck, and the stalls in seconds per epoch."""
    epoch = analysis.times_s[FROM_STORAGE].value
    prep, fetch = (interval(stall, epoch) for stall in (analysis.preprocessing, analysis.fetch))
    stalls = f"Prep stall {prep}" if analysis.lives_in_memory else f"Fetch stall {fetch}, prep stall {prep}"
    where = " The dataset is in memory: there is no fetch stall." if analysis.lives_in_memory else ""
    return f"{analysis.title}: {analysis.verdict.text}. {stalls} of {seconds(epoch)} per epoch.{where}"


def undecided(verdict: Bottleneck) -> str | None:
    """Return why the bottleneck is undecided, or how many repeats would decide between several; None if it is clear."""
    if verdict.why:
        return f"Undecided: {verdict.why}."
    if len(verdict.parts) > 1 and verdict.repeats:
        return (
            f"About {verdict.repeats} repeats of each would make the difference between the largest parts significant."
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
    # Of all that help as much, the least that is asked for.
    least = next(other for other in analysis.predictions if other.worst_s <= (1 + MIN_EFFECT) * first_s)
    now, at_most = seconds(epoch), "at most " if least.at_most or least.saturated_s else ""
    text = (
        f"Most would help: {_choice(least, analysis.pipeline.ranks)}, for {at_most}{number(least.worst_s)} s per epoch "
    )
    text += f"instead of {now}."
    if (
        FETCH_STALL in analysis.verdict.parts
        and analysis.full_cache_share is not None
        and 0 < analysis.full_cache_share < 1
    ):
        text += f" No fetch stall is left from {100 * analysis.full_cache_share:.0f} % of the dataset in memory on."
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
    """The tables of an analysis."""
    return [_times(analysis), _definitions(analysis), _what_if(analysis)]


def incomplete(result: Incomplete) -> str:
    """What a stall analysis lacks, and what to run."""
    missing = ", ".join(result.missing)
    there = "; ".join(f"{name} ran on {', '.join(hosts)}" for name, hosts in result.elsewhere.items())
    here = f" on that host, beside which no other's stands ({there})" if there else ""
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
        rows.append([name, DATA_SOURCES[name], runs, spread(analysis.times_s[name], epoch), number(joules[name])])
    return Grid("Epochs", ["data source", "samples come from", "runs", "s an epoch (95 %)", "J"], rows)


def _definitions(analysis: Analysis) -> Grid:
    rows = []
    for name, agreement in {"storage": analysis.storage, "cached": analysis.cached}.items():
        values = (agreement.measured_s, agreement.model_s, agreement.differential_s)
        largest = max(abs(value) for value in values if value is not None)
        rows.append([name, *(number(value, largest) for value in values)])
    columns = ["runs", "measured", "model", "differential"]
    return Grid("Stall of an epoch by its three definitions, s (preprocessing included)", columns, rows)


def _what_if(analysis: Analysis) -> Grid:
    limited = any(prediction.saturated_s for prediction in analysis.predictions)
    rows = []
    for prediction in analysis.predictions:
        now = prediction.question == "workers" and prediction.choice == str(analysis.pipeline.workers)
        cells = [prediction.question, prediction.choice + (" (now)" if now else ""), _predicted(prediction)]
        rows.append([*cells, *([number(prediction.saturated_s)] if limited else []), number(prediction.energy_j)])
    saturated = ["s if the storage is saturated"] if limited else []
    return Grid("What if (predicted)", ["what", "how much", "s per epoch", *saturated, "J"], rows)


def _choice(prediction: Prediction, ranks: int) -> str:
    if prediction.question == "workers":
        per_rank = " per rank" if ranks > 1 else ""
        return f"{prediction.choice} DataLoader worker{'' if prediction.choice == '1' else 's'}{per_rank}"
    if prediction.question == "storage":
        return f"storage {prediction.choice}"
    return f"{prediction.choice} of the dataset in memory"


def _predicted(prediction: Prediction) -> str:
    return f"at most {number(prediction.epoch_s)}" if prediction.at_most else number(prediction.epoch_s)
