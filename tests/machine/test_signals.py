import os
import signal
import subprocess
import sys
from contextlib import nullcontext

import pytest
from cases import case, cases

from epochmeter.config.installation import ROOT
from epochmeter.machine.signals import STOP_SIGNALS, deferred_signals, prefer_stop, signal_name, uninterruptible


@pytest.fixture(autouse=True)
def as_in_a_run():
    """Each of them ends a run by an exception, as src/train.py has it."""

    def stop(number, frame):
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, stop) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_signal_is_deferred_to_the_end_of_the_block_and_an_ignored_one_stays_ignored(number):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup has it
    done = []
    ends = nullcontext() if number == signal.SIGHUP else pytest.raises(SystemExit, match=f"^{128 + number}$")
    with ends, uninterruptible():
        os.kill(os.getpid(), number)
        done.append("all of it")
    assert done == ["all of it"]
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_signal_during_entry_is_delivered_at_once(monkeypatch):
    install = signal.signal

    def disturbed(number, handler):
        install(number, handler)
        monkeypatch.undo()
        signal.raise_signal(STOP_SIGNALS[0])

    monkeypatch.setattr(signal, "signal", disturbed)
    with pytest.raises(SystemExit), deferred_signals():
        pytest.fail("began all the same")
    for number in STOP_SIGNALS:
        with pytest.raises(SystemExit):
            signal.raise_signal(number)


def test_stop_is_found_in_the_exception_chain():
    def fail():
        with prefer_stop():
            try:
                try:
                    signal.raise_signal(signal.SIGTERM)
                finally:
                    {}["gone"]
            except KeyError as error:
                raise ValueError("gone") from error

    with pytest.raises(SystemExit):
        fail()


COMMAND = """
import os, signal, sys, time, types
from epochmeter.__main__ import start

class Interrupted:
    def __del__(self):
        os.kill(os.getpid(), signal.{name})
        time.sleep(0.1)

def main():
{body}

sys.modules["epochmeter.commands.stopped"] = types.SimpleNamespace(main=main)
start("stopped")
"""
IGNORED = """
    try:
        Interrupted()  # Python ignores exceptions of destructors
        time.sleep(10)
    except BaseException as stop:
        print(repr(stop))
        sys.exit(getattr(stop, "code", 130))
"""
FAILING = """
    try:
        signal.raise_signal(signal.{name})
        file = open("never reached")
    finally:
        file.close()  # as Hydra's reader of configuration files does
"""


@cases(
    case(name="SIGINT", body=IGNORED, code=130, output="KeyboardInterrupt()\n"),
    case(name="SIGTERM", body=IGNORED, code=143, output="SystemExit(143)\n"),
    case(name="SIGINT", body=FAILING, code=-signal.SIGINT, output=""),
    case(name="SIGTERM", body=FAILING, code=143, output=""),
)
def test_stop_ends_a_command_although_python_ignores_it_or_the_cleanup_fails(name, body, code, output):
    command = [sys.executable, "-c", COMMAND.format(name=name, body=body.format(name=name))]
    done = subprocess.run(command, cwd=ROOT / "src", capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (code, output, "")


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGRTMIN, signal.SIGRTMIN + 1, signal.SIGRTMAX])
def test_each_signal_has_a_name(number):
    names = {signal.SIGSEGV: "SIGSEGV", signal.SIGRTMIN: "SIGRTMIN", signal.SIGRTMIN + 1: "SIGRTMIN+1"}
    assert signal_name(number) == names.get(number, "SIGRTMAX")
