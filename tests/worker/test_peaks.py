"""Peaks of the CPU, and their cache."""

import json
from itertools import chain, repeat
from unittest.mock import Mock

import pytest
import torch

from epochmeter.worker import peaks
from epochmeter.worker.peaks import device_peaks, measure_peaks

CPU = torch.device("cpu")
PEAKS = {"flop_per_s": 1e11, "bytes_per_s": 1e10, "launch_s": 1e-6}


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """The precisions that were measured; the cache is empty."""
    calls = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(peaks, "measure_peaks", lambda device, precision: calls.append(precision) or dict(PEAKS))
    return calls


def get(mode="cached", precision="fp32", run=None, others=()):
    """The peaks, if `others` disturb as many measurements."""
    job, texts = {"roofline": {"peaks": mode}, "precision": precision}, chain(["before"], others, repeat(""))
    return device_peaks(job, run or {}, {"cpu": "some CPU", "governors": ["performance"]}, CPU, texts.__next__)


def test_peaks_are_measured_without_changing_the_random_state(monkeypatch):
    monkeypatch.setattr(peaks, "LONG_CALL_S", 0.001)
    monkeypatch.setattr(peaks._call_s, "__defaults__", (5, 0.002))
    monkeypatch.setitem(peaks.COPY_BYTES, "cpu", 1 << 22)
    state = torch.random.get_rng_state()
    found = measure_peaks(CPU, "fp32")
    assert found.keys() == PEAKS.keys()
    assert min(found["flop_per_s"], found["bytes_per_s"]) > 1e8
    assert 1e-8 < found["launch_s"] < 1e-2
    assert torch.equal(torch.random.get_rng_state(), state)


def test_peaks_are_cached_per_precision_and_settings(measured):
    first = get()
    assert get() == first
    assert measured == ["fp32"]
    get(precision="bf16")
    get(run={"applied": {"power_limit": "100 W"}})
    assert get("again").items() >= PEAKS.items()
    assert get("none") == {}
    assert measured == ["fp32", "bf16", "fp32", "fp32"]


def test_damaged_cache_is_measured_again_and_a_failure_has_a_reason(measured, tmp_path, monkeypatch):
    get()
    (path,) = (tmp_path / "epochmeter").iterdir()
    path.write_text("{")
    get()
    assert json.loads(path.read_text()).items() >= PEAKS.items()
    monkeypatch.setattr(peaks, "measure_peaks", Mock(side_effect=RuntimeError("out of memory\nmore")))
    assert get("again") == {"reason": "out of memory"}


def test_disturbed_peaks_are_measured_again_and_if_all_are_absent_and_not_cached(measured, tmp_path):
    busy = "other processes used 49 % of the processor time"
    assert get(others=[busy] * 3) == {"reason": f"in each of 3 attempts, {busy}"}
    assert (len(measured), [*tmp_path.iterdir()]) == (3, [])
    assert get(others=[busy] * 2).items() >= PEAKS.items()
    assert len(measured) == 6
    assert get(others=[busy] * 3).items() >= PEAKS.items(), "from the cache"
    assert len(measured) == 6
