"""How the end of a training process is described; tests/run/test_launch.py has real processes."""

from epochmeter.run.worker_process import innermost_frame, oom_kill_count


def test_the_kernel_counts_its_kills():
    assert oom_kill_count() >= 0


def test_where_a_worker_hangs_is_told_by_the_innermost_line_of_ours():
    told = """Thread 0x01 (most recent call first):
  File "/x/epochmeter/worker/rounds.py", line 1 in other

Current thread 0x02 (most recent call first):
  File "/lib/selectors.py", line 415 in select
  File "/x/epochmeter/worker/data/loader.py", line 88 in batches
  File "/x/epochmeter/worker/loop.py", line 20 in train
"""
    assert innermost_frame(told) == "batches (loader.py:88)"
    assert innermost_frame(told.replace("/epochmeter/", "/theirs/")) == "select (selectors.py:415)"
    assert innermost_frame("") == innermost_frame(told[:-9]) == ""
