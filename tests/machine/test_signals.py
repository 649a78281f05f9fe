import os
import signal
import threading
import time

import pytest

from epochmeter.machine.signals import STOPPING, foremost, held_off, undisturbed


@pytest.fixture(autouse=True)
def as_in_a_run():
    """Each of them ends a run by an exception, as src/train.py has it."""

    def stop(number, frame):
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, stop) for number in STOPPING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_waits_until_what_must_not_be_disturbed_is_over(number):
    done = []

    def act():
        with undisturbed():
            os.kill(os.getpid(), number)
            done.append("all of it")

    with pytest.raises(SystemExit) as stopped:
        act()
    assert done == ["all of it"]
    assert stopped.value.code == 128 + number


def test_a_signal_that_another_thread_gets_waits_too():
    """The kernel gives it to any thread, and Python's main one then acts on it."""
    with held_off() as came:
        thread = threading.Thread(target=signal.pthread_kill, args=(threading.main_thread().ident, signal.SIGTERM))
        thread.start()
        thread.join()
        time.sleep(0.01)
    assert came == [signal.SIGTERM]


def test_a_signal_outlives_an_error_within():
    def fail():
        with undisturbed():
            os.kill(os.getpid(), signal.SIGTERM)
            raise ValueError("within")

    with pytest.raises(SystemExit) as stopped:
        fail()
    assert isinstance(stopped.value.__context__, ValueError)


def test_a_signal_that_is_ignored_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup has it
    with undisturbed():
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_afterwards_signals_act_at_once_again():
    with held_off() as came:
        pass
    with pytest.raises(SystemExit):
        os.kill(os.getpid(), signal.SIGTERM)
    assert came == []


def test_a_signal_that_comes_while_it_begins_acts_at_once_and_leaves_the_next_ones_heard(monkeypatch):
    install = signal.signal

    def disturbed(number, handler):
        install(number, handler)
        monkeypatch.undo()
        signal.raise_signal(STOPPING[0])

    monkeypatch.setattr(signal, "signal", disturbed)
    with pytest.raises(SystemExit), held_off():
        pytest.fail("began all the same")
    for number in STOPPING:
        with pytest.raises(SystemExit):
            signal.raise_signal(number)


def test_a_stop_that_leaves_a_lock_let_go_is_no_error_of_the_lock():
    def wait():
        turn = threading.Condition()
        with foremost(), turn:
            turn.release()
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as stopped:
        wait()
    assert stopped.value.code == 128 + signal.SIGTERM


def test_a_stop_is_found_behind_error_after_error():
    def fail():
        with foremost():
            try:
                try:
                    signal.raise_signal(signal.SIGTERM)
                finally:
                    {}["gone"]
            except KeyError as error:
                raise ValueError("gone") from error

    with pytest.raises(SystemExit):
        fail()


def test_an_error_that_no_stop_is_behind_stays_what_it_is():
    with pytest.raises(ValueError, match="within"), foremost():
        raise ValueError("within")
