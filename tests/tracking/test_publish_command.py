"""The command `src/publish.py`, in this process."""

import pytest
from tracking.conftest import change_record, statuses_of

from epochmeter.cluster.submissions import Submission, SubmissionLog
from epochmeter.commands import publish
from epochmeter.config.installation import UI_ADDRESS
from epochmeter.tracking.client import URI_VARIABLE

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
