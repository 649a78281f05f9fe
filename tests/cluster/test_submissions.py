"""The submissions of a sweep, and what changes about them, run by run."""

import pytest

from epochmeter.cluster import submissions
from epochmeter.cluster.submissions import Submission, SubmissionLog
from epochmeter.shared.atomic_files import write_json

FIRST = {number: Submission(f"17_{number}", "digest") for number in range(3)}


def test_changes_are_read_by_the_same_and_by_another_process(tmp_path):
    log, other = SubmissionLog(tmp_path), SubmissionLog(tmp_path)
    assert (log.entries(), log[1]) == ({}, Submission())
    log.write(FIRST)
    log.update(1, state="COMPLETED", node="node2")
    assert log[1] == other[1] == Submission("17_1", "digest", state="COMPLETED", node="node2")
    log.update(1, reported=True)
    log.write({3: Submission("18")})
    expected = {**FIRST, 1: FIRST[1]._replace(state="COMPLETED", node="node2", reported=True), 3: Submission("18")}
    assert log.entries() == other.entries() == SubmissionLog(tmp_path).entries() == expected


def test_change_of_an_earlier_job_has_no_effect_on_the_next_one(tmp_path):
    log = SubmissionLog(tmp_path)
    log.write(FIRST)
    log.update(1, state="FAILED", reported=True)
    log.write({1: Submission("18_0", "digest")})
    assert SubmissionLog(tmp_path)[1] == log[1] == Submission("18_0", "digest")


def test_all_submissions_are_read_once_however_many_runs_end(tmp_path, monkeypatch):
    log, reads, read = SubmissionLog(tmp_path), [], submissions.read_document
    log.write(FIRST)
    monkeypatch.setattr(submissions, "read_document", lambda path: reads.append(path) or read(path))
    for number in FIRST:
        log.update(number, state="COMPLETED")
        log.update(number, reported=True)
    assert all(submission.reported for submission in log.entries().values())
    assert len(reads) <= 2, "at first, and when the file of changes is created"


def test_change_that_was_written_in_part_is_skipped(tmp_path):
    log = SubmissionLog(tmp_path)
    log.write(FIRST)
    log.update(0, reported=True)
    with (log.folder / "changes.jsonl").open("a") as file:
        file.write('{"number": 1, "jo')
    log.update(2, reported=True)
    assert [submission.reported for submission in SubmissionLog(tmp_path).entries().values()] == [True, False, True]


def test_damaged_file_is_refused(tmp_path):
    (tmp_path / "slurm").mkdir()
    for content in ({"0": {"job": 17}}, {"0": {"unknown": ""}}):
        write_json(tmp_path / "slurm/jobs.json", content)
        with pytest.raises((ValueError, TypeError)):
            SubmissionLog(tmp_path).entries()
