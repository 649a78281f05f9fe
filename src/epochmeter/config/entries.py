"""The keys of each command, by the name of its file in conf/; those of training are in `schema.py`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from epochmeter.config import rules
from epochmeter.config.rules import AnyMapping, Fraction, Intensity, NotNegative, PositiveSeconds, Watts
from epochmeter.config.schema import (
    OUTPUT,
    Dataset,
    Device,
    Host,
    Job,
    LockedHost,
    MeterSpec,
    Section,
    Storage,
    Tracking,
    key,
)


@dataclass(frozen=True, kw_only=True)
class Questions(Section):
    """What a report answers about its runs."""

    eta: Fraction = key(0.5, "weight of energy in the trade-off eta x energy + (1 - eta) x maximum power x time")
    max_slowdown: Annotated[float, rules.finite_number(1, unit="a multiple of the shortest time")] = key(
        1.1, "find the least energy within this multiple of the shortest time"
    )
    power_budget: Watts | None = key(None, "find the fastest configuration at this power or less, in watts; null: none")
    deadline: PositiveSeconds | None = key(
        None, "find the least energy within this time per epoch, in seconds; null: none"
    )
    baseline: Annotated[str | Mapping[str, Any], rules.BASELINE] | None = key(
        None, "configuration to compare the best with: '{model: lenet, batch: 8}', or defaults; null: none"
    )
    predict: bool = key(False, "true: predict time and power of configurations that were not run, and suggest runs")
    prior: Annotated[str | list[str] | None, rules.SWEEPS_OR_NONE] = key(
        [], "earlier sweeps that predictions learn from: names, patterns or folders, as for sweep=; implies predict"
    )
    next: Annotated[int, rules.whole_number(0, 100)] = key(3, "number of runs that the prediction suggests")
    samples: bool = key(True, "show training images of the dataset on the page; false: none, such as of private data")


@dataclass(frozen=True, kw_only=True)
class ReportFootprint(Section):
    intensity: Intensity | None = key(
        None, "grams of CO2e per kWh: a number, a country's yearly mean (FRA), or an hourly CSV file"
    )
    price: NotNegative | None = key(None, "price of a kWh")
    currency: str | None = key(None, "currency of the price, such as EUR")
    pue: Annotated[float, rules.PUE] | None = key(
        None, "power usage effectiveness: energy of the data center / energy of its computers"
    )
    embodied_g: NotNegative | None = key(
        None, "part of the hardware's embodied emissions per run, in grams of CO2e, for SCI"
    )
    export: bool = key(
        False, "true: write sci.json (Software Carbon Intensity) and one boamps_NUMBER.json (BoAmps) per run"
    )


@dataclass(frozen=True, kw_only=True)
class Gate(Section):
    time: Annotated[float, rules.RATIO] | None = key(
        None, "largest ratio of the time per epoch, such as 1.03; null: any"
    )
    energy: Annotated[float, rules.RATIO] | None = key(None, "largest ratio of the energy per epoch; null: any")
    run: Annotated[float, rules.RATIO] | None = key(None, "largest ratio of the time of the whole run; null: any")


@dataclass(frozen=True, kw_only=True)
class ModelCard(Section):
    training_type: Literal["pre-training", "fine-tuning"] | None = key(
        None, "kind of training that the card states; null: not stated"
    )
    location: Annotated[str, rules.NAME] | None = key(
        None, "place where the model was trained, such as 'Quebec, Canada'; null: the country of footprint.intensity"
    )


@dataclass(frozen=True, kw_only=True)
class Comparison(Section):
    """The configuration of report.py."""

    tracking: Tracking

    sweep: Annotated[str | list[str] | None, rules.SWEEPS] = key(
        None, "sweep to report: name in multirun/, pattern, folder, or a list [a,b]; null: the last one"
    )
    against: Annotated[str | list[str] | None, rules.SWEEPS] = key(
        None, "second sweep to compare with, such as before and after a change, or two boards; with view=trace, a run"
    )
    where: AnyMapping | None = key(
        None, "filter by configuration: 'where={model: lenet, batch: [8, 16]}'; null: all runs"
    )
    include: Annotated[str | list[str] | None, rules.SWEEPS_OR_NONE] = key(
        [], "runs to include that are excluded by default: rehearsals, failures"
    )
    source: Literal["records", "mlflow"] = key(
        "records", "where runs are read from: records (run folders), or mlflow if they are on another machine"
    )
    view: Literal["trace", "perfetto", "card"] | None = key(
        None,
        "trace: analysis of one run's profiler trace; perfetto: timeline of a run in a browser; card: model card of a "
        "run for the Hugging Face Hub; null: a report",
    )
    run: Annotated[str, rules.NAME] | None = key(
        None,
        "run of view=: its folder, SWEEP/NUMBER in multirun/, or a sweep with one traced run; null: the last one; "
        "with against=, also a trace file",
    )
    out: str | None = key(None, "output folder; null: the sweep's folder, for several sweeps multirun/reports/<time>")
    format: Literal["text", "json"] = key("text", OUTPUT)

    report: Questions = key(Questions(), new_paragraph=True)

    footprint: ReportFootprint = key(
        ReportFootprint(),
        "carbon footprint and cost of the measured energy; null: as each run was configured",
        new_paragraph=True,
    )

    card: ModelCard = key(ModelCard(), "for view=card", new_paragraph=True)

    gate: Gate = key(
        Gate(),
        "largest ratios to against= or report.baseline=; the exit code is 0 (passed), 2 (violated) or 3 (undecided)",
        new_paragraph=True,
    )


@dataclass(frozen=True, kw_only=True)
class View(Section):
    """The configuration of watch.py."""

    folder: Annotated[str, rules.NAME] | None = key(
        None, "run or sweep: folder, or name in multirun/; null: the running one, else the newest until one starts"
    )
    format: Literal["text", "json"] = key("text", OUTPUT)
    once: bool = key(False, "print the state once, as it is always done if the output is not a terminal")
    page: bool = key(False, "true: serve the view as a page, and print its address")
    port: Annotated[int, rules.whole_number(0, 65_535)] | None = key(
        None, "port of the page; 0: any free one; null: 8600, or the next free one"
    )
    host: str | None = key(
        None, "address at which the page is served, 0.0.0.0 for all; needs a token; null: for this machine only"
    )
    token: str | None = key(None, "token that each request needs; null: a random one with host=, and none without")
    metrics: bool = key(False, "true: serve the page, and /metrics for Prometheus (OpenMetrics)")


@dataclass(frozen=True, kw_only=True)
class Examination(Section):
    """The configuration of doctor.py."""

    device: Device
    meter: MeterSpec
    dataset: Dataset
    storage: Storage

    format: Literal["table", "json"] = key("table", OUTPUT.replace("text;", "table;"))

    record: Annotated[str, rules.RECORDING] | None = key(
        None, "board.tar.gz: record this machine into that file, for a bug report; null: examine it", new_paragraph=True
    )
    record_s: PositiveSeconds = key(60, "duration of the recorded samples in seconds, half of them under a known load")

    machine: Host = key(Host(), new_paragraph=True)


@dataclass(frozen=True, kw_only=True)
class Trial(Section):
    """The configuration of validate.py."""

    device: Device
    meter: MeterSpec

    minutes: Annotated[float, rules.finite_number(1, 600, unit="minutes")] = key(
        10, "about how long it takes; with less, fewer windows and epochs are compared"
    )
    settings: bool = key(False, "true: also change each setting that this user may change, and restore it")
    out: str | None = key(None, "folder of validation.json and its page; null: multirun/validation")
    format: Literal["text", "json"] = key("text", OUTPUT)

    machine: LockedHost = key(LockedHost(), new_paragraph=True)


COMMANDS: Mapping[str, type[Section]] = {
    "train": Job,
    "report": Comparison,
    "watch": View,
    "doctor": Examination,
    "validate": Trial,
}
"""Name of a command's file in conf/ -> its keys."""
