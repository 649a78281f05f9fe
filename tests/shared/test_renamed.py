"""Renamed keys, options and metrics: the old form works for a minor version, and in records for good."""

import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from project import ROOT, put
from watched import JOB, window, write_run

import epochmeter
from epochmeter.commands.report import with_current_filters
from epochmeter.config import arguments
from epochmeter.config.config_source import FileConfigSource, current_default
from epochmeter.config.suggestions import entry_keys, list_choices
from epochmeter.results.metrics import METRICS
from epochmeter.results.run_folder import RunFolder
from epochmeter.shared import renamed
from epochmeter.shared.problem import InputError
from epochmeter.shared.record import Record
from epochmeter.shared.renamed import KEY, METRIC, OPTION, REFUSED, RENAMED, Renamed
from hydra_plugins.grid import GridSweeper

ROWS = (
    Renamed(KEY, "batch_size", "batch", "0.2.0"),
    Renamed(KEY, "old_section.inner", "machine.inner", "0.2.0"),
    Renamed(KEY, "store", "storage", "0.2.0"),
    Renamed(OPTION, "storage=here", "storage=project", "0.2.0"),
    Renamed(KEY, "dataset.amount", "dataset.count", "0.2.0"),
    Renamed(METRIC, "epoch/stall_s", "epoch/data_stall_s", "0.2.0"),
    Renamed(METRIC, "total/joules", "total/energy_j", "0.2.0"),
)


@pytest.fixture(autouse=True)
def _own_rows(request, monkeypatch):
    """Rows of these tests only, unless a test is about those of the project."""
    if "project" not in request.function.__name__:
        monkeypatch.setattr(renamed, "RENAMED", ROWS)
    monkeypatch.setattr(arguments, "_warned", set())


def version_of(text):
    return tuple(map(int, text.split(".")))


def exists(kind, name):
    """Whether the project has this key, option or metric."""
    if kind == METRIC:
        return name in METRICS
    groups, keys = entry_keys("train")
    if kind == OPTION:
        group, _, option = name.partition("=")
        return option in list_choices(group)
    return OmegaConf.select(OmegaConf.create({**groups, **keys}), name, default="absent") != "absent"


def test_renames_of_the_project_have_a_new_form_that_exists_and_work_for_one_minor_version():
    current = version_of(re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1])
    for row in RENAMED + REFUSED:
        assert version_of(row.since)[2:] == (0,), row
        assert version_of(row.since) <= current, row
        assert (row in RENAMED) == (current < version_of(row.removed)), f"it is refused from {row.removed} on: {row}"
        assert not exists(row.kind, row.old), row
        assert exists(row.kind, row.new), row


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("batch_size=8", "batch=8"),
        ("+batch_size=8,16", "+batch=8,16"),
        ("~batch_size", "~batch"),
        ("old_section.inner=1", "machine.inner=1"),
        ("store=here", "storage=project"),
        ("store.root=here", "storage.root=here"),
        ("storage=ssd,here", "storage=ssd,project"),
        ("storage=choice(here,hdd)", "storage=choice(project,hdd)"),
        ("storage=elsewhere,here/too,there.here", "storage=elsewhere,here/too,there.here"),
        ("batch_sizes=8", "batch_sizes=8"),
        ("batch=here", "batch=here"),
        ("--batch_size=8", "--batch_size=8"),
        ("-m", "-m"),
        ("multirun/batch_size", "multirun/batch_size"),
    ],
)
def test_override_has_the_new_names_and_notes_each_rename(old, new):
    noted = []
    assert renamed.current_override(old, noted.append) == new
    assert bool(noted) == (old != new)
    assert renamed.current_override(new) == new
    if "=" in new and not new.startswith("-"):
        OverridesParser.create().parse_override(new)


def test_nested_keys_move_and_a_key_with_the_new_name_is_kept():
    keys = {"batch_size": 8, "old_section": {"inner": 1, "other": 2}, "storage": {"name": "here", "root": "here"}}
    assert renamed.current_keys(keys) == {
        "old_section": {"other": 2}, "storage": {"name": "project", "root": "here"}, "batch": 8,
        "machine": {"inner": 1},
    }  # fmt: skip
    assert keys["batch_size"] == 8, "they are not changed themselves"
    assert renamed.current_keys({"batch_size": 8, "batch": 16}) == {"batch": 16}
    assert renamed.current_keys({"amount": 5, "batch_size": 8}, prefix="dataset.") == {"count": 5, "batch_size": 8}
    assert renamed.current_keys({"store": {"name": "here"}}) == {"storage": {"name": "project"}}
    assert renamed.current_keys({"old_section": {"inner": 1}, "machine": None}) == {"old_section": {}, "machine": None}
    assert renamed.current_keys(same := {"batch": 8, "storage": None}) is same


def test_choices_have_new_names_and_one_with_the_new_name_is_kept():
    given = {"batch_size": "8,16", "store": "here,ssd", "+storage": ["here", 1], "batch": 4, "seed": None}
    assert renamed.current_choices(given) == {
        "storage": "project,ssd", "+storage": ["project", 1], "batch": 4, "seed": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("default", "expected"),
    [
        ({"override /store": "here"}, {"override /storage": "project"}),
        ({"optional /storage@mine": ["here", "ssd"]}, {"optional /storage@mine": ["project", "ssd"]}),
        ("/storage/here", "/storage/project"),
        ({"storage": "here"}, {"storage": "here"}),
        ({"override /storage": None}, {"override /storage": None}),
        ("_self_", "_self_"),
        ("experiment/here", "experiment/here"),
        ([1], [1]),
    ],
)
def test_default_of_a_file_has_the_new_name_of_its_option(default, expected):
    assert current_default(default, Path("experiment"), renamed.ignore) == expected


def test_default_without_a_slash_is_of_a_group_in_the_main_file():
    assert current_default({"store": "here"}, Path(), renamed.ignore) == {"storage": "project"}


def test_parameters_of_a_sweep_in_a_file_may_have_old_names(capsys):
    sweeper = object.__new__(GridSweeper)  # Hydra may have loaded the class of its own sweeper again meanwhile
    sweeper.params = {"batch_size": "8,16", "store": "here"}
    sweeper.use_current_names()
    assert sweeper.params == {"batch": "8,16", "storage": "project"}
    assert capsys.readouterr().err.count("warning: ") == 3


def test_command_warns_once_per_old_name_and_refuses_those_of_an_earlier_version(capsys, monkeypatch):
    given = ["-m", "batch_size=8,16", "storage=here", "batch_size=4"]
    assert arguments.with_current_names(given) == ["-m", "batch=8,16", "storage=project", "batch=4"]
    assert arguments.with_current_names(["batch_size=8"]) == ["batch=8"]
    lines = capsys.readouterr().err.splitlines()
    assert sorted(line for line in lines if line.startswith("warning:")) == [
        "warning: `batch_size=` has another name since 0.2.0, and 0.3.0 will refuse it",
        "warning: `storage=here` has another name since 0.2.0, and 0.3.0 will refuse it",
    ]
    assert sorted(line for line in lines if "hint" in line) == ["  hint: use `batch=`", "  hint: use `storage=project`"]
    monkeypatch.setattr(renamed, "REFUSED", ROWS[:1])
    monkeypatch.setattr(renamed, "RENAMED", ROWS[1:])
    with pytest.raises(InputError, match=r"`batch_size=` has another name since 0\.2\.0\n  hint: use `batch=`"):
        arguments.with_current_names(["batch_size=8"])


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("experiment/mine", "# @package _global_\nbatch_size: 8\nstorage: {name: here}\n", {"batch": 8}),
        ("dataset/mine", "name: mine\namount: 5\n", {"name": "mine", "count": 5}),
        ("experiment/of_group", "# @package _global_\ndefaults: [{override /store: here}]\n", {}),
        ("dataset/plain", "name: mine\nbatch_size: 5\n", {"name": "mine", "batch_size": 5}),
    ],
)
def test_file_of_a_user_may_have_old_names(tmp_path, capsys, path, text, expected):
    put(tmp_path, {f"{path}.yaml": text})
    source = FileConfigSource(provider="test", path=f"file://{tmp_path}")
    loaded = OmegaConf.to_container(source.load_config(f"{path}.yaml").config)
    assert {key: loaded[key] for key in expected} == expected
    assert ("warning:" in capsys.readouterr().err) == (path != "dataset/plain")


def test_record_with_old_names_is_read_with_the_new_ones_without_a_warning(tmp_path, monkeypatch, capsys):
    lines = [window("epoch", epoch, 30 - 10 * epoch, 8.0, stall_s=2.0 + epoch) for epoch in range(2)]
    means = {"steady/stall_s": 3.0, "total/joules": 5.0, "steady/e2e_s": 8.0}
    job = {**{key: value for key, value in JOB.items() if key != "batch"}, "batch_size": 4, "storage": {"name": "here"}}
    folder = write_run(
        tmp_path / "sweep/0", lines, job=job, overrides=["batch_size=4", "store=here"],
        summary={"state": "completed", "metrics": means, "trainings": [{"metrics": means}]},
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (run,) = epochmeter.load_runs(folder)
        assert run.keys == {"batch": "4", "storage": "project"}
        assert (run.job["batch"], run.job["storage"]) == (4, {"name": "project"})
        assert {name: run.metrics[name] for name in ("steady/data_stall_s", "total/energy_j")} == {
            "steady/data_stall_s": 3.0, "total/energy_j": 5.0,
        }  # fmt: skip
        assert RunFolder(folder).summary["trainings"][0]["metrics"]["steady/data_stall_s"] == 3.0
    assert run.epochs[1]["epoch/data_stall_s"] == 3.0
    record = Record(folder)
    assert [each["metrics"]["epoch/data_stall_s"] for each in record.windows()] == [2.0, 3.0]
    assert (record.job()["batch"], record.job()["storage"]) == (4, {"name": "project"})
    summary = record.summary()
    assert [part["metrics"]["total/energy_j"] for part in (summary, *summary["trainings"])] == [5.0, 5.0]
    assert capsys.readouterr().err == ""


def test_filter_and_baseline_of_a_report_may_have_old_names(capsys):
    where = {"batch_size": [8, 16], "storage": ["here", "ssd"], "model": "lenet"}
    keys = {"where": where, "report": {"baseline": {"storage": "here"}, "eta": 0.5}, "sweep": "here"}
    assert with_current_filters(keys) == {
        "where": {"batch": [8, 16], "storage": ["project", "ssd"], "model": "lenet"},
        "report": {"baseline": {"storage": "project"}, "eta": 0.5}, "sweep": "here",
    }  # fmt: skip
    assert capsys.readouterr().err.count("warning: ") == 2
    plain = {"where": None, "report": {"baseline": "defaults"}}
    assert with_current_filters(plain) == plain


def test_metric_of_a_run_is_found_by_its_old_name_with_a_warning():
    metrics = renamed.Metrics({"steady/data_stall_s": 3.0})
    with pytest.warns(FutureWarning, match="use `epoch/data_stall_s`") as warned:
        assert metrics["steady/stall_s"] == 3.0
    assert warned[0].filename == __file__, "the warning names the line of the user"
    assert ("steady/stall_s" in metrics, "std/stall_s" in metrics, metrics.get("std/stall_s", 1.0)) == (
        True,
        False,
        1.0,
    )
    assert list(metrics) == ["steady/data_stall_s"]
    with pytest.warns(FutureWarning) as warned:
        assert metrics.get("steady/stall_s") == 3.0
    assert warned[0].filename == __file__


def test_metric_with_a_name_of_an_earlier_version_is_an_error_with_the_new_one(monkeypatch):
    monkeypatch.setattr(renamed, "RENAMED", ())
    monkeypatch.setattr(renamed, "REFUSED", ROWS)
    with pytest.raises(KeyError, match="use `epoch/data_stall_s`"):
        renamed.Metrics({"steady/data_stall_s": 3.0})["steady/stall_s"]
    with pytest.raises(KeyError, match=r"^'steady/other'$"):
        renamed.Metrics()["steady/other"]


def test_damaged_value_of_a_renamed_key_is_an_error_of_the_record(tmp_path):
    folder = write_run(tmp_path / "0", job={**JOB, "store": [], "batch_size": "x"})
    with pytest.raises(ValueError, match="storage"):
        RunFolder(folder).job  # noqa: B018 (it raises)


@pytest.mark.parametrize("line", ["[1]", "null", "5"])
def test_damaged_line_of_windows_is_an_error_of_the_record(tmp_path, line):
    folder = write_run(tmp_path / "0", [window("epoch", 0, 30, 8.0)])
    (folder / "epochs.jsonl").write_text(f"{line}\n")
    with pytest.raises(ValueError, match="no object"):
        Record(folder).windows()


@pytest.mark.parametrize("summary", [[], {"metrics": None}, {"metrics": [1], "trainings": 3}, {"trainings": [None, 1]}])
def test_damaged_summary_is_read_as_it_is(tmp_path, summary):
    folder = write_run(tmp_path / "0")
    (folder / "summary.json").write_text(json.dumps(summary))
    assert Record(folder).summary() == summary


@pytest.mark.system
def test_renames_of_the_project_hold_in_a_command_and_in_a_sweep(project):
    shown = project.run("train", "--cfg", "job", "supply=tensors", "storage=here", check=True)
    assert re.search(r"^synthetic_batches: true$", shown.stdout, re.MULTILINE)
    assert shown.stderr.count("warning: ") == 3  # the group, and two options
    swept = project.run("train", *project.stubbed("-m", ready_batches="true,false"), check=True)
    assert swept.stderr.count("warning: `ready_batches=`") == 1
    assert [record.job()["synthetic_batches"] for record in project.records()] == [True, False]
    measured = subprocess.run(
        [sys.executable, project.root / "src/measure.py", "storage=here", "missing.py"], capture_output=True, text=True
    )
    assert "hint: use `storage=project`" in measured.stderr
