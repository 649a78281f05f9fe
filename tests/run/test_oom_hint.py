"""What fitted into memory beside a run that did not."""

import pytest

from epochmeter.run.oom_hint import largest_fitting_batch, oom_message
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.record import Record

JOB = {
    "batch": 512,
    "model": {"name": "lenet"},
    "workers": 4,
    "seed": 1,
    "power_limit": 100,
    "tracking": {"name": "none"},
}


@pytest.fixture
def ran(tmp_path):
    """ran(number, completed=True, batch=..., ...) -> the record of a run in the one sweep there is."""

    def run(number, completed=True, **other):
        (folder := tmp_path / "sweep" / str(number)).mkdir(parents=True)
        record = Record(folder)
        record.describe({**JOB, **other}, {})
        if completed:
            write_json(folder / "completed.json", {"identity": "1d", "finished": "now"})
        return record

    return run


@pytest.fixture
def failed(ran):
    return ran(9, completed=False)


def test_the_largest_batch_that_came_to_its_end_did_fit(ran, failed):
    ran(0, batch=64)
    ran(1, batch=128)
    ran(2, batch=256, completed=False)
    assert largest_fitting_batch(failed) == 128
    said = oom_message("batch=512 ran out of memory (the GPU's peak was 3.1 GB)", failed)
    assert said == (
        "batch=512 ran out of memory (the GPU's peak was 3.1 GB); "
        "the largest batch size that fitted in this sweep is batch=128."
    )


@pytest.mark.parametrize("other", [{"model": {"name": "vgg11"}}, {"workers": 2}], ids=str)
def test_a_run_that_takes_other_memory_says_nothing(ran, failed, other):
    ran(0, batch=64, **other)
    assert largest_fitting_batch(failed) is None


@pytest.mark.parametrize("other", [{"seed": 7}, {"power_limit": 250}, {"tracking": {"name": "mlflow"}}], ids=str)
def test_what_takes_no_memory_may_differ(ran, failed, other):
    ran(0, batch=64, **other)
    assert largest_fitting_batch(failed) == 64


def test_where_none_has_fitted_it_says_what_to_do(failed):
    (failed.folder.parent / "0").mkdir()  # a run that is not described yet
    assert oom_message("batch=512 ran out of memory", failed) == "batch=512 ran out of memory. Reduce the batch size."


def test_what_says_itself_what_to_do_is_left_as_it_is(ran, failed):
    ran(0, batch=64)
    said = "dataset.layout=memory ran out of memory (the training process's peak was 3.1 GB). Set dataset.layout=files."
    assert oom_message(said, failed) == said


def test_a_worker_that_was_killed_could_not_say_its_batch(ran, failed):
    ran(0, batch=64)
    said = oom_message("the kernel killed the worker for want of memory (SIGKILL)", failed)
    assert said == (
        "the kernel killed the worker for want of memory (SIGKILL), with batch=512; "
        "the largest batch size that fitted in this sweep is batch=64."
    )
