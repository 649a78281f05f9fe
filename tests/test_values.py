"""What a job's values may be."""

import re

import pytest

from trainmeter import job, values

PREPROCESS = "dataset.preprocess={}: give one of resize, crop, pad, or the dotted path of a function"


@pytest.fixture
def made(composed):
    """made("batch=8", ...) -> the plain job."""
    return lambda *typed: job.plain(composed(*typed))


def test_the_defaults_are_in_range(made):
    values.check(made())


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("batch=0", "batch=0: give 1 or more"),
        ("epochs=0", "epochs=0: give 1 or more"),
        ("workers=-1", "workers=-1: give 0 or more"),
        ("prefetch=0", "prefetch=0: give 1 or more"),
        ("warmup_epochs=-1", "warmup_epochs=-1: give 0 or more"),
        ("seed=-1", "seed=-1: give 0 or more"),
        ("checkpoint.every=0", "checkpoint.every=0: give 1 or more, or null for none"),
        ("dataset.preprocess=null", PREPROCESS.format("null")),
        ("dataset.preprocess=5", PREPROCESS.format("5")),
        ("dataset.preprocess=warp", PREPROCESS.format("warp")),
        ("pin_memory=maybe", "pin_memory=maybe: give one of auto, true, false"),
        ("rehearse=later", "rehearse=later: give one of auto, true, false"),
        ("power_limit=0", "power_limit=0: give watts above 0, a power mode, or null"),
        ("power_limit=-5", "power_limit=-5: give watts above 0, a power mode, or null"),
        ("target_accuracy=0", "target_accuracy=0.0: give a share above 0 and up to 1"),
        ("target_accuracy=97", "target_accuracy=97.0: give a share above 0 and up to 1"),
        ("target_loss=0", "target_loss=0.0: give a loss above 0"),
        (
            "dataset=polynomial target_accuracy=0.9",
            "target_accuracy=0.9: task=regression knows no right and wrong: give target_loss",
        ),
        (
            "deterministic=true cudnn_benchmark=true",
            "cudnn_benchmark=true: the algorithms it picks may change, so give deterministic=false",
        ),
        ("throughput.start=5", "throughput.start=5: give throughput.stop too"),
        ("throughput.stop=5", "throughput.stop=5: give throughput.start too"),
        ("throughput={start:5,stop:5}", "throughput.start=5: give 0 or more, and less than throughput.stop=5"),
        ("throughput={start:-1,stop:5}", "throughput.start=-1: give 0 or more, and less than throughput.stop=5"),
        (
            "throughput.exit=true",
            "throughput.exit=true: give throughput.start and throughput.stop, where the run is to end",
        ),
        ("sweep.cooldown_s=-1", "sweep.cooldown_s=-1: give 0 or more"),
        ("sweep.cooldown_s=inf", "sweep.cooldown_s=inf: give 0 or more"),
        ("sweep.cool_wait_s=nan", "sweep.cool_wait_s=nan: give 0 or more"),
        ("sweep.cool_below_c=nan", "sweep.cool_below_c=nan: give degrees Celsius, or null"),
        ("sweep.max_failures=0", "sweep.max_failures=0: give 1 or more"),
        ("sweep.timeout_s=0", "sweep.timeout_s=0: give seconds above 0, or null for no limit"),
    ],
)
def test_a_value_out_of_range_is_refused_with_what_would_be_in_it(made, typed, says):
    with pytest.raises(ValueError, match=rf"^{re.escape(says)}\.$"):
        values.check(made(*typed.split()))


def test_all_that_is_wrong_is_told_at_once(made):
    with pytest.raises(ValueError, match=r"batch=0: .*; epochs=0: .*\."):
        values.check(made("batch=0", "epochs=0"))


@pytest.mark.parametrize("typed", ["nan", "inf", "-inf"])
def test_a_power_limit_that_is_no_amount_of_watts_is_refused(made, typed):
    with pytest.raises(ValueError, match="power_limit"):
        values.check(made(f"power_limit={typed}"))


def test_a_key_that_was_added_by_force_is_refused_with_what_it_may_have_meant(made):
    with pytest.raises(ValueError, match=r"There is no key bach\. Did you mean batch=\?"):
        values.check({**made(), "bach": 8})
