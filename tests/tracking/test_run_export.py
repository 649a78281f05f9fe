"""A record's params, tags, note, dataset, status and times in MLflow."""

import json
import os
from datetime import datetime

from tracking.conftest import STARTED, change_record

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


def test_tags_and_note_have_the_rehearsal_the_command_the_failure_and_the_reason_for_no_energy(make_record):
    tags = run_export.run_tags(make_record(limit=None))
    assert tags.keys().isdisjoint({f"epochmeter.{key}" for key in ("power_limit_applied", "failure", "energy_reason")})
    assert (tags["epochmeter.rehearsal"], tags["epochmeter.energy_covers"]) == ("false", "gpu0")
    why = "device=nano: this is host vm"
    record = make_record(1, energy=False, overrides=["model.name=a b"], state="failed", rehearsal=[why])
    tags, note = run_export.run_tags(record), run_export.run_note(record)
    assert (tags["epochmeter.rehearsal"], tags["epochmeter.not_applied"]) == ("true", why)
    assert tags["epochmeter.failure"] == "oom"
    for part in (why, "python src/train.py 'model.name=a b'", "No measured energy: no meter", "CUDA out of memory"):
        assert part in note
    change_record(record, {}, measure={"command": ["train.py", "--lr", "0.1"]})
    assert "python src/measure.py 'model.name=a b' -- train.py --lr 0.1" in run_export.run_note(record)
    assert run_export.run_tags(record)["mlflow.source.name"] == "src/measure.py"


def test_dataset_is_described_by_its_manifest(make_record):
    dataset = run_export.dataset_fields(make_record())
    assert (dataset["name"], len(dataset["digest"])) == ("digits", 36)
    assert json.loads(dataset["profile"]) == {"count": 1797, "bytes": 123456, "classes": 10}
    assert run_export.dataset_fields(make_record(1, dataset=None)) is None


def test_end_is_the_recorded_one_else_the_last_write_as_a_dead_run_is_closed_late(make_record):
    times = {"power.csv": FRIDAY_S, "epochs.jsonl": FRIDAY_S - 1, "summary.json": MONDAY_S, "job.json": MONDAY_S}
    records = [make_record(number, state=state) for number, state in enumerate(("completed", "failed", "killed"))]
    for record in records:
        record.append_power([1], {"total": [5.0]})
        for name, written_s in times.items():
            os.utime(record.folder / name, (0, written_s))
    ended = datetime.fromtimestamp(FRIDAY_S - 5).astimezone().isoformat()
    write_json(records[1].folder / "summary.json", {**records[1].summary(), "ended": ended})
    assert [ended_s(record) for record in records] == [STARTED.timestamp() + 90, FRIDAY_S - 5, FRIDAY_S]
