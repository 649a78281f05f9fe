"""`-m hydra/sweeper=optuna`: what is typed makes a space, what was tried and what it gave is read from records."""

import json
import signal
import sys
from types import SimpleNamespace

import pytest
import stub
from hydra import compose
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from omegaconf import OmegaConf

from epochmeter.results.reuse import write_reference
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.record import Record
from epochmeter.sweep.search import STEADY, SearchError
from epochmeter.sweep.search_space import CategoricalDimension, FloatDimension, IntDimension

pytest.importorskip("optuna", reason="no Optuna in this environment: it is an extra")
Plugins.instance()  # loads Hydra's own plugins anew: what derives from them is imported after that
from hydra_plugins import search as plugin  # noqa: E402
from hydra_plugins.grid import check_configurations  # noqa: E402
from hydra_plugins.search import SearchSweeper, earlier_points, make_dimension, trial_result  # noqa: E402

ENERGY, TIME = STEADY
PATIENCE_S = 600
"""For runs that really train, on a machine that is busy with others."""


class Runs:
    """A launcher whose runs leave records, of an energy and a time that go by what was typed, and measure nothing.

    What is completed stays so; a run of a batch that is among `fails` fails.
    """

    def __init__(self, folder, fails=(), **metrics):
        self.folder, self.fails, self.metrics = folder, fails, metrics
        self.launched = []

    def launch(self, job_overrides, initial_job_idx):
        ((typed,), number) = job_overrides, initial_job_idx
        self.launched.append((number, typed))
        record = Record(self.folder / str(number))
        record.folder.mkdir(exist_ok=True)
        batch = int(dict(override.split("=") for override in typed)["batch"])
        if not record.is_completed():
            state = "failed" if batch in self.fails else "completed"
            metrics = {ENERGY: float(batch), TIME: 1 / batch, "total/energy_j": 1.0, **self.metrics}
            run = {"overrides": typed, "energy": {"reason": None if metrics[ENERGY] else "no meter here"}}
            record.describe({}, run)
            kept = {name: value for name, value in metrics.items() if value is not None}
            record.write_summary({"state": state, "metrics": kept, "notes": [], "failure": None}, "its own")
        return [SimpleNamespace(return_value=None)]


@pytest.fixture
def probed(monkeypatch):
    """The points that were asked about before the first run, which nobody composes."""
    asked = []
    monkeypatch.setattr(plugin, "check_configurations", lambda points, sweeper: asked.extend(points))
    return asked


@pytest.fixture
def sweeper(tmp_path, probed):
    """sweeper(trials=3) -> a sweeper whose folder is this test's, and whose runs are the launcher's."""

    def made(launcher=None, trials=20, objectives=None, sampler="tpe", params=None, sweep=(), **job):
        made = SearchSweeper(params, trials, objectives, sampler, seed=0)
        keys = {"target_accuracy": None, "target_loss": None, **job}
        asked = {"sample": None, "repeats": None, **dict(sweep)}
        made.config = OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path)}}, "sweep": asked, **keys})
        made.hydra_context = SimpleNamespace(config_loader=None)
        made.launcher = launcher or Runs(tmp_path)
        return made

    return made


def parsed(*typed):
    return [make_dimension(override) for override in OverridesParser.create().parse_overrides(list(typed))]


def test_what_hydra_sweeps_over_is_an_axis():
    assert parsed("batch=32,8", "+a=range(0,4)", "model=choice(lenet,resnet18)", "power_limit=null,15") == [
        CategoricalDimension("batch", ["8", "32"]),
        CategoricalDimension("+a", ["0", "1", "2", "3"]),
        CategoricalDimension("model", ["lenet", "resnet18"]),
        CategoricalDimension("power_limit", ["null", "15"]),
    ]
    assert parsed("optimizer.lr=tag(log, interval(0.001, 0.1))", "a=interval(1, 2)", "b=int(interval(1, 9))") == [
        FloatDimension("optimizer.lr", 0.001, 0.1, log=True),
        FloatDimension("a", 1.0, 2.0),
        IntDimension("b", 1, 9),
    ]


@pytest.mark.parametrize("typed", ["a=interval(2, 1)", "a=tag(log, interval(0, 1))"])
def test_an_interval_that_is_none_is_refused(typed):
    with pytest.raises(SearchError, match="give a lower end"):
        parsed(typed)


def test_each_run_is_of_one_point_beside_what_is_the_same_for_all(sweeper):
    searching = sweeper(params={"batch": "1,2", "epochs": "3"})
    searching.sweep(["workers=0,4", "batch=8,16,32"])
    assert [number for number, _ in searching.launcher.launched] == list(range(6))
    assert {tuple(typed) for _, typed in searching.launcher.launched} == {
        ("epochs=3", f"batch={batch}", f"workers={workers}") for batch in (8, 16, 32) for workers in (0, 4)
    }


def test_every_choice_is_checked_before_the_first_run_and_the_ends_of_an_interval(sweeper, probed):
    sweeper().sweep(["model=lenet,resnet18", "batch=8,16", "workers=int(interval(0,4))", "seed=1"])
    assert probed == [
        ("seed=1", "model=lenet", "batch=8", "workers=0"),
        ("seed=1", "model=resnet18", "batch=8", "workers=0"),
        ("seed=1", "model=lenet", "batch=16", "workers=0"),
        ("seed=1", "model=lenet", "batch=8", "workers=4"),
    ]


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        (["batch=0,16"], "Nothing is trained: 1 of 2 configurations are refused\n`batch=0` is not valid"),
        (["batch=int(interval(0,16))"], "`batch=0` is not valid"),
        (["batch=8,16", "model.name=lenet,resnet18"], r"hint: use `model=resnet18`"),
    ],
)
@pytest.mark.usefixtures("composed")
def test_values_that_cannot_be_are_refused_before_the_first_run(sweeper, monkeypatch, typed, why):
    monkeypatch.setattr(plugin, "check_configurations", check_configurations)
    searching = sweeper()
    searching.hydra_context.config_loader = SimpleNamespace(
        load_sweep_config=lambda config, typed: compose("train", overrides=typed, return_hydra_config=True)
    )
    with pytest.raises(SystemExit, match=why):
        searching.sweep(typed)
    assert searching.launcher.launched == []


def test_the_same_command_goes_on_from_the_records_and_with_more_trials(sweeper, tmp_path):
    first, second = sweeper(trials=2), sweeper(trials=5)
    first.sweep(["batch=int(interval(1,64))"])
    second.sweep(["batch=int(interval(1,64))"])
    assert second.launcher.launched[:2] == first.launcher.launched
    assert [number for number, _ in second.launcher.launched] == list(range(5))
    assert len({tuple(typed) for _, typed in second.launcher.launched}) == 5


def test_a_run_that_failed_is_measured_again_under_its_number(sweeper, tmp_path):
    sweeper(Runs(tmp_path, fails=(16,))).sweep(["batch=8,16,32"])
    failed = [path.parent.name for path in tmp_path.glob("*/summary.json") if "failed" in path.read_text()]
    assert len(failed) == 1
    sweeper().sweep(["batch=8,16,32"])
    assert all(Record(tmp_path / str(number)).is_completed() for number in range(3))
    assert not (tmp_path / "3").exists()


def test_a_record_that_cannot_be_read_keeps_its_number_and_is_no_point(sweeper, tmp_path):
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "job.json").write_text("{")
    searching = sweeper(trials=2)
    searching.sweep(["batch=8,16,32"])
    assert [number for number, _ in searching.launcher.launched] == [1, 2]


def test_a_folder_whose_run_was_cut_off_before_it_told_what_it_is_is_taken_again(sweeper, tmp_path):
    (tmp_path / "0").mkdir()
    searching = sweeper(trials=1)
    searching.sweep(["batch=8,16,32"])
    assert [number for number, _ in searching.launcher.launched] == [0]


def test_a_run_tells_nothing_before_it_is_completed(tmp_path):
    assert trial_result(tmp_path).metrics == {}
    write_json(tmp_path / "summary.json", {"state": "killed", "metrics": {TIME: 1.0}})
    assert trial_result(tmp_path).metrics == {}


def test_a_run_that_a_search_reuses_is_a_measured_point(sweeper, tmp_path):
    other = Runs(tmp_path / "other")
    other.folder.mkdir()
    other.launch([["batch=8"]], 0)
    origin = other.folder / "0"
    described = Record(origin)
    described.describe({}, {**described.run(), "record_id": "of another"})
    (tmp_path / "0").mkdir()
    write_reference(tmp_path / "0", described, ["batch=8"])
    asked = sweeper().search_spec(sweeper().config, [CategoricalDimension("batch", ("8", "16"))])
    assert earlier_points(tmp_path, asked) == {0: ("batch=8",)}
    assert trial_result(tmp_path / "0").metrics == described.summary()["metrics"]


def test_by_what_was_searched_is_left_beside_the_runs(sweeper, tmp_path):
    sweeper(trials=1, target_accuracy=0.9).sweep(["batch=8,16"])
    kept = json.loads((tmp_path / "search.json").read_text())
    assert kept["objectives"] == ["total/energy_to_target_j", "total/time_to_target_s"]


def test_without_energy_the_search_goes_on_by_time_and_says_so(sweeper, tmp_path, capsys):
    searching = sweeper(Runs(tmp_path, **{ENERGY: None, "total/energy_j": None}))
    searching.sweep(["batch=8,16,32"])
    assert len(searching.launcher.launched) == 3
    assert "No steady/energy_j: no meter here. The search continues with steady/e2e_s only." in capsys.readouterr().out


def test_energy_that_was_asked_for_by_name_and_is_not_there_is_an_error(sweeper, tmp_path):
    searching = sweeper(Runs(tmp_path, **{ENERGY: None, "total/energy_j": None}), objectives=[ENERGY])
    with pytest.raises(SearchError, match="no run has steady/energy_j: no meter here"):
        searching.sweep(["batch=8,16,32"])


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"trials": 0}, "`hydra.sweeper.trials=0` is not valid"),
        ({"sampler": "nsga"}, "`hydra.sweeper.sampler=nsga` is not valid\n  hint: give one of tpe, nsga2, random"),
        (
            {"objectives": ["steady/energy"]},
            "steady/energy is not a metric of runs\n  hint: did you mean steady/energy_j",
        ),
        ({"sweep": {"sample": 3}}, "`sweep.sample=3` is for a grid\n  hint: give hydra.sweeper.trials"),
        ({"sweep": {"repeats": 3}}, "`sweep.repeats=3` is for a grid"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_the_first_run(sweeper, asked, why):
    searching = sweeper(**asked)
    with pytest.raises(SearchError, match=why):
        searching.sweep(["batch=8,16"])
    assert searching.launcher.launched == []


def test_without_optuna_it_is_said_how_to_get_it(sweeper, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SearchError, match=r"hint: make optuna, or pip install 'optuna>=5'"):
        sweeper().sweep(["batch=8,16"])


# As a command


@pytest.fixture
def recording(tmp_path):
    """A recorded power.csv, of a board that takes 5 W."""
    lines = [f"{10**9 * (7 + second)},5.0,5.0\n" for second in range(100)]
    (tmp_path / "power.csv").write_text("monotonic_ns,VDD_IN_w,total_w\n" + "".join(lines))
    return tmp_path / "power.csv"


def searched(project, *more, **keys):
    """What is typed for a search."""
    return project.quick("-m", "hydra/sweeper=optuna", *more, **{"epochs": 2, **keys})


def on_stub(project, *more, **keys):
    """The same of a worker that trains nothing."""
    program = stub.program(project.root)
    return searched(project, *more, **{**stub.JOB, "device": "cpu", "device.python": program, **keys})


@pytest.mark.system
def test_a_search_ends_with_its_front_and_is_a_sweep_to_the_report(project, recording):
    played = {"meter": "replay", "meter.file": recording, "workers": 0}
    process = project.start("train", *searched(project, "hydra.sweeper.trials=2", batch="128,256,512", **played))
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, out + err
    assert len(project.records()) == 2
    (sweep,) = project.sweeps()
    (told,) = json.loads((sweep / "front.json").read_text())
    assert told["objectives"] == [ENERGY, TIME]
    assert "Pareto front" in out
    assert "No intervals, as each point was measured once" in " ".join(out.split())
    report = project.run("report", "tracking=none")
    assert report.returncode == 0, report.stderr
    assert "Pareto front" in report.stdout
    assert (sweep / "report.html").exists()


@pytest.mark.system
def test_a_search_that_was_killed_goes_on_where_it_was(project):
    asked = on_stub(project, "hydra.sweeper.trials=4", batch="int(interval(1000,2000))")
    killed = project.start("train", *asked)
    project.until(lambda: len([record for record in project.records() if record.is_completed()]) == 2)
    project.until(lambda: len(project.records()) == 3)
    killed.kill()
    killed.communicate()
    before = {record.folder.name: record.run()["record_id"] for record in project.records() if record.is_completed()}
    batches = [record.job()["batch"] for record in project.records()]

    done = project.run("train", *asked)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [record.folder.name for record in project.records()] == ["0", "1", "2", "3"]
    assert all(record.is_completed() for record in project.records())
    assert {record.folder.name: record.run()["record_id"] for record in project.records()}.items() >= before.items()
    assert [record.job()["batch"] for record in project.records()][: len(batches)] == batches
    assert len(project.sweeps()) == 1


@pytest.mark.system
def test_a_trial_that_fails_ends_no_search_so_many_do_and_a_grid_of_the_same_has_another_folder(project):
    failing = [stub.failing(project.root, name) for name in ("one", "other")]
    broken = {"device.python": f"{failing[0]},{stub.program(project.root)},{failing[1]}"}
    done = project.run("train", *on_stub(project, **broken))
    assert done.returncode == 1
    assert [done.stdout.count(f"run {number} failed") for number in range(3)].count(1) == 2
    assert "All 3 points of the space are measured" in done.stdout
    project.run("train", *[key for key in on_stub(project, **broken) if "sweeper" not in key])
    assert len(project.sweeps()) == 2
    ended = project.run("train", *on_stub(project, **broken, **{"sweep.max_failures": 1, "sweep.again": "true"}))
    assert ended.returncode == 1
    assert "sweep.max_failures=1" in ended.stdout


@pytest.mark.system
def test_ctrl_c_ends_a_search_in_order(project):
    process = project.start("train", *on_stub(project, batch="30000,40000"))
    project.until(lambda: project.records())
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "killed" in out
    assert len(project.records()) == 1
