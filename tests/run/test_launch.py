"""The life of training processes: real processes and sockets, running lines of the test in place of training."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest
from project import Project, put, wait_until
from stub import executable

from epochmeter.config.interpreter import ENVIRONMENT
from epochmeter.machine.signals import Stop
from epochmeter.run import launch, worker_process
from epochmeter.run.launch import launched
from epochmeter.run.worker_process import WorkerError
from epochmeter.shared.problem import KILL_HINT, problem_of
from epochmeter.shared.protocol import Recorded, WindowClosed, WindowOpening

SOURCE = Path(__file__).parents[2] / "src"
BEGIN = f"""#!{sys.executable}
import os, signal, subprocess, sys, time
from epochmeter.shared.problem import Problem
from epochmeter.shared.protocol import Built, Finished, Progress, RankExited, RankFailed, WindowClosed, WindowOpening
from epochmeter.shared.lifetime import die_with_parent
from epochmeter.worker.connection import ControllerConnection
OPENING, CLOSED = WindowOpening("epoch", 0, 1), WindowClosed(0, 1)
def facts(**facts):
    connection.send(Built(facts, {{}}))
"""
JOINED = """
connection = ControllerConnection(os.environ["EPOCHMETER_SOCKET"])
def die(number=signal.SIGKILL):
    os.kill(os.getpid(), number)
    time.sleep(60)
"""


@pytest.fixture
def interpreter(tmp_path):
    """interpreter(lines) -> a program in place of Python, which runs the lines as the training process."""

    def write(lines, joined=True):
        return str(executable(tmp_path / "python", BEGIN + (JOINED if joined else "") + lines))

    return write


@pytest.fixture
def receive(interpreter, tmp_path):
    """receive(lines) -> the messages of a process that runs the lines; messages about windows get a reply."""

    def listen(lines, joined=True, **options):
        messages = []
        with launched(tmp_path, interpreter(lines, joined), **options) as worker:
            for message in worker.messages():
                messages.append(message)
                if isinstance(message, WindowOpening | WindowClosed):
                    worker.reply(Recorded(len(messages) == 2, {}, ""))
        return messages

    return listen


def wait_until_gone(pid):
    """Wait until a process has ended, or is a zombie; return True."""

    def has_ended():
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        return True

    return wait_until(has_ended, 10)


def test_process_has_its_own_session_and_log_and_its_messages_arrive(receive, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / ("deep" * 30)))
    values = "argv=sys.argv[1:], order=os.environ['CUDA_DEVICE_ORDER'], stdin=sys.stdin.read()"
    values += ", socket=os.environ['EPOCHMETER_SOCKET'], own=os.getsid(0) == os.getpid()"
    lines = f"print('to stdout'); print('to stderr', file=sys.stderr); facts({values}); facts(text='x' * 200_000)\n"
    first, second = receive(lines + "connection.send(Finished()); facts(late=1)")
    socket = Path(first.model.pop("socket"))
    assert (len(str(socket)) <= 107, socket.parent.exists()) == (True, False)
    argv = ["-m", "epochmeter.worker", str(tmp_path)]
    assert first.model == {"argv": argv, "order": "PCI_BUS_ID", "stdin": "", "own": True}
    assert second.model == {"text": "x" * 200_000}
    assert sorted((tmp_path / "worker.log").read_text().splitlines()) == ["to stderr", "to stdout"]


RANKS = """
env = os.environ
if "epochmeter.worker.torchrun" in sys.argv:
    connection = ControllerConnection(env["EPOCHMETER_SOCKET"], rank=None, sends_requests=False)
    environment = {**env, "STARTED_BY": " ".join(sys.argv), "SEEN": str(env.get("RANK")), "LAUNCHER": str(os.getpid())}
    starts = [subprocess.Popen([sys.argv[0], "rank"], env={**environment, "RANK": str(rank)}, start_new_session=True)
              for rank in range(2)]
    codes = {rank: start.wait() for rank, start in enumerate(starts)}
    for rank, code in codes.items():
        if code:
            connection.send(RankExited(rank, code))
            sys.exit(1)
    sys.exit(0)
rank = int(env["RANK"])
connection = ControllerConnection(env["EPOCHMETER_SOCKET"], rank, sends_requests=rank == 0)
def die():
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
"""
"""torchrun and two ranks, for the controller; each rank runs the lines that follow."""
NO_MEMORY = KILL_HINT  # memory is not blamed if no kill for lack of memory was counted
KILLED = f"the training process was killed by SIGKILL\n  hint: {NO_MEMORY}"
ENDED = "the training process ended with exit code"
BY_KERNEL = "{} was killed by SIGKILL, because memory ran out\n  hint: "
LOG = "\n  hint: see its log, {log}"
DIE = "os.kill(os.getpid(), signal.SIGKILL)"
FAILED = "connection.send(RankFailed(Problem(code='{}', message='{}'), 0)); sys.exit(1)"
SEEN_BY_PEER = f"{RANKS}if rank == 0: connection.send(RankFailed(Problem('closed by peer', code='rank'), 0))\n"
EARLY, TWO = {"joined": False}, {"joined": False, "ranks": 2}
TOO_LONG, HUNG = (
    "took longer than sweep.timeout_s=0.5 and was stopped",
    "made no progress for sweep.hung_after_s=0.5 and",
)
ENDS = {
    "killed": ("connection.request(OPENING); die()", {}, "killed", KILLED),
    "killed early": (DIE, EARLY, "killed", KILLED),
    "crash": ("die(signal.SIGSEGV)", {}, "killed", "the training process was killed by SIGSEGV"),
    "orphan, which holds the socket": ("if os.fork(): die()\ntime.sleep(60)", {}, "killed", KILLED),
    "exit code": ("print('a'); print('no such GPU'); sys.exit(3)", {}, "exception", f"{ENDED} 3: no such GPU{LOG}"),
    "no output": ("sys.exit(0)", {}, "exception", f"{ENDED} 0: no output{LOG}"),
    "early error": ("import torhc", EARLY, "exception",
                    f"{ENDED} 1: ModuleNotFoundError: No module named 'torhc'{LOG}"),
    "own error": (FAILED.format("oom", "out of memory"), {}, "oom", "out of memory"),
    "kernel": (DIE, {"kernel": True}, "oom", BY_KERNEL.format("the training process")),
    "kernel early": (DIE, {"kernel": True, **EARLY}, "oom", BY_KERNEL.format("the training process")),
    "kernel, a DataLoader worker": (FAILED.format("killed", "a worker"), {"kernel": True}, "oom",
                                    "a worker, because memory ran out\n  hint: "),
    "a DataLoader worker": (FAILED.format("killed", "a worker"), {}, "killed", f"a worker\n  hint: {NO_MEMORY}"),
    "kernel, another failure": (FAILED.format("storage", "a worker"), {"kernel": True}, "storage", "a worker"),
    "kernel, a rank": (f"{RANKS}if rank: die()", {"kernel": True, **TWO}, "oom", BY_KERNEL.format("rank 1")),
    "rank before its peers": (f"{SEEN_BY_PEER}if rank == 0: sys.exit(0)\ntime.sleep(0.3)\ndie()", TWO, "killed",
                              "rank 1 was killed by SIGKILL"),
    "hanging rank": (f"{SEEN_BY_PEER}time.sleep(60)", {"exit_s": 0.2, **TWO}, "exception", "rank 0: closed by peer"),
    "never connects": ("time.sleep(600)", {"silence_s": 0.5, **EARLY}, "hung", HUNG),
    "never connects in time": ("time.sleep(600)", {"limit_s": 0.5, "silence_s": 60, **EARLY}, "timeout", TOO_LONG),
    "silent": ("time.sleep(600)", {"limit_s": 0.5}, "timeout", TOO_LONG),
    "sending": ("while True: connection.send(Progress(1)); time.sleep(0.01)", {"limit_s": 0.5}, "timeout", TOO_LONG),
    "requesting": ("while True: connection.request(OPENING)", {"limit_s": 0.5}, "timeout", TOO_LONG),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_end_of_the_process_is_described_within_seconds_and_all_processes_end(receive, tmp_path, monkeypatch, name):
    lines, options, failure, message = ENDS[name]
    counts = iter([7])  # of processes that the kernel has killed, before the process starts
    is_by_kernel, exit_s = options.get("kernel", False), options.get("exit_s", worker_process.EXIT_WAIT_S)
    monkeypatch.setattr(worker_process, "oom_kill_count", lambda: next(counts, 7 + is_by_kernel))
    monkeypatch.setattr(worker_process, "EXIT_WAIT_S", exit_s)
    monkeypatch.setattr(launch, "EXIT_LIMIT_S", 0.1)
    began = time.monotonic()
    with pytest.raises(WorkerError) as raised:
        receive(lines, **{key: value for key, value in options.items() if key not in ("kernel", "exit_s")})
    assert time.monotonic() - began < 10
    assert problem_of(raised.value).code == failure
    assert message.format(log=tmp_path / "worker.log") in str(raised.value)
    assert all(wait_until_gone(process.pid) for process in Project.at_work_in(tmp_path))


def test_signal_that_reaches_the_training_process_first_stops_the_run(receive, monkeypatch):
    """Slurm signals all processes of a job, one after another."""
    before = signal.signal(signal.SIGTERM, Stop())
    try:
        with pytest.raises(SystemExit) as stopped:
            receive(
                "later = f'sleep 0.1; kill -TERM {os.getppid()}'\n"
                "subprocess.Popen(['sh', '-c', later], start_new_session=True)\n"
                "die(signal.SIGTERM)\n"
            )
    finally:
        signal.signal(signal.SIGTERM, before)
    assert stopped.value.code == 128 + signal.SIGTERM


def test_death_with_an_unread_reply_or_message_is_described(interpreter, tmp_path):
    with launched(tmp_path, interpreter("facts(pid=os.getpid()); time.sleep(60)")) as worker:
        messages = worker.messages()
        pid = next(messages).model["pid"]
        worker.reply()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match="killed by SIGKILL"):
            next(messages)
    with launched(tmp_path, interpreter("facts(epoch=0); connection.send(OPENING); die()")) as worker:
        assert wait_until_gone(worker.pids[0])
        messages = worker.messages()
        assert next(messages).model == {"epoch": 0}
        assert isinstance(next(messages), WindowOpening)
        with pytest.raises(WorkerError, match="killed by SIGKILL"):
            worker.reply()


@pytest.mark.parametrize(
    ("gpus", "seen"),
    [
        (["GPU-1234"], ["GPU-1234", None, "1"]),
        (["GPU-1f25e6fa38fdc9e1"], ["2,3", "GPU-1f25e6fa38fdc9e1", "0"]),
        (["0000:03:00.0"], ["2,3", None, "1"]),
        ([], ["2,3", None, "1"]),
    ],
    ids=["CUDA", "ROCm", "ROCm without UUIDs", "no GPU"],
)
def test_process_sees_only_the_metered_gpus(receive, monkeypatch, gpus, seen):
    monkeypatch.setitem(ENVIRONMENT, "CUDA_VISIBLE_DEVICES", "2,3")
    monkeypatch.setitem(ENVIRONMENT, "HIP_VISIBLE_DEVICES", "1")
    monkeypatch.delitem(ENVIRONMENT, "ROCR_VISIBLE_DEVICES", raising=False)
    variables = [f"{maker}_VISIBLE_DEVICES" for maker in ("CUDA", "ROCR", "HIP")]
    lines = f"facts(gpus=[os.environ.get(name) for name in {variables}]); connection.send(Finished())"
    assert [message.model["gpus"] for message in receive(lines, gpus=gpus)] == [seen]


@pytest.mark.parametrize("end", ["connection.send(Finished())", "die()", "sys.exit(1)"])
def test_children_are_ended_however_the_process_ends(interpreter, tmp_path, end):
    lines = f"child = subprocess.Popen(['sleep', '60'])\nfacts(pid=child.pid)\n{end}"
    children = []
    with suppress(WorkerError), launched(tmp_path, interpreter(lines)) as worker:
        children.extend(message.model["pid"] for message in worker.messages())
    (child,) = children
    assert wait_until_gone(child)


CONTROLLER = """
import sys
from pathlib import Path
from epochmeter.run.launch import launched
with launched(Path(sys.argv[1]), sys.argv[2]) as worker:
    for message in worker.messages():
        print(worker.pids[0], flush=True)
"""


def test_process_dies_with_its_controller(interpreter, tmp_path):
    program = interpreter("die_with_parent(); connection.send(OPENING); time.sleep(60)")
    command = [sys.executable, "-c", CONTROLLER, str(tmp_path), program]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as controller:
        process = psutil.Process(int(controller.stdout.readline()))
        assert process.is_running()
        controller.kill()
    assert wait_until_gone(process.pid)


SLOW_TORCH = """
import os, time
open(os.environ["FLAG"] + str(os.getpid()), "w").close()
time.sleep(60)
"""
STARTING = """
import sys, time
from pathlib import Path
from epochmeter.run.launch import launched
with launched(Path(sys.argv[1]), None, **eval(sys.argv[2])):
    time.sleep(60)
"""
NSIGHT = ["sh", "-c", '"$@"; true', "sh"]
"""A program that starts the training process and waits for it."""


@pytest.fixture
def slow_import(tmp_path):
    """The environment of processes that take a minute to import torch, after they wrote their process ID to a file."""
    put(tmp_path, {"path/torch/__init__.py": SLOW_TORCH})
    return {**os.environ, "PYTHONPATH": f"{tmp_path / 'path'}:{SOURCE}", "FLAG": f"{tmp_path}/pid-"}


@pytest.mark.parametrize("options", [{}, {"ranks": 2}, {"nsight": NSIGHT}], ids=["process", "torchrun", "Nsight"])
def test_process_ends_with_its_controller_while_it_imports_torch(tmp_path, slow_import, options):
    command = [sys.executable, "-c", STARTING, str(tmp_path), repr(options)]
    with subprocess.Popen(command, env=slow_import) as controller:
        (name,) = wait_until(lambda: [path.name for path in tmp_path.glob("pid-*")])
        controller.kill()
    assert wait_until_gone(int(name.removeprefix("pid-")))


@pytest.mark.parametrize("module", ["worker", "worker.torchrun"])
def test_process_whose_controller_has_ended_does_not_import_torch(tmp_path, slow_import, module):
    with launch.listening_socket() as listener:
        slow_import["EPOCHMETER_SOCKET"] = listener.getsockname()
        listener.close()
        command = [sys.executable, "-m", f"epochmeter.{module}", str(tmp_path)]
        assert subprocess.run(command, env=slow_import, timeout=30).returncode == 1
    assert [*tmp_path.glob("pid-*")] == []


def test_rank_that_finishes_before_the_first_is_no_failure(receive, monkeypatch):
    monkeypatch.setattr(worker_process, "EXIT_WAIT_S", 0.2)
    lines = "if rank == 0: time.sleep(1)\nconnection.send(Finished())"
    assert receive(RANKS + lines, joined=False, ranks=2) == []


def test_torchrun_starts_ranks_with_their_share_of_cores_which_are_all_ended(interpreter, tmp_path, monkeypatch):
    """Ranks are in sessions of their own."""
    monkeypatch.delitem(ENVIRONMENT, "OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(launch, "EXIT_LIMIT_S", 0.1)
    monkeypatch.setitem(ENVIRONMENT, "RANK", "5")  # of another torchrun, in which the command itself runs
    program = interpreter(RANKS + "facts(pid=os.getpid(), env=dict(env))\ntime.sleep(60)", joined=False)
    with launched(tmp_path, program, ranks=2) as worker:
        messages = worker.messages()
        ranks = [next(messages).model for _ in range(2)]
        assert all(os.getsid(rank["pid"]) == rank["pid"] for rank in ranks)
    environment = ranks[0]["env"]
    assert all(wait_until_gone(int(pid)) for pid in (environment["LAUNCHER"], *(rank["pid"] for rank in ranks)))
    argv = environment["STARTED_BY"].split()
    assert argv[1:4] == ["-m", "epochmeter.worker.torchrun", "--nproc_per_node=2"]
    assert argv[-3:] == ["-m", "epochmeter.worker", str(tmp_path)]
    assert environment["OMP_NUM_THREADS"] == str(max(1, len(os.sched_getaffinity(0)) // 2))
    assert environment["SEEN"] == "None"


HANGS = """
from epochmeter.worker.connection import dump_stack_on_signal
dump_stack_on_signal()
def wait_for_ever():
    while True:
        time.sleep(60)
connection.request(OPENING)
wait_for_ever()
"""


def test_hanging_process_is_ended_and_its_location_is_in_the_log(receive, tmp_path):
    with pytest.raises(WorkerError, match=r"no progress for sweep\.hung_after_s=3 and was stopped") as raised:
        receive(HANGS, silence_s=3)
    assert problem_of(raised.value).code == "hung"
    assert " in wait_for_ever\n" in (tmp_path / "worker.log").read_text()


def test_hanging_process_of_another_pid_namespace_gets_no_signal(receive, monkeypatch):
    """Its process ID is 0 here, which as the target of a signal is the controller's own process group."""
    signaled = []
    monkeypatch.setattr(worker_process.struct, "unpack", lambda *_: (0, 0, 0))
    monkeypatch.setattr(os, "kill", lambda pid, number: signaled.append(pid))
    with pytest.raises(WorkerError, match="made no progress"):
        receive("time.sleep(60)", silence_s=0.5)
    assert signaled == []


GROUPS_2, GROUPS_1 = {"proc/self/cgroup": "0::/user/session\n"}, {"proc/self/cgroup": "4:memory:/docker/1f\n0::/\n"}
MACHINE = {"proc/vmstat": "nr_free_pages 1\noom_kill 9\n"}


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({}, 0),
        (MACHINE, 9),
        ({**MACHINE, **GROUPS_2, "sys/fs/cgroup/user/session/memory.events": "low 0\noom 5\noom_kill 2\n"}, 2),
        ({**MACHINE, **GROUPS_2, "sys/fs/cgroup/user/memory.events": "oom_kill 3\n"}, 3),
        ({**MACHINE, **GROUPS_1, "sys/fs/cgroup/memory/memory.oom_control": "under_oom 0\noom_kill 4\n"}, 4),
        ({**MACHINE, **GROUPS_1, "sys/fs/cgroup/memory/docker/1f/memory.oom_control": "under_oom 0\n"}, 9),
    ],
    ids=["unknown", "no groups", "group", "group above", "container", "Linux 4.12"],
)
def test_kills_for_lack_of_memory_are_counted_in_the_control_group_else_machine(tmp_path, files, count):
    assert worker_process.oom_kill_count(put(tmp_path, files)) == count


def test_killed_process_that_does_not_end_is_left_with_a_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(worker_process, "KILL_WAIT_S", 0.1)
    monkeypatch.setattr(os, "killpg", lambda group, number: None)
    hanging = Mock(pid=7, wait=threading.Event().wait)  # in a system call that no signal interrupts
    worker_process.WorkerProcess(hanging, tmp_path).terminate()
    assert "process 7 was killed, but does not end" in caplog.text
