"""A record's params, tags, note, dataset, status and times in MLflow."""

import json
import os
from datetime import datetime

from tracking.conftest import change_record

from epochmeter.shared.atomic_files import write_json
from epochmeter.tracking import run_export
from epochmeter.tracking.run_export import ended_s

FRIDAY_S, MONDAY_S = 2e9, 2e9 + 3 * 86400


def test_params_are_the_configuration_in_hydras_syntax(make_record):
    params = run_export.run_params(make_record(batch=32, limit=None))
    expected = {"device": "cuda", "model": "lenet", "batch": "32", "pin_memory": "true", "optimizer.lr": "0.01"}
    assert params.items() >= {**expected, "device.rails.total": '["VDD_IN"]'}.items()
    assert not [name for name in params if name.startswith(("tracking", "power_limit"))]
    assert run_export.run_params(make_record(1, limit=100))["power_limit"] == "100"


def test_unknown_values_have_no_tag(make_record):
    tags = run_export.run_tags(make_record(limit=None))
    assert tags.keys().isdisjoint({f"epochmeter.{key}" for key in ("power_limit_applied", "failure", "energy_reason")})
    assert tags["epochmeter.rehearsal"] == "false"
    assert tags["epochmeter.energy_covers"] == "gpu0"


def test_note_has_the_rehearsal_the_command_the_failure_and_the_reason_for_no_energy(make_record):
    why = "device=nano: this is host vm"
    record = make_record(energy=False, overrides=["model.name=a b"], state="failed", rehearsal=[why])
    tags, note = run_export.run_tags(record), run_export.run_note(record)
    assert (tags["epochmeter.rehearsal"], tags["epochmeter.not_applied"]) == ("true", why)
    assert tags["epochmeter.failure"] == "oom"
    for part in (why, "python src/train.py 'model.name=a b'", "No measured energy: no meter", "CUDA out of memory"):
        assert part in note


def test_note_has_the_command_of_a_measured_script(make_record):
    record = make_record(overrides=["power_limit=100"])
    change_record(record, {}, measure={"command": ["train.py", "--lr", "0.1"]})
    assert "python src/measure.py power_limit=100 -- train.py --lr 0.1" in run_export.run_note(record)
    assert run_export.run_tags(record)["mlflow.source.name"] == "src/measure.py"


def test_dataset_is_described_by_its_manifest(make_record):
    dataset = run_export.dataset_fields(make_record())
    assert dataset["name"] == "digits"
    assert len(dataset["digest"]) <= 36
    assert json.loads(dataset["profile"]) == {"count": 1797, "bytes": 123456, "classes": 10}
    assert run_export.dataset_fields(make_record(1, dataset=None)) is None


def test_recorded_end_is_independent_of_file_times(make_record):
    record = make_record()
    finished = ended_s(record)
    os.utime(record.folder / "job.json", (0, 2**31))
    assert ended_s(record) == finished
    failed = make_record(1, state="failed")
    ended = datetime.fromtimestamp(FRIDAY_S).astimezone()
    write_json(failed.folder / "summary.json", {**failed.summary(), "ended": ended.isoformat()})
    assert ended_s(failed) == FRIDAY_S


def test_run_closed_late_ended_at_its_last_write(make_record):
    """Its summary, and the tracking keys in its job, may be written later."""
    record = make_record(state="killed")
    record.append_power([1], {"total": [5.0]})
    times = {"power.csv": FRIDAY_S, "epochs.jsonl": FRIDAY_S - 1, "summary.json": MONDAY_S, "job.json": MONDAY_S}
    for name, written_s in times.items():
        os.utime(record.folder / name, (0, written_s))
    assert ended_s(record) == FRIDAY_S
