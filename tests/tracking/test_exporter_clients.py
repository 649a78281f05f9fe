"""Runs exported by the trackers' own clients, read back from what these have written to this disk.

Each test needs its client on PYTHONPATH, such as from `pip install --target FOLDER wandb`.
"""

import json
import struct
import zipfile
from importlib.metadata import version
from importlib.util import find_spec

import pytest
from packaging.version import Version

from epochmeter.results.run_folder import RunFolder
from epochmeter.tracking import queue
from epochmeter.tracking.export import CLIENTS
from epochmeter.tracking.export_process import ExportProcess, refusal
from epochmeter.tracking.exporter import exported_run

pytestmark = pytest.mark.system
LIMIT_S = 600
KEY = "0123456789abcdef0123456789abcdef01234567"
BLOCK = 32768  # of a file of W&B, which has the format of LevelDB's logs after a header of 7 bytes


OLDEST_WANDB = Version("0.16")  # an earlier one is refused


def needs(package):
    return pytest.mark.skipif(find_spec(package) is None, reason=f"no {package}")


def needs_wandb(*, is_old=False):
    """Skip without W&B, and of a version that can be used, or else is too old."""
    has_it = find_spec("wandb") is not None and (Version(version("wandb")) < OLDEST_WANDB) == is_old
    return pytest.mark.skipif(not has_it, reason=f"no wandb {'before' if is_old else 'from'} {OLDEST_WANDB}")


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    """No login and no earlier runs."""
    for name in ("WANDB_API_KEY", "COMET_API_KEY", "COMET_START_ONLINE", "WANDB_MODE", "TRACKIO_SPACE_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)
    refusal.cache_clear()


def export(record, name):
    """Export a record beside a run that is still measured, and then its end; return the address."""
    process = ExportProcess(name, record)
    process.start()
    process.look()
    process.end(links={"MLflow": "http://here/#/run"})
    exported = process.wait(LIMIT_S)
    assert exported.problem is None
    assert queue.is_exported(record, name)
    return exported.where


def by_epoch(record):
    """The metrics of each epoch with those of its evaluation."""
    epochs = {}
    for window in record.windows():
        epochs.setdefault(window["epoch"], {}).update(window["metrics"])
    return epochs


def with_totals(record):
    """The same with means and totals at the last epoch, for trackers without a summary."""
    epochs = by_epoch(record)
    last = max(epochs)
    return {**epochs, last: {**epochs[last], **record.summary()["metrics"]}}


def wandb_records(path):
    """Yield the records in a file of W&B."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, text = path.read_bytes(), 7, b""
    assert data.startswith(b":W&B")
    while at + 7 <= len(data):
        if (left := BLOCK - at % BLOCK) < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        text += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record = Record()
            record.ParseFromString(text)
            text = b""
            yield record


def values_of(items):
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def own(values):
    """Without W&B's own keys."""
    return {key: value for key, value in values.items() if not key.startswith("_")}


@needs_wandb()
def test_wandb_writes_an_offline_run(make_record, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_RUN_ID", "other")  # of the script's own run
    assert refusal("wandb") is None
    record = make_record(of_sweep=True)
    where = export(record, "wandb")
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert where == f"wandb sync wandb/{path.parent.name}"
    records = [*wandb_records(path)]
    run, expected = (
        RunFolder(record.folder),
        exported_run(RunFolder(record.folder), links={"MLflow": "http://here/#/run"}),
    )
    (begun, *_) = [record.run for record in records if record.HasField("run")]
    assert (begun.run_id, begun.run_group, begun.project) == (run.run.record_id, "sweep", "epochmeter")
    assert (begun.display_name, begun.notes) == (expected.name, expected.note)
    config = values_of(begun.config.update)
    for each in records:
        config |= values_of(each.config.update)
    assert own(config) == {**expected.params, **expected.facts}
    history = [own(values_of(each.history.item)) for each in records if each.HasField("history")]
    assert dict(enumerate(history)) == by_epoch(record)
    summary = {}
    for each in records:
        summary |= own(values_of(each.summary.update))
    assert summary.items() >= expected.metrics.items()
    assert [each.exit.exit_code for each in records if each.HasField("exit")] == [0]


@needs_wandb()
def test_wandb_without_a_login_is_refused_with_what_to_set(monkeypatch):
    problem = refusal("wandb")
    assert "login" in problem.message
    assert "WANDB_MODE=offline" in problem.hint
    refusal.cache_clear()
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert refusal("wandb") is None


@needs_wandb()
def test_command_exports_to_wandb_and_no_record_has_the_key(project, tmp_path):
    environment = {"WANDB_MODE": "offline", "WANDB_API_KEY": KEY, "WANDB_DIR": str(tmp_path)}
    done = project.run("train", *project.stubbed(**{"tracking.also": "wandb"}), check=True, **environment)
    assert "In wandb: wandb sync " in " ".join(done.stdout.split())
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    names = {key for each in wandb_records(path) if each.HasField("history") for key in values_of(each.history.item)}
    assert "epoch/e2e_s" in names
    for file in (project.root / "multirun").rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes(), file


@needs_wandb(is_old=True)
@pytest.mark.parametrize("mode", ["online", "offline"])
def test_wandb_that_is_too_old_is_refused_in_one_line_with_the_version_that_can_be_used(monkeypatch, mode):
    monkeypatch.setenv("WANDB_MODE", mode)
    problem = refusal("wandb")
    assert f"cannot use wandb {version('wandb')}: " in problem.message
    assert "\n" not in problem.message
    assert f"wandb>={CLIENTS['wandb'].tested}" in problem.hint


@needs("trackio")
def test_trackio_has_the_run_once_however_often_it_is_exported(make_record):
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    assert refusal("trackio") is None
    record, other = make_record(0), make_record(1)  # of the same name
    for each in (record, record, other):
        assert export(each, "trackio") == "trackio show --project epochmeter"
    expected = exported_run(RunFolder(record.folder), links={"MLflow": "http://here/#/run"})
    runs = [*trackio.Api().runs("epochmeter")]
    assert [run.name for run in runs] == 2 * [expected.name]
    (run,) = [run for run in runs if run.config["epochmeter.record_id"] == expected.record_id]
    expected_config = {**expected.params, **expected.facts, "epochmeter.note": expected.note}
    assert {key: run.config[key] for key in expected_config} == expected_config
    epochs = {}
    for line in SQLiteStorage.get_logs("epochmeter", run.name, run_id=run.id):
        values = {key: value for key, value in line.items() if "/" in key}
        epochs.setdefault(line["step"], {}).update(values)
    assert epochs == with_totals(record)


@needs("comet_ml")
def test_comet_writes_an_offline_experiment(make_record, tmp_path, monkeypatch):
    assert "COMET_API_KEY" in refusal("comet").hint
    refusal.cache_clear()
    monkeypatch.setenv("COMET_START_ONLINE", "false")
    monkeypatch.setenv("COMET_EXPERIMENT_KEY", "5" * 32)  # of the script's own experiment
    assert refusal("comet") is None
    record = make_record(of_sweep=True)
    where = export(record, "comet")
    (path,) = tmp_path.glob(".cometml-runs/*.zip")
    assert where == f"comet upload .cometml-runs/{path.name}"
    expected = exported_run(RunFolder(record.folder), links={"MLflow": "http://here/#/run"})
    with zipfile.ZipFile(path) as archive:
        meta = json.loads(archive.read("experiment.json"))
        messages = [json.loads(line) for line in archive.read("messages.json").splitlines()]
    assert meta["offline_id"] == path.stem != "5" * 32
    assert meta["project_name"] == "epochmeter"
    assert {*meta["tags"]} == {*expected.labels, "sweep"}
    payloads = {}
    for message in messages:
        payloads.setdefault(message["type"], []).append(message["payload"])
    epochs = {}
    for metric in (payload["metric"] for payload in payloads["metric_msg"]):
        epochs.setdefault(metric["step"], {})[metric["metricName"]] = metric["metricValue"]
    epochs[2].pop("process duration")  # Comet's own
    assert epochs == with_totals(record)
    params = {each["param"]["paramName"]: each["param"]["paramValue"] for each in payloads["parameter_msg"]}
    assert params.keys() >= expected.params.keys()
    others = {each["key"]: each["value"] for each in payloads["log_other"]}
    assert others.items() >= {**expected.facts, "epochmeter.group": "sweep", "Name": expected.name}.items()
