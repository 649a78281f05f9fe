"""The answers to the questions of a sweep over strategies, models and batches: sentences with numbers, and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from epochmeter.report.analyses.effects import (
    PARTS,
    DpVsDdp,
    FirstEpoch,
    LargerBatch,
    MemoryGrowth,
    SmallerModel,
    StepCount,
    Use,
    first_epochs,
    growths,
    iterations,
    larger_batches,
    parallels,
    smaller_models,
    uses,
)
from epochmeter.report.analyses.scaling import WEAK, Scaling, overhead, scalings
from epochmeter.report.pages import Page, Section
from epochmeter.report.runs.configuration import DISTRIBUTED, SINGLE, Configuration, device_unit, group_repeats
from epochmeter.report.runs.run import Run
from epochmeter.report.statistics import MIN_EFFECT
from epochmeter.report.words import Grid, finite, interval, megabytes, number, percent, spread, times
from epochmeter.sweep.sweep_folder import RECOMMENDED_REPEATS

COMMAND = "python src/train.py -m experiment=lumi/resnet152_cifar100"
ONCE = (
    "Configurations that ran once have no intervals; small differences may be chance. "
    f"{RECOMMENDED_REPEATS} gives intervals."
)
WHY = {
    "loader start": "the loader's processes begin, and the first batch is waited for",
    "waiting for data": "data is not yet in the page cache, or the loader's processes fall behind",
    "copies": "memory for the copies is allocated first",
    "compute": "kernels are chosen and compiled, and memory is first allocated",
    "overhead": "what lies between the steps",
}


@dataclass(frozen=True)
class Answer:
    """What a sweep says to a question: without any sentence, what to run to have one."""

    question: str
    sentences: Sequence[str]
    run: str
    grids: Sequence[Grid] = ()
    values: Sequence[Any] = ()


def page(rows: Sequence[Run]) -> Page | None:
    """The answers; None where nothing was run that they are asked of: no strategy but single, none of the demo."""
    if not any(_asked(row) for row in rows):
        return None
    results = answers(rows)
    sections = [Section([f"{answer.question} {answer.sentences[0]}", *answer.sentences[1:]], answer.grids)
                for answer in results if answer.sentences]  # fmt: skip
    unanswered = [f"{answer.question} For an answer: {answer.run}" for answer in results if not answer.sentences]
    if unanswered:
        sections.append(Section(["What these runs do not answer:", *unanswered]))
    if any(len(point.runs) == 1 for point in group_repeats(rows)):
        sections.append(Section([ONCE]))
    values = [
        {"question": answer.question, "results": [finite(asdict(value)) for value in answer.values]}
        for answer in results
    ]
    return Page("questions", "Questions", sections, values, [row.number for row in rows])


def answers(rows: Sequence[Run]) -> list[Answer]:
    """One for each of the seven questions, in their order; rows are results."""
    configurations = group_repeats(rows)
    ranks = [scaling for scaling in scalings(rows) if isinstance(scaling, Scaling) and scaling.strategy == DISTRIBUTED]
    return [
        use(uses(configurations), growths(configurations)),
        first(first_epochs(configurations)),
        steps(iterations(configurations)),
        distributed([scaling for scaling in ranks if scaling.kind == WEAK] or ranks),
        parallel(parallels(configurations)),
        smaller(smaller_models(configurations)),
        larger(larger_batches(configurations)),
    ]


def use(uses: Sequence[Use], growths: Sequence[MemoryGrowth]) -> Answer:
    texts, ranges = [], []
    for utilized in ("GPU", "CPU"):
        shares = [use.utilization for use in uses if use.utilized == utilized and use.utilization is not None]
        ranges += [f"{utilized} utilization is {_range([100 * share for share in shares])} %"] if shares else []
    sizes = [use.memory_bytes for use in uses if use.memory_bytes is not None]
    ranges += [f"a device's memory peaks at {_range([1e-6 * size for size in sizes])} MB"] if sizes else []
    if ranges:
        texts.append(f"{'; '.join(ranges)[:1].upper()}{'; '.join(ranges)[1:]}.")
    for key in dict.fromkeys(growth.key for growth in growths):
        largest = max(
            (growth for growth in growths if growth.key == key),
            key=lambda growth: growth.most_bytes / growth.least_bytes,
        )
        texts.append(_grown(largest))
    if any(use.utilized == "GPU" and use.power_w is not None for use in uses):
        texts.append("A driver counts a GPU as busy while any kernel is in it, waiting or not: its power says more.")
    columns = ["job", "runs", "utilization", "power W", "MB at most"]
    rows = [
        [use.title, _runs(use.numbers), _share(use.utilization), number(use.power_w), megabytes(use.memory_bytes)]
        for use in uses
    ]
    return Answer("1. How busy are the devices, and what raises their memory?", texts, COMMAND,
                  [Grid("Use of the devices", columns, rows)], [*uses, *growths])  # fmt: skip


def first(epochs: Sequence[FirstEpoch]) -> Answer:
    slower = [epoch for epoch in epochs if epoch.slower]
    texts = []
    if slower:
        longer = _range([epoch.first_s / epoch.later_s for epoch in slower])
        texts.append(f"In {len(slower)} of {len(epochs)} jobs epoch 0 is slower: it takes {longer} times a later one.")
        most = Counter(epoch.most for epoch in slower if epoch.most)
        texts += [
            f"The most of it lies in {part} in {count} of {len(slower)}: {WHY[part]}."
            for part, count in most.most_common()
        ]
    elif epochs:
        least = f"by {100 * MIN_EFFECT:.0f} % or more"
        texts.append(f"In none of {len(epochs)} jobs epoch 0 is shown to be slower than the later ones {least}.")
    rows = []
    for epoch in epochs:
        reference = max(abs(epoch.more_s.value), epoch.later_s / 1000)
        parts = [number(epoch.parts_s.get(part), reference) for part in PARTS]
        times_s = [number(seconds, epoch.later_s) for seconds in (epoch.first_s, epoch.later_s)]
        rows.append([epoch.title, _runs(epoch.numbers), *times_s, spread(epoch.more_s, reference), *parts])
    columns = ["job", "runs", "epoch 0 s", "later s", "more s", *(f"in {part}" for part in PARTS)]
    return Answer("2. Why is the first epoch slower?", texts, f"{COMMAND} epochs=4",
                  [Grid("Epoch 0 beside the later ones", columns, rows)], epochs)  # fmt: skip


def steps(counts: Sequence[StepCount]) -> Answer:
    return Answer("3. Why do iterations differ under DDP?", list(dict.fromkeys(map(_iterated, counts))),
                  f"{COMMAND} strategy=single,ddp", values=counts)  # fmt: skip


def distributed(scalings: Sequence[Scaling]) -> Answer:
    return Answer("4. What does DDP cost?", [_distributed(scaling) for scaling in scalings],
                  f"{COMMAND} strategy=single,ddp", values=scalings)  # fmt: skip


def parallel(comparisons: Sequence[DpVsDdp]) -> Answer:
    return Answer("5. Is DataParallel as fast as DDP?", [_paralleled(comparison) for comparison in comparisons],
                  f"{COMMAND} strategy=dp,ddp batch=64,128", values=comparisons)  # fmt: skip


def smaller(models: Sequence[SmallerModel]) -> Answer:
    return Answer("6. What does a smaller model bring?", [_smaller(model) for model in models],
                  f"{COMMAND} model=resnet50,resnet152", values=models)  # fmt: skip


def larger(batches: Sequence[LargerBatch]) -> Answer:
    return Answer("7. What does a larger batch bring?", [_larger(batch) for batch in batches],
                  f"{COMMAND} batch=64,128", values=batches)  # fmt: skip


def _asked(row: Run) -> bool:
    return Configuration([row]).strategy != SINGLE or row.keys.get("experiment", "").startswith("lumi/")


def _grown(growth: MemoryGrowth) -> str:
    sizes = f"from {megabytes(growth.least_bytes)} to {megabytes(growth.most_bytes)} MB"
    at = f" ({growth.title})" if growth.title else ""
    return f"{growth.key}={growth.most} in place of {growth.least} raises it {sizes}{at}."


def _iterated(count: StepCount) -> str:
    lead = f"Batch {count.batch}: {count.strategy} on {count.devices} {device_unit(count.strategy)}"
    if count.strategy != DISTRIBUTED:
        splits = " as it splits each batch," if count.steps == count.one_steps else ""
        return f"{lead} takes {count.steps:g} steps,{splits} and one device {count.one_steps:g}."
    rounded = "down, as the last batch is dropped" if count.drops_last else "up"
    expected = f"{count.samples:g} / ({count.batch} x {count.devices}) is {count.expected}, rounded {rounded}"
    text = (
        f"{lead} takes {count.steps:g} steps a rank, and one device {count.one_steps:g}: each rank has its own share "
    )
    text += f"of the samples, and {expected}"
    return f"{text}." if count.steps == count.expected else f"{text}; something else differs."


def _distributed(scaling: Scaling) -> str:
    where = f"{scaling.title}, {scaling.strategy} x {scaling.devices}, batch {scaling.device_batch:g} each"
    text = f"{where}: scaling efficiency {percent(scaling.efficiency)}."
    if scaling.overhead_s is not None and scaling.step_s:
        text += f" {overhead(scaling.overhead_s, scaling.step_s, scaling.strategy)}"
    return text


def _paralleled(comparison: DpVsDdp) -> str:
    lead = f"{_led(comparison.title)}on {comparison.devices} devices"
    if comparison.alike:
        lead += f", {comparison.batch} samples a step in both"
    else:
        lead += f", batch {comparison.batch} split by dp and {comparison.distributed_batch} for each rank of ddp"
    unshown = ", which shows no difference" if comparison.speed.contains(1) else ""
    text = f"{lead}: ddp does {times(comparison.speed)} the samples/s of dp{unshown}."
    if comparison.more_s and comparison.step_s and comparison.more_s.value > 0 and not comparison.more_s.contains(0):
        step_ms = 1e3 * comparison.step_s
        more = interval(comparison.more_s.scaled(1e3), step_ms, "ms")
        text += f" A step of dp takes {more} more than ddp's {number(step_ms)} ms: one process copies the model to "
        text += "each device, scatters the batch and gathers the outputs, every time."
    return text


def _smaller(model: SmallerModel) -> str:
    flops = f" and 1/{number(model.flops)} of the FLOPs" if model.flops else ""
    unshown = ", which shows no difference" if model.speed.contains(1) else ""
    text = (
        f"{_led(model.title)}{model.small} in place of {model.large} does {times(model.speed)} the samples/s{unshown}, "
    )
    text += f"with 1/{number(model.parameters)} of the parameters{flops}."
    if model.nearer:
        text += f" The speed follows the {model.nearer} more nearly."
    if model.flops and model.speed.value < (1 - MIN_EFFECT) * min(model.flops, model.parameters):
        text += " It falls short of both: what does not shrink with the model (data, launches) takes its time."
    return text


def _larger(batch: LargerBatch) -> str:
    unshown = ", which shows no difference" if batch.speed.contains(1) else ""
    what = f"{_led(batch.title)}batch {batch.more} in place of {batch.less}"
    text = f"{what} does {times(batch.speed)} the samples/s{unshown}"
    if batch.less_bytes and batch.more_bytes:
        more = number(batch.more_bytes / batch.less_bytes)
        text += f", with {more} times the memory ({megabytes(batch.less_bytes)} to {megabytes(batch.more_bytes)} MB)"
    if batch.less_utilization is not None and batch.more_utilization is not None:
        shares = dict.fromkeys(map(_share, (batch.less_utilization, batch.more_utilization)))
        text += f"; the GPU is busy {' to '.join(shares)} of the time: memory says what fits, not how fast it goes"
    return f"{text}."


def _led(title: str) -> str:
    return f"{title}: " if title else ""


def _range(values: Sequence[float]) -> str:
    least, most = number(min(values)), number(max(values))
    return least if least == most else f"{least} to {most}"


def _share(value: float | None) -> str:
    return number(value) if value is None else f"{100 * value:.0f} %"


def _runs(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
