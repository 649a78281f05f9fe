"""Exports of the footprint: Software Carbon Intensity and BoAmps, from a record."""

import json
from dataclasses import replace
from datetime import datetime

import pytest
from default_jobs import job_keys
from golden import FOLDER, assert_text
from sweeps import trained, write

from epochmeter.report.analyses.footprint import with_footprint
from epochmeter.report.output.footprint_files import write_footprint_files
from epochmeter.report.runs.load import load_run
from epochmeter.shared.atomic_files import write_json

RUN = {
    "record_id": "0123456789abcdef0123456789abcdef", "started": "2026-11-23T08:00:00+01:00",
    "training": {"torch": "2.11.0", "python": "3.13.1"}, "dataset": {"splits": {"train": 1000}},
}  # fmt: skip
HOST = {"cpu": {"model": "CPU X"}, "gpus": [{"model": "H100"}, {"model": "H100"}], "os": "Debian 13"}


@pytest.fixture
def run(tmp_path):
    """A recorded run of 2 kWh that was configured without a footprint."""
    total = {"energy_j": 7.2e6, "energy_uncertainty_j": 7.2e5, "e2e_s": 60.0, "epochs": 2.0}
    of = trained(0, 100.0, total=total, steady={"images": 1000.0})
    energy = {"source": "counter", "covers": "GPUs used", "domains": ["gpu0"], "reason": None}
    record = write(tmp_path, replace(of, job=job_keys(meter={"name": "nvml", "idle_s": 0})), energy=energy)
    windows = [{"window": "epoch", "epoch": number, "metrics": {"epoch/e2e_s": 30.0, "epoch/steps": 0,
                "epoch/samples": 1000, "epoch/energy_j": 3.6e6},
                "energy": {"opened_ns": 0, "closed_ns": 30, "term": {"energy_j": 3.6e6, "energy_uncertainty_j": 3.6e5}}}
               for number in range(2)]  # fmt: skip
    for window in windows:
        record.append(window)
    record.describe(record.job(), {**record.run(), **RUN})
    write_json(record.folder / "host.json", HOST)
    return load_run(record.folder)


def exported(run, folder, **given):
    messages = []
    written = write_footprint_files([with_footprint(run, given)], folder, messages.append)
    expected = [] if any(path.name == "sci.json" for path in written) else ["No sci.json: no run has"]
    assert [message[:23] for message in messages if "damaged" not in message] == expected
    return {path.name: json.loads(path.read_text()) for path in written}


def test_recorded_run_is_exported_as_software_carbon_intensity(run, tmp_path):
    (score,) = exported(run, tmp_path, intensity=50, pue=1.5)["sci.json"]
    assert (score["E_kwh"], score["I_g_per_kwh"], score["sci_g_per_run"]) == pytest.approx((3.0, 50.0, 150.0))
    assert (score["samples"], score["sci_g_per_sample"]) == pytest.approx((2000, 0.075))
    assert ("M_g" in score, score["includes_embodied"]) == (False, False)
    (score,) = exported(run, tmp_path, intensity=50, pue=1.5, embodied_g=30.0)["sci.json"]
    assert (score["M_g"], score["sci_g_per_run"], score["includes_embodied"]) == pytest.approx((30.0, 180.0, True))


def test_recorded_run_is_exported_in_the_form_of_boamps(run, tmp_path):
    """The file is the golden one with the date of today; all fields and fixed words are those of the form."""
    report = exported(run, tmp_path, intensity="fra")["boamps_0.json"]
    datetime.strptime(report["header"].pop("reportDatetime"), "%Y-%m-%d %H:%M:%S")
    assert_text(FOLDER / "boamps.json", f"{json.dumps(report, indent=1)}\n")
    assert "environment" not in exported(run, tmp_path, intensity=56)["boamps_0.json"]


def test_run_without_measured_energy_and_a_damaged_record_have_no_files(run, tmp_path):
    assert exported(replace(run, metrics={}, folder=None), tmp_path) == {}
    assert exported(replace(run, metrics={"total/estimated_energy_j": 3.6e6, "total/co2e_g": 1.0}), tmp_path) == {}
    (run.folder / "host.json").unlink()
    assert exported(run, tmp_path) == {}
