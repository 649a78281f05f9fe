"""What `python src/publish.py` shows and what it leaves to others, in this process."""

import pytest

import publish
from epochmeter.cluster.submissions import SubmissionLog
from epochmeter.shared.atomic_files import write_json
from epochmeter.tracking.client import URI_VARIABLE, open_store

NOWHERE = {"name": "none", "experiment": "epochmeter", "tensorboard": False}
"""What a node is told of tracking."""


@pytest.fixture
def project(store, tmp_path, monkeypatch):
    """project(*arguments) -> how the command ends in a project whose own database is the store."""
    monkeypatch.setattr(publish, "ROOT", tmp_path)
    monkeypatch.setenv(URI_VARIABLE, store.uri)
    return lambda *arguments: publish.main([str(argument) for argument in arguments])


@pytest.fixture
def sent(make_record):
    """sent(number=0, told=False, ...) -> the record of a run that a node makes, as that writes it."""

    def made(number=0, told=False, **asked):
        record = make_record(number, **{"host": "board-7", "state": None, **asked})
        record.describe({**record.job(), "tracking": NOWHERE}, record.run())
        SubmissionLog(record.folder.parent).update({number: {"job": f"17_{number}", "digest": "d", "told": told}})
        return record

    return made


def statuses(store):
    return sorted(run.info.status for run in store.client.search_runs([store.experiment_id]))


def test_what_a_node_is_making_is_left_to_the_command_that_sent_it(project, sent, store, capsys):
    record = sent()
    assert project() == 0
    assert statuses(store) == []
    left = f"{record.folder.parent}: skipped 1 submitted runs, which the submitting command publishes\n"
    assert capsys.readouterr().out == left


def test_a_run_that_has_ended_on_its_node_is_left_too_until_that_was_told_of(project, sent, store):
    sent(state="completed")
    project()
    assert statuses(store) == []


def test_what_was_told_of_is_shown_though_it_was_meant_to_be_shown_nowhere(project, sent, store):
    sent(0, told=True, state="completed")
    sent(1)
    project()
    assert statuses(store) == ["FINISHED"]


def test_where_an_address_is_given_what_nodes_are_making_is_shown_there(project, sent, store):
    sent()
    project("--uri", store.uri)
    assert statuses(store) == ["RUNNING"]


def test_an_attempt_that_was_set_aside_before_its_end_is_shown_by_nobody(project, sent, store):
    record = sent(told=True, state=None)
    record.archive_attempt()
    assert project() == 0
    assert statuses(store) == []


def test_what_this_host_makes_is_shown_wherever_it_was_meant_to_be(project, make_record, store):
    record = make_record()
    record.describe({**record.job(), "tracking": NOWHERE}, record.run())
    project()
    assert statuses(store) == ["FINISHED"]


def test_a_record_that_cannot_be_read_beside_what_was_sent_is_told_of(project, sent, capsys):
    record = sent(told=True, state="completed")
    write_json(record.folder / "job.json", {})
    assert project() == 1
    assert f"cannot publish {record.folder}: " in capsys.readouterr().err


def test_a_server_that_fails_at_the_end_keeps_no_other_place_from_being_tried(
    project, make_record, store, monkeypatch, capsys
):
    for number, experiment in enumerate(("one", "other")):
        record = make_record(number)
        record.describe({**record.job(), "tracking": {"name": "mlflow", "experiment": experiment}}, record.run())

    def away(store):
        raise RuntimeError("API request failed with error code 503")

    monkeypatch.setattr(publish, "close_dead_runs", away)
    assert project() == 1
    told = capsys.readouterr()
    assert told.err.count("API request failed with error code 503") == 2
    assert told.out.count("1 of 1 runs published") == 2
    for experiment in ("one", "other"):
        assert statuses(open_store(experiment, store.uri)) == ["FINISHED"]
