"""`-m hydra/sweeper=optuna`: overrides make a space; points and results are read from records."""

import json
import sys
from types import SimpleNamespace

import boards
import pytest
from hydra import compose
from metadata import RUN
from omegaconf import OmegaConf

pytest.importorskip("optuna", reason="Optuna is optional")

from epochmeter.report.build import build_report
from epochmeter.report.runs.load import read_sweep
from epochmeter.results.reuse import write_reference
from epochmeter.shared.problem import InputError
from epochmeter.shared.record import Record
from epochmeter.sweep.search import STEADY, TO_TARGET, SearchSpec, earlier_points, trial_result
from epochmeter.sweep.search_space import list_dimension
from hydra_plugins.grid import ProjectSweeper
from hydra_plugins.search import SearchSweeper

ENERGY, TIME = STEADY
GRID = [list_dimension("batch", ["8", "16"])]
CHOICES = {"model": "lenet", "dataset": "digits"}


class Runs:
    """A launcher whose runs leave records with an energy and a time that depend on the batch, and measure nothing.

    Completed runs are kept. A run with a batch in `fails` fails.
    """

    def __init__(self, folder, fails=(), **metrics):
        self.folder, self.fails, self.metrics = folder, fails, metrics
        self.launched = []

    def launch(self, job_overrides, initial_job_idx):
        ((overrides,), number) = job_overrides, initial_job_idx
        self.launched.append((number, overrides))
        record = Record(self.folder / str(number))
        record.folder.mkdir(exist_ok=True)
        batch = int(dict(override.split("=") for override in overrides)["batch"])
        if not record.is_completed():
            state = "failed" if batch in self.fails else "completed"
            metrics = {ENERGY: float(batch), TIME: 1 / batch, "total/energy_j": 1.0, **self.metrics}
            run = {**RUN, "overrides": overrides, "choices": CHOICES}
            run["energy"] = {"reason": None if metrics[ENERGY] else "no meter here"}
            record.describe({}, run)
            kept = {name: value for name, value in metrics.items() if value is not None}
            record.write_summary({"state": state, "metrics": kept, "notes": [], "failure": None}, "its own")
        return [SimpleNamespace(return_value=None)]


@pytest.fixture
def sweeper(tmp_path, monkeypatch):
    """sweeper(trials=3) -> a sweeper in the folder of this test, with the runs of `Runs`, that composes nothing."""
    monkeypatch.setattr(SearchSweeper, "check_configurations", lambda sweeper, points: None)

    def make(launcher=None, trials=20, params=None, sweep=(), **job):
        made = SearchSweeper(params, trials, seed=0)
        keys = {"target_accuracy": None, "target_loss": None, **job}
        sweep = {"sample": None, "repeats": None, "prior": None, **dict(sweep)}
        hydra = {"sweep": {"dir": str(tmp_path)}, "runtime": {"choices": CHOICES}}
        made.config = OmegaConf.create({"hydra": hydra, "sweep": sweep, **keys})
        made.hydra_context = SimpleNamespace(config_loader=None)
        made.launcher = launcher or Runs(tmp_path)
        return made

    return make


def test_each_run_has_one_point_and_all_fixed_overrides(sweeper, tmp_path):
    search = sweeper(params={"batch": "1,2", "epochs": "3"}, target_accuracy=0.9)
    search.sweep(["workers=0,4", "batch=8,16,32", "power_limit=id:2"])
    assert [number for number, _ in search.launcher.launched] == list(range(6))
    fixed = ("epochs=3", "power_limit=id:2")
    points = {(*fixed, f"batch={batch}", f"workers={workers}") for batch in (8, 16, 32) for workers in (0, 4)}
    assert {tuple(overrides) for _, overrides in search.launcher.launched} == points
    recorded = json.loads((tmp_path / "search.json").read_text())
    assert recorded == {"runs": 6}
    of_target, of_epoch = (each.make_spec(each.config, GRID).objectives for each in (search, sweeper()))
    assert (of_target, of_epoch) == (TO_TARGET, STEADY)


def test_runs_of_earlier_sweeps_seed_a_search_but_are_not_its_trials(sweeper, tmp_path, capsys):
    (earlier := tmp_path / "earlier").mkdir()
    for number in range(4):
        Runs(earlier, fails=(8,)).launch([[f"batch={8 * (number + 1)}", "workers=0"]], number)
    search = sweeper(trials=2, sweep={"prior": [str(earlier)]})
    search.sweep(["batch=8,16,32", "workers=0,1"])
    message = "2 of 4 runs seed the search; left out: 1 not completed, 1 with other keys or values"
    assert f"sweep.prior: {message}" in capsys.readouterr().out.replace("\n", " ")
    assert len(search.launcher.launched) == 2


@pytest.mark.usefixtures("composed")
def test_invalid_values_are_refused_before_the_first_run(sweeper, monkeypatch):
    monkeypatch.setattr(SearchSweeper, "check_configurations", ProjectSweeper.check_configurations)
    search = sweeper()
    search.hydra_context.config_loader = SimpleNamespace(
        load_sweep_config=lambda config, point: compose("train", overrides=point, return_hydra_config=True)
    )
    with pytest.raises(SystemExit, match=r"Nothing is trained: 2 of 3 configurations are refused\n.*`batch=0`"):
        search.sweep(["batch=int(interval(0,16))", "workers=0,4"])
    assert search.launcher.launched == []


def test_failed_runs_and_damaged_records_keep_their_numbers(sweeper, tmp_path):
    for fails, count in (((16,), 2), ((), 3)):
        sweeper(Runs(tmp_path, fails)).sweep(["batch=8,16,32"])
        assert sum(Record(tmp_path / str(number)).is_completed() for number in range(3)) == count
    assert not (tmp_path / "3").exists()
    for number in ("3", "4"):
        (tmp_path / number).mkdir()
    (tmp_path / "3" / "job.json").write_text("{")
    search = sweeper(trials=4)
    search.sweep(["batch=8,16,32,64"])
    assert [number for number, _ in search.launcher.launched] == [0, 1, 2, 4]


def test_reused_run_is_a_measured_point(tmp_path):
    other = Runs(tmp_path / "other")
    other.folder.mkdir()
    other.launch([["batch=8"]], 0)
    record = Record(other.folder / "0")
    record.describe({}, {**record.run(), "record_id": "of another"})
    (tmp_path / "0").mkdir()
    write_reference(tmp_path / "0", record, ["batch=8"])
    assert earlier_points(tmp_path, SearchSpec(GRID, STEADY)) == {0: ("batch=8",)}
    assert trial_result(tmp_path / "0").metrics == record.summary()["metrics"]


@pytest.mark.parametrize(
    ("settings", "overrides", "reason"),
    [
        ({"trials": 0}, ["batch=8,16"], "`hydra.sweeper.trials=0` is not valid"),
        ({"sweep": {"repeats": 3}}, ["batch=8,16"], "are for grids"),
        ({}, ["batch=8"], r"`batch=8,16 'optimizer.lr=interval\(0.001, 0.1\)'`"),
    ],
)
def test_invalid_search_is_refused_before_the_first_run(sweeper, monkeypatch, settings, overrides, reason):
    search = sweeper(**settings)
    with pytest.raises(InputError, match=reason):
        search.sweep(overrides)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"hint: install it: `make .*\.venv/\.with-optuna`"):
        search.sweep(overrides)
    assert search.launcher.launched == []


@pytest.mark.timed
@pytest.mark.system
def test_report_of_a_search_has_its_pareto_front(project):
    boards.write(project.root / "board", "orin_nano")
    board = {"machine.root": project.root / "board", "device": "auto", "device.accelerator": "cpu", "meter.idle_s": 0}
    search = {"hydra/sweeper": "optuna", "hydra.sweeper.trials": 2, **board}
    project.run("train", *project.stubbed("-m", batch="500,600,700", **search), check=True)
    assert len(project.records()) == 2
    (sweep,) = project.sweeps()
    (answer, *_) = build_report(read_sweep(sweep)).pages
    assert answer.name == "answer"
    assert answer.results.front
