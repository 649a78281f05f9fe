"""The command `src/publish.py`, in this process."""

import os
import random
import socket
from pathlib import Path

import pytest
from damaged import HOSTILE, change_value, damage_text, replace_file
from tracking import recording
from tracking.conftest import change_record, runs_of, statuses_of
from tracking.recording import named

from epochmeter.cluster.submissions import Submission, SubmissionLog
from epochmeter.commands import publish
from epochmeter.config.installation import UI_ADDRESS
from epochmeter.shared.record_files import MAX_BYTES
from epochmeter.tracking import client, queue
from epochmeter.tracking.client import URI_VARIABLE
from epochmeter.tracking.export_process import LATE, Exported

UNPUBLISHED = {"name": "none", "experiment": "epochmeter", "tensorboard": False}  # the tracking keys on a node


@pytest.fixture
def run_publish(store, tmp_path, monkeypatch):
    """run_publish(*arguments) -> the exit code; the project's database is the store."""
    monkeypatch.setattr(publish, "ROOT", tmp_path)
    monkeypatch.setenv(URI_VARIABLE, store.uri)
    return lambda *arguments: publish.main([str(argument) for argument in arguments])


@pytest.fixture
def make_remote(make_record):
    """make_remote(0, reported=False, ...) -> the record of a run on a cluster's node, as the node writes it."""

    def make(number=0, reported=False, **keys):
        record = make_record(number, **{"host": "board-7", "state": None, **keys})
        change_record(record, {}, tracking=UNPUBLISHED)
        SubmissionLog(record.folder.parent).write({number: Submission(f"17_{number}", "d", reported=reported)})
        return record

    return make


def test_runs_of_a_cluster_are_published_once_reported_or_to_a_given_address(run_publish, make_remote, store, capsys):
    make_remote(3, reported=True, state=None).archive_attempt()
    make_remote(0, reported=True, state="completed")
    make_remote(1, state="completed")
    make_remote(2)
    assert run_publish() == 0
    assert statuses_of(store) == ["FINISHED"]
    assert capsys.readouterr().out.startswith("skipped 3 submitted runs")
    run_publish("--uri", store.uri)
    assert statuses_of(store) == ["FINISHED", "FINISHED", "RUNNING", "RUNNING"]


def test_view_is_linked_only_if_it_has_runs_also_of_runs_without_tracking(run_publish, make_record, capsys):
    failed = make_record(0, state="failed")
    assert run_publish() == 0
    output = capsys.readouterr().out
    assert str(failed.folder) in output
    assert output.endswith("1 of 1 runs published\n")
    change_record(make_record(1), {}, tracking=UNPUBLISHED)
    run_publish()
    assert f"2 of 2 runs published: {UI_ADDRESS}" in capsys.readouterr().out


def test_empty_or_impossible_folder_and_broken_record_are_errors(run_publish, make_record, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    make_record()
    broken = make_record(1)
    (broken.folder / "job.json").write_text("{half")
    assert run_publish(tmp_path / "multirun", tmp_path / "empty", "too_long" * 99) == 1
    output, errors = capsys.readouterr()
    assert errors.count(" contains no runs") == 2
    assert f"cannot publish {broken.folder}: " in errors
    assert "1 of 2 runs published" in output


def test_a_server_that_only_a_record_names_gets_no_request_and_no_credentials(
    run_publish, make_record, store, monkeypatch, capsys
):
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "hunter2")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        change_record(make_record(0), {}, tracking={"name": "server", "experiment": "x", "uri": f"{address}/\x1b[2J"})
        change_record(make_record(1), {}, tracking={"name": "server", "experiment": "epochmeter", "uri": store.uri})
        (damaged := make_record(2, sweep="other")).describe({"tracking": [1]}, damaged.run())
        assert run_publish() == 1
        with pytest.raises(BlockingIOError):
            server.accept()
    assert statuses_of(store) == ["FINISHED"]
    _, errors = capsys.readouterr()
    assert f"cannot publish {damaged.folder}: `job.tracking`: " in errors
    assert f"--uri '{address}" in errors, "quoted, since it has a control character"
    assert "\x1b" not in errors
    monkeypatch.setattr(client, "merged_defaults", lambda group, option: {"uri": address})
    assert address in client.configured_uris(), "an own file in conf/tracking names it"


def test_run_of_a_lost_server_is_published_elsewhere_once_and_then_left_out(
    run_publish, make_queued, store, tmp_path, monkeypatch, capsys
):
    folder = tmp_path / "multirun"
    for number in range(2):
        change_record(
            make_queued(number), {}, tracking={"name": "server", "experiment": "x", "uri": "http://gone:5000"}
        )
    assert run_publish() == 1
    hint = capsys.readouterr().err.splitlines()[-1]
    assert f"python src/publish.py --uri http://gone:5000 {folder}/sweep`" in hint
    assert hint.endswith(f"`--uri {client.LOCAL_URI}`")
    assert run_publish("--uri", store.uri, folder / "sweep/0") == 0
    assert [record.folder.name for record in queue.pending_runs(folder)] == ["1"]
    assert run_publish() == 1, "the other run is not published"
    assert f"error: {folder}/sweep/1 names" in capsys.readouterr().err
    run_publish("--uri", store.uri, folder)
    assert run_publish() == 0
    assert capsys.readouterr().out.endswith("skipped 2 runs, which are published elsewhere than at http://gone:5000\n")
    opened = client.open_store("x", store.uri)
    assert statuses_of(opened) == ["FINISHED", "FINISHED"]


def test_record_with_the_id_of_a_path_deletes_no_file(run_publish, make_queued, tmp_path):
    """The record may be from someone else."""
    (kept := tmp_path / "kept").touch()
    change_record(make_queued(), {"record_id": "../../kept"})
    run_publish()
    assert kept.exists()


def test_empty_and_impossible_arguments_are_refused_before_anything_is_published(
    run_publish, make_record, store, monkeypatch, capsys
):
    monkeypatch.chdir(make_record().folder)
    for arguments in ([""], ["--uri", ""], ["--uri", "./mlruns"], ["--uri", "http://"], ["--uri", "localhost:5000"]):
        with pytest.raises(SystemExit) as refused:
            run_publish(*arguments)
        lines = str(refused.value).splitlines()
        assert [line.partition(":")[0] for line in lines] == ["error", "  hint"], arguments
    monkeypatch.setenv(URI_VARIABLE, "file:./mlruns")
    assert run_publish() == 1
    assert "hint: give a database: `MLFLOW_TRACKING_URI=sqlite:///" in capsys.readouterr().err
    assert runs_of(store) == []


def test_files_outside_a_record_and_pipes_and_huge_files_are_named_and_not_published(
    run_publish, make_record, store, tmp_path, capsys
):
    (private := tmp_path / "private").write_text("hunter2")
    folder = make_record(0).folder
    (folder / "notes.txt").write_text("own")
    (folder / "key.pem").symlink_to(private)
    os.mkfifo(folder / "pipe")
    with open(folder / "trace.json.gz", "wb") as file:
        file.truncate(MAX_BYTES + 1)
    (folder / "attempt1").mkdir()
    assert run_publish() == 0
    (run,) = runs_of(store)
    published = {file.path for file in store.client.list_artifacts(run.info.run_id)}
    assert published == {"completed.json", "epochs.jsonl", "host.json", "job.json", "notes.txt", "summary.json"}
    copy = store.client.download_artifacts(run.info.run_id, "notes.txt")
    assert Path(copy).read_text() == "own"
    _, errors = capsys.readouterr()
    named = {line.partition(" is not published: ")[0].rpartition("/")[2] for line in errors.splitlines()}
    assert named == {"key.pem", "pipe", "trace.json.gz"}


def test_artifacts_of_an_experiment_are_below_mlruns_whatever_its_name(store, tmp_path):
    for name in ("../../up", str(tmp_path / "absolute"), ".."):
        opened = client.open_store(name, store.uri)
        location = opened.client.get_experiment(opened.experiment_id).artifact_location
        assert os.path.dirname(location) == f"{os.path.dirname(store.uri).replace('sqlite:///', 'file://')}/mlruns"


def test_damaged_records_are_named_and_the_others_published(run_publish, make_record, store, tmp_path, capsys):
    generator, files = random.Random(1), ("job.json", "summary.json", "host.json", "completed.json", "epochs.jsonl")
    (tmp_path / "private").write_text("hunter2")
    for number in range(20):
        file = make_record(number, epochs=1).folder / files[number % len(files)]
        generator.choice([change_value, damage_text, replace_file])(file, generator)
    (sound := make_record(20, sweep=f"sweep{HOSTILE[0]}")).describe(sound.job(), {**sound.run(), "name": HOSTILE})
    assert run_publish() == 1
    output, errors = capsys.readouterr()
    assert (output + errors).encode()
    assert "\x1b" not in output + errors
    published = {run.data.tags["epochmeter.folder"] for run in runs_of(store) if run.info.status == "FINISHED"}
    assert str(sound.folder).replace("\x1b", "\ufffd") in published
    named = {line.rpartition("/")[2].partition(":")[0] for line in errors.splitlines() if "cannot publish" in line}
    assert len(named) >= 3
    for run in runs_of(store):
        for file in store.client.list_artifacts(run.info.run_id):
            copy = store.client.download_artifacts(run.info.run_id, file.path)
            assert "hunter2" not in Path(copy).read_text(errors="replace")


def test_a_problem_of_many_runs_is_named_for_the_first_ones(run_publish, make_record, monkeypatch, capsys):
    folders = [make_record(number).folder for number in range(5)]

    def fail(record, store):
        raise OSError("no space" if record.folder != folders[3] else "gone")

    monkeypatch.setattr(publish, "publish", fail)
    assert run_publish() == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition(": ")[2] for line in lines] == ["no space"] * 3 + ["gone", "no space"]
    assert [str(folder) in line for folder, line in zip([*folders[:4], "1 other run:"], lines, strict=True)] == [
        True
    ] * 5


def test_ended_runs_are_exported_once_to_the_trackers_that_lack_them(run_publish, make_record, recorded, capsys):
    make_record(0)
    make_record(1, state="failed")
    make_record(2, state=None)  # still running
    for count in (2, 0):
        assert run_publish("--also", named(recording.Recording)) == 0
        assert capsys.readouterr().out.count(f"exported to {named(recording.Recording)}: page of") == count
        opened = [call[1] for call in recorded() if call[0] == "open"]
        assert [run["state"] for run in opened] == ["completed", "failed"]
        assert all("/#/experiments/" in call[1]["links"]["MLflow"] for call in recorded() if call[0] == "close")


def test_an_exporter_that_only_a_record_names_is_not_imported(run_publish, make_record, recorded, capsys):
    record = make_record(0)
    name = named(recording.Recording)
    change_record(record, {}, tracking={"name": "mlflow", "experiment": "epochmeter", "also": name})
    assert run_publish() == 0
    assert f"add `--also {name}`" in capsys.readouterr().out
    assert recorded() == []
    assert run_publish("--also", name) == 0
    assert f"--also {name}" not in capsys.readouterr().out
    assert [call[0] for call in recorded()][:1] == ["open"]


def test_failed_exports_are_one_error_for_all_runs(run_publish, make_record, recorded, store, capsys, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef0123456789")
    for number in range(2):
        make_record(number)
    assert run_publish("--also", named(recording.Failing)) == 1
    errors = capsys.readouterr().err
    assert errors.count("error:") == 1
    assert "2 of 2 runs are not exported" in errors
    assert "refused: key ***" in errors
    assert statuses_of(store) == ["FINISHED", "FINISHED"]


def test_tracker_that_hangs_is_not_tried_for_all_runs(run_publish, make_record, recorded, capsys, monkeypatch):
    for number in range(6):
        make_record(number)
    tried = []

    def export(record, name, links):
        tried.append(int(record.folder.name))
        return Exported(name, "page") if tried == [0, 1] else Exported(name, problem=LATE)

    monkeypatch.setattr(publish, "export", export)
    assert run_publish("--also", named(recording.Recording)) == 1
    assert tried == [0, 1, 2, 3, 4], "three in a row"
    errors = capsys.readouterr().err
    assert [f"{count} of 6 runs are not exported" in errors for count in (4, 1)] == [True, True]


@pytest.mark.parametrize("name", ["mlflow", "nothing:Here", ""])
def test_tracker_that_cannot_be_used_is_refused_before_anything_is_published(run_publish, make_record, store, name):
    make_record(0)
    with pytest.raises(SystemExit):
        run_publish("--also", name)
    assert runs_of(store) == []


def test_run_that_is_published_elsewhere_is_still_exported(run_publish, make_record, recorded, store, capsys):
    record, name = make_record(0), named(recording.Recording)
    change_record(record, {}, tracking={"name": "server", "experiment": "x", "uri": "http://gone:5000"})
    assert run_publish("--uri", store.uri) == 0
    for count in (1, 0):
        assert run_publish("--also", name) == 0
        assert capsys.readouterr().out.count(f"exported to {name}: page of") == count
    assert [call[0] for call in recorded()].count("open") == 1
    assert len(runs_of(client.open_store("x", store.uri))) == 1


def test_failure_after_the_last_run_is_an_error(run_publish, make_record, store, monkeypatch, capsys):
    make_record(0)

    def fail(store):
        raise OSError("the server is gone")

    monkeypatch.setattr(publish.views, "results_link", fail)
    assert run_publish() == 1
    assert "the server is gone" in capsys.readouterr().err
    assert statuses_of(store) == ["FINISHED"]
