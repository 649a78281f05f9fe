"""Metrics of memory by kind, and the predicted largest batch."""

import json

from epochmeter.results.memory import memory_metrics
from epochmeter.shared.record import MEMORY, Record

KINDS = {"weights": 100, "gradients": 100, "optimizer": 200, "inputs": 10, "activations": 60, "temporary": 10}
MEASURED = {"peak_bytes": 480, "kinds": KINDS, "modules": {}, "outside_torch_bytes": 20, "capacity_bytes": 1227}


def test_largest_batch_fills_the_memory_that_the_fixed_kinds_leave(tmp_path):
    assert memory_metrics(Record(tmp_path), batch=8) == {}, "without memory by kind"
    (tmp_path / MEMORY).write_text(json.dumps(MEASURED))
    found = memory_metrics(Record(tmp_path), batch=8)
    assert found["memory/largest_batch"] == 80  # (1227 - 420) / 10
    assert (found["memory/peak_bytes"], found["memory/activations_bytes"]) == (480, 60)
    (tmp_path / MEMORY).write_text(json.dumps({**MEASURED, "capacity_bytes": 400}))
    assert memory_metrics(Record(tmp_path), batch=8)["memory/largest_batch"] == 0
    (tmp_path / MEMORY).write_text("{")
    assert memory_metrics(Record(tmp_path), batch=8) == {}
