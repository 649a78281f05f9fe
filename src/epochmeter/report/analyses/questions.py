"""Answers to seven questions on strategies, models and batch sizes, as sentences and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from epochmeter.report.analyses.effects import (
    PARTS,
    DeviceUse,
    DpVsDdp,
    FirstEpoch,
    LargerBatch,
    MemoryGrowth,
    SmallerModel,
    StepCount,
    device_uses,
    dp_vs_ddp,
    first_epochs,
    larger_batches,
    memory_growths,
    smaller_models,
    step_counts,
)
from epochmeter.report.analyses.scaling import WEAK, Scaling, overhead, scalings
from epochmeter.report.formatting import interval, number, quantity
from epochmeter.report.pages import Page, Section
from epochmeter.report.runs.configuration import DISTRIBUTED, SINGLE, Configuration, device_unit, group_repeats
from epochmeter.report.runs.run import Run
from epochmeter.report.statistics import MIN_EFFECT, Estimate
from epochmeter.report.words import Grid, finite, percent, times
from epochmeter.sweep.sweep_folder import RECOMMENDED_REPEATS

COMMAND = "python src/train.py -m experiment=lumi/resnet152_cifar100"
ONCE = (
    "Configurations that ran once have no intervals; small differences may be noise. "
    f"hint: {RECOMMENDED_REPEATS} gives confidence intervals."
)
REASONS = {
    "loader start": "DataLoader workers start, and the first batch is loaded",
    "waiting for data": "data is not in the page cache yet, or the DataLoader workers are too slow",
    "copies": "memory for the copies is allocated first",
    "compute": "kernels are selected and compiled, and memory is allocated first",
    "overhead": "time between the steps",
}
"""Part of an epoch -> why it may take longer in the first epoch."""
NOT_SIGNIFICANT = " (no significant difference)"


@dataclass(frozen=True)
class Answer:
    """The answer to a question.

    Attributes:
        sentences: The answer; empty if the runs do not answer the question.
        command: Command whose runs would answer it.
        values: Results that the answer is based on.
    """

    question: str
    sentences: Sequence[str]
    command: str
    grids: Sequence[Grid] = ()
    values: Sequence[Any] = ()


def page(rows: Sequence[Run]) -> Page | None:
    """Return the page of answers; None if no run has a strategy other than `single` or is part of the lumi study."""
    if not any(_is_relevant(row) for row in rows):
        return None
    results = answers(rows)
    sections = [
        Section([f"{answer.question} {answer.sentences[0]}", *answer.sentences[1:]], answer.grids)
        for answer in results
        if answer.sentences
    ]
    unanswered = [f"{answer.question} Run: {answer.command}" for answer in results if not answer.sentences]
    if unanswered:
        sections.append(Section(["Not answered by these runs:", *unanswered]))
    if any(len(configuration.runs) == 1 for configuration in group_repeats(rows)):
        sections.append(Section([ONCE]))
    values = [
        {"question": answer.question, "results": [finite(asdict(value)) for value in answer.values]}
        for answer in results
    ]
    return Page("questions", "Questions", sections, values, [row.number for row in rows])


def answers(rows: Sequence[Run]) -> list[Answer]:
    """Return the answers to the seven questions, in order."""
    configurations = group_repeats(rows)
    ranks = [result for result in scalings(rows) if isinstance(result, Scaling) and result.strategy == DISTRIBUTED]
    weak = [result for result in ranks if result.kind == WEAK] or ranks
    counts, pairs = step_counts(configurations), dp_vs_ddp(configurations)
    models, batches = smaller_models(configurations), larger_batches(configurations)
    return [
        _device_use(device_uses(configurations), memory_growths(configurations)),
        _first_epoch(first_epochs(configurations)),
        Answer(
            "3. Why does the number of iterations differ under DDP?",
            list(dict.fromkeys(map(_steps_sentence, counts))),
            f"{COMMAND} strategy=single,ddp",
            values=counts,
        ),
        Answer(
            "4. What is the overhead of DDP?",
            [*map(_ddp_sentence, weak)],
            f"{COMMAND} strategy=single,ddp",
            values=weak,
        ),
        Answer(
            "5. Is DataParallel as fast as DDP?",
            [*map(_dp_sentence, pairs)],
            f"{COMMAND} strategy=dp,ddp batch=64,128",
            values=pairs,
        ),
        Answer(
            "6. How much faster is a smaller model?",
            [*map(_model_sentence, models)],
            f"{COMMAND} model=resnet50,resnet152",
            values=models,
        ),
        Answer(
            "7. How much faster is a larger batch?",
            [*map(_batch_sentence, batches)],
            f"{COMMAND} batch=64,128",
            values=batches,
        ),
    ]


def _device_use(uses: Sequence[DeviceUse], growths: Sequence[MemoryGrowth]) -> Answer:
    texts, ranges = [], []
    for utilized in ("GPU", "CPU"):
        values = [use.utilization for use in uses if use.utilized == utilized and use.utilization is not None]
        ranges += [f"{utilized} utilization: {_range([100 * value for value in values])} %"] if values else []
    sizes = [use.memory_bytes for use in uses if use.memory_bytes is not None]
    if sizes:
        least, most = (quantity(size, "B") for size in (min(sizes), max(sizes)))
        ranges.append(f"peak memory of a device: {least if least == most else f'{least} to {most}'}")
    if ranges:
        text = "; ".join(ranges)
        texts.append(f"{text[0].upper()}{text[1:]}.")
    for key in dict.fromkeys(growth.key for growth in growths):
        matching = [growth for growth in growths if growth.key == key]
        texts.append(_growth_sentence(max(matching, key=lambda growth: growth.most_bytes / growth.least_bytes)))
    if any(use.utilized == "GPU" and use.power_w is not None for use in uses):
        texts.append(
            "A driver counts a GPU as busy while any kernel is resident, even one that waits. "
            "Power shows the load more reliably."
        )
    columns = ["configuration", "runs", "utilization", "power", "peak memory"]
    rows = [
        [
            use.title,
            _run_list(use.numbers),
            _utilization(use.utilization),
            quantity(use.power_w, "W"),
            quantity(use.memory_bytes, "B"),
        ]
        for use in uses
    ]
    grids = [Grid("Use of the devices", columns, rows)]
    return Answer(
        "1. How busy are the devices, and what increases their memory use?", texts, COMMAND, grids, [*uses, *growths]
    )


def _first_epoch(epochs: Sequence[FirstEpoch]) -> Answer:
    slower = [epoch for epoch in epochs if epoch.is_slower]
    texts = []
    if slower:
        ratios = _range([epoch.first_s / epoch.later_s for epoch in slower])
        texts.append(
            f"The first epoch is slower in {len(slower)} of {len(epochs)} configurations: "
            f"{ratios} times the time of a steady epoch."
        )
        counts = Counter(epoch.largest_part for epoch in slower if epoch.largest_part)
        texts += [
            f"Largest part of the difference: {part}, in {count} of {len(slower)}: {REASONS[part]}."
            for part, count in counts.most_common()
        ]
    elif epochs:
        texts.append(
            f"The first epoch is not significantly slower than the steady ones, by {100 * MIN_EFFECT:.0f} % or more, "
            f"in any of {len(epochs)} configurations."
        )
    rows = []
    for epoch in epochs:
        reference = max(abs(epoch.more_s.value), epoch.later_s / 1000)
        parts = [quantity(epoch.parts_s.get(part), "s", reference) for part in PARTS]
        times_s = [quantity(seconds, "s", epoch.later_s) for seconds in (epoch.first_s, epoch.later_s)]
        rows.append([epoch.title, _run_list(epoch.numbers), *times_s, interval(epoch.more_s, "s", reference), *parts])
    columns = ["configuration", "runs", "first epoch", "steady epochs", "difference", *PARTS]
    grids = [Grid("First epoch compared with the steady ones, and the parts of the difference", columns, rows)]
    return Answer("2. Why is the first epoch slower?", texts, f"{COMMAND} epochs=4", grids, epochs)


def _is_relevant(row: Run) -> bool:
    return Configuration([row]).strategy != SINGLE or row.keys.get("experiment", "").startswith("lumi/")


def _growth_sentence(growth: MemoryGrowth) -> str:
    sizes = f"from {quantity(growth.least_bytes, 'B')} to {quantity(growth.most_bytes, 'B')}"
    where = f" ({growth.title})" if growth.title else ""
    return f"{growth.key}={growth.most} instead of {growth.least} increases it {sizes}{where}."


def _steps_sentence(count: StepCount) -> str:
    lead = f"Batch {count.batch}: {count.strategy} on {count.devices} {device_unit(count.strategy)}"
    if count.strategy != DISTRIBUTED:
        splits = " because it splits each batch" if count.steps == count.one_steps else ""
        return f"{lead}: {count.steps:g} steps per epoch{splits}, one device: {count.one_steps:g}."
    rounded = "down, as the last batch is dropped" if count.drops_last else "up"
    expected = f"{count.samples:g} / ({count.batch} x {count.devices}) = {count.expected}, rounded {rounded}"
    text = f"{lead}: {count.steps:g} steps per epoch and rank, one device: {count.one_steps:g}. "
    text += f"Each rank trains on its share of the samples: {expected}"
    return f"{text}." if count.steps == count.expected else f"{text}, which differs from the measured number."


def _ddp_sentence(scaling: Scaling) -> str:
    where = f"{scaling.title}, {scaling.strategy} x {scaling.devices}, batch {scaling.device_batch:g} per rank"
    text = f"{where}: scaling efficiency {percent(scaling.efficiency)}."
    if scaling.overhead_s is not None and scaling.step_s:
        text += f" {overhead(scaling.overhead_s, scaling.step_s, scaling.strategy)}"
    return text


def _dp_sentence(pair: DpVsDdp) -> str:
    lead = f"{_prefix(pair.title)}on {pair.devices} devices"
    if pair.same_global_batch:
        lead += f", {pair.batch} samples per step in both"
    else:
        lead += f", batch {pair.batch} split by dp and {pair.distributed_batch} per rank of ddp"
    text = f"{lead}: ddp reaches {times(pair.speed)} the samples/s of dp{_significance(pair.speed)}."
    if pair.more_s and pair.step_s and pair.more_s.value > 0 and not pair.more_s.contains(0):
        more = interval(pair.more_s, "s", pair.step_s)
        text += f" A step of dp takes {more} longer than ddp's {quantity(pair.step_s, 's')}: in each step, one process "
        text += "copies the model to each device, scatters the batch and gathers the outputs."
    return text


def _model_sentence(model: SmallerModel) -> str:
    flops = f" and 1/{number(model.flops)} of the FLOPs" if model.flops else ""
    text = f"{_prefix(model.title)}{model.small} instead of {model.large} reaches {times(model.speed)} the samples/s"
    text += f"{_significance(model.speed)}, with 1/{number(model.parameters)} of the parameters{flops}."
    if model.nearer:
        text += f" The speed-up is nearer to the ratio of {model.nearer}."
    if model.flops and model.speed.value < (1 - MIN_EFFECT) * min(model.flops, model.parameters):
        text += " It is smaller than both ratios: costs that do not depend on the model, such as data and kernel "
        text += "launches, limit it."
    return text


def _batch_sentence(batch: LargerBatch) -> str:
    lead = f"{_prefix(batch.title)}batch {batch.more} instead of {batch.less}"
    text = f"{lead} reaches {times(batch.speed)} the samples/s{_significance(batch.speed)}"
    if batch.less_bytes and batch.more_bytes:
        sizes = f"{quantity(batch.less_bytes, 'B')} to {quantity(batch.more_bytes, 'B')}"
        text += f", with {number(batch.more_bytes / batch.less_bytes)} times the memory ({sizes})"
    if batch.less_utilization is not None and batch.more_utilization is not None:
        values = dict.fromkeys(map(_utilization, (batch.less_utilization, batch.more_utilization)))
        text += f"; GPU utilization: {' to '.join(values)}"
    return f"{text}."


def _significance(ratio: Estimate) -> str:
    return NOT_SIGNIFICANT if ratio.contains(1) else ""


def _prefix(title: str) -> str:
    return f"{title}: " if title else ""


def _range(values: Sequence[float]) -> str:
    least, most = number(min(values)), number(max(values))
    return least if least == most else f"{least} to {most}"


def _utilization(value: float | None) -> str:
    return number(value) if value is None else f"{100 * value:.0f} %"


def _run_list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
