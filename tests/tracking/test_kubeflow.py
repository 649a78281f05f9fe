"""The status of a TrainJob is sent to a real server, and nothing waits for a server that does not answer."""

import itertools
import logging
import socket
import threading
import time
from contextlib import closing

import kubeflow
import pytest
from kubeflow import serving
from project import wait_until

from epochmeter.tracking import kubeflow as tracking
from epochmeter.tracking.kubeflow import Endpoint, StatusThread, TrainerStatus, find_endpoint, send

LONG_S = 600  # time limit of a wait that ends much earlier
STATUS = TrainerStatus(0.456, 12.3, {"epoch/e2e_s": 1.23456789, "val/accuracy": 0.5})


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.WARNING)
    return lambda: [record.getMessage() for record in caplog.records if record.name.endswith("tracking.kubeflow")]


@pytest.mark.parametrize("secure", [True, False])
def test_status_is_sent_with_the_token_of_the_pod_on_an_encrypted_connection_only(tmp_path, secure):
    with serving(tmp_path, secure=secure) as server:
        environment = server.environment
        if not secure:
            (tmp_path / "token").write_text("secret")
            environment = {**environment, "KUBEFLOW_TRAINER_SERVER_TOKEN": str(tmp_path / "token")}
        assert send(find_endpoint(environment), STATUS) == ""
    (accepted,), metrics = server.accepted, {"epoch/e2e_s": "1.23457", "val/accuracy": "0.5"}
    assert (accepted["progressPercentage"], accepted["estimatedRemainingSeconds"]) == (45, 13)
    assert {metric["name"]: metric["value"] for metric in accepted["metrics"]} == metrics
    assert server.problems == []


def test_unknown_and_infinite_values_are_absent_and_limits_of_kubeflow_are_kept(tmp_path):
    metrics = {f"epoch/{number}": 1e-300 for number in range(300)} | {"val/loss": float("nan"), "n" * 65: 1.0}
    with serving(tmp_path) as server:
        endpoint = find_endpoint(server.environment)
        assert send(endpoint, TrainerStatus(None, None, {"val/loss": float("inf")})) == ""
        assert send(endpoint, TrainerStatus(1.5, -3.0, metrics)) == ""
        assert send(endpoint, TrainerStatus(0.5, float("inf"), {"val/loss": None})) == ""
        assert send(endpoint, TrainerStatus(0.5, 1e12)) == ""
    assert server.problems == []
    assert {*server.accepted[0]} == {"metrics", "lastUpdatedTime"}
    assert server.accepted[0]["metrics"] == []
    assert ["estimatedRemainingSeconds" in accepted for accepted in server.accepted] == [False, True, False, False]
    assert (server.accepted[1]["progressPercentage"], server.accepted[1]["estimatedRemainingSeconds"]) == (100, 0)
    assert len(server.accepted[1]["metrics"]) == 256


def test_renewed_token_is_read_and_an_old_one_is_refused(tmp_path):
    with serving(tmp_path) as server:
        endpoint = find_endpoint(server.environment)
        (tmp_path / "token").write_text("expired")
        assert send(endpoint, STATUS).endswith("answered 403 Forbidden")
        (tmp_path / "token").write_text(kubeflow.TOKEN)
        assert send(endpoint, STATUS) == ""


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, None),
        ({"KUBEFLOW_TRAINER_SERVER_URL": ""}, None),
        ({"KUBEFLOW_TRAINER_STATUS_URL": "https://a/b"}, Endpoint("https://a/b")),
        (
            {f"KUBEFLOW_TRAINER_STATUS_{name}": name for name in ("URL", "CA_CERT", "TOKEN")},
            Endpoint("URL", "CA_CERT", "TOKEN"),
        ),
        (
            {"KUBEFLOW_TRAINER_STATUS_URL": "https://old", "KUBEFLOW_TRAINER_SERVER_URL": "https://new"},
            Endpoint("https://new"),
        ),
        ({"KUBEFLOW_TRAINER_SERVER_URL": "https://a", "PET_NODE_RANK": "0"}, Endpoint("https://a")),
        ({"KUBEFLOW_TRAINER_SERVER_URL": "https://a", "PET_NODE_RANK": ""}, Endpoint("https://a")),
        ({"KUBEFLOW_TRAINER_SERVER_URL": "https://a", "PET_NODE_RANK": "1"}, None),
        ({"KUBEFLOW_TRAINER_SERVER_URL": "https://a", "JOB_COMPLETION_INDEX": "2"}, None),
    ],
)
def test_variables_of_releases_and_of_the_proposal_are_found_on_the_first_pod_only(variables, found):
    assert find_endpoint(variables) == found


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("file:///etc/passwd", "`file:///etc/passwd` is not the address"),
        ("https://", "is not the address"),
        ("https://[::1", "Invalid IPv6"),
        ("https://127.0.0.1:port/", "port"),
        ("http://user:hunter2@127.0.0.1:1/", "127.0.0.1: "),
    ],
)
def test_address_that_cannot_be_used_is_an_error_without_its_password(url, part):
    error = send(Endpoint(url), STATUS)
    assert part in error
    assert "hunter2" not in error


def test_certificate_of_another_authority_is_refused_before_the_token_is_sent(tmp_path):
    with serving(tmp_path) as server:
        kubeflow.certify(tmp_path)  # replaces the file, not the certificate of the server
        assert "CERTIFICATE_VERIFY_FAILED" in send(find_endpoint(server.environment), STATUS)
        assert server.requests == 0


def test_missing_files_of_the_pod_are_an_error(tmp_path):
    with serving(tmp_path) as server:
        for name in ("token", "ca.crt"):
            (tmp_path / name).unlink()
            assert "No such file" in send(find_endpoint(server.environment), STATUS)


def test_newest_status_is_sent_at_once_then_not_more_often_than_the_period(monkeypatch):
    begun_s, percentages, period_s = [], [], 0.05

    def note(endpoint, status, limit_s):
        begun_s.append(time.monotonic())
        percentages.append(status.document()["trainerStatus"]["progressPercentage"])
        return ""

    monkeypatch.setattr(tracking, "send", note)
    thread, counts = StatusThread(Endpoint("https://nowhere"), period_s=period_s, limit_s=LONG_S), itertools.count()

    def has_sent():
        thread.report(TrainerStatus(min(0.99, next(counts) / 1000)))
        return len(begun_s) >= 4

    wait_until(has_sent, pause_s=0.001)
    periods_s = [after_s - before_s for before_s, after_s in itertools.pairwise(begun_s)]
    thread.report(TrainerStatus(1.0))
    thread.flush()
    assert min(periods_s) >= period_s
    assert percentages[0] == 0
    assert percentages[-1] == 100
    assert percentages == sorted(percentages)


def test_server_that_does_not_answer_delays_nothing_and_the_end_by_the_limit_only(tmp_path, warnings):
    answered = threading.Event()
    with serving(tmp_path, lambda number: answered.wait(LONG_S) and 200) as server:
        thread = StatusThread(find_endpoint(server.environment), period_s=0.01, limit_s=0.5)
        for _ in range(100):
            thread.report(STATUS)
        thread.flush()
        assert (server.accepted, not answered.is_set()) == ([], True), "nothing waited for the answer"
        answered.set()
    wait_until(warnings)
    assert len(warnings()) == 1


@pytest.mark.parametrize(("code", "text"), [(401, "401 Unauthorized"), (403, "403"), (404, "404"), (500, "500")])
def test_server_that_refuses_is_named_once_and_its_end_is_not_waited_for(tmp_path, monkeypatch, warnings, code, text):
    with serving(tmp_path, lambda number: code) as server:
        thread = StatusThread(find_endpoint(server.environment), period_s=0.01)
        for count in range(1, 4):
            thread.report(STATUS)
            wait_until(lambda count=count: server.requests >= count)
        wait_until(warnings)
        waiting, wait_for = [], thread._changed.wait_for
        monkeypatch.setattr(
            thread._changed, "wait_for", lambda *limits: waiting.append(threading.current_thread()) or wait_for(*limits)
        )
        thread.report(STATUS)
        thread.flush()
        assert threading.current_thread() not in waiting
    assert [text in line and "hint:" in line for line in warnings()] == [True]


def test_server_that_is_gone_is_named_once(warnings):
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"https://127.0.0.1:{unused.getsockname()[1]}/status"
    thread = StatusThread(Endpoint(url), period_s=0.01)
    thread.report(STATUS)
    wait_until(warnings)
    for _ in range(3):
        thread.report(STATUS)
        time.sleep(0.05)
    thread.flush()
    assert len(warnings()) == 1
    assert "Connection refused" in warnings()[0]


def test_status_arrives_again_after_the_server_was_gone(tmp_path, warnings):
    with serving(tmp_path, lambda number: 503 if number == 1 else 200) as server:
        thread = StatusThread(find_endpoint(server.environment), period_s=0.01)
        thread.report(STATUS)
        wait_until(warnings)
        thread.report(STATUS)
        wait_until(lambda: server.accepted)
        thread.flush()
    assert len(warnings()) == 1
