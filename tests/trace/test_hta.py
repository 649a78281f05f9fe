"""The figures of HolisticTraceAnalysis 0.5.0 for real traces, recorded with `benchmarks/accuracy/traces.py`."""

from pathlib import Path

import pytest
from hta import figures

from epochmeter.trace.kineto import load

DATA = Path(__file__).parents[1] / "data/traces"
HTA = {
    "benchmark_result_2869224_1695835535_trace": {
        "idle": 99.49, "compute": 0.08, "non-compute": 0.43, "only computation": 16.08, "only memory": 83.92,
        "host wait, stream 7": 100, "host wait, stream 20": 100,
    },
    "kineto_resnet50_step7": {
        "idle": 15.32, "compute": 82.98, "non-compute": 1.70, "only computation": 97.99, "only memory": 2.01,
        "host wait, stream 7": 90.51,
    },
    "mi250_minitoy_train_ROCm6_2_kineto": {
        "idle": 98.33, "compute": 1.24, "non-compute": 0.43, "host wait, stream 0": 100,
    },
    "nccl_data_step5": {
        "idle": 76.71, "compute": 18.00, "non-compute": 5.29, "communication overlap": 14.31,
        "host wait, stream 7": 99.60, "host wait, stream 40": 100,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", HTA)
def test_real_traces_have_the_same_values_as_in_hta(name):
    values = figures(load(DATA / f"{name}.json.gz"))
    assert {quantity: values[quantity] for quantity in HTA[name]} == pytest.approx(HTA[name], abs=0.1)
