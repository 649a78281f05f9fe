"""How the end of a training process is described; tests/run/test_launch.py has real processes."""

from epochmeter.run.worker_process import innermost_frame, oom_kill_count


def test_oom_kills_of_the_kernel_are_counted():
    assert oom_kill_count() >= 0


def test_location_of_a_hang_is_the_innermost_frame_of_this_package():
    stacks = """Thread 0x01 (most recent call first):
  File "/x/epochmeter/worker/rounds.py", line 1 in other

Current thread 0x02 (most recent call first):
  File "/lib/selectors.py", line 415 in select
  File "/x/epochmeter/worker/data/loader.py", line 88 in batches
  File "/x/epochmeter/worker/loop.py", line 20 in train
"""
    assert innermost_frame(stacks) == "batches (loader.py:88)"
    assert innermost_frame(stacks.replace("/epochmeter/", "/theirs/")) == "select (selectors.py:415)"
    assert innermost_frame("") == innermost_frame(stacks[:-9]) == ""
