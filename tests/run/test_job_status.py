"""What a run reports to a job scheduler: the fraction that is done, the forecast rest, and its metrics."""

import json
import threading
from types import SimpleNamespace

import pytest
from default_jobs import job_of
from kubeflow import serving
from metadata import run_info
from project import wait_until

from epochmeter.results.run_result import RunResult
from epochmeter.results.sweep_files import POINTS_FILE, SEARCH_FILE
from epochmeter.run.job_status import NOT_SENT, JobStatus, reported_status
from epochmeter.run.nodes import ScriptNode
from epochmeter.shared.protocol import WindowOpening
from epochmeter.tracking import kubeflow as client

EPOCH = WindowOpening("epoch", 1, 50, epochs=4)
LINE = {"metrics": {"epoch/e2e_s": 2.0, "epoch/steps": 50, "epoch/train_loss": 0.5}}
EVALUATION = {"metrics": {"val/e2e_s": 1.0, "val/accuracy": 0.75}}


def plan_of(folder, *, of_sweep=False, node=None, **tracking):
    job = job_of(tracking={"name": "none", "experiment": "x", **tracking})
    request = SimpleNamespace(of_sweep=of_sweep, folder=folder / "sweep" / "0")
    return SimpleNamespace(job=job, request=request, script_node=node or ScriptNode(), run=run_info())


@pytest.fixture
def sent():
    return []


@pytest.mark.parametrize(
    ("runs", "of_run"), [({}, lambda part: part), ({"runs_done": 2, "runs": 4}, lambda part: (2 + part) / 4)]
)
def test_fraction_grows_with_the_steps_and_is_complete_only_after_the_end(sent, runs, of_run):
    status = JobStatus(sent.append, **runs)
    status.progress(EPOCH, 25)
    status.add(EPOCH, LINE)
    status.add(WindowOpening("epoch", 3, 50, epochs=4), LINE)
    status.end(RunResult(0, []))
    expected = [1.5 / 4, 2 / 4, 0.99, 1]
    assert [status.fraction for status in sent] == pytest.approx([of_run(part) for part in expected])


def test_metrics_are_those_of_the_last_epoch_with_its_evaluation_then_the_means(sent):
    status = JobStatus(sent.append)
    status.add(EPOCH, LINE)
    status.add(WindowOpening("val", 1, 10, epochs=4), EVALUATION)
    status.add(WindowOpening("own", 1, 10), LINE)
    status.add(EPOCH._replace(epoch=2), LINE)
    status.end(RunResult(0, [], metrics={"steady/e2e_s": 1.5, "std/e2e_s": 0.1}))
    of_epoch = {"epoch": 2, "epoch/e2e_s": 2.0, "epoch/train_loss": 0.5}
    last = {**of_epoch, "epoch": 3}
    assert [dict(status.metrics) for status in sent] == [
        of_epoch, {**of_epoch, "val/accuracy": 0.75}, last, {**last, "steady/e2e_s": 1.5},
    ]  # fmt: skip


def test_rest_is_the_forecast_without_the_time_since_and_unknown_without_one(sent, monkeypatch):
    now_s = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    status = JobStatus(sent.append)
    status.add(EPOCH, LINE)
    status.forecast(30.0)
    now_s[0] += 10
    status.progress(EPOCH, 1)
    now_s[0] += 100
    status.progress(EPOCH, 2)
    status.forecast(None)
    status.progress(EPOCH, 3)
    of_sweep = JobStatus(sent.append, runs=3)
    of_sweep.forecast(30.0)
    of_sweep.progress(EPOCH, 1)
    assert [status.remaining_s for status in sent] == [None, 20.0, 0.0, None, None]


@pytest.mark.parametrize("opened", [EPOCH._replace(epochs=None), EPOCH._replace(steps=0), EPOCH._replace(window="val")])
def test_no_progress_within_a_window_of_unknown_length_is_sent(sent, opened):
    status = JobStatus(sent.append)
    status.progress(opened, 10)
    assert sent == []
    status.add(opened._replace(window="epoch", epochs=None), LINE)
    assert sent[0].fraction is None


def test_run_that_failed_or_was_stopped_sends_no_end(sent):
    status = JobStatus(sent.append)
    status.end(RunResult(0, [], state="failed"))
    status.end(RunResult(0, [], state="killed"))
    assert sent == []


@pytest.mark.parametrize(
    ("files", "runs"),
    [({POINTS_FILE: {"points": [["a=1"], ["a=2"]]}}, 2), ({SEARCH_FILE: {"runs": 8}}, 8), ({}, None)],
)
def test_fraction_of_a_sweep_is_that_of_its_runs(tmp_path, monkeypatch, sent, files, runs):
    folder = tmp_path / "sweep"
    folder.mkdir()
    for name, document in files.items():
        (folder / name).write_text(json.dumps(document))
    with serving(tmp_path / "server") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        earlier = [RunResult(0, [])]
        with reported_status(plan_of(tmp_path, of_sweep=True), RunResult(1, []), earlier) as status:
            status.add(EPOCH, LINE)
            wait_until(lambda: server.accepted)
    expected = [int(100 * 1.5 / runs), 100 * 2 // runs] if runs else [None, None]
    assert [accepted.get("progressPercentage") for accepted in server.accepted] == expected


@pytest.mark.parametrize(
    "options", [{"kubeflow": False}, {"node": ScriptNode(1, 2)}], ids=["not wanted", "another node"]
)
def test_nothing_is_sent_if_that_is_not_wanted_or_by_another_node(tmp_path, monkeypatch, options):
    monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_URL", "https://127.0.0.1:1/")
    with reported_status(plan_of(tmp_path, **options), RunResult(0, []), []) as status:
        assert status is NOT_SENT


@pytest.mark.timed
def test_end_of_a_run_waits_for_a_slow_server_for_its_limit_only(tmp_path, monkeypatch):
    has_ended = threading.Event()

    def answer(number):
        has_ended.wait(60)
        return 200

    monkeypatch.setattr(client.StatusThread.__init__, "__defaults__", (0.01, 0.2))
    with serving(tmp_path, answer) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        with reported_status(plan_of(tmp_path), RunResult(0, []), []) as status:
            status.add(EPOCH, LINE)
        assert server.accepted == [], "it ends before the answer"
        has_ended.set()


def test_bad_server_is_named_once_for_all_runs_of_a_sweep_and_tried_rarely(tmp_path, monkeypatch, caplog):
    with serving(tmp_path / "server", lambda number: 500) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        for number in range(20):
            with reported_status(plan_of(tmp_path), RunResult(number, [], state="failed"), []) as status:
                status.add(EPOCH, LINE)
                wait_until(lambda: server.requests)
    warnings = [record for record in caplog.records if "Kubeflow does not show" in record.getMessage()]
    assert len(warnings) == 1
    assert server.requests <= 20, "one at the end of each run"
