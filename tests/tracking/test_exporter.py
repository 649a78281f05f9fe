"""The run that exporters get, and the order in which they get its parts."""

import json
from pathlib import Path

import pytest
from project import write_checkpoint
from tracking.conftest import change_record

from epochmeter.config.rules import EXPORTERS
from epochmeter.results.run_folder import RunFolder
from epochmeter.shared.instantiate import import_object
from epochmeter.tracking.export import CLIENTS, export, load_exporter
from epochmeter.tracking.exporter import TARGETS, exported_run, exporter_names
from epochmeter.tracking.run_export import run_params, run_tags


class Calls:
    """An exporter that keeps its calls."""

    def __init__(self):
        self.logged, self.ends = [], []

    def check(self):
        pass

    def open(self, run):
        self.opened = run
        return "page"

    def log(self, epoch, metrics):
        self.logged.append((epoch, metrics))

    def close(self, run):
        self.ends.append(run)


def order(ended=None, is_last=False, **links):
    return json.dumps({"ended": ended, "is_last": is_last, "links": links})


def test_exported_run_has_the_names_of_mlflow_with_numbers_as_numbers(make_record):
    folder = RunFolder(make_record(2, batch=16, limit=150).folder)
    run = exported_run(folder, links={"MLflow": "http://here"})
    assert {key: str(value).lower() for key, value in run.params.items()} == {
        key: text.lower() for key, text in run_params(folder).items()
    }
    assert (run.params["batch"], run.params["optimizer.lr"], run.params["pin_memory"]) == (16, 0.01, True)
    assert run.params["model"] == "lenet"
    tags = run_tags(folder)
    assert run.tags == {key: tags[key] for key in tags if key.startswith("epochmeter.")}
    assert (run.record_id, run.group, run.project) == (folder.run.record_id, "", "epochmeter")
    assert run.metrics == folder.summary["metrics"]
    assert run.units.items() >= {"epoch/e2e_s": "s", "epoch/energy_j": "J", "total/energy_j": "J"}.items()
    assert "total/epochs" not in run.units
    assert json.loads(run.facts["epochmeter.units"]) == run.units
    assert run.facts["epochmeter.link_MLflow"] == "http://here"
    assert run.labels == ["cuda"]


def test_run_of_a_sweep_has_its_group_and_a_rehearsal_its_mark(make_record):
    record = make_record(0, sweep="named", of_sweep=True, rehearsal=["power_limit"])
    run = exported_run(RunFolder(record.folder))
    assert (run.group, run.labels) == ("named", ["cuda", "rehearsal"])
    assert run.name.startswith("rehearsal ")


def test_windows_are_exported_once_each_as_they_are_recorded(make_record):
    record, calls = make_record(epochs=3, state=None), Calls()
    path = record.folder / "epochs.jsonl"
    lines = path.read_text().splitlines(keepends=True)

    def orders():
        for count in (0, 2, 2, 5):
            path.write_text("".join(lines[:count]))
            yield order()
            assert len(calls.logged) == count
        path.write_text("".join(lines))
        yield order("failed", is_last=True)

    assert export(calls, record.folder, orders()) == {"where": "page", "state": "failed"}
    windows = [json.loads(line) for line in lines]
    assert calls.logged == [(window["epoch"], window["metrics"]) for window in windows]
    assert [epoch for epoch, _ in calls.logged] == [0, 0, 1, 1, 2, 2]
    assert [run.state for run in calls.ends] == ["failed"]


@pytest.mark.parametrize(("state", "epochs"), [("failed", [0, 0, 1]), ("completed", [0, 0, 1, 1, 2, 2])])
def test_only_a_completed_run_is_exported_beyond_its_checkpoint(make_record, state, epochs):
    record, calls = make_record(epochs=3, state=state), Calls()
    write_checkpoint(record, record.run()["record_id"], epochs=2)
    export(calls, record.folder, [order(is_last=True)])
    assert [epoch for epoch, _ in calls.logged] == epochs


def test_export_without_an_end_is_no_export(make_record):
    with pytest.raises(EOFError):
        export(Calls(), make_record().folder, [order()])


def test_each_name_has_a_class_and_a_tested_version():
    assert {*TARGETS} == {*CLIENTS} == {*EXPORTERS}
    for name, target in TARGETS.items():
        assert type(load_exporter(name)) is import_object(target.replace(":", "."))


@pytest.mark.parametrize(
    ("also", "names"), [(None, []), ("wandb", ["wandb"]), (["a:B", "comet"], ["a:B", "comet"]), ([], [])]
)
def test_key_has_one_name_or_several(also, names):
    assert exporter_names(also) == names


@pytest.mark.parametrize("name", EXPORTERS)
def test_exporter_is_small(name):
    module = Path(__file__).parents[2] / f"src/epochmeter/tracking/exporters/{name}.py"
    assert len(module.read_text().splitlines()) <= 80


def test_name_of_a_project_is_that_of_the_experiment(make_record):
    record = make_record()
    change_record(record, {}, tracking={"name": "none", "experiment": "mine"})
    assert exported_run(RunFolder(record.folder)).project == "mine"
