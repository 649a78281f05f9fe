"""What CONTRIBUTING.md and docs/extending.md promise: an addition needs no change elsewhere."""

import importlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from types import ModuleType

import torch
from hydra import compose
from project import ROOT, put
from sweeps import trained

from epochmeter.config import job
from epochmeter.config.schema import Dataset, Job, Storage
from epochmeter.console.plain import PlainConsole
from epochmeter.datasets.ready import prepare_dataset
from epochmeter.power.meter import open_meter
from epochmeter.report import render
from epochmeter.report.build import build_report
from epochmeter.report.output import report as output
from epochmeter.report.runs.run import Sweep
from epochmeter.run import preflight
from epochmeter.shared.instantiate import instantiate_spec
from epochmeter.worker.data.loader import make_loaders
from epochmeter.worker.trainer import Trainer

PAGE = (ROOT / "docs" / "extending.md").read_text()
EXAMPLES = dict(re.findall(r"```\w+\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))
"""File of the documentation's examples -> content."""
NEW_METRIC = """
import io
import json
import sys
from pathlib import Path

from epochmeter.results import metric_table

metric_table.TABLE += (
    metric_table.Metric(
        "epoch/filter_j", "J", "energy of filters", epochs="mean", title="energy of filters", short="filters",
        decimals=2, shown=("epochs", "line", "sweep", "report", "page"), openmetrics="epoch_filter_joules",
    ),
    metric_table.Metric(
        "system/npu<N>_clock_hz", "Hz", "clock of an NPU", title="NPU clock", short="npu<N>", shown=("watch",),
        openmetrics="npu_hertz",
    ),
)

import test_metrics
from epochmeter import load_runs
from epochmeter.console import tables
from epochmeter.report.output import table
from epochmeter.results.run_folder import RunFolder
from epochmeter.results.run_result import RunResult
from epochmeter.tracking import run_export
from epochmeter.watch import server
from epochmeter.watch.openmetrics import to_openmetrics
from epochmeter.watch.terminal import draw
from epochmeter.watch.watcher import Watcher
from rich.console import Console
from watched import JOB, SECOND, window, write_run


def text(printed):
    console = Console(file=io.StringIO(), width=200)
    console.print(printed)
    return console.file.getvalue()


lines = [window("epoch", epoch, 30 - 10 * epoch, 8.0, filter_j=2.5) for epoch in range(3)]
folder = write_run(Path(sys.argv[1]) / "0", lines)
(folder / "gauges.csv").write_text(f"monotonic_ns,npu0_clock_hz\\n{4990 * SECOND},1.5e9\\n")
snapshot = Watcher(folder).read()
(view,) = snapshot.active
write_run(folder, lines, summary={"state": "completed", "metrics": view.metrics})
runs = load_runs(folder)
table.write_csv(runs, report := io.StringIO())
page = json.loads(server.metric_table())
json.dump({
    "epochs": text(tables.epoch_table(lines, view.metrics, 1)),
    "sweep": text(tables.sweep_table([RunResult(0, [], metrics=view.metrics)])),
    "csv": report.getvalue().partition("\\n")[0].split(","),
    "frame": runs.to_pandas()["steady/filter_j"].to_list(),
    "report": table.columns_and_rows(runs).columns,
    "mlflow": [scalar.name for scalar in next(run_export.window_scalars(RunFolder(folder), lines))],
    "figures": page["figures"],
    "panels": json.loads(server.to_json(snapshot, ""))["snapshot"]["active"][0]["panels"],
    "openmetrics": to_openmetrics(snapshot),
    "terminal": ["".join(part for part, _ in line) for line in draw(snapshot, 80)],
    "docs": test_metrics.with_rows(Path(sys.argv[2]).read_text()),
}, sys.stdout)
"""


def test_a_new_metric_and_a_new_gauge_are_one_row_each(tmp_path):
    """The table is extended before other modules read it, so in a process of its own."""
    folders = [ROOT / "src", ROOT / "tests", ROOT / "tests/results"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    command = [sys.executable, "-c", NEW_METRIC, str(tmp_path), str(ROOT / "docs/metrics.md")]
    shown = json.loads(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    for name in ("epochs", "sweep"):
        assert ("filters" in shown[name], "2.50" in shown[name]) == (True, True), name
    assert ("steady/filter_j" in shown["csv"], shown["frame"]) == (True, [2.5])
    assert "filters (J)" in shown["report"]
    assert "epoch/filter_j" in shown["mlflow"]
    assert ["Energy of filters", "filter_j", "J", 2] in shown["figures"]
    (panel,) = shown["panels"]
    assert (panel["title"], panel["unit"], panel["columns"]) == ("NPU clock", "Hz", [["npu0_clock_hz", "npu0"]])
    assert 'epochmeter_epoch_filter_joules{run="0"} 2.5' in shown["openmetrics"]
    assert "# HELP epochmeter_epoch_filter_joules mean of the steady epochs: energy of filters" in shown["openmetrics"]
    assert 'epochmeter_npu_hertz{run="0",source="npu0"} 1500000000.0' in shown["openmetrics"]
    assert any(re.match("npu0 +1.50 GHz", line) for line in shown["terminal"])
    assert "| `epoch/filter_j` | J |  | mean |  |  | energy of filters |" in shown["docs"]
    assert "| `system/npu<N>_clock_hz` | Hz | clock of an NPU |" in shown["docs"]


def test_a_new_meter_is_the_function_and_the_file_of_the_documentation(tmp_path, composed, monkeypatch):
    put(tmp_path, EXAMPLES)
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in ("my_meter", "test_my_meter"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    composed()  # Hydra knows its resolvers from here on
    (joules := tmp_path / "joules").write_text("40.5\n")
    path = f"hydra.searchpath=[file://{tmp_path}/conf]"
    made = Job.from_dict(job.to_plain(compose("train", [path, "meter=socket", f"meter.file={joules}"])))
    preflight.validate_job(made, {"meter": "socket"}, [])
    meter = open_meter(made.meter.spec, gpus=[])
    assert (meter.energy["source"], meter.energy["covers"]) == ("counter", "the machine at its socket")
    assert meter.read() == {"socket": 40.5}
    (own := tmp_path / "own").mkdir()
    importlib.import_module("test_my_meter").test_my_meter(own)
    assert not (own / "joules").exists(), "its errors were checked"


NEW_TEMPLATE = """
{% set heading = "Batches" %}
{% macro body(batches) %}
The batch sizes are {{ batches.sizes | join(" and ") }}.
{% endmacro %}
"""


@dataclass(frozen=True)
class Batches:
    sizes: list[int]


def test_a_new_analysis_is_a_module_and_a_template(tmp_path, monkeypatch):
    """It is printed, and it has a section of the page, a file with its numbers, and a page of its own."""
    templates = shutil.copytree(render.TEMPLATES, tmp_path / "templates")
    (templates / "batches.md.j2").write_text(NEW_TEMPLATE)
    module = ModuleType("epochmeter.report.analyses.batches")
    module.analyze = lambda runs: Batches(sorted(run.job["batch"] for run in runs))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(render, "TEMPLATES", templates)
    render._environment.cache_clear()
    try:
        runs = [trained(number, 100.0 + number, batch=batch) for number, batch in enumerate((16, 8))]
        report = build_report(Sweep(tmp_path / "sweep", runs, {}))
        output.print_report(report, PlainConsole(file=(file := io.StringIO()), width=80))
        (folder := tmp_path / "report").mkdir()
        written = {path.name: path for path in output.write_report(report, folder, print, None)}
    finally:
        render._environment.cache_clear()
    assert "## Batches\n\nThe batch sizes are 8 and 16.\n" in file.getvalue()
    assert json.loads(written["batches.json"].read_text()) == {"sizes": [8, 16]}
    assert written["batches.md"].read_text().startswith("# Batches: sweep\n")
    assert '<section id="batches"' in written["report.html"].read_text()


def test_example_is_valid_and_learns(tmp_path, composed, monkeypatch):
    put(tmp_path, EXAMPLES)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_package", raising=False)
    composed()  # Hydra knows its resolvers from here on
    overrides = [f"hydra.searchpath=[file://{tmp_path}/conf]", "dataset=squares", "epochs=2", "workers=0"]
    example = job.to_plain(compose("train", overrides=[*overrides, "optimizer.lr=0.1"]))
    choices = {group: example[group]["name"] for group in ("dataset", "task", "model")}
    assert choices == {"dataset": "squares", "task": "attributes", "model": "net"}
    preflight.validate_job(Job.from_dict(example), choices, [])
    torch.manual_seed(0)
    strategy, task = instantiate_spec(example["strategy"]), instantiate_spec(example["task"])
    facts = prepare_dataset(Dataset.from_dict(example["dataset"]), Storage.from_dict(example["storage"]), ROOT, print)
    training, validation = make_loaders(example, facts, task, strategy, cuda=False)
    trainer = Trainer(example, task, strategy, torch.device("cpu"))
    assert trainer.model_stats().metrics["flops_per_sample"] == 2 * (3 * (256 * 32 + 32 * 2) - 256 * 32)
    tallies = [trainer.train_epoch(training).totals() for _ in range(example["epochs"])]
    evaluated = trainer.evaluate_epoch(validation).totals()
    assert [tally.weight for tally in tallies] == [2 * 400] * 2
    assert tallies[1].loss_sum < tallies[0].loss_sum
    assert evaluated.correct / evaluated.weight > 0.9
