"""A run ended as its record says; one that says nothing is under way while its process is."""

import os
import socket
import subprocess
import sys
import time

import pytest

from trainmeter.tracking.state import alive, ended_s, state

HERE, NOW = socket.gethostname(), time.time()


@pytest.mark.parametrize(("said", "shown"), [("whole", "FINISHED"), ("failed", "FAILED"), ("killed", "KILLED")])
def test_a_run_ended_as_its_summary_says(make_record, said, shown):
    assert state(make_record(state=said)) == shown


def test_a_run_without_an_end_is_running_while_its_process_is_there(make_record):
    assert state(make_record(state=None, started=now())) == "RUNNING"


def test_a_run_that_was_resumed_is_running_while_the_process_is_there_that_it_goes_on_in(make_record):
    long_ago = "2001-09-09T01:46:40+00:00"
    assert state(make_record(state=None, started=long_ago)) == "KILLED"
    assert state(make_record(1, state=None, started=long_ago, resumed=[{"epoch": 1, "started": now()}])) == "RUNNING"


def test_a_run_without_an_end_whose_process_is_dead_was_killed(make_record):
    assert state(make_record(state=None, pid=dead_pid())) == "KILLED"


def test_a_summary_that_no_end_followed_is_not_a_finished_run(make_record):
    record = make_record(pid=dead_pid())
    (record.folder / "whole.json").unlink()
    assert state(record) == "FAILED"
    assert state(record, ended="whole") == "FAILED"


def test_a_summary_whose_end_may_still_follow_is_a_running_run(make_record):
    record = make_record(started=now())
    (record.folder / "whole.json").unlink()
    assert state(record) == "RUNNING"


@pytest.mark.parametrize(("ended", "shown"), [("whole", "FAILED"), ("failed", "FAILED"), ("killed", "KILLED")])
def test_a_run_that_could_not_write_its_end_ended_as_its_living_steward_says(make_record, ended, shown):
    assert state(make_record(state=None, started=now()), ended) == shown


def test_the_record_has_the_first_word(make_record):
    assert state(make_record(0), ended="failed") == "FINISHED"
    assert state(make_record(1, state="killed"), ended="failed") == "KILLED"


def test_a_process_of_an_earlier_boot_is_dead():
    assert not alive(HERE, os.getpid(), "another-boot", NOW)


def test_a_process_that_is_younger_than_the_run_is_another_one():
    assert not alive(HERE, os.getpid(), None, since_s=NOW - 1e6)


def test_a_process_of_another_host_is_believed_to_live():
    assert alive("board-7", 1, "its-own-boot", NOW)


def test_a_finished_run_ended_when_it_said_and_not_when_it_was_copied(make_record):
    record = make_record()
    finished = ended_s(record)
    os.utime(record.folder / "job.json", (0, 2**31))
    assert ended_s(record) == finished


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid
