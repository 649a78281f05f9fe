"""Merging the measurements of scripted ranks."""

from epochmeter.results.rank_merge import merge_ranks
from epochmeter.shared.protocol import RankWindow


def rank(opened_ns=100, closed_ns=200, weight=4, loss_sum=2.0, correct=3, bad=(), paused=False, **parts):
    parts = {"e2e_s": 1.0, "samples": 4, **parts}
    return RankWindow(opened_ns, closed_ns, 0, parts, list(bad), paused, weight, loss_sum, correct)


def test_loss_and_accuracy_are_means_over_all_samples():
    single = rank(data_stall_s=0.1 + 0.2)
    merged = merge_ranks([single])
    assert (merged.parts, merged.loss, merged.accuracy, merged.rank_max) == (single.parts, 0.5, 0.75, {})
    merged = merge_ranks([rank(weight=9, loss_sum=9.0, correct=9), rank(weight=1, loss_sum=11.0, correct=0)])
    assert (merged.loss, merged.accuracy) == (2.0, 0.9)
    for correct in (None, 3):
        assert merge_ranks([rank(correct=None), rank(correct=correct)]).accuracy is None


def test_times_are_means_counts_sums_and_peaks_maxima():
    first = rank(data_stall_s=1.0, skipped_samples=1, gpu_memory_peak_bytes=5, steps=3, learning_rate=0.1, tokens=5)
    second = rank(data_stall_s=3.0, skipped_samples=2, gpu_memory_peak_bytes=9, steps=3, learning_rate=0.1, tokens=7)
    merged = merge_ranks([first, second])
    assert merged.parts == {
        "e2e_s": 1.0, "data_stall_s": 2.0, "samples": 8, "skipped_samples": 3, "gpu_memory_peak_bytes": 9, "steps": 3,
        "learning_rate": 0.1, "tokens": 12,
    }  # fmt: skip
    assert isinstance(merged.parts["steps"], int)
    assert merged.rank_max == {"e2e_s": 1.0, "data_stall_s": 3.0}


def test_window_spans_all_ranks_and_at_most_five_bad_samples_are_named():
    first, second = rank(100, 230, bad=["a", "b", "c"]), rank(110, 200, bad=["d", "e", "f"], paused=True)
    merged = merge_ranks([first, second])
    assert (merged.opened_ns, merged.closed_ns) == (100, 230)
    assert (merged.paused, merged.bad) == (True, ["a", "b", "c", "d", "e"])
    assert not merge_ranks([first, rank()]).paused
