"""What is told of a worker's end, apart from the worker: tests/test_launch.py has real ones."""

from epochmeter.run.worker_process import hung_in, oom_kills


def test_the_kernel_counts_its_kills():
    assert oom_kills() >= 0


def test_where_a_worker_hangs_is_told_by_the_innermost_line_of_ours():
    told = """Thread 0x01 (most recent call first):
  File "/x/epochmeter/worker/rounds.py", line 1 in other

Current thread 0x02 (most recent call first):
  File "/lib/selectors.py", line 415 in select
  File "/x/epochmeter/worker/data/loader.py", line 88 in batches
  File "/x/epochmeter/worker/loop.py", line 20 in train
"""
    assert hung_in(told) == "batches (loader.py:88)"
    assert hung_in(told.replace("/epochmeter/", "/theirs/")) == "select (selectors.py:415)"
    assert hung_in("") == hung_in(told[:-9]) == ""
