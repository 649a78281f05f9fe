"""Records that support no answer, or a part of one: every output is complete, and states as data what is lacking."""

import io
import json
import math
import re

import pytest
from documents import assert_conforms
from rich.console import Console
from situations import ESTIMATED, LARGE, METERED, NO_MEMORY, SMALL, write_situation

from epochmeter.config.schema import Job
from epochmeter.console import run_end, sweep_end
from epochmeter.report.build import build_report
from epochmeter.report.output.report import answer_lines, print_report, report_html
from epochmeter.report.runs.load import read_sweep
from epochmeter.results.run_folder import RunFolder
from epochmeter.results.sweep_files import read_points
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.record import SUMMARY_FILE
from epochmeter.tracking.run_export import run_note, summary_scalars

DIVERGED = {"diverged": "epoch 1: the loss was nan"}
LATER_FIELDS = ("absent", "bottleneck", "next_steps", "ended", "notes")
LATER_RUN_FIELDS = ("training", "storage", "dataset", "usable_cores", "idle")
LATER_METRICS = re.compile("copy_s|overhead_s|fraction|per_s|std/|steps|uncertainty")


class Outputs:
    """All outputs of a command: `texts` by their names, the data of the answer, and the results of its runs."""

    def __init__(self, sweep, terminal, results):
        self.results, folders = results, [RunFolder(result.folder) for result in results]
        if len(results) == 1:
            job = Job.from_dict(folders[0].job)
            run_end.print_run(terminal, folders[0].record.windows(), job, results[0])
        else:
            sweep_end.print_sweep(terminal, results, answer_lines(sweep), read_points(sweep))
        report = build_report(read_sweep(sweep))
        console = Console(file=io.StringIO(), width=200)
        print_report(report, console)
        (page,) = [page for page in report.pages if page.name == "answer"]
        self.answer = page.values
        assert_conforms("answer", self.answer)
        self.texts = {
            "terminal": terminal.console.file.getvalue(),
            "report": console.file.getvalue(),
            "page": report_html(report),
            "answer.json": json.dumps(self.answer, allow_nan=False),
            "MLflow": "\n\n".join(map(run_note, folders)),
        }
        self.scalars = [
            scalar.value for folder in folders if folder.summary for scalar in summary_scalars(folder, folder.summary)
        ]

    def lacking(self, pattern):
        """Return the names of the texts in which a pattern does not occur."""
        return [name for name, text in self.texts.items() if not re.search(pattern, text, re.IGNORECASE)]


@pytest.fixture
def outputs(tmp_path, terminal, monkeypatch):
    """outputs(*runs) -> the outputs of a command with these runs; `change` gets each folder before they are made."""
    monkeypatch.chdir(tmp_path)

    def make(*runs, change=lambda folder: None):
        sweep = tmp_path / "multirun/sweep"
        results = write_situation(sweep, list(runs))
        for result in results:
            change(result.folder)
        made = Outputs(sweep, terminal, results)
        text = "\n".join(made.texts.values())
        assert not re.search(r"\bnan \w|\binf \w|Traceback|Undefined|None per", text)
        assert all(map(math.isfinite, made.scalars))
        return made

    return make


def test_a_loss_that_is_not_finite_leaves_times_and_no_established_best(outputs):
    shown = outputs(SMALL, LARGE._replace(flags=DIVERGED, keys={"batch": 32, "optimizer": {"name": "sgd", "lr": 0.1}}))
    assert shown.answer["doubts"] == [
        {"kind": "single", "affected": 2, "total": 2}, {"kind": "diverged", "affected": 1, "total": 2},
    ]  # fmt: skip
    assert [choice["is_established"] for choice in shown.answer["choices"]] == [False]
    assert shown.results[1].next_steps[0][:4:3] == ("lower_rate", "optimizer.lr=0.01")
    assert shown.lacking("diverged") == []


def test_runs_within_the_warm_up_have_no_answer_and_the_epochs_to_add(outputs):
    shown = outputs(SMALL._replace(epochs=1), LARGE._replace(epochs=1))
    assert (shown.answer["state"], shown.answer["states"], shown.answer["without_steady_epoch"]) == (
        "no_result", {"completed": 2}, [0, 1],
    )  # fmt: skip
    assert shown.answer["next_steps"][0]["change"] == "epochs=6"
    assert shown.lacking("warm-up") == []


def test_one_steady_epoch_has_no_interval_and_no_established_best(outputs):
    shown = outputs(SMALL._replace(epochs=2), LARGE._replace(epochs=2))
    assert [doubt["kind"] for doubt in shown.answer["doubts"]] == ["single"]
    assert "std/e2e_s" not in shown.results[0].metrics
    assert "±" not in shown.texts["terminal"] + shown.texts["MLflow"]
    assert "few_epochs" in [step.rule for step in shown.results[0].next_steps]


def test_failures_are_data_by_error(outputs):
    lost = NO_MEMORY._replace(message="disk full", hint="")
    shown = outputs(*(SMALL._replace(failure=failure, keys={"batch": 8 + place})
                      for place, failure in enumerate((lost, NO_MEMORY, NO_MEMORY))))  # fmt: skip
    assert (shown.answer["state"], shown.answer["states"], shown.answer["choices"]) == ("no_result", {"failed": 3}, [])
    assert shown.answer["errors"] == [
        {"reason": "CUDA out of memory", "hint": "reduce batch", "runs": ["1", "2"]},
        {"reason": "disk full", "hint": "", "runs": ["0"]},
    ]
    assert shown.lacking("CUDA out of memory") == shown.lacking("disk full") == []


def test_estimated_and_measured_energies_are_not_compared(outputs):
    shown = outputs(SMALL._replace(**METERED), LARGE._replace(power_w=10.0, energy=ESTIMATED))
    assert [choice["name"] for choice in shown.answer["choices"]] == ["fastest"]
    assert (shown.answer["front"], shown.answer["choices"][0]["energy_j"]) == ([], None)
    assert shown.answer["no_energy"] == {"without": 1, "count": 2, "reason": "meter=estimate", "covers": ()}
    assert shown.answer["choices"][0]["absent"]["steady/energy_j"] == "meter=estimate"
    assert shown.lacking("estimate") == []
    assert 'data-name="energy_by_time"' not in shown.texts["page"], "a chart of one point compares nothing"


def test_records_without_later_fields_have_the_answer_of_their_times(outputs):
    shown = outputs(SMALL, LARGE._replace(**METERED), change=_as_earlier)
    assert [choice["runs"] for choice in shown.answer["choices"]] == [[1]]
    assert (shown.answer["bottlenecks"], shown.answer["next_steps"]) == ({"compute": 2}, [])
    assert shown.lacking('compute-bound|"compute"') == []


def _as_earlier(folder):
    """Remove from a record what the first versions did not write."""
    summary, document = (json.loads((folder / name).read_text()) for name in (SUMMARY_FILE, "job.json"))
    metrics = {name: value for name, value in summary["metrics"].items() if not LATER_METRICS.search(name)}
    kept = {name: value for name, value in summary.items() if name not in LATER_FIELDS}
    write_json(folder / SUMMARY_FILE, {**kept, "metrics": metrics})
    run = {name: value for name, value in document["run"].items() if name not in LATER_RUN_FIELDS}
    write_json(folder / "job.json", {**document, "run": run})
