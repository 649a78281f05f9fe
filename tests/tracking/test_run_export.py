"""What MLflow is told of a record: names and values as a person types them."""

import json

from epochmeter.tracking import run_export


def test_overrides_are_params_under_their_own_names(make_record):
    params = run_export.run_params(make_record(batch=32, limit=None))
    assert params["device"] == "cuda"
    assert params["model"] == "lenet"
    assert params["batch"] == "32"
    assert params["workers"] == "4"
    assert params["pin_memory"] == "true"


def test_nested_keys_are_dotted(make_record):
    params = run_export.run_params(make_record())
    assert params["optimizer.lr"] == "0.01"
    assert params["device.rails.total"] == '["VDD_IN"]'


def test_null_values_have_no_param(make_record):
    assert "power_limit" not in run_export.run_params(make_record(0, limit=None))
    assert run_export.run_params(make_record(1, limit=100))["power_limit"] == "100"


def test_keys_without_effect_on_measurements_are_omitted(make_record):
    assert not [name for name in run_export.run_params(make_record()) if name.startswith("tracking")]


def test_unknown_values_have_no_tag(make_record):
    tags = run_export.run_tags(make_record(limit=None))
    assert "epochmeter.power_limit_applied" not in tags
    assert "epochmeter.failure" not in tags
    assert "epochmeter.energy_reason" not in tags
    assert tags["epochmeter.rehearsal"] == "false"


def test_rehearsal_is_marked_in_name_tags_and_note(make_record):
    record = make_record(rehearsal=["device=nano: this is host vm"])
    assert run_export.run_name(record).startswith("rehearsal ")
    assert run_export.run_tags(record)["epochmeter.rehearsal"] == "true"
    assert run_export.run_tags(record)["epochmeter.not_applied"] == "device=nano: this is host vm"
    assert run_export.run_note(record).startswith("**Rehearsal, not a result.** device=nano: this is host vm")


def test_note_has_the_command_and_the_reason_for_no_energy(make_record):
    note = run_export.run_note(make_record(energy=False, overrides=["model.name=a b"]))
    assert "python src/train.py 'model.name=a b'" in note
    assert "No measured energy: no meter" in note


def test_failed_run_has_its_failure_class(make_record):
    record = make_record(state="failed")
    assert run_export.run_tags(record)["epochmeter.failure"] == "oom"
    assert "CUDA out of memory" in run_export.run_note(record)


def test_dataset_is_described_by_its_manifest(make_record):
    dataset = run_export.dataset_fields(make_record())
    assert dataset["name"] == "digits"
    assert len(dataset["digest"]) <= 36
    assert json.loads(dataset["profile"]) == {"count": 1797, "bytes": 123456, "classes": 10}
    assert run_export.dataset_fields(make_record(1, dataset=None)) is None


def test_illegal_names_are_replaced():
    assert run_export.legal_name("epoch/energy_VDD_GPU%SOC=1_j") == "epoch/energy_VDD_GPU_SOC_1_j"
