"""The batch size that fitted in the sweep of a run that ran out of memory."""

import pytest

from epochmeter.run.oom_hint import largest_fitting_batch, oom_message
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.record import Record

JOB = {
    "batch": 512, "model": {"name": "lenet"}, "workers": 4, "seed": 1, "power_limit": 100, "tracking": {"name": "none"},
}  # fmt: skip


@pytest.fixture
def make_run(tmp_path):
    """make_run(number, completed=True, batch=..., ...) -> the record of a run of the sweep."""

    def make(number, completed=True, **keys):
        (folder := tmp_path / "sweep" / str(number)).mkdir(parents=True)
        record = Record(folder)
        record.describe({**JOB, **keys}, {})
        if completed:
            write_json(folder / "completed.json", {"identity": "1d", "finished": "now"})
        return record

    return make


@pytest.fixture
def failed(make_run):
    return make_run(9, completed=False)


def test_largest_batch_of_completed_runs_is_the_hint(make_run, failed):
    (failed.folder.parent / "3").mkdir()  # a run without a record yet
    assert oom_message("batch=512 ran out of memory.", failed) == "batch=512 ran out of memory."
    make_run(0, batch=64)
    make_run(1, batch=128)
    make_run(2, batch=256, completed=False)
    hint = "; the largest batch size that fitted in this sweep is batch=128."
    assert oom_message("batch=512 ran out of memory. Reduce it.", failed) == (
        f"batch=512 ran out of memory. Reduce it{hint}"
    )
    assert oom_message("killed\n  hint: reduce it", failed) == f"killed{hint}\n  hint: reduce it"


@pytest.mark.parametrize(
    ("keys", "batch"),
    [
        ({"model": {"name": "vgg11"}}, None),
        ({"workers": 2}, None),
        ({"seed": 7}, 64),
        ({"power_limit": 250}, 64),
        ({"tracking": {"name": "mlflow"}}, 64),
    ],
    ids=str,
)
def test_only_runs_that_need_the_same_memory_count(make_run, failed, keys, batch):
    make_run(0, batch=64, **keys)
    assert largest_fitting_batch(failed) == batch
