"""Bad input of every kind ends in one error with a hint, before anything is made."""

import math
import re

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins

from epochmeter.config import interpreter
from epochmeter.config.app import friendly_hydra_errors
from epochmeter.config.errors import InputError
from epochmeter.config.validation import check_all_values
from epochmeter.datasets import ready
from epochmeter.machine.signals import REPEATED_SIGNAL_S, Stop
from epochmeter.run import capacity
from epochmeter.run.preflight import validate_job
from epochmeter.sweep.grid import MAX_POINTS, MAX_RUNS, check_size, value_count

Plugins.instance()  # loads Hydra's own plugins anew: what derives from them is imported after that
from hydra_plugins.grid import check_sweeper  # noqa: E402

REFUSED = {
    # what Hydra would take for something else, or not take at all
    "~batch": "`~batch` deletes a required key",
    "~model": "`~model` deletes a required key",
    "~sweep.seed": "`~sweep.seed` deletes a required key",
    "~model.name": "`~model.name` deletes a required key",
    "~dataset.layout": "`~dataset.layout` deletes a required key",
    "=5": "`=5` has no key",
    "hydra.run.dir=/tmp/x": "the name of a run's folder is its number",
    "hydra.sweep.subdir=x": "the name of a run's folder is its number",
    "model.classes=0": "`model.classes=0`",
    "dataset.normalize=null": "`dataset.normalize=null`",
    "dataset.normalize.std=[0]": "`dataset.normalize=",
    "dataset=imagefolder": "needs the folder of your data",
    "dataset=imagefolder dataset.root=/nonexistent": "`dataset.root=/nonexistent` is not a folder",
    "dataset.name=x": "label of dataset=digits",
    "optimizer._target_=torch.optim.Nope": "torch.optim.Nope",
    "batch": "cannot parse `batch`",
    "batch=(": "cannot parse `batch=(`",
    "batch=8,16": "`batch=8,16` has several values",
    "batch=8,": "cannot parse `batch=8,`: it ends too early",
    "batch=": "`batch=` is not valid\n  hint: give a whole number",
    "batch={a: 1}": "`batch={a: 1}` is not valid\n  hint: give a whole number",
    "model=[lenet,resnet50]": "`model=` takes one option, not a list",
    "hydra/launcher=joblib": "`hydra/launcher=joblib` does not exist\n  hint: options: slurm",
    "hydra/sweeper=ax": "`hydra/sweeper=ax` does not exist\n  hint: options: grid, optuna",
    "hydra.sweeper.n_trials=3": "src/train.py --cfg hydra`",
    "k" * 5000 + "=1": "File name too long",
    "batch=" + "7" * 5000: "Exceeds the limit",
    # references
    "batch=${nope}": "`batch` refers to a key that does not exist",
    "batch=${oc.env:NOPE}": "Environment variable 'NOPE' not found",
    "batch=${batch}": "it refers to itself",
    "batch=${nope:1}": "cannot resolve",
    "model.name=${nope}": "cannot resolve `model.name=${nope}`",
    # keys that do not go together
    "model=seq2seq": "model=seq2seq does not go with dataset=digits",
    "meter=estimate meter.period_s=1": "the selected meter has no key `period_s`",
    "strategy.ranks=2": "strategy=single has one rank",
    "throughput.start=3": "is only one end of an interval",
    # values
    "batch=1.5": "`batch=1.5`",
    "batch=true": "`batch=true`",
    "power_limit=[15]": "`power_limit=[15]`",
    "optimizer.lr=nan": "`optimizer.lr=nan`",
    "+optimizer.dampening=nan": "`optimizer.dampening=nan`",
    "dataset.normalize=5": "`dataset.normalize=5`",
    "dataset=jpeg dataset.count=1000000000000": "`dataset=jpeg` needs 114,096,000.0 GB",
    "sweep.cool_below_c=-300": "`sweep.cool_below_c=-300.0`",
    "workers=100000": "`workers=100000` is too many: this machine has",
    "strategy=ddp strategy.ranks=100000": "for each of 100,000 ranks",
    "persistent_workers=2": "`persistent_workers=2`",
    "compile=-1": "`compile=-1`",
    "device.python=5": "`device.python=5`",
    "storage.root=5": "`storage.root=5`",
}


def validate(order, overrides, root):
    """Compose and check a job, as a command does before it writes anything."""
    with friendly_hydra_errors(overrides, "train"):
        request = order(*overrides)
        validate_job(request.job, request.choices, request.overrides)
        capacity.check_capacity(request.job, root)


@pytest.mark.parametrize("typed", REFUSED, ids=lambda typed: typed[:40])
def test_invalid_input_is_refused_with_one_error_and_a_hint(order, tmp_path, monkeypatch, typed):
    monkeypatch.chdir(tmp_path)
    overrides = re.split(r" (?=[+~]?[\w./]+=)", typed)
    with pytest.raises(SystemExit) as end:
        validate(order, overrides, tmp_path)
    lines = str(end.value).splitlines()
    assert lines[0].startswith("error: ")
    assert REFUSED[typed] in str(end.value)
    assert any(line.startswith("  hint: ") for line in lines)
    assert "Traceback" not in str(end.value)
    assert max(map(len, lines)) < 1200
    assert not list((tmp_path / "multirun").glob("*/*/*"))


@pytest.mark.parametrize("typed", ["", "dataset=tensors", "dataset=jpeg", "dataset=pairs", "dataset=polynomial",
                                   "dataset=cifar10 model=resnet18", "meter=rapl", "meter=nvml", "device=nano",
                                   "strategy=ddp", "strategy=dp", "scheduler=cosine", "experiment=edge/grid",
                                   "experiment=tbd/seq2seq", "tracking=server tracking.uri=http://host:5000",
                                   "power_limit=15 seed=4294967295",
                                   "~optimizer.momentum", "+optimizer.nesterov=true",
                                   "machine.lock_dir=made/later persistent_workers=1"])  # fmt: skip
def test_valid_input_is_accepted(order, tmp_path, monkeypatch, typed):
    monkeypatch.chdir(tmp_path)
    validate(order, typed.split(), tmp_path)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("batch: 8\n\tepochs: 2\n", "line 2, column 1"),
        ("batch: [8\n", "line 2, column 1"),
        ("# @package _global_\nbatch: ${nope}\n", "`batch` refers to a key"),
        ("# @package _global_\nbathc: 8\n", "bathc"),
        ("# @package _global_\ndataset: 5\n", "dataset"),
    ],
)
def test_an_error_in_a_users_file_names_file_and_position(tmp_path, text, says):
    from hydra import compose, initialize_config_dir

    from epochmeter.config import job

    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    job.register(lambda command, many, again: tmp_path)
    with (
        pytest.raises(SystemExit) as end,
        friendly_hydra_errors([], "train"),
        initialize_config_dir(str(job.ROOT / "conf"), "1.3"),
    ):
        job.to_plain(compose("train", overrides=[f"hydra.searchpath=[file://{tmp_path}]", "experiment=mine"]))
    assert str(end.value).startswith("error: ")
    assert says in str(end.value)
    assert "  hint: " in str(end.value)


def test_an_error_after_composing_is_raised_unchanged():
    def fail():
        with friendly_hydra_errors([], "train") as composed:
            composed()
            raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        fail()


def test_all_errors_are_raised_if_traces_are_requested(monkeypatch):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(InputError), friendly_hydra_errors(["=5"], "train"):
        pass


def test_the_value_of_a_flag_is_no_override():
    with friendly_hydra_errors(["--config-dir", "=folder", "-m"], "train"):
        pass


@pytest.mark.parametrize(
    ("typed", "key"),
    [("out", 5), ("report.eta", math.nan), ("report.eta", 2), ("report.eta", None), ("report.max_slowdown", 0.5),
     ("report.max_slowdown", math.inf), ("report.deadline", [1]), ("report.power_budget", -5), ("report.predict", 2),
     ("format", "xml"), ("format", ["json"])],
)  # fmt: skip
def test_keys_of_other_commands_are_validated(typed, key):
    group, _, name = typed.rpartition(".")
    with pytest.raises(InputError, match=f"`{typed}="):
        check_all_values({group: {name: key}} if group else {name: key})


def test_other_commands_refuse_sweeps():
    with (
        pytest.raises(SystemExit, match=r"^error: `-m` is only for src/train\.py"),
        friendly_hydra_errors(["-m", "sweep=a,b"], "report"),
    ):
        pass


def size(*typed, sample=None, repeats=None):
    check_size(OverridesParser.create().parse_overrides(list(typed)), sample, repeats)


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (["batch=range(0,0)"], "has no values"),
        (["batch=range(1,2,0)"], "has no values"),
        (["batch=interval(1,2)"], "which only a search can use"),
        (["batch=range(1,1000000000)"], "999,999,999 configurations"),
        (["batch=range(0,200)", "seed=range(0,200)"], "40,000 configurations"),
    ],
)
def test_a_sweep_over_nothing_or_too_much_is_refused_before_it_is_enumerated(typed, says):
    with pytest.raises(InputError, match=says):
        size(*typed)


def test_a_sample_of_a_large_grid_is_accepted_and_of_an_absurd_one_refused():
    size("batch=range(0,1000)", f"seed=range(0,{MAX_POINTS // 1000})", sample=10)
    with pytest.raises(InputError):
        size("batch=range(0,1000)", f"seed=range(0,{MAX_POINTS // 1000 + 1})", sample=10)
    with pytest.raises(InputError):
        size("repeat=0,1", f"batch=range(0,{MAX_RUNS})", sample=MAX_RUNS, repeats=2)


def test_values_are_counted_as_the_sweep_expands_them():
    typed = ["a=1,2,3", "a=choice(1,2)", "a=range(1,10,4)", "a=range(5,1,-2)", "a=range(0,1,0.25)"]
    parsed = OverridesParser.create().parse_overrides(typed)
    assert (
        [value_count(each) for each in parsed]
        == [len(list(each.sweep_iterator())) for each in parsed]
        == [3, 2, 3, 2, 4]
    )


@pytest.mark.parametrize("keys", [{"sample": 0}, {"repeats": -1}, {"repeats": 10**9}, {"seed": -1}])
def test_keys_of_a_grid_are_checked_before_it_is_expanded(keys):
    with pytest.raises(InputError, match=f"`sweep.{next(iter(keys))}="):
        check_sweeper(None, keys)


@pytest.mark.parametrize("size", [0, -2, "many", 1.5])
def test_batch_of_a_search_has_at_least_one_run(size):
    with pytest.raises(InputError):
        check_sweeper(size, {})


@pytest.mark.parametrize(
    ("workers", "ranks", "cores", "fits"),
    [(64, 1, 2, True), (65, 1, 2, False), (16 * 32, 1, 32, True), (16 * 32 + 1, 1, 32, False), (16, 4, 2, True),
     (17, 4, 2, False), (0, 64, 2, True), (0, 100_000, 2, False)],
)  # fmt: skip
def test_processes_are_bounded_by_the_cores(workers, ranks, cores, fits):
    if fits:
        capacity.check_processes(workers, ranks, cores)
    else:
        with pytest.raises(InputError, match=f"{cores} cores"):
            capacity.check_processes(workers, ranks, cores)


def test_prepared_dataset_needs_no_free_space(order, tmp_path, monkeypatch):
    request = order("dataset=jpeg", "dataset.count=1000000000000").job
    monkeypatch.setattr(capacity, "peek_manifest", lambda *_: {"digest": "d"})
    capacity.check_dataset_fits(request.dataset, request.storage, tmp_path)
    assert ready.peek_manifest(request.dataset, request.storage, tmp_path) is None


def test_signals_within_a_second_are_one_stop(monkeypatch):
    now = [10.0]
    monkeypatch.setattr("epochmeter.machine.signals.time.monotonic", lambda: now[0])
    stop = Stop()
    with pytest.raises(KeyboardInterrupt):
        stop(2, None)
    now[0] += REPEATED_SIGNAL_S / 2
    stop(2, None)
    stop(3, None)
    now[0] += REPEATED_SIGNAL_S
    with pytest.raises(SystemExit) as end:
        stop(3, None)
    assert end.value.code == 131


def test_other_errors_than_ctrl_c_are_shown(capsys):
    interpreter.end_quietly(ValueError, ValueError("a bug"), None)
    assert "a bug" in capsys.readouterr().err
