"""Pipelines with known times against the measurements of clock and loader, as in `benchmarks/accuracy/stalls.py`."""

import pytest
from pipeline import known_batch
from project import ROOT

from epochmeter.worker.data import timed_dataset

pytestmark = [pytest.mark.system, pytest.mark.alone]


@pytest.mark.parametrize("name", ["hidden", "balanced", "exposed (read)", "exposed (prep)"])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_measured_times_match_the_known_times(monkeypatch, name, workers):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from accuracy import stalls

    monkeypatch.setattr(stalls, "STEPS", 8)
    monkeypatch.setattr(stalls, "EPOCHS", 1)
    monkeypatch.setattr(timed_dataset, "default_collate", known_batch)
    for _ in range(8):  # other processes may interrupt a measurement
        (parts,) = stalls.measured(*stalls.CELLS[name], workers)
        if all(part.holds for part in parts):
            return
    pytest.fail(f"true times and errors of stall, reading and preprocessing per step: {parts}")
