"""The model card of a run, from a record, and what the Hugging Face Hub reads of it."""

import shutil
from dataclasses import replace

import pytest
import yaml
from default_jobs import job_keys
from golden import FOLDER, assert_text
from sweeps import trained, write

from epochmeter.report.analyses.card import analyze, find_run
from epochmeter.report.output.model_card import card_metadata, write_card
from epochmeter.shared.atomic_files import read_json, write_json
from epochmeter.shared.problem import InputError

HOST = {"cpu": {"model": "CPU X", "cores": 16}, "gpus": [{"model": "H100"}, {"model": "H100"}]}
TRAINING = {"gpu": {"name": "NVIDIA H100", "uuid": "a"}, "gpus": ["a", "b"], "ranks": 2}
COUNTER = {"source": "counter", "covers": "GPUs used", "domains": ["gpu0"], "reason": None}
INTENSITY = {"intensity": "FRA", "pue": 1.5}


@pytest.fixture
def recorded(tmp_path):
    """recorded(...) -> a completed run of 2 kWh on two GPUs, as its record; `verdict` is that on its energy."""

    def record(energy=COUNTER, verdict=None, uncertainty_j=7.2e5, state="completed", **run):
        total = {"e2e_s": 63.0, "energy_j": 7.2e6, "energy_uncertainty_j": uncertainty_j}
        if energy["source"] != "counter":
            total = {"e2e_s": 63.0}
        total = {name: value for name, value in total.items() if value is not None}
        of = replace(trained(0, 100.0, total=total), job=job_keys(warmup_epochs=1))
        folder = write(tmp_path / "multirun/sweep", of, energy=energy, state=state)
        for epoch, e2e_s in enumerate([33.0, 10.0, 10.2, 9.8]):
            term = {"energy_j": 1.8e6, "energy_uncertainty_j": 1.8e5}
            folder.append({"window": "epoch", "epoch": epoch,
                           "metrics": {"epoch/e2e_s": e2e_s, "epoch/steps": 9, "epoch/energy_j": 1.8e6},
                           "energy": {"opened_ns": 0, "closed_ns": 30, "term": term}})  # fmt: skip
        folder.describe(folder.job(), {**folder.run(), "training": TRAINING, "started": "2026-11-23T08:00:00", **run})
        write_json(folder.folder / "host.json", HOST)
        if summary := folder.summary():
            metrics = {**summary["metrics"], "steady/e2e_s": 10.0}
            write_json(folder.folder / "summary.json",
                       {**summary, "metrics": metrics, "energy": {"total": verdict} if verdict else {}})  # fmt: skip
        return folder

    return record


def test_card_has_emissions_energy_and_time_with_their_intervals_and_derivation(recorded):
    record = recorded()
    card = analyze(record, INTENSITY, "fine-tuning")
    assert (card.energy_j.value, card.energy_j.low, card.energy_j.high) == pytest.approx((7.2e6, 6.48e6, 7.92e6))
    grams = 2 * 1.5 * card.intensity.g_per_kwh
    assert (card.emissions_g.value, card.emissions_g.low) == pytest.approx((grams, 0.9 * grams), rel=1e-6)
    assert (card.epoch_s.value, card.epoch_s.high) == pytest.approx((10.0, 10.0 + 4.303 * 0.2 / 3**0.5), rel=1e-3)
    assert card.absent == {}
    text = write_card(card, record.folder).read_text()
    assert_text(FOLDER / "model_card.md", text)


def test_metadata_are_those_that_the_hub_reads(recorded):
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    record = recorded()
    card = analyze(record, INTENSITY, "pre-training", "Quebec, Canada")
    path = write_card(card, record.folder)
    loaded = hub.ModelCard.load(path)
    assert loaded.data.to_dict() == card_metadata(card)
    emissions = loaded.data.co2_eq_emissions
    assert [*emissions] == ["emissions", "source", "training_type", "geographical_location", "hardware_used"]
    assert emissions["emissions"] == pytest.approx(card.emissions_g.value, rel=1e-3)
    assert (emissions["training_type"], emissions["geographical_location"]) == ("pre-training", "Quebec, Canada")
    assert emissions["hardware_used"] == "2 x NVIDIA H100, CPU X (16 cores)"
    assert loaded.text.lstrip().startswith("# Model card")


ESTIMATED = {**COUNTER, "source": "estimated", "reason": "meter=estimate"}
NO_SENSOR = {**COUNTER, "source": "none", "covers": None, "reason": "No RAPL energy counter"}
NOT_VALID = {"energy_valid": False, "energy_reasons": [{"code": "shared_gpu", "text": "another process computed"}]}


@pytest.mark.parametrize(
    ("given", "footprint", "absent"),
    [
        ({}, {}, {"emissions": "no_intensity", "geographical_location": "no_place"}),
        ({"energy": ESTIMATED}, INTENSITY, {"energy": "estimated", "emissions": "no_energy"}),
        ({"energy": NO_SENSOR}, INTENSITY, {"energy": "No RAPL energy counter", "emissions": "no_energy"}),
        ({"verdict": NOT_VALID}, INTENSITY, {"energy": "another process computed", "emissions": "no_energy"}),
        ({"uncertainty_j": None}, INTENSITY, {"energy_uncertainty_j": "no_uncertainty"}),
    ],
)
def test_unknown_quantity_is_absent_with_its_reason(recorded, given, footprint, absent):
    record = recorded(**given)
    card = analyze(record, footprint)
    assert card.absent == {**absent, "training_type": "not_stated"}
    text = write_card(card, record.folder).read_text()
    front, body = text.removeprefix("---\n").split("---\n", 1)
    has_emissions = "emissions" not in absent
    assert ("co2_eq_emissions" in yaml.safe_load(front)) is has_emissions
    assert ("| emissions (CO2e) |" in body) is has_emissions
    assert body.count("\n- ") == len(card.absent)


def test_intensity_by_hour_is_named_without_its_folder(recorded, tmp_path):
    record = recorded(clock={"wall_s": 0.0, "monotonic_ns": 0})
    file = tmp_path / "private" / "grid.csv"
    file.parent.mkdir()
    file.write_text("utc,g_per_kwh\n1970-01-01T00:00Z,50\n")
    card = analyze(record, {"intensity": str(file)})
    assert (card.intensity.kind, card.intensity.name, card.intensity.g_per_kwh) == ("hours", "grid.csv", 50.0)
    assert "private" not in write_card(card, tmp_path).read_text()
    assert card.absent["geographical_location"] == "no_place"


def test_only_a_completed_run_has_a_card_and_a_name_stands_for_one_run(recorded, tmp_path):
    with pytest.raises(InputError, match="is not completed"):
        analyze(recorded(state="failed"), {})
    shutil.rmtree(tmp_path / "multirun/sweep")
    recorded()
    assert find_run("sweep", tmp_path / "multirun").folder.name == "0"
    write(tmp_path / "multirun/sweep", trained(1, 90.0))
    with pytest.raises(InputError, match="refers to 2 runs"):
        find_run("sweep", tmp_path / "multirun")
    with pytest.raises(InputError, match="is not found"):
        find_run("none", tmp_path / "multirun")


def test_disturbed_run_and_rehearsal_say_so(recorded):
    record = recorded(flags={"gpu_shared": "process 9 used the GPU"}, rehearsal=["power_limit=100 was not applied"])
    text = write_card(analyze(record, INTENSITY), record.folder).read_text()
    assert "process 9 used the GPU" in text
    assert "rehearsal: power_limit=100" in text
    assert read_json(record.folder / "summary.json")["state"] == "completed"
