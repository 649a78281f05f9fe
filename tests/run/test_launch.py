"""Real processes joined by real sockets; what they do is written in the test, in place of the training."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from epochmeter.run import launch, worker_process
from epochmeter.run.launch import check_interpreter, launched
from epochmeter.run.worker_process import WorkerError
from epochmeter.shared.protocol import Proceed, WindowClosed, WindowOpening
from epochmeter.worker.interpreter import torch_version

SOURCE = Path(__file__).parents[2] / "src"
BEGIN = f"""#!{sys.executable}
import os, signal, subprocess, sys, time
from epochmeter.shared.protocol import Built, Finished, Progress, RankExited, RankFailed, WindowClosed, WindowOpening
from epochmeter.worker.connection import ControllerConnection, die_with_parent
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
    """interpreter(lines) -> a program that takes Python's place, and does what the lines say as the worker."""

    def write(lines, joined=True):
        program = tmp_path / "python"
        program.write_text(BEGIN + (JOINED if joined else "") + lines)
        program.chmod(0o755)
        return str(program)

    return write


@pytest.fixture
def heard(interpreter, tmp_path):
    """heard(lines) -> what a worker that does so says; it is answered where it asks to open or has closed."""

    def listen(lines, joined=True):
        messages = []
        with launched(tmp_path, interpreter(lines, joined)) as worker:
            for message in worker.messages():
                messages.append(message)
                if isinstance(message, WindowOpening | WindowClosed):
                    worker.reply(Proceed(stop=len(messages) == 2))
        return messages

    return listen


@pytest.fixture
def death(heard):
    """death(lines) -> the failure and the message of the WorkerError that a worker's end raises."""

    def end(lines, joined=True):
        with pytest.raises(WorkerError) as raised:
            heard(lines, joined)
        return raised.value.failure, str(raised.value)

    return end


def alive(pid):
    """Whether a process is there and runs; one that is dead but not yet buried is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def vanishes(pid, within_s=10):
    until = time.monotonic() + within_s
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.01)
    return not alive(pid)


def test_a_worker_is_heard_in_order_until_it_is_done(heard):
    messages = heard("facts(a=1); facts(text='x' * 200_000); connection.send(Finished()); facts(late=1)")
    assert [list(message.model) for message in messages] == [["a"], ["text"]]
    assert messages[0].model["a"] == 1
    assert len(messages[1].model["text"]) == 200_000


def test_a_worker_goes_on_from_what_it_asked_by_the_answer(heard):
    lines = "facts(stop=[connection.request(message).stop for message in (OPENING, CLOSED)])"
    assert heard(f"{lines}; connection.send(Finished())")[-1].model["stop"] == [False, True]


def test_the_worker_runs_our_package_on_the_folder_with_gpus_in_the_order_of_the_bus(heard, tmp_path):
    lines = "facts(argv=sys.argv[1:], order=os.environ['CUDA_DEVICE_ORDER'], stdin=sys.stdin.read())"
    (message,) = heard(lines + "\nconnection.send(Finished())")
    assert message.model["argv"] == ["-m", "epochmeter.worker", str(tmp_path)]
    assert message.model["order"] == "PCI_BUS_ID"
    assert message.model["stdin"] == ""


def test_what_the_worker_prints_is_in_its_log(heard, tmp_path):
    heard("print('to stdout'); print('to stderr', file=sys.stderr); connection.send(Finished())")
    assert sorted((tmp_path / "worker.log").read_text().splitlines()) == ["to stderr", "to stdout"]


def test_a_worker_that_is_killed_names_the_signal(death):
    assert death("connection.request(OPENING); die()") == ("killed", "the training process was killed by SIGKILL")


def test_a_worker_that_crashes_names_the_signal(death):
    assert death("die(signal.SIGSEGV)") == ("killed", "the training process was killed by SIGSEGV")


def test_a_worker_that_is_killed_with_an_answer_unread_names_the_signal(interpreter, tmp_path):
    lines = "facts(pid=os.getpid()); time.sleep(60)"
    with launched(tmp_path, interpreter(lines)) as worker:
        messages = worker.messages()
        pid = next(messages).model["pid"]
        worker.reply()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match="killed by SIGKILL"):
            next(messages)


def test_an_answer_to_a_dead_worker_tells_how_it_died(interpreter, tmp_path):
    with launched(tmp_path, interpreter("connection.send(OPENING); die()")) as worker:
        next(worker.messages())
        assert vanishes(worker.pid)
        with pytest.raises(WorkerError, match="killed by SIGKILL"):
            worker.reply()


def test_a_worker_that_exits_tells_its_code_its_last_line_and_where_the_others_are(death, tmp_path):
    assert death("print('first'); print('no such GPU'); sys.exit(3)") == (
        "exception",
        f"the training process ended with exit code 3: no such GPU\n  hint: see its log, {tmp_path / 'worker.log'}",
    )


def test_a_worker_that_ends_early_without_a_word_is_told_so(death):
    failure, message = death("sys.exit(0)")
    assert (failure, message.partition("\n")[0]) == (
        "exception",
        "the training process ended with exit code 0: no output",
    )


@pytest.fixture
def having(tmp_path):
    """having(said) -> an interpreter that answers so, and counts how often it is asked."""

    def program(said, code=0):
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\necho . >> {tmp_path}/asked\necho '{said}'\necho '{said}' >&2\nexit {code}\n")
        path.chmod(0o755)
        return str(path)

    return program


@pytest.mark.parametrize(
    ("said", "lack"),
    [
        ('{"python": [3, 6], "torch": null}', "has no torch"),
        ('{"python": [2, 7], "torch": null}', "is Python 2.7, and training needs 3.6 or newer"),
        ('{"python": [3, 6], "torch": "1.9.1"}', "has torch 1.9.1, and training needs 1.10 or newer"),
        ("hello", "is not a Python interpreter: `-m` printed hello"),
    ],
)
def test_an_interpreter_that_cannot_train_is_refused_with_the_way_out(having, said, lack):
    python = having(said)
    with pytest.raises(ValueError, match=re.escape(lack)) as refused:
        check_interpreter(python)
    why, hint = str(refused.value).split("\n  hint: ")
    assert why == f"{python} {lack}"
    assert "device.python=/path/to/python" in hint
    check_interpreter(having('{"python": [3, 6], "torch": "1.10.0"}'))  # once it is mended


@pytest.mark.parametrize("torch", ["1.10.0", "2.4.0a0+nv24.06", ""])
def test_an_interpreter_that_can_train_is_checked_once(having, tmp_path, torch):
    python = having(f'warning: of a site\n{{"python": [3, 6], "torch": "{torch}"}}')
    for _ in range(3):
        check_interpreter(python)
    assert (tmp_path / "asked").read_text() == ".\n"


def test_an_interpreter_that_fails_or_is_no_program_is_refused(having, tmp_path):
    with pytest.raises(ValueError, match="does not run: a syntax error\n"):
        check_interpreter(having("a syntax error", code=1))
    (tmp_path / "python").write_text("no program")
    with pytest.raises(ValueError, match="cannot be run: Exec format error\n"):
        check_interpreter(str(tmp_path / "python"))
    with pytest.raises(ValueError, match=r"`device\.python=/nowhere/python`: there is no such program\n"):
        check_interpreter("/nowhere/python")


def test_an_interpreter_that_does_not_answer_is_accepted(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "INTERPRETER_LIMIT_S", 0.1)
    (tmp_path / "python").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "python").chmod(0o755)
    check_interpreter(str(tmp_path / "python"))


@pytest.mark.parametrize("has", [True, False])
def test_torch_is_looked_up_and_not_imported(tmp_path, monkeypatch, has):
    package = tmp_path / "torch"
    package.mkdir()
    if has:
        (package / "__init__.py").write_text("raise SystemExit('imported')")
        (package / "version.py").write_text("__version__ = '1.10.0'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert torch_version() == ("1.10.0" if has else None)


def test_a_folder_without_code_is_no_torch_to_python_3_6_either(monkeypatch):
    """Its importlib gives a namespace an origin, which later ones leave out."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace(origin="namespace"))
    assert torch_version() is None


def test_an_interpreter_without_torch_is_told_what_names_another(death):
    _, message = death("import sys; sys.exit('ModuleNotFoundError: No module named \\'torch\\'')", joined=False)
    assert "set `device.python=` to an interpreter that has torch" in message


def test_a_loader_process_that_the_kernel_killed_is_out_of_memory(death, monkeypatch):
    counts = iter([7, 8])  # before the worker started; when it says that it failed
    monkeypatch.setattr(worker_process, "oom_kill_count", lambda: next(counts))
    lines = "connection.send(RankFailed(failure='killed', message='DataLoader worker is killed', rank=0)); sys.exit(1)"
    assert death(lines) == ("oom", "DataLoader worker is killed")


def test_a_worker_that_hangs_after_it_is_done_is_ended(interpreter, tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "EXIT_LIMIT_S", 0.1)
    with launched(tmp_path, interpreter("connection.send(Finished()); time.sleep(60)")) as worker:
        list(worker.messages())
    assert vanishes(worker.pid)


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
def test_a_worker_sees_the_gpus_that_are_metered_and_no_others(interpreter, tmp_path, monkeypatch, gpus, seen):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    monkeypatch.delenv("ROCR_VISIBLE_DEVICES", raising=False)
    names = [f"{maker}_VISIBLE_DEVICES" for maker in ("CUDA", "ROCR", "HIP")]
    lines = f"facts(gpus=[os.environ.get(name) for name in {names}]); connection.send(Finished())"
    with launched(tmp_path, interpreter(lines), gpus=gpus) as worker:
        assert [message.model["gpus"] for message in worker.messages()] == [seen]


def test_a_worker_that_fails_says_how_itself(death):
    lines = "connection.send(RankFailed(failure='oom', message='CUDA out of memory', rank=0)); sys.exit(1)"
    assert death(lines) == ("oom", "CUDA out of memory")


def test_what_a_worker_said_before_it_died_is_heard(interpreter, tmp_path):
    with launched(tmp_path, interpreter("facts(epoch=0); die()")) as worker:
        assert vanishes(worker.pid)
        messages = worker.messages()
        assert next(messages).model == {"epoch": 0}
        with pytest.raises(WorkerError):
            next(messages)


def test_a_worker_that_dies_before_it_joins_tells_its_last_line(death):
    failure, message = death("import torhc", joined=False)
    assert failure == "exception"
    assert "ModuleNotFoundError: No module named 'torhc'" in message


def test_what_else_fails_while_the_kernel_kills_others_is_told_as_what_it_is(death, monkeypatch):
    counts = iter([7, 8])
    monkeypatch.setattr("epochmeter.run.worker_process.oom_kill_count", lambda: next(counts, 8))
    lines = "connection.send(RankFailed(failure='storage', message='the storage is gone', rank=0)); sys.exit(1)"
    assert death(lines) == ("storage", "the storage is gone")


def test_a_worker_that_is_killed_before_it_joins_names_the_signal(death):
    lines = "os.kill(os.getpid(), signal.SIGKILL)"
    assert death(lines, joined=False) == ("killed", "the training process was killed by SIGKILL")


@pytest.mark.parametrize("joined", [True, False], ids=["while it trains", "before it joins"])
def test_a_kill_that_the_kernel_counts_as_its_own_is_out_of_memory(death, monkeypatch, joined):
    counts = iter([7, 8])  # before the worker started; after it was killed
    monkeypatch.setattr(worker_process, "oom_kill_count", lambda: next(counts))
    failure, message = death("os.kill(os.getpid(), signal.SIGKILL)", joined)
    assert failure == "oom"
    assert "ran out of memory" in message


@pytest.mark.parametrize(("after", "said"), [(3.1e9, "(SIGKILL, its peak was 3.1 GB)"), (0, "(SIGKILL)")])
def test_the_peak_of_what_the_kernel_killed_is_told_where_no_child_had_more_before(death, monkeypatch, after, said):
    counts, largest = iter([7, 8]), iter([10, max(10, after)])
    monkeypatch.setattr(worker_process, "oom_kill_count", lambda: next(counts))
    monkeypatch.setattr(worker_process, "largest_child_bytes", lambda: next(largest))
    assert death("os.kill(os.getpid(), signal.SIGKILL)") == (
        "oom",
        f"the kernel killed the training process, because the machine ran out of memory {said}",
    )


def test_a_dead_worker_is_noticed_at_once_though_its_children_hold_the_socket(death):
    began = time.monotonic()
    failure, _ = death("if os.fork(): die()\ntime.sleep(60)")
    assert failure == "killed"
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("end", ["connection.send(Finished())", "die()", "sys.exit(1)"])
def test_the_workers_children_are_gone_once_it_is_left(interpreter, tmp_path, end):
    lines = f"child = subprocess.Popen(['sleep', '60'])\nfacts(pid=child.pid)\n{end}"
    children = []
    try:
        with launched(tmp_path, interpreter(lines)) as worker:
            children.extend(message.model["pid"] for message in worker.messages())
    except WorkerError:
        pass
    (child,) = children
    assert vanishes(child)


def test_leaving_by_an_error_ends_the_worker(interpreter, tmp_path):
    pids = []

    def interrupted():
        with launched(tmp_path, interpreter("time.sleep(60)")) as worker:
            pids.append(worker.pid)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not alive(*pids)


def test_ctrl_c_reaches_the_steward_alone(heard):
    (message,) = heard("facts(own=os.getsid(0) == os.getpid()); connection.send(Finished())")
    assert message.model["own"]


def test_the_sockets_path_is_short_and_gone_once_the_worker_has_joined(interpreter, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / ("deep" * 30)))
    lines = "facts(path=os.environ['EPOCHMETER_SOCKET']); time.sleep(60)"
    with launched(tmp_path, interpreter(lines)) as worker:
        path = next(worker.messages()).model["path"]
        assert len(path) <= 107
        assert not Path(path).parent.exists()
        os.kill(worker.pid, signal.SIGKILL)


def test_an_interpreter_that_is_not_there_says_what_to_name(tmp_path):
    with pytest.raises(ValueError, match=r"`device\.python=python3\.0`: there is no such program\n  hint: "):
        launched(tmp_path, "python3.0").__enter__()


STEWARD = """
import sys
from pathlib import Path
from epochmeter.run.launch import launched
with launched(Path(sys.argv[1]), sys.argv[2]) as worker:
    for message in worker.messages():
        print(worker.pid, flush=True)
"""


def test_a_worker_dies_with_its_steward(interpreter, tmp_path):
    program = interpreter("die_with_parent(); connection.send(OPENING); time.sleep(60)")
    steward = subprocess.Popen(
        [sys.executable, "-c", STEWARD, str(tmp_path), program],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    with steward:
        pid = int(steward.stdout.readline())
        assert alive(pid)
        steward.kill()
    assert vanishes(pid)


RANKS = """
env = os.environ
if "epochmeter.worker.torchrun" in sys.argv:
    connection = ControllerConnection(env["EPOCHMETER_SOCKET"], rank=None, sends_requests=False)
    told = {**env, "STARTED_BY": " ".join(sys.argv), "SEEN": str(env.get("RANK")), "LAUNCHER": str(os.getpid())}
    starts = [subprocess.Popen([sys.argv[0], "rank"], env={**told, "RANK": str(rank)}, start_new_session=True)
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
"""What torchrun and the ranks that it starts are to the steward; the lines that follow are each rank's."""


@pytest.fixture
def end_of_two(interpreter, tmp_path, monkeypatch):
    """end_of_two(lines) -> (failure, message) of a worker of two ranks that do what the lines say; None: it is done."""
    monkeypatch.setattr(launch, "EXIT_LIMIT_S", 0.1)

    def end(lines):
        program = interpreter(RANKS + lines, joined=False)
        try:
            with launched(tmp_path, program, ranks=2) as worker:
                for _ in worker.messages():
                    worker.reply(Proceed(stop=True))
        except WorkerError as error:
            return error.failure, str(error)
        return None

    return end


def test_of_ranks_the_first_is_answered_and_is_done_for_all(end_of_two):
    lines = "if rank: time.sleep(60)\nassert connection.request(OPENING).stop\nconnection.send(Finished())"
    assert end_of_two(lines) is None


def test_a_rank_that_is_done_earlier_than_the_first_is_no_failure(end_of_two, monkeypatch):
    monkeypatch.setattr(worker_process, "EXIT_WAIT_S", 0.2)
    assert end_of_two("if rank == 0: time.sleep(1)\nconnection.send(Finished())") is None


def test_a_rank_that_is_killed_is_named(end_of_two):
    assert end_of_two("if rank: die()") == ("killed", "rank 1 was killed by SIGKILL")


def test_a_rank_that_is_killed_is_named_by_an_answer_that_nobody_takes(interpreter, tmp_path):
    heard = tmp_path / "heard"
    waits = f"connection.send(OPENING)\n    while not os.path.exists({str(heard)!r}): time.sleep(0.01)\n    die()"
    program = interpreter(RANKS + f"if rank == 0:\n    {waits}\nconnection.send(Finished())", joined=False)
    with launched(tmp_path, program, ranks=2) as worker:
        next(worker.messages())
        heard.touch()
        assert vanishes(worker.pid)
        with pytest.raises(WorkerError, match="rank 0 was killed by SIGKILL"):
            worker.reply()


def test_the_words_of_any_rank_are_heard(end_of_two):
    lines = "if rank: connection.send(RankFailed(rank=1, failure='oom', message='CUDA out of memory'))\ntime.sleep(60)"
    assert end_of_two(lines) == ("oom", "CUDA out of memory")


SEES = "connection.send(RankFailed(rank=0, failure='rank', message='Connection closed by peer'))"


def test_what_a_rank_has_seen_of_another_waits_for_that_ones_end(end_of_two):
    lines = f"if rank == 0: {SEES}\nif rank == 0: sys.exit(0)\ntime.sleep(0.3)\ndie()"
    assert end_of_two(lines) == ("killed", "rank 1 was killed by SIGKILL")


def test_what_a_rank_has_seen_of_another_is_told_where_that_one_hangs(end_of_two, monkeypatch):
    monkeypatch.setattr(worker_process, "EXIT_WAIT_S", 0.2)
    began = time.monotonic()
    assert end_of_two(f"if rank == 0: {SEES}\ntime.sleep(60)") == ("exception", "rank 0: Connection closed by peer")
    assert time.monotonic() - began < 10


def test_a_rank_that_the_kernel_killed_is_out_of_memory(end_of_two, monkeypatch):
    counts = iter([7, 8])  # before the worker started; after it was killed
    monkeypatch.setattr(worker_process, "oom_kill_count", lambda: next(counts))
    assert end_of_two("if rank: die()") == (
        "oom",
        "the kernel killed rank 1, because the machine ran out of memory (SIGKILL)",
    )


def test_no_rank_is_left_in_a_group_of_its_own(interpreter, tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "EXIT_LIMIT_S", 0.1)
    program = interpreter(RANKS + "facts(pid=os.getpid())\ntime.sleep(60)", joined=False)
    with launched(tmp_path, program, ranks=2) as worker:
        messages = worker.messages()
        pids = [next(messages).model["pid"] for _ in range(2)]
        assert all(os.getsid(pid) == pid for pid in pids)
    assert all(vanishes(pid) for pid in pids)


def test_torchrun_is_told_how_many_and_each_rank_its_share_of_the_cores(interpreter, tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(launch, "EXIT_LIMIT_S", 0.1)
    monkeypatch.setenv("RANK", "5")  # of another torchrun, in which the command itself runs
    program = interpreter(RANKS + "facts(env=dict(env))\ntime.sleep(60)", joined=False)
    with launched(tmp_path, program, ranks=2) as worker:
        environment = next(worker.messages()).model["env"]
    assert not alive(int(environment["LAUNCHER"]))
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
connection.send(OPENING)
wait_for_ever()
"""


def test_a_worker_that_says_nothing_for_too_long_has_hung_and_tells_where(interpreter, tmp_path):
    with pytest.raises(WorkerError) as raised, launched(tmp_path, interpreter(HANGS), silence_s=3) as worker:
        for _ in worker.messages():
            pass
    assert raised.value.failure == "hung"
    assert str(raised.value).startswith(
        "the training process made no progress for sweep.hung_after_s=3 and was stopped in "
    )
    assert "wait_for_ever (python:" in str(raised.value)
    assert not alive(worker.pid)


def test_a_worker_that_never_joins_has_hung(interpreter, tmp_path):
    program = interpreter("time.sleep(60)", joined=False)
    with (
        pytest.raises(WorkerError, match=r"no progress for sweep\.hung_after_s=0\.5"),
        launched(tmp_path, program, silence_s=0.5),
    ):
        pass


def test_of_two_limits_the_one_that_is_over_is_told(interpreter, tmp_path):
    with (
        pytest.raises(WorkerError, match=r"longer than sweep\.timeout_s=0\.5"),
        launched(tmp_path, interpreter("time.sleep(60)", joined=False), limit_s=0.5, silence_s=60),
    ):
        pass


def hung(lines, interpreter, folder, limit_s=1.0):
    """The failure and the message of a worker that has so long for what the lines say."""
    error = None
    try:
        with launched(folder, interpreter(lines), limit_s=limit_s) as worker:
            for _ in worker.messages():
                worker.reply()
    except WorkerError as raised:
        error = raised
    assert not alive(worker.pid)
    return error.failure, str(error)


@pytest.mark.parametrize(
    "lines",
    [
        "time.sleep(600)",
        "while True: connection.send(Progress(1)); time.sleep(0.01)",
        "while True: connection.request(OPENING)",
    ],
    ids=["silent", "telling", "asking"],
)
def test_a_worker_that_takes_longer_than_it_may_is_ended_and_has_failed(interpreter, tmp_path, lines):
    told = ("timeout", "the training process took longer than sweep.timeout_s=1 and was stopped")
    assert hung(lines, interpreter, tmp_path) == told


def test_a_worker_that_never_joins_is_ended_by_its_limit(interpreter, tmp_path):
    with pytest.raises(WorkerError, match=r"took longer than sweep\.timeout_s=0\.5"):  # noqa: SIM117
        with launched(tmp_path, interpreter("time.sleep(600)", joined=False), limit_s=0.5):
            pass


def test_a_worker_that_is_done_in_time_knows_no_limit(interpreter, tmp_path):
    with launched(tmp_path, interpreter("connection.send(Finished())"), limit_s=100) as worker:
        assert list(worker.messages()) == []
