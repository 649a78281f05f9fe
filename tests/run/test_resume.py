"""The checkpoint from which a run resumes, and the checks of its record."""

import json
import zipfile
from array import array

import pytest
from default_jobs import job_of

from epochmeter.run.plan import find_resume_point
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.record import CHECKPOINT, CHECKPOINT_METADATA, INTERVALS, Record, since_resumed

JOB = job_of(evaluate=True)
RUN = {"identity": "this job", "rehearsal": [], "record_id": "another start", "host": "here"}
EARLIER = {**RUN, "record_id": "first start"}
STEPS = 4


def window(name, epoch):
    steps = {"epoch/steps": STEPS} if name == "epoch" else {}
    return {"window": name, "epoch": epoch, "metrics": steps}


@pytest.fixture
def record(tmp_path):
    """Three epochs and half a fourth, with a checkpoint after two."""
    record = Record(tmp_path)
    record.describe(JOB.to_dict(), EARLIER)
    for epoch in range(3):
        record.append(window("epoch", epoch))
        record.append(window("val", epoch))
    record.append_steps(array("f", range(4 * STEPS * len(INTERVALS))))
    record.append_losses(array("f", range(4 * STEPS)))
    checkpoint(record, epochs=2)
    return record


def checkpoint(record, epochs, record_id="first start"):
    with zipfile.ZipFile(record.folder / CHECKPOINT, "w") as archive:
        archive.writestr("archive/data/0", b"weights" * 99)
        archive.writestr(CHECKPOINT_METADATA, json.dumps({"record_id": record_id, "epochs": epochs}))


def test_run_resumes_after_the_epochs_of_its_checkpoint_even_if_the_last_was_not_evaluated(record):
    assert find_resume_point(record, JOB, RUN) == (2, EARLIER, "")
    lines = (record.folder / "epochs.jsonl").read_text().splitlines(keepends=True)
    (record.folder / "epochs.jsonl").write_text("".join(lines[:3]))
    assert find_resume_point(record, JOB, RUN) == (2, EARLIER, "")


def test_other_runs_and_completed_runs_are_not_resumed(record):
    for other in ({"identity": "another job"}, {"rehearsal": ["no power limit"]}):
        assert find_resume_point(record, JOB, {**RUN, **other}) == (None, {}, "")
    elsewhere = {**RUN, "identity": "this job there", "host": "there"}
    assert find_resume_point(record, JOB, elsewhere) == (None, {}, "it was measured on another host, here")
    write_json(record.folder / "completed.json", {"identity": "this job", "finished": ""})
    assert find_resume_point(record, JOB, RUN) == (None, {}, "")
    (record.folder / "completed.json").unlink()
    (record.folder / CHECKPOINT).unlink()
    assert find_resume_point(record, JOB, RUN) == (None, {}, "")


def flipped(record):
    data = bytearray((record.folder / CHECKPOINT).read_bytes())
    data[data.index(b"weights") + 3] ^= 1
    (record.folder / CHECKPOINT).write_bytes(data)


def shortened(name, by):
    def shorten(record):
        path = record.folder / name
        path.write_bytes(path.read_bytes()[:-by])

    return shorten


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (flipped, "the file is damaged"),
        (shortened(CHECKPOINT, 30), "the file is damaged"),
        (lambda record: (record.folder / CHECKPOINT).write_bytes(b""), "the file is damaged"),
        (lambda record: checkpoint(record, 2, "a third start"), "it belongs to another run"),
        (lambda record: checkpoint(record, 4), "epochs before it are missing"),
        (shortened("steps.bin", 2 * STEPS * len(INTERVALS) * 4 + 1), "epochs before it are missing"),
        (shortened("losses.bin", 2 * STEPS * 4 + 4), "epochs before it are missing"),
        (lambda record: (record.folder / "job.json").write_text("{"), "its job.json cannot be read"),
        (lambda record: (record.folder / "epochs.jsonl").write_text("{\n"), "the epochs before it cannot be read"),
    ],
)
def test_incomplete_record_is_not_resumed_and_has_a_reason(record, harm, reason):
    harm(record)
    assert find_resume_point(record, JOB, RUN) == (None, {}, reason)


def test_each_epoch_has_the_clock_of_the_start_that_measured_it():
    run = {"clock": 0, "resumed": [{"epoch": 2, "clock": 1}, {"epoch": 2, "clock": 2}, {"epoch": 4, "clock": 3}]}
    assert [since_resumed(run, epoch)["clock"] for epoch in range(6)] == [0, 0, 2, 2, 3, 3]
    assert since_resumed({"clock": 0}, 5)["clock"] == 0
