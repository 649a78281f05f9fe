"""Exporters in processes of their own: whatever they do, the run has its end in time, and one warning."""

import sys
import time
from importlib.util import find_spec

import psutil
import pytest
from project import wait_until
from tracking import recording
from tracking.recording import named

from epochmeter.shared.problem import InputError
from epochmeter.shared.process_identity import has_exited
from epochmeter.tracking import export_process, queue
from epochmeter.tracking.export_process import LATE, Exported, ExportProcess, check_exporters, export_warning, refusal
from epochmeter.tracking.publisher import make_tracker

LONG_S = 120
KEY = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def _key(recorded, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", KEY)


@pytest.mark.parametrize("exporter", [recording.Recording, recording.Printing])
def test_tracker_exports_a_run_as_it_grows_whether_or_not_it_prints_or_its_end_hangs(
    make_record, recorded, capfd, exporter
):
    record = make_record(epochs=2, state=None)
    tracker = make_tracker(record, name="none", also=named(exporter))
    tracker.open()
    tracker.flush()
    wait_until(lambda: len(recorded()) == 5)
    assert [call[0] for call in recorded()] == ["open", *4 * ["log"]]
    assert tracker.close(LONG_S, ended="killed") is None
    assert tracker.exported == [Exported(named(exporter), f"page of {record.run()['name']}")]
    assert [call[0] for call in recorded()] == ["open", *4 * ["log"], "close"]
    assert capfd.readouterr() == ("", "")


def test_run_that_was_not_followed_is_exported_at_its_end_and_marked(make_record, recorded):
    record = make_record()
    exporters = [named(recording.Recording), named(recording.Refusing)]
    tracker = make_tracker(record, name="none", also=exporters)
    tracker.close(LONG_S)
    assert [each.problem for each in tracker.exported] == [None, None]
    assert all(queue.is_exported(record, name) for name in exporters)
    assert not queue.is_exported(record, "wandb")
    again = ExportProcess(exporters[0], record)
    again.start()
    assert not queue.is_exported(record, exporters[0]), "it is exported again from its beginning"
    again.kill()


@pytest.mark.parametrize(
    ("exporter", "problem"),
    [(recording.Failing, "refused: key ***"), (recording.Dying, "its process ended with exit code 7")],
)
def test_failing_exporter_is_one_reason_without_the_key(make_record, exporter, problem):
    record = make_record()
    tracker = make_tracker(record, name="none", also=named(exporter))
    tracker.close(LONG_S)
    assert tracker.exported == [Exported(named(exporter), problem=problem)]
    assert not queue.is_exported(record, named(exporter))
    warning = export_warning(tracker.exported[0], "multirun/sweep")
    assert f"python src/publish.py --also {named(exporter)} multirun/sweep" in warning


def test_hanging_exporter_ends_in_time_with_all_its_processes(make_record, recorded):
    tracker = make_tracker(make_record(), name="none", also=named(recording.Hanging))
    tracker.open()
    wait_until(recorded)
    ((_, child),) = recorded()
    begun_s = time.monotonic()
    tracker.close(1.0)
    assert time.monotonic() - begun_s < 30
    assert [each.problem for each in tracker.exported] == ["it did not end in time"]
    processes = [*tracker.export_pids, child]
    wait_until(lambda: not [pid for pid in processes if psutil.pid_exists(pid) and not has_exited(pid)])


def test_exporter_that_hangs_takes_no_time_from_one_that_has_ended(make_record, recorded):
    exporters = [named(recording.Hanging), named(recording.Recording)]
    tracker = make_tracker(make_record(), name="none", also=exporters)
    tracker.open()
    ended = tracker._exports[1]
    ended.end()
    wait_until(lambda: has_exited(ended.pids[0]))
    tracker.close(0.0)
    assert [each.problem for each in tracker.exported] == [LATE, None]


def test_failing_exporter_leaves_no_process(make_record, recorded):
    tracker = make_tracker(make_record(), name="none", also=named(recording.Leaving))
    tracker.close(LONG_S)
    assert [each.problem for each in tracker.exported] == ["refused"]
    ((_, child),) = recorded()
    wait_until(lambda: not psutil.pid_exists(child) or has_exited(child))


def test_address_is_a_text_without_keys(make_record):
    tracker = make_tracker(make_record(), name="none", also=named(recording.Addressed))
    tracker.close(LONG_S)
    assert tracker.exported == [Exported(named(recording.Addressed), "https:/host/run?apiKey=***")]


def test_exporter_ends_with_its_controller(make_record, recorded, monkeypatch):
    record = make_record(state=None)
    program = f"""
import os, sys, time
from pathlib import Path
from epochmeter.shared.record import Record
from epochmeter.tracking.export_process import ExportProcess
process = ExportProcess({named(recording.Recording)!r}, Record(Path({str(record.folder)!r})))
process.start()
print(process.pids[0], flush=True)
time.sleep(600)
"""
    monkeypatch.setenv("PYTHONPATH", export_process.python_path())
    controller = psutil.Popen([sys.executable, "-c", program], stdout=-1, text=True)
    exporter = int(controller.stdout.readline())
    wait_until(recorded)
    controller.kill()
    controller.wait()
    wait_until(lambda: has_exited(exporter))
    assert [call[0] for call in recorded()] == ["open"]


def test_an_exporter_looks_at_most_once_per_period(make_record, monkeypatch):
    sent, process = [], ExportProcess("wandb", make_record())
    monkeypatch.setattr(process, "_send", lambda *_, **keys: sent.append(keys["is_last"]))
    process._process = True
    monkeypatch.setattr(export_process, "PERIOD_S", 1000)
    for _ in range(5):
        process.look()
    process.end()
    assert sent == [False, True]


def test_exporters_that_cannot_be_used_are_refused_with_what_to_do():
    check_exporters({"name": "mlflow"})
    check_exporters({"also": named(recording.Recording)})
    names = [named(recording.Refusing), "no_module:Exporter", f"{recording.MODULE}:Missing"]
    with pytest.raises(InputError) as refused:
        check_exporters({"also": names})
    problems = refused.value.problems
    assert [name in problem.message for name, problem in zip(names, problems, strict=True)] == [True] * 3
    assert "no account" in problems[0].message
    assert all("PYTHONPATH" in problem.hint for problem in problems[1:])


@pytest.mark.skipif(find_spec("trackio") is not None, reason="trackio is installed")
def test_missing_package_has_the_command_that_installs_it():
    problem = refusal("trackio")
    assert "package trackio" in problem.message
    assert f"--python {sys.executable} 'trackio'" in problem.hint or "pip install 'trackio'" in problem.hint


CLIENT = """
class errors:
    class UsageError(Exception):
        pass

def login(verify):
    assert not verify
    {login}
"""


@pytest.fixture
def fake_wandb(tmp_path):
    """fake_wandb(text) -> a module `wandb` of version 0.1 with this text is imported by exporters."""

    def install(text):
        (tmp_path / "wandb").mkdir()
        (tmp_path / "wandb/__init__.py").write_text(text)
        (tmp_path / "wandb-0.1.dist-info").mkdir()
        (tmp_path / "wandb-0.1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: wandb\nVersion: 0.1\n")

    return install


def test_version_that_cannot_be_used_has_the_version_that_can(fake_wandb):
    fake_wandb("raise AttributeError('`np.float_` was removed')")
    problem = refusal("wandb")
    assert "wandb 0.1: `np.float_` was removed" in problem.message
    assert "'wandb>=" in problem.hint


def test_client_that_ends_the_process_of_the_check_has_its_exit_code(fake_wandb):
    fake_wandb("import os; os._exit(3)")
    assert refusal("wandb").message.endswith("its process ended with exit code 3")


def test_missing_login_is_refused_and_the_modes_of_the_client_apply(fake_wandb, monkeypatch):
    fake_wandb(CLIENT.format(login="raise errors.UsageError('no key')"))
    assert "WANDB_API_KEY" in refusal("wandb").hint
    assert "WANDB_MODE=offline" in refusal("wandb").hint
    refusal.cache_clear()
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert "WANDB_MODE=disabled" in refusal("wandb").message


def test_client_with_a_login_is_accepted(fake_wandb):
    fake_wandb(CLIENT.format(login="return True"))
    assert refusal("wandb") is None
