"""Parts of a window that come from single steps of a pass."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from epochmeter.segmentation.passes import Batches, Loader
from epochmeter.segmentation.windows import StepTimes, counting_ns, samples_of, samples_of_step, tokens_of

STATED = Loader(1, samples=10, batch_size=4)  # batches of 4, 4 and 2
UNSTATED = Loader(1)


def times(*durations_ns):
    ends = np.cumsum(durations_ns)
    none = np.zeros(len(ends), dtype=np.int64)
    return StepTimes(ends - durations_ns, ends, ends, none, none, none)


def counted(batch, loader=STATED, samples=(), is_continued=False):
    """A pass in which the operators of a step were recorded, up to its batch with a number."""
    batches = SimpleNamespace(samples=samples)
    return SimpleNamespace(
        counted=(5, batch), loader=loader, batches=batches, is_continued=is_continued, failures=0, unused=0
    )


@pytest.mark.parametrize(
    ("durations_ns", "added_ns"), [((10, 12, 50, 14), 38), ((10, 12, 11), 0), ((10, 12), None), ((10,), None)]
)
def test_counting_adds_to_the_median_of_the_other_steps_and_never_less_than_nothing(durations_ns, added_ns):
    assert counting_ns(counted(2), times(*durations_ns)) == added_ns
    assert counting_ns(SimpleNamespace(counted=None), times(*durations_ns)) is None


@pytest.mark.parametrize(
    ("samples", "count", "is_complete", "found"),
    [
        (10, 3, True, 10),
        (10, 2, False, 8),
        (10, 2, True, None),  # the request of a batch has failed, maybe of the short one
        (12, 2, True, 8),  # all batches have the same size
        (12, 4, True, None),  # more than the loader stated
        (10, 4, True, None),
    ],
)
def test_samples_of_a_pass_are_known_if_its_batches_are_as_stated(samples, count, is_complete, found):
    measured = SimpleNamespace(
        loader=Loader(1, samples=samples, batch_size=4), batches=range(count), is_complete=is_complete,
        is_continued=False, failures=0,
    )  # fmt: skip
    known = samples_of(measured, count)
    assert (None if math.isnan(known) else known) == found


def test_samples_of_the_step_are_those_of_its_batches():
    assert [samples_of_step(counted(batch), 1) for batch in range(3)] == [4, 4, 2]
    assert samples_of_step(counted(2), 3) == 10
    assert samples_of_step(counted(2, UNSTATED, [5, 6, 7]), 2) == 13
    assert math.isnan(samples_of_step(counted(3), 1)), "more batches than stated"
    assert samples_of_step(counted(2, is_continued=True), 1) != samples_of_step(counted(2, is_continued=True), 1), "NaN"


def test_tokens_are_known_if_all_batches_have_them():
    def tokens(*of_batches):
        batches = Batches()
        for entry in of_batches:
            batches.requested_ns.append(0)
            if entry:
                batches.add_tokens(*entry)
        return tokens_of(SimpleNamespace(batches=batches), len(batches))

    assert tokens((3.0, 4), (2.0, 4)) == {"tokens": 5, "padding_tokens": 3}
    assert tokens((3.0, 0), (2.0, 0)) == {"tokens": 5}
    assert tokens((3.0, 4), None) == tokens(None, (3.0, 4)) == tokens((float("nan"), 4)) == {}
