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
    told = answers(rows)
    sections = [Section([f"{each.question} {each.sentences[0]}", *each.sentences[1:]], each.grids)
                for each in told if each.sentences]  # fmt: skip
    lacking = [f"{each.question} For an answer: {each.run}" for each in told if not each.sentences]
    if lacking:
        sections.append(Section(["What these runs do not answer:", *lacking]))
    if any(len(point.runs) == 1 for point in group_repeats(rows)):
        sections.append(Section([ONCE]))
    values = [{"question": each.question, "results": [finite(asdict(value)) for value in each.values]} for each in told]
    return Page("questions", "Questions", sections, values, [row.number for row in rows])


def answers(rows: Sequence[Run]) -> list[Answer]:
    """One for each of the seven questions, in their order; rows are results."""
    points = group_repeats(rows)
    ranks = [each for each in scalings(rows) if isinstance(each, Scaling) and each.strategy == DISTRIBUTED]
    return [
        use(uses(points), growths(points)),
        first(first_epochs(points)),
        steps(iterations(points)),
        distributed([each for each in ranks if each.kind == WEAK] or ranks),
        parallel(parallels(points)),
        smaller(smaller_models(points)),
        larger(larger_batches(points)),
    ]


def use(found: Sequence[Use], grown: Sequence[MemoryGrowth]) -> Answer:
    said, told = [], []
    for utilized in ("GPU", "CPU"):
        shares = [each.utilization for each in found if each.utilized == utilized and each.utilization is not None]
        told += [f"{utilized} utilization is {_range([100 * share for share in shares])} %"] if shares else []
    sizes = [each.memory_bytes for each in found if each.memory_bytes is not None]
    told += [f"a device's memory peaks at {_range([1e-6 * size for size in sizes])} MB"] if sizes else []
    if told:
        said.append(f"{'; '.join(told)[:1].upper()}{'; '.join(told)[1:]}.")
    for key in dict.fromkeys(growth.key for growth in grown):
        largest = max((each for each in grown if each.key == key), key=lambda each: each.most_bytes / each.least_bytes)
        said.append(_grown(largest))
    if any(each.utilized == "GPU" and each.power_w is not None for each in found):
        said.append("A driver counts a GPU as busy while any kernel is in it, waiting or not: its power says more.")
    columns = ["job", "runs", "utilization", "power W", "MB at most"]
    rows = [
        [each.title, _runs(each.numbers), _share(each.utilization), number(each.power_w), megabytes(each.memory_bytes)]
        for each in found
    ]
    return Answer("1. How busy are the devices, and what raises their memory?", said, COMMAND,
                  [Grid("Use of the devices", columns, rows)], [*found, *grown])  # fmt: skip


def first(found: Sequence[FirstEpoch]) -> Answer:
    slower = [each for each in found if each.slower]
    said = []
    if slower:
        longer = _range([each.first_s / each.later_s for each in slower])
        said.append(f"In {len(slower)} of {len(found)} jobs epoch 0 is slower: it takes {longer} times a later one.")
        most = Counter(each.most for each in slower if each.most)
        said += [
            f"The most of it lies in {part} in {count} of {len(slower)}: {WHY[part]}."
            for part, count in most.most_common()
        ]
    elif found:
        least = f"by {100 * MIN_EFFECT:.0f} % or more"
        said.append(f"In none of {len(found)} jobs epoch 0 is shown to be slower than the later ones {least}.")
    rows = []
    for each in found:
        beside = max(abs(each.more_s.value), each.later_s / 1000)
        parts = [number(each.parts_s.get(part), beside) for part in PARTS]
        times_s = [number(seconds, each.later_s) for seconds in (each.first_s, each.later_s)]
        rows.append([each.title, _runs(each.numbers), *times_s, spread(each.more_s, beside), *parts])
    columns = ["job", "runs", "epoch 0 s", "later s", "more s", *(f"in {part}" for part in PARTS)]
    return Answer("2. Why is the first epoch slower?", said, f"{COMMAND} epochs=4",
                  [Grid("Epoch 0 beside the later ones", columns, rows)], found)  # fmt: skip


def steps(found: Sequence[StepCount]) -> Answer:
    return Answer("3. Why do iterations differ under DDP?", list(dict.fromkeys(map(_iterated, found))),
                  f"{COMMAND} strategy=single,ddp", values=found)  # fmt: skip


def distributed(found: Sequence[Scaling]) -> Answer:
    return Answer("4. What does DDP cost?", [_distributed(each) for each in found],
                  f"{COMMAND} strategy=single,ddp", values=found)  # fmt: skip


def parallel(found: Sequence[DpVsDdp]) -> Answer:
    return Answer("5. Is DataParallel as fast as DDP?", [_paralleled(each) for each in found],
                  f"{COMMAND} strategy=dp,ddp batch=64,128", values=found)  # fmt: skip


def smaller(found: Sequence[SmallerModel]) -> Answer:
    return Answer("6. What does a smaller model bring?", [_smaller(each) for each in found],
                  f"{COMMAND} model=resnet50,resnet152", values=found)  # fmt: skip


def larger(found: Sequence[LargerBatch]) -> Answer:
    return Answer("7. What does a larger batch bring?", [_larger(each) for each in found],
                  f"{COMMAND} batch=64,128", values=found)  # fmt: skip


def _asked(row: Run) -> bool:
    return Configuration([row]).strategy != SINGLE or row.keys.get("experiment", "").startswith("lumi/")


def _grown(told: MemoryGrowth) -> str:
    sizes = f"from {megabytes(told.least_bytes)} to {megabytes(told.most_bytes)} MB"
    at = f" ({told.title})" if told.title else ""
    return f"{told.key}={told.most} in place of {told.least} raises it {sizes}{at}."


def _iterated(told: StepCount) -> str:
    lead = f"Batch {told.batch}: {told.strategy} on {told.devices} {device_unit(told.strategy)}"
    if told.strategy != DISTRIBUTED:
        splits = " as it splits each batch," if told.steps == told.one_steps else ""
        return f"{lead} takes {told.steps:g} steps,{splits} and one device {told.one_steps:g}."
    rounded = "down, as the last batch is dropped" if told.drops_last else "up"
    expected = f"{told.samples:g} / ({told.batch} x {told.devices}) is {told.expected}, rounded {rounded}"
    said = f"{lead} takes {told.steps:g} steps a rank, and one device {told.one_steps:g}: each rank has its own share "
    said += f"of the samples, and {expected}"
    return f"{said}." if told.steps == told.expected else f"{said}; something else differs."


def _distributed(told: Scaling) -> str:
    where = f"{told.title}, {told.strategy} x {told.devices}, batch {told.device_batch:g} each"
    said = f"{where}: scaling efficiency {percent(told.efficiency)}."
    if told.overhead_s is not None and told.step_s:
        said += f" {overhead(told.overhead_s, told.step_s, told.strategy)}"
    return said


def _paralleled(told: DpVsDdp) -> str:
    lead = f"{_led(told.title)}on {told.devices} devices"
    if told.alike:
        lead += f", {told.batch} samples a step in both"
    else:
        lead += f", batch {told.batch} split by dp and {told.distributed_batch} for each rank of ddp"
    unshown = ", which shows no difference" if told.speed.contains(1) else ""
    said = f"{lead}: ddp does {times(told.speed)} the samples/s of dp{unshown}."
    if told.more_s and told.step_s and told.more_s.value > 0 and not told.more_s.contains(0):
        step_ms = 1e3 * told.step_s
        more = interval(told.more_s.scaled(1e3), step_ms, "ms")
        said += f" A step of dp takes {more} more than ddp's {number(step_ms)} ms: one process copies the model to "
        said += "each device, scatters the batch and gathers the outputs, every time."
    return said


def _smaller(told: SmallerModel) -> str:
    flops = f" and 1/{number(told.flops)} of the FLOPs" if told.flops else ""
    unshown = ", which shows no difference" if told.speed.contains(1) else ""
    said = f"{_led(told.title)}{told.small} in place of {told.large} does {times(told.speed)} the samples/s{unshown}, "
    said += f"with 1/{number(told.parameters)} of the parameters{flops}."
    if told.nearer:
        said += f" The speed follows the {told.nearer} more nearly."
    if told.flops and told.speed.value < (1 - MIN_EFFECT) * min(told.flops, told.parameters):
        said += " It falls short of both: what does not shrink with the model (data, launches) takes its time."
    return said


def _larger(told: LargerBatch) -> str:
    unshown = ", which shows no difference" if told.speed.contains(1) else ""
    what = f"{_led(told.title)}batch {told.more} in place of {told.less}"
    said = f"{what} does {times(told.speed)} the samples/s{unshown}"
    if told.less_bytes and told.more_bytes:
        more = number(told.more_bytes / told.less_bytes)
        said += f", with {more} times the memory ({megabytes(told.less_bytes)} to {megabytes(told.more_bytes)} MB)"
    if told.less_utilization is not None and told.more_utilization is not None:
        shares = dict.fromkeys(map(_share, (told.less_utilization, told.more_utilization)))
        said += f"; the GPU is busy {' to '.join(shares)} of the time: memory says what fits, not how fast it goes"
    return f"{said}."


def _led(title: str) -> str:
    return f"{title}: " if title else ""


def _range(values: Sequence[float]) -> str:
    least, most = number(min(values)), number(max(values))
    return least if least == most else f"{least} to {most}"


def _share(value: float | None) -> str:
    return number(value) if value is None else f"{100 * value:.0f} %"


def _runs(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
