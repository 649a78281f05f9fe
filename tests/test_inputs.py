"""Bad input of every kind ends in one error with a hint, before anything is made."""

import math
import re
from contextlib import nullcontext
from datetime import datetime

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import SearchPathException
from omegaconf.errors import InterpolationResolutionError
from project import put

from epochmeter.config import job, resolvers
from epochmeter.config.app import friendly_hydra_errors
from epochmeter.config.config_source import FileConfigSource
from epochmeter.config.installation import ROOT
from epochmeter.config.validation import check_all_values
from epochmeter.config.versions import DEFAULTS
from epochmeter.machine.signals import REPEATED_SIGNAL_S, Stop
from epochmeter.run.preflight import check_capacity, check_processes, validate_job
from epochmeter.shared.problem import InputError
from epochmeter.sweep.grid import MAX_POINTS, MAX_RUNS, check_size, value_count
from epochmeter.sweep.sweep_folder import open_sweep_folder

FULL = OSError(28, "No space left on device")  # of a buffer, without a name
REFUSED = {
    "~batch": "`~batch` deletes a required key",
    "~model.name": "`~model.name` deletes a required key",
    "=5": "`=5` has no key",
    "--batch=8": "`--batch=8` is not an option\n  hint: give `batch=8`",
    "--config-dir=": "`--config-dir=` has no value",
    "hydra.run.dir=/tmp/x": "the name of a run's folder is its number",
    "dataset=imagefolder": "needs the folder of your data",
    "dataset=imagefolder dataset.root=/nonexistent": "`dataset.root=/nonexistent` is not a folder",
    "strategy=ddp strategy.launcher=script": "`strategy.launcher=script` has no effect: it is for measured scripts",
    "batch=(": "cannot parse `batch=(`",
    "batch=8,16": "`batch=8,16` has several values",
    "model=[lenet,resnet50]": "`model=` takes one option, not a list",
    "hydra/sweeper=ax": "`hydra/sweeper=ax` does not exist\n  hint: options: grid, optuna",
    "k" * 5000 + "=1": "File name too long",
    "batch=" + "7" * 5000: "Exceeds the limit",
    # unknown keys and options
    "checkpoint.evry=1": "unknown key `checkpoint.evry`\n  hint: did you mean `checkpoint.every=`?",
    "+bach=8": "unknown key `bach`\n  hint: did you mean `batch=`",
    "modle=lenet": "unknown key `modle`\n  hint: did you mean `model=`?",
    "model=resnt18": "`model=resnt18` does not exist\n  hint: did you mean `model=resnet18`",
    "model=": "`model=` does not exist\n  hint: options: inception_v3, lenet,",
    "optimizer=null": "`optimizer=null` does not exist\n  hint: ",
    "model=18": "`model=18` does not exist\n  hint: ",
    "model.name=resnet18": "hint: use `model=resnet18`",
    "tracking=server tracking.uri=http://": "`tracking.uri=http://` is not the address of an MLflow server",
    "tracking=server tracking.uri=http://host:99999": "`tracking.uri=http://host:99999` is not the address",
    "budget.energy_j=-5": "`budget.energy_j=-5.0` is not valid\n  hint: give joules, above 0",
    # keys without effect
    "script.x=3": "`script.x=3` has no effect: it is for measured scripts\n  hint: use `python src/measure.py",
    "measure.lock=false": "`measure.lock=false` has no effect: it is for measured scripts",
    "hydra.launcher._target_=": "`hydra.launcher._target_=` is not valid: Hydra's plugins are options",
    "hydra.sweeper._target_=x": "give `hydra/sweeper=`",
    "hydra.launcher=null": "`hydra.launcher=null` is not valid: Hydra's plugins are options",
    "hydra.sweeper.params=abc": "`hydra.sweeper.params=abc` is not valid\n  hint: give a mapping",
    "hydra.sweep.dir=": "`hydra.sweep.dir=` has no value",
    "-m sweep.sample=2,3": "`sweep.sample=2,3` is not valid: it is one setting of the whole sweep",
    "-m sweep.again=true,false": "`sweep.again=true,false` is not valid",
    "++model._target_.x=1": "`model._target_.x=1` is not valid\n  hint: give the dotted path of a class",
    # references
    "batch=${nope}": "`batch` refers to a key that does not exist",
    "batch=${oc.env:NOPE}": "Environment variable 'NOPE' not found",
    "batch=${batch}": "cannot resolve `batch=${batch}`",
    # keys that do not go together
    "model=seq2seq": "use a model for dataset=digits",
    "meter=estimate meter.period_s=1": "`meter=estimate` has no key `period_s`",
    "dataset.pixels=256": "the selected dataset has no key `pixels`\n  hint: select one that has it: `dataset=jpeg`",
    "meter=estimate": "`meter=estimate` needs the CPU's rated power\n  hint: give it in watts: `meter.tdp_w=65`",
    "strategy.ranks=2": "strategy=single has one rank",
    # values
    "batch=1.5": "`batch=1.5` is not valid\n  hint: give a whole number, 1 or more",
    "cache=hot": "`cache=hot` is not valid\n  hint: give one of keep, cold, cold_each_epoch, warm",
    "sweep=5": "`sweep=5` is not valid\n  hint: give a mapping",
    "sweep.order=null": "`sweep.order=null` is not valid\n  hint: give one of grid, random",
    "workers=100000": "`workers=100000` is too many: this machine has",
    "strategy=ddp strategy.ranks=100000": "for each of 100,000 ranks",
}
VALID = ["", "dataset=cifar10 model=resnet18 device=nano strategy=ddp power_limit=15 seed=4294967295",
         "experiment=tbd/seq2seq tracking=server tracking.uri=http://host:5000",
         "machine.lock_dir=made/later persistent_workers=true", "meter=estimate meter.tdp_w=65",
         "scheduler=multistep scheduler.milestones=[1,2]", "measure.lock=true"]  # fmt: skip


def validate(order, overrides, root):
    """Compose and check a job, as a command does before it writes anything."""
    with friendly_hydra_errors(overrides, "train"):
        request = order(*overrides)
        validate_job(request.job, request.choices, request.overrides)
        check_capacity(request.job, root)


@pytest.mark.parametrize("typed", REFUSED, ids=lambda typed: typed[:40])
def test_invalid_input_is_refused_with_one_error_and_a_hint(order, tmp_path, monkeypatch, typed):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        validate(order, re.split(r" (?=[+~]?[\w./]+=)", typed), tmp_path)
    lines = str(end.value).splitlines()
    assert lines[0].startswith("error: ")
    assert REFUSED[typed] in str(end.value)
    assert any(line.startswith("  hint: ") for line in lines)
    assert not list((tmp_path / "multirun").glob("*/*/*"))


def test_nested_aliases_are_refused_at_once_with_their_file(tmp_path):
    """Nine aliases of nine aliases, to a depth of nine, are 400 million values."""
    levels = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    levels += [f"a{level}: &a{level} [{', '.join(9 * [f'*a{level - 1}'])}]" for level in range(1, 9)]
    bomb = put(tmp_path, {"bomb.yaml": "\n".join(levels), "self.yaml": "a: &a [*a]"})
    source = FileConfigSource("test", f"file://{bomb}")
    for name in ("bomb", "self"):
        with pytest.raises(InputError, match=f"`{bomb}/{name}.yaml` is too large: with its nested aliases"):
            source.load_config(name)
    put(tmp_path, {"few.yaml": "a: &a {x: 1}\nb: *a\nc:\n  <<: *a\n  y: 2\n"})
    assert source.load_config("few").config == {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1, "y": 2}}


def test_valid_input_is_accepted(order, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for typed in VALID:
        validate(order, typed.split(), tmp_path)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("batch: 8\n\tepochs: 2\n", "line 2, column 1"),
        ("# @package _global_\nbatch: ${nope}\n", "`batch` refers to a key"),
        ("# @package _global_\nbathc: 8\n", "bathc"),
        ("# @package _global_\ndataset: 5\n", "dataset"),
    ],
)
def test_error_in_a_users_file_has_key_or_position(tmp_path, text, part):
    put(tmp_path, {"experiment/mine.yaml": text})
    resolvers.register(lambda command, many, again: tmp_path)
    with (
        pytest.raises(SystemExit) as end,
        friendly_hydra_errors([], "train"),
        initialize_config_dir(str(ROOT / "conf"), **DEFAULTS),
    ):
        job.to_plain(compose("train", overrides=[f"hydra.searchpath=[file://{tmp_path}]", "experiment=mine"]))
    assert re.search(rf"^error: (?s:.)*{re.escape(part)}(?s:.)*\n  hint: ", str(end.value))


@pytest.mark.parametrize(
    ("refusal", "hint"),
    [(PermissionError(13, "Permission denied", "/root/0"), "fix its permissions, or give"), (FULL, "free disk space")],
)
def test_folder_of_runs_that_cannot_be_made_has_a_hint_by_its_cause(refusal, hint):
    error, error.__context__ = InterpolationResolutionError("of a folder"), InterpolationResolutionError("of a time")
    error.__context__.__context__ = refusal
    with pytest.raises(SystemExit, match=f"hint: {hint}.*hydra.sweep.dir"), friendly_hydra_errors([], "train"):
        raise error


def test_invalid_path_has_its_own_hint_and_later_errors_are_raised_unchanged(monkeypatch):
    no_folder = NotADirectoryError(20, "Not a directory", "/etc/hostname/0")
    no_search_path = SearchPathException("Additional config directory '/nowhere' not found")
    hints = {no_folder: "give another path, or fix the permissions", no_search_path: "give an existing folder"}
    for error, hint in {**hints, FULL: "free disk space"}.items():
        with pytest.raises(SystemExit, match=f"hint: {hint}"), friendly_hydra_errors([], "train"):
            raise error
    with pytest.raises(NotADirectoryError), friendly_hydra_errors([], "train") as end_composing:  # noqa: PT012
        end_composing()
        raise no_folder
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(InputError), friendly_hydra_errors(["=5"], "train"):
        pass
    with friendly_hydra_errors(["--config-dir", "folder", "-m", "~optimizer.momentum"], "train"):
        pass


def test_folder_of_runs_that_cannot_be_created_is_named_in_the_error(tmp_path):
    (tmp_path / "multirun").touch()
    resolvers.register(lambda *command: open_sweep_folder(tmp_path / "multirun", datetime.now(), *command))
    with (
        pytest.raises(SystemExit, match=r"cannot use `.*/multirun`: File exists\n  hint: .*`hydra\.run\.dir="),
        friendly_hydra_errors([], "train"),
        initialize_config_dir(str(ROOT / "conf"), **DEFAULTS),
    ):
        print(compose("train", return_hydra_config=True).hydra.run.dir)


def test_keys_of_other_commands_are_validated_and_they_refuse_sweeps():
    sections = [{section: value} for section in ("report", "footprint", "gate") for value in (None, 5, "", [])]
    names = [{key: value} for key in ("against", "include", "run") for value in ("", True, 1.5, [True], -1)]
    names += [{"against": []}, {"against": {}}, {"run": []}, {"sweep": {}}, {"sweep": True}]
    options = [{"report": {"eta": math.nan}}, {"report": {"deadline": [1]}}, {"report": {"prior": {}}}]
    refused = [("report", keys) for keys in [*sections, *names, *options]]
    refused += [("doctor", {"format": "xml"}), ("doctor", {"machine": None}), ("watch", {"port": 70_000})]
    for entry, keys in refused:
        with pytest.raises(InputError, match=r"`(report(\.\w+)?|\w+)=.* is not valid"):
            check_all_values(keys, entry)
    for keys in (
        {"sweep": "a"},
        {"sweep": 20},
        {"sweep": ["a", "b"]},
        {"against": None},
        {"include": []},
        {"run": "a/0"},
    ):
        check_all_values(keys, "report")
    with pytest.raises(SystemExit, match=r"^error: `-m` is only for"), friendly_hydra_errors(["-m"], "report"):
        pass


def test_sweep_over_nothing_equal_values_or_too_much_is_refused_at_once():
    for overrides, options, reason in (
        ("batch=range(1,2,0)", {}, "has no values"),
        ("batch=8,16,8", {}, "has the value `8` more than once"),
        ("batch=range(1,4) model=lenet,lenet", {}, "`lenet` more than once"),
        ("batch=interval(1,2)", {}, "infinitely many values"),
        ("batch=range(1,inf)", {}, "infinitely many values"),
        ("batch=range(1,1000000000)", {}, "999,999,999 configurations"),
        ("batch=range(0,200) seed=range(0,200)", {}, "40,000 configurations"),
        (f"batch=range(0,1000) seed=range(0,{MAX_POINTS // 1000})", {"sample": 10}, None),
        (f"batch=range(0,1000) seed=range(0,{MAX_POINTS // 1000 + 1})", {"sample": 10}, "configurations"),
        (f"repeat=0,1 batch=range(0,{MAX_RUNS})", {"sample": MAX_RUNS, "repeats": 2}, "runs"),
    ):
        parsed = OverridesParser.create().parse_overrides(overrides.split())
        with pytest.raises(InputError, match=reason) if reason else nullcontext():
            check_size(parsed, **{"sample": None, "repeats": None, **options})


def test_values_are_counted_as_the_sweep_expands_them():
    typed = ["a=1,2,3", "a=choice(1,2)", "a=range(1,10,4)", "a=range(5,1,-2)", "a=range(0,1,0.25)"]
    parsed = OverridesParser.create().parse_overrides(typed)
    assert [value_count(sweep) for sweep in parsed] == [len(list(sweep.sweep_iterator())) for sweep in parsed]


@pytest.mark.parametrize(("workers", "ranks", "cores"), [(64, 1, 2), (16 * 32, 1, 32), (16, 4, 2), (0, 64, 2)])
def test_processes_are_bounded_by_the_cores(workers, ranks, cores):
    check_processes(workers, ranks, cores)
    more, most = ((workers + 1, ranks), f"workers={workers}") if workers else ((0, 100_000), "strategy.ranks=64")
    with pytest.raises(InputError, match=f"(?s){cores} cores.*hint: give at most `{most}`"):
        check_processes(*more, cores)


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
    with pytest.raises(SystemExit, match=r"^131$"):
        stop(3, None)
