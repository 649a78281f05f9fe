"""A process that works for a command."""

import os
import signal
import time
from multiprocessing import get_context

import psutil
from project import wait_until

from epochmeter.machine.helper_process import start_helper


def answer(pipe):
    pipe.send(os.getpid())


def hang(pipe):
    pipe.send(os.getpid())
    time.sleep(600)


def start_and_hang(pipe):
    _, own = start_helper(hang)
    pipe.send(own.recv())
    time.sleep(600)


def is_running(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_interrupt_does_not_reach_it_even_while_python_starts():
    process, pipe = start_helper(answer)
    os.kill(process.pid, signal.SIGINT)
    assert pipe.recv() == process.pid
    process.join()
    assert process.exitcode == 0
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_it_ends_with_the_command_that_is_killed():
    own, others = get_context("spawn").Pipe()
    command = get_context("spawn").Process(target=start_and_hang, args=(others,))
    command.start()
    pid = own.recv()
    assert is_running(pid)
    command.kill()
    wait_until(lambda: not is_running(pid))
