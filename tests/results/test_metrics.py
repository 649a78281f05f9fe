"""The table of metrics lists exactly the metrics that runs write."""

import re
from array import array
from pathlib import Path

import pytest
import torch
from default_jobs import job_of

from epochmeter.machine.gauges import POWER_CAPPED, THERMAL
from epochmeter.machine.utilization import AGGREGATES
from epochmeter.power.meter import Domain, Instrument, Meter, NullMeter
from epochmeter.power.meters.sum import SumMeter
from epochmeter.power.phases.phase_energy import PhaseEnergy
from epochmeter.power.power_series import PowerSamples, Sampling
from epochmeter.power.window_energy import Reading
from epochmeter.results.metrics import EPOCH, METRICS
from epochmeter.results.summary import summarize
from epochmeter.results.throughput import measure_throughput
from epochmeter.run import window
from epochmeter.run.finish import run_metrics
from epochmeter.run.instruments import WindowInstruments
from epochmeter.run.window import build_window
from epochmeter.shared.protocol import RankWindow, WindowMeasured, WindowOpening
from epochmeter.shared.record import Record
from epochmeter.tracking.scalars import LOSS, POWER
from epochmeter.worker.clock import Clock
from epochmeter.worker.data.timed_dataset import TimedDataset, make_timed_loader
from epochmeter.worker.device import peak_memory
from epochmeter.worker.strategy import Single
from epochmeter.worker.tasks import Classification
from epochmeter.worker.timeline import HostTimeline
from epochmeter.worker.trainer import Trainer

LENET = {
    "model": {"_target_": "epochmeter.worker.models.lenet.LeNet", "name": "lenet", "channels": 1, "classes": 10},
    "dataset": {"name": "digits", "size": 32, "channels": 1, "classes": 10},
    "optimizer": {"_target_": "torch.optim.SGD", "lr": 0.1},
    "scheduler": {"_target_": "epochmeter.worker.schedules.Constant", "name": "none"},
    "precision": "fp32",
    "compile": False,
    "channels_last": False,
    "target_accuracy": None,
    "lr_scaling": "none",
    "batch": 4,
}
PAGE = Path(__file__).parents[2] / "docs/metrics.md"
RATES = {"samples_per_s": "1/s", "read_bytes_per_s": "B/s", "read_iops": "1/s"}
UNITS = {"s": "s", "j": "J", "w": "W", "bytes": "B", "js": "Js", "hz": "Hz", "c": "C"}


def counters(source):
    counter = Instrument(Domain(source, 0.1, "GPU board"), float)
    return Meter(counters={"gpu0": counter}, total=["gpu0"], covers="GPUs used")


class Rails:
    """One sampled rail of a board."""

    def __init__(self):
        self.domains = {"VDD_IN": Domain("sampled", 0.02, "module")}

    def sampling(self, opened_ns, closed_ns):
        sampling = Sampling(samples=50, gap_max_s=0.03, failed=0, unavailable={}, peak_w=9.0, half_width_j=0.25)
        return sampling._replace(samples_per_domain={"VDD_IN": 50})

    def drain(self, before_ns):
        watts = array("d", [2.0])
        return PowerSamples(array("q", [5]), {"VDD_IN": watts}, watts)


class Gauges:
    """All gauges."""

    def window(self, opened_ns, closed_ns):
        return dict.fromkeys([*AGGREGATES, "cpu_utilization", POWER_CAPPED, THERMAL], 0.5)

    def throttled(self, opened_ns, closed_ns):
        return []

    def discard_before(self, before_ns):
        pass


class Samples(list):
    read = list.__getitem__

    def decode(self, data, index):
        return data


def loader():
    """Batches of samples that may be unreadable."""
    timed = TimedDataset(lambda transform: Samples([(torch.zeros(1), 0)] * 3), lambda image: image, skip=True)
    return make_timed_loader(timed, range(3), 1)


class Files:
    """A data source with all counters."""

    def window(self, name, seconds):
        names = ["read_bytes"]
        if name == "epoch":
            names += ["read_iops", "read_bytes_per_s", "page_cache_residency_before", "page_cache_residency_after"]
        return dict.fromkeys(names, 0.5)


METERS = {
    "counted": counters("counter"),
    "several": SumMeter(
        [
            counters("counter"),
            Meter(counters={"cpu0": Instrument(Domain("counter", 0.001, "CPU"), float)}, total=["cpu0"], covers="CPU"),
        ]
    ),
    "sampled": Meter(powers=Rails(), total=["VDD_IN"], covers="module"),
    "estimated": counters("estimated"),
    "unmetered": NullMeter("no meter"),
}
RUN = {"power_limit_w": 15.0, "power_limit_max_w": 30.0, "idle": {"before_w": 2.0, "after_w": 2.1}}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Meter -> the names of all metrics of runs with one rank and with two, which reach their target."""
    energy = PhaseEnergy(energy_j=dict.fromkeys(("stall", "copy", "compute", "overhead"), 0.5))
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda gpu: 1234)
        gpu_memory = peak_memory(torch.device("cuda"))
        monkeypatch.setattr(window, "phase_energy", lambda *_: energy)
        folder = tmp_path_factory.mktemp("runs")
        return {
            name: written_metrics(folder / f"{name}-1", meter, 1, gpu_memory)
            | written_metrics(folder / f"{name}-2", meter, 2, gpu_memory)
            for name, meter in METERS.items()
        }


def written_metrics(folder, meter, ranks, gpu_memory):
    """Return the names of all metrics of a run."""
    folder.mkdir()
    record = Record(folder)
    clock = Clock(HostTimeline())
    loaded = loader()
    clock.open()
    list(clock.batches(loaded, list))
    clock.close()
    parts = {**clock.parts(), **loaded.parts(clock.rows), "clock_waits": 0, "samples": 48}
    parts.update(gpu_memory, learning_rate=0.1)
    measured = RankWindow(10**6, 999 * 10**6, 0, parts, [], False, weight=48, loss_sum=4.8, correct=43.2)
    joules = [dict.fromkeys(meter.domains, at) for at in (1.0, 3.0)]
    before, after = Reading(0, joules[0]), Reading(10**9, joules[1])
    instruments = WindowInstruments(meter, Gauges(), Files(), idle_w=2.0)
    windows = []
    for epoch in range(3):
        record.append_steps(array("f", clock.rows))
        opened = [WindowOpening(name, epoch, len(loaded)) for name in ("epoch", "val")]
        windows += [
            build_window(opening, WindowMeasured([measured] * ranks, []), before, after, instruments, record).line
            for opening in opened
        ]
    job = job_of(batch=48, target_accuracy=0.8, throughput={"start": 0, "stop": 2})
    names = {name for window in windows for name in window["metrics"]}
    names |= summarize(windows, record.steps(), job).keys()
    names |= measure_throughput(windows, record.steps(), job)[0].keys()
    trainer = Trainer(LENET, Classification(auxiliary=0), Single(1), torch.device("cpu"))
    return names | run_metrics({**RUN, "model": trainer.model_stats()}).keys() | {POWER, LOSS}


def table_name(name):
    """Return the name in the table: `steady/` and `std/` are those of epochs, and `gpu0` is a domain."""
    if re.match(r"rank_max/\w+_s$", name):
        return "rank_max/<part>_s"
    section, _, short = name.partition("/")
    short = re.sub(r"^energy_(gpu0|cpu0|VDD_IN)_j$", "energy_<domain>_j", short)
    return f"{'epoch' if section in ('steady', 'std') else section}/{short}"


def test_runs_write_exactly_the_metrics_of_the_table(written):
    for meter, names in written.items():
        assert {table_name(name) for name in names} <= METRICS, meter
    every = {name for names in written.values() for name in names}
    assert {table_name(name) for name in every} == METRICS
    for section in ("steady", "std"):
        of_section = {table_name(name).partition("/")[2] for name in every if name.startswith(f"{section}/")}
        assert of_section == EPOCH.keys(), section


def test_mlflow_accepts_every_name(written):
    from mlflow.utils.validation import _validate_metric_name

    for names in written.values():
        for name in names:
            _validate_metric_name(name)


def test_docs_explain_every_metric_with_its_unit_and_aggregation():
    rows = [line.strip("| \n").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert {name.strip("`") for name, *_ in rows} == METRICS
    invalid = []
    for name, unit, aggregation, meaning in rows:
        section, _, short = name.strip("`").partition("/")
        suffix, rate = short.rpartition("_")[2], RATES.get(short)
        units = (rate,) if rate else (UNITS[suffix],) if suffix in UNITS else ("1", "0..1")
        expected = EPOCH[short] if section == "epoch" else ""
        if unit not in units or aggregation.strip() != expected or not meaning:
            invalid.append(name)
    assert invalid == []
