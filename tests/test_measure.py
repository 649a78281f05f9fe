"""A training script with `python src/measure.py`, with a `Meter` that starts a controller, and without measuring."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from project import ENVIRONMENT, put

from epochmeter.commands import measure
from epochmeter.config.script import ATTACHED
from epochmeter.machine import running_process
from epochmeter.run.script import NO_PASS, NO_TORCH
from epochmeter.shared.problem import InputError, Problem
from epochmeter.shared.record import WORKER_LOG

HEADER = """
import contextlib, os, signal, subprocess, sys, threading, time
import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, DistributedSampler

torch.manual_seed(0)
data = [(torch.full((10,), float(number)), number % 2) for number in range(64)]
model = nn.Sequential(nn.Linear(10, 16), nn.Dropout(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
rank = 0

def train(epochs, batches, after=lambda: None, each=lambda epoch, step: None):
    for epoch in epochs:
        for step, (inputs, targets) in enumerate(batches):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            each(epoch, step)
        after()
        if rank == 0:
            print(epoch, loss.item().hex(), flush=True)

def evaluate():
    with torch.no_grad():
        correct = sum((model(inputs).argmax(1) == targets).sum().item() for inputs, targets in DataLoader(data, 16))
    print("correct:", correct, "EPOCHMETER" in "".join(os.environ), flush=True)
"""
SCRIPT = (
    HEADER
    + """
def stop(number, frame):
    print("stopped by", number, flush=True)
    sys.exit(7)

epochs, workers, pause_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
signal.signal(signal.SIGTERM, stop)
loader = DataLoader(data, 8, shuffle=True, num_workers=workers)
for epoch in range(epochs):
    train([epoch], loader, each=lambda *_: time.sleep(pause_s))
    evaluate()
print([parameter.double().sum().item().hex() for parameter in model.parameters()])
environment = {name: text for name, text in sorted(os.environ.items()) if not name.startswith(("PYTHONPATH", "EPOCH"))}
print(sys.path[1:3] == [path for path in sys.path[1:3] if "agent" not in path], environment)
print("input", sys.stdin.read(), file=sys.stderr)
sys.exit(3)
"""
)


@pytest.fixture
def project(new_project):
    project = new_project()
    (project.root / "own.py").write_text(SCRIPT)
    return project


def stopped_by(number, project, *script):
    """Send a signal to the command while the script trains; return its exit code and output."""
    command = project.start("measure", *keys(project), *script)
    project.until_in_training()
    os.kill(command.pid, number)
    return *command.communicate(timeout=60), command.returncode


def keys(project, *more):
    return [f"machine.lock_dir={project.root / 'locks'}", "tracking=none", *more]


def plain(project, *command, **environment):
    """Run a command in the project without measuring it."""
    environment = {**ENVIRONMENT, "XDG_STATE_HOME": str(project.root / "state"), **environment}
    return subprocess.run(
        [sys.executable, *command], cwd=project.root, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, check=False,
    )  # fmt: skip


def test_script_has_the_same_output_weights_environment_and_exit_code_as_without(project):
    command = ["own.py", "3", "1", "0"]
    alone, measured = plain(project, *command), project.run("measure", *keys(project, "measure.flops=true"), *command)
    assert (measured.returncode, measured.stdout) == (alone.returncode, alone.stdout), measured.stderr
    assert alone.stderr in measured.stderr
    record = project.record()
    kinds = [(window["window"], window["epoch"]) for window in record.windows()]
    assert kinds == [(kind, epoch) for epoch in range(3) for kind in ("epoch", "val")]
    assert record.summary()["failure"] == Problem("the script ended with exit code 3").to_fields()
    assert "batch" not in record.job()
    assert record.job()["measure"]["command"] == command
    training = record.run()["training"]
    assert training["step"]["flops"] == 8 * 2 * (2 * 10 * 16 + 3 * 16 * 2), "of 8 samples, as each FLOP is counted"
    assert record.run()["model"]["flops_per_sample"] == training["step"]["flops"] / 8
    assert "peaks" not in training, "the script has failed"


@pytest.mark.parametrize(
    ("imported", "reason"), [("os", NO_TORCH), pytest.param("torch", NO_PASS, marks=pytest.mark.system)]
)
def test_script_that_never_trains_is_reported_and_keeps_its_exit_code(project, imported, reason):
    (project.root / "other.py").write_text(f"import {imported}; print('no training')")
    done = project.run("measure", *keys(project), "other.py")
    assert (done.returncode, done.stdout) == (0, "no training\n")
    assert f"error: no epoch of training was measured: {reason}" in done.stderr
    assert "unknown for a script" not in done.stderr


def test_module_that_the_script_lacks_is_named_with_its_interpreter(project):
    (project.root / "other.py").write_text("import package_that_nobody_has")
    done = project.run("measure", *keys(project), "other.py")
    assert done.returncode == 1
    assert f"as {sys.executable} has no module `package_that_nobody_has`\n  hint: install it there" in done.stderr
    assert "device.python" in project.record().summary()["failure"]["hint"]


@pytest.mark.system
def test_script_with_a_torch_that_is_too_old_runs_and_its_record_names_the_version(project):
    (project.root / "torch").mkdir()
    (project.root / "torch/__init__.py").write_text("__version__ = '1.4'")
    (project.root / "other.py").write_text("import torch; print('ran')")
    done = project.run("measure", *keys(project), "other.py")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "torch 1.4 cannot be measured" in project.record().summary()["failure"]["message"]


TWO_EPOCHS = "train(range(2), DataLoader(data, 8), each=lambda epoch, step: {})".format
FORKED = f"""
if not (child := os.fork()):
    {TWO_EPOCHS(0)}
    sys.exit(5)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
TIMED = f"""
ticks = []
signal.signal(signal.SIGALRM, lambda *_: ticks.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
{TWO_EPOCHS("time.sleep(0.001)")}
signal.setitimer(signal.ITIMER_REAL, 0)
sys.exit(not ticks)
"""
THREAD = f"thread = threading.Thread(target=lambda: {TWO_EPOCHS(0)}); thread.start(); thread.join()"
UNUSUAL = {
    "in another thread and folder": (f"os.chdir('/'); {THREAD}; sys.path.clear()", 0, [8, 8]),
    "in a forked process": (FORKED, 5, [8, 8]),
    "until os._exit within an epoch": (TWO_EPOCHS("epoch and step == 3 and os._exit(4)"), 4, [8, 4]),
    "until sys.exit within an epoch": (TWO_EPOCHS("epoch and step == 3 and sys.exit(4)"), 4, [8, 4]),
    "with a timer's signals": (TIMED, 0, [8, 8]),
}
"""How a script trains -> its last lines, its exit code, and the steps of its epochs."""


@pytest.mark.system
@pytest.mark.parametrize("lines", UNUSUAL)
def test_script_that_trains_in_an_unusual_way_is_measured(project, lines):
    code, exit_code, steps = UNUSUAL[lines]
    (project.root / "own.py").write_text(HEADER + code)
    done = project.run("measure", *keys(project), "own.py")
    assert done.returncode == exit_code, done.stderr
    assert [window["metrics"]["epoch/steps"] for window in project.record().windows()] == steps


@pytest.mark.system
def test_script_continues_without_its_controller_and_the_next_command_records_it(project):
    out, err, _ = stopped_by(signal.SIGKILL, project, "own.py", "4", "0", "0.05")
    assert [line[0] for line in out.splitlines()] == [*"0c1c2c3c[T"]
    assert err.count("epochmeter: the controller is gone") == 1
    record = project.record()
    assert len(record.windows()) < 8
    assert "run " in project.run("publish").stdout
    kinds = [(line["window"], line["epoch"], line["metrics"].get("epoch/steps")) for line in record.windows()]
    assert kinds == [(kind, epoch, steps) for epoch in range(4) for kind, steps in (("epoch", 8), ("val", None))]
    assert record.summary()["state"] == "killed"


@pytest.mark.system
def test_signal_is_passed_to_the_script_whose_handler_decides(project):
    out, _, code = stopped_by(signal.SIGTERM, project, "own.py", "1000", "0", "0.01")
    assert out.splitlines()[-1] == "stopped by 15"
    assert code == 7


def test_keys_come_before_the_script_and_its_arguments_after_it(tmp_path):
    script = put(tmp_path, {"lr=0.1/train.py": ""}) / "lr=0.1/train.py"
    for arguments, overrides, command in (
        ("train.py --lr 0.1 a=b", [], ["train.py", "--lr", "0.1", "a=b"]),
        ("meter=none train.py meter=2", ["meter=none"], ["train.py", "meter=2"]),
        ("meter=none -- -m package.train", ["meter=none"], ["-m", "package.train"]),
        ("--cfg job meter=none", ["--cfg", "job", "meter=none"], []),
        ("train.py -c", [], ["train.py", "-c"]),
        (f"meter=none {script} a=b", ["meter=none"], [str(script), "a=b"]),
        ("~fan meter=none train.py -- a", ["~fan", "meter=none"], ["train.py", "--", "a"]),
        ("--config-dir keys -- torchrun", ["--config-dir", "keys"], ["torchrun"]),
    ):
        assert measure.split_arguments(arguments.split()) == (overrides, command)


def test_invalid_commands_are_refused():
    for overrides, command, error in (
        (["batch=8"], [__file__], "`batch=` has no effect on a script"),
        (["cache=warm"], [__file__], "`cache=` needs the script's files"),
        (["data_source=replay,storage"], [__file__], "`data_source=storage` needs the script's files"),
        (["data_source=synthetic"], [__file__], "`data_source=synthetic` does not apply to a script"),
        (["experiment=smoke"], [__file__], "`experiment=smoke` does not apply to a script"),
        ([], ["missing.py"], "`missing.py` is not a file"),
        ([], [], "there is no script to measure"),
        ([], ["package.train"], "is not a Python script, nor a program"),
    ):
        with pytest.raises(InputError, match=re.escape(error)):  # noqa: PT012 (one of the two)
            measure.check_keys(overrides)
            measure.check_command(command)


@pytest.mark.parametrize(
    ("pid", "overrides", "command", "problem"),
    [
        ("1", [], ["train.py"], "`pid=` is for a process that runs already"),
        ("1", ["-m"], [], "`pid=` is for one run"),
        ("1", ["epochs=3"], [], "`epochs=` has no effect on a script"),
        ("1", ["power_limit=100"], [], "`power_limit=` has no effect on a process that runs already"),
        *((pid, [], [], f"`pid={pid}` is not the number of a process") for pid in ("0", "-1", "abc", "1.5")),
        ("PID", [], [], "process PID is this command itself"),
        (str(2**22 + 1), [], [], "no process has the number"),
    ],
)
def test_process_that_cannot_be_measured_is_refused(pid, overrides, command, problem):
    pid, problem = (text.replace("PID", str(os.getpid())) for text in (pid, problem))
    with pytest.raises(InputError, match=re.escape(problem)):
        measure.process_command(pid, [f"measure.pid={pid}", *overrides], command)


def test_command_of_a_process_has_no_placeholders_and_its_keys_have_short_names(monkeypatch):
    found = SimpleNamespace(command=["measure.py", "train.py", "--lr={script.lr}", "{x}"])
    monkeypatch.setattr(running_process, "find_earlier_process", lambda pid: found)
    command = measure.process_command("7", ["measure.pid=7", "tracking=none"], [])
    assert command == ["measure.py", "train.py", "--lr=(script.lr)", "{x}"]
    names = [measure.long_name(override) for override in ("pid=7", "duration_s=5", "meter=none", "pid", "-m")]
    assert names == ["measure.pid=7", "measure.duration_s=5", "meter=none", "pid", "-m"]


@pytest.mark.system
def test_running_process_has_a_record_with_its_gauges_that_report_and_live_view_show(project):
    with subprocess.Popen([sys.executable, "-c", "import time\ntime.sleep(60)"]) as process:
        done = project.run("measure", f"pid={process.pid}", "duration_s=3", "meter=estimate", "meter.tdp_w=65")
        assert process.poll() is None
        process.kill()
    assert done.returncode == 0, done.stderr
    assert f"Process {process.pid}, measured for " in done.stderr
    record = project.record()
    summary, (window,) = record.summary(), record.windows()
    assert (summary["state"], summary["bottleneck"], window["window"]) == ("completed", None, "process")
    assert str(process.pid) in summary["absent"]["bottleneck"]
    assert 2.9 < window["metrics"]["process/e2e_s"] < 10, "later only by load"
    assert {"process/cpu_utilization", "process/process_memory_bytes"} <= window["metrics"].keys()
    assert summary["metrics"]["run/window_s"] == window["metrics"]["process/e2e_s"]
    assert (record.folder / "gauges.csv").read_text().count("\n") >= 3
    assert f"process {process.pid}: python" in project.run("watch", "once=true").stdout
    report = project.run("report")
    assert (report.returncode, f"Process {process.pid} (run 0) was measured for " in report.stdout) == (0, True)


def test_replay_is_refused_in_a_script_that_has_started(monkeypatch):
    measure.check_keys(["experiment=stalls", "data_source=replay,unchanged"])
    measure.check_keys(["data_source=cached", "measure.data=/usr", "cache=warm"])
    monkeypatch.setenv(ATTACHED, "5")
    for override in ("experiment=stalls", "data_source=replay", "measure.replay=true"):
        with pytest.raises(InputError, match="which has started already"):
            measure.check_keys([override])


def test_programs_and_modules_are_accepted_but_not_in_the_ranks_of_a_launcher(monkeypatch):
    measure.check_keys(["-m", "hydra/launcher=slurm"])
    for command in (["-m", "package.train"], [sys.executable, "train.py"]):
        measure.check_command(command)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(InputError, match="a launcher started this command in each rank"):
        measure.check_command(["-m", "package.train"])


def test_one_of_several_processes_on_a_node_is_detected():
    slurm = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2"}
    for environment in ({"LOCAL_SIZE": "2"}, {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, slurm):
        assert measure.is_one_of_several(environment)
    for environment in ({}, {"LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "2"}, {**slurm, "SLURM_STEP_NUM_TASKS": "2"}):
        assert not measure.is_one_of_several(environment)


@pytest.mark.system
def test_sweep_over_an_argument_continues_after_failures_and_skips_completed_runs(project):
    script = SCRIPT.replace("import torch", 'sys.argv[1] == "3" and sys.exit(1)\nimport torch', 1)
    (project.root / "own.py").write_text(script.replace("sys.exit(3)", ""))
    options = keys(project, "-m", "script.epochs=3,2", "sweep.repeats=1", "profiler=torch")
    command = [*options, "own.py", "{script.epochs}", "0", "0"]
    done = project.run("measure", *command)
    assert done.returncode == 1
    failed, completed = project.records()
    assert (failed.is_completed(), completed.is_completed()) == (False, True)
    assert [record.job()["script"] for record in (failed, completed)] == [{"epochs": 3}, {"epochs": 2}]
    assert "{script.epochs}" in completed.job()["measure"]["command"]
    assert [line.get("warmup", False) for line in completed.windows()] == [True, False, False, False]
    assert completed.summary()["metrics"]["trace/steps"] == 5
    assert "profiler_start" not in done.stderr  # a message of the profiler's library
    assert completed.summary()["metrics"]["trace/untraced_step_s"] > 0
    assert len(done.stdout.splitlines()) == 2 * 2 + 2
    again = project.run("measure", *command)
    states = re.compile(r"^\d +\S+ +(completed|failed|skipped)", re.MULTILINE)
    assert states.findall(again.stderr) == ["failed", "skipped"]
    with (project.root / "own.py").open("a") as script:
        script.write("# edited")
    edited = project.run("measure", *command)
    assert states.findall(edited.stderr) == ["failed", "completed"]
    assert len({record.folder.parent for record in project.records()}) == 2


SLOW = (
    HEADER
    + """
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return len(data)

    def __getitem__(self, number):
        time.sleep(0.03)
        return data[number]

helper = subprocess.Popen(["sleep", "600"])
train(range(int(sys.argv[1])), DataLoader(Slow(), 8))
helper.kill()
"""
)


@pytest.mark.system
def test_stalls_of_a_script_follow_from_replayed_runs(project):
    (project.root / "own.py").write_text(SLOW)
    options = ["experiment=stalls", "repeat=0", "measure.replay_precision=0.9", "own.py", "4"]
    done = project.run("measure", *keys(project), *options, check=True)
    records = project.records()
    assert [record.job()["measure"]["replay"] for record in records] == [True, False]
    assert done.stdout.count("\n") == 4, "losses of replayed runs are not shown"
    replayed = records[0]
    assert [line.get("warmup", False) for line in replayed.windows()] == [True, False, False, False]
    assert any("its losses and files are no results" in note for note in replayed.summary()["notes"])
    assert len((replayed.folder / WORKER_LOG).read_text().splitlines()) >= 4
    project.run("report", "tracking=none", check=True)
    (sweep,) = project.sweeps()
    (analysis,) = json.loads((sweep / "stalls.json").read_text())
    assert analysis["sources"] == {"synthetic": "replay", "storage": "unchanged"}
    assert analysis["data_stall"]["value"] > 64 * 0.03, "an ideal loader would not wait for any sample"
    assert "no results" in (sweep / "stalls.md").read_text()
    assert json.loads((sweep / "answer.json").read_text())["choices"][0]["runs"] == [1]


@pytest.mark.system
def test_replayed_script_is_ended_with_all_of_its_processes(project):
    (project.root / "own.py").write_text(SLOW)
    options = ["data_source=replay", "measure.replay_precision=0.9", "own.py", "1000000"]
    done = project.run("measure", *keys(project), *options)
    assert done.returncode == 0, done.stderr
    record = project.record()
    assert record.is_completed()
    assert any("the replayed script was ended after" in note for note in record.summary()["notes"])
    folders = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):  # a process of another user, or one that has ended
            folders.append(link.readlink())
    assert project.root not in folders, "a process remains"


RANKED = (
    HEADER
    + """
distributed.init_process_group("gloo")
rank = distributed.get_rank()
model = nn.parallel.DistributedDataParallel(nn.Linear(10, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(data, 8, sampler=DistributedSampler(data), num_workers=1)
for epoch in range(3):
    train([epoch], loader)
    if rank == 0:
        evaluate()
        time.sleep(0.5)
distributed.destroy_process_group()
"""
)


@pytest.mark.system
def test_ranks_of_torchrun_are_merged_without_the_wait_for_an_evaluation(project):
    (project.root / "ranked.py").write_text(RANKED)
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node=2", "ranked.py"]
    alone = plain(project, *launcher, GLOO_SOCKET_IFNAME="lo")
    measured = project.run("measure", *keys(project), sys.executable, *launcher, GLOO_SOCKET_IFNAME="lo")
    assert (measured.returncode, measured.stdout) == (alone.returncode, alone.stdout)
    windows = project.record().windows()
    assert [(window["window"], window["ranks"]) for window in windows] == [("epoch", 2), ("val", 1)] * 3
    for epoch in windows[::2]:
        assert epoch["metrics"]["epoch/samples"] == 64
        assert epoch["metrics"]["rank_max/e2e_s"] < epoch["metrics"]["epoch/e2e_s"] + 0.25
        assert epoch["metrics"]["rank_max/communication_s"] < 0.45, "the other rank waits 0.5 s for the evaluation"
        assert [rank["rank"] for rank in epoch["of_ranks"]] == [0, 1]
        assert all(rank["own_s"] > 0 for rank in epoch["of_ranks"])
    assert project.record().job()["strategy"]["ranks"] == 2


LOADER = """
from epochmeter import Meter
loader = DataLoader(data, 8, shuffle=True, num_workers=2, persistent_workers=True)
"""
PLAIN = "train(range(3), loader)"
METERED = "meter = Meter({keys}); train(meter.epochs(3), meter.batches(loader), lambda: {after})"


@pytest.fixture
def run_alone(project):
    def start(lines, after="None", more=()):
        text = lines.format(keys=", ".join(map(repr, keys(project, *more))), after=after)
        (project.root / "own.py").write_text(HEADER + LOADER + text)
        return plain(project, "own.py", PYTHONPATH=str(project.root / "src"))

    return start


@pytest.mark.system
def test_script_has_the_same_output_and_continues_without_a_controller(run_alone, project):
    metered, plain = run_alone(METERED), run_alone(PLAIN)
    record = project.record()
    assert [(window["window"], window["epoch"]) for window in record.windows()] == [("epoch", n) for n in range(3)]
    forecasts = [line["metrics"].get("forecast/e2e_s") for line in record.windows()]
    assert [forecast is not None for forecast in forecasts] == [False, True, True]
    assert record.summary()["state"] == "completed"
    assert record.job()["measure"]["command"] == ["own.py"]
    killed = run_alone(METERED, after="os.kill(meter._controller._process.pid, signal.SIGKILL)")
    refused = run_alone(METERED, more=["batch=8"])
    assert killed.stdout == refused.stdout == metered.stdout == plain.stdout
    assert killed.stderr.count("the script continues") == refused.stderr.count("the script continues") == 1
    assert "`batch=` has no effect on a script" in refused.stderr
    project.run("publish")
    assert [len(record.windows()) for record in project.records()] == [3, 3], "none of the refused script"


@pytest.mark.system
def test_failure_of_the_script_is_that_of_its_run(run_alone, project):
    assert run_alone(METERED, after="1 / 0").returncode == 1
    failure = project.record().summary()["failure"]
    assert failure == Problem("ZeroDivisionError: division by zero").to_fields()


class Kernel:
    """A Jupyter kernel in a project's folder."""

    def __init__(self, project):
        from jupyter_client import KernelManager

        self._manager = KernelManager(shutdown_wait_time=120)
        environment = {**ENVIRONMENT, "PYTHONPATH": str(project.root / "src")}
        self._manager.start_kernel(cwd=str(project.root), env=environment)
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=120)

    def run(self, cell, interrupted_at=None):
        """Run a cell; return its output and the class of its error. A line of output may be where it is interrupted."""
        output = []

        def take(message):
            text = message["content"].get("text", "") if message["content"].get("name") == "stdout" else ""
            output.append(text)
            if interrupted_at and interrupted_at in text:
                self._manager.interrupt_kernel()

        reply = self._client.execute_interactive(cell, timeout=120, allow_stdin=False, output_hook=take)
        return "".join(output), reply["content"].get("ename")

    def close(self):
        self._client.stop_channels()
        self._manager.shutdown_kernel()


@pytest.mark.system
def test_notebook_has_a_run_that_survives_errors_and_interrupts_of_its_cells(project):
    pytest.importorskip("ipykernel")
    with closing(Kernel(project)) as notebook:
        notebook.run(f"{HEADER}{LOADER}meter = Meter(*{keys(project)})")
        cell = "train(meter.epochs(2), meter.batches(loader))\nprint(meter.last.e2e_s > 0, meter.last.metrics['steps'])"
        output, error = notebook.run(cell)
        assert (output.splitlines()[-1], error) == ("True 8", None)
        assert notebook.run("train(range(1), meter.batches(loader), lambda: 1 / 0)")[1] == "ZeroDivisionError"
        cell = "for batch in meter.batches(DataLoader(data, 8)): print('waiting', flush=True); time.sleep(60)"
        assert notebook.run(cell, interrupted_at="waiting")[1] == "KeyboardInterrupt"
        output, error = notebook.run("train(range(1), meter.batches(DataLoader(data, 16)))\nmeter.close()")
        assert error is None
        record = project.record()
        steps = [line["metrics"]["epoch/steps"] for line in record.windows() if line["window"] == "epoch"]
        assert steps[:3] == [8, 8, 8]
        assert steps[-1] == 4
        assert (record.summary()["state"], record.job()["measure"]["command"]) == ("completed", ["notebook"])
        notebook.run(f"meter = Meter(*{keys(project)})\ntrain(range(1), meter.batches(DataLoader(data, 8)))")
        notebook.run("loader._iterator = None")  # its workers would keep the kernel for half of the wait
    *_, record = project.records()
    assert [line["metrics"]["epoch/steps"] for line in record.windows()] == [8]
    assert record.is_completed(), "also without `close`, when the kernel ends"
