"""The time that threads ran and waited for a core, by a scripted /proc and of a real process."""

import os

from processes import ScriptedProc

from epochmeter.machine.thread_times import READING_NS, ThreadTime, increase, read_thread_times

SECOND = 1_000_000_000


def test_times_of_all_threads_are_read_and_none_if_the_kernel_counts_nothing(tmp_path):
    proc = ScriptedProc(tmp_path)
    proc.process(7, threads={7: (50, 20), 8: (0, 0)})
    proc.process(9, threads={9: (1, 2)})
    proc.process(10)  # without counters
    found = read_thread_times([7, 9, 10, 99], tmp_path / "proc")
    assert found == {7: ThreadTime(50, 20), 8: ThreadTime(), 9: ThreadTime(1, 2)}
    proc.process(7, threads={7: (0, 0)})
    assert read_thread_times([7, 10], tmp_path / "proc") == {}
    (tmp_path / "proc/9/task/9/schedstat").write_text("no numbers\n")
    assert read_thread_times([9], tmp_path / "proc") == {}


def test_increase_is_never_negative_and_includes_threads_that_have_begun():
    before = {1: ThreadTime(100, 10), 2: ThreadTime(500, 70), 3: ThreadTime(40, 40)}
    now = {
        1: ThreadTime(130, 15),
        # 2 has ended
        3: ThreadTime(7, 3),  # another thread with the same number
        4: ThreadTime(20, 1),
        5: ThreadTime(SECOND, READING_NS),  # it began between the two readings
        6: ThreadTime(2 * SECOND, 0),  # it is older, and belonged to no process of the run
    }
    assert increase(before, now, SECOND) == ThreadTime(30 + 7 + 20 + SECOND, 5 + 3 + 1 + READING_NS)
    assert increase(before, {}, SECOND) == ThreadTime()


def test_this_process_has_run():
    times = read_thread_times([os.getpid()])
    assert not times or sum(time.ran_ns for time in times.values()) > 0
