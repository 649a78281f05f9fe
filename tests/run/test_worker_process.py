"""How the end of a training process is described; tests/run/test_launch.py has real processes."""

from epochmeter.run.worker_process import innermost_frame, oom_kill_count


def test_oom_kills_of_the_kernel_are_counted():
    assert oom_kill_count() >= 0
