from clocks import time_with

from epochmeter.datasets import progress
from epochmeter.datasets.progress import MB, Progress


def test_progress_is_reported_every_few_seconds_with_the_time_left(monkeypatch):
    now_s = iter([0.0, 1.9, 4.0, 10.0, 14.0])
    monkeypatch.setattr(progress, "time", time_with(monotonic=lambda: next(now_s)))
    messages = []
    copying = Progress("copying", messages.append, 40_000_000, MB)
    copying.update(5_000_000)
    copying.update(20_000_000)
    Progress("counting", messages.append, unit="images").update(7)
    assert messages == ["copying: 20 of 40 MB, 4 s left", "counting: 7 images"]
