"""Utilization and bounds of scripted epochs."""

import pytest
from metadata import run_info

from epochmeter.console.sentences import mfu_line
from epochmeter.results.roofline import (
    datasheet_flop_per_s,
    epoch_utilization,
    mfu_by_convention,
    roofline_metrics,
    total_peak,
    utilization_notes,
    verdict,
)

MODEL = {
    "flops_per_sample": 4e9, "recomputed_flops_per_sample": 1e9, "operator_calls": 100,
    "operator_bytes_per_sample": 1e9, "uncached_bytes_per_sample": 5e8,
}  # fmt: skip
TRAINING = {
    "peaks": {"flop_per_s": 1e12, "bytes_per_s": 1e11, "launch_s": 1e-5},
    "conventions": {"counted": 4e9, "6n": 6e9},
}
RUN = run_info(model=MODEL, training=TRAINING)
EPOCH = {"samples": 100, "steps": 10, "e2e_s": 2.0, "energy_j": 40.0, "data_stall_s": 0.1}
STEADY = {f"steady/{name}": value for name, value in EPOCH.items()}


def test_mfu_is_without_recomputation_and_hfu_with_it():
    found = epoch_utilization(EPOCH, RUN, "counted")
    assert found == {"mfu": pytest.approx(0.15), "hfu": pytest.approx(0.2), "energy_per_gflop_j": pytest.approx(0.1)}
    assert epoch_utilization(EPOCH, RUN, "6n")["mfu"] == pytest.approx(0.3)
    assert "mfu" not in epoch_utilization(EPOCH, RUN, "megatron")
    assert epoch_utilization(EPOCH, run_info(model={"parameters": 1}), "counted") == {}


def test_peaks_are_summed_over_all_devices_and_found_by_name_and_precision():
    ranks = [({}, 1), ({"ranks": 2}, 2), ({"ranks": 4, "gpus": ["a", "b", "a", "b"]}, 2), ({"gpus": [None, None]}, 2)]
    for training, count in ranks:
        assert total_peak({**TRAINING, **training}, "flop_per_s") == count * 1e12
    peaks = {"NVIDIA H100 80GB HBM3": 989.4e12, "NVIDIA H100 PCIe": 756e12, "NVIDIA H200 NVL": 835.5e12}
    unknown = "other", "NVIDIA T400", "AMD Instinct MI250X / MI250", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    peaks |= dict.fromkeys(unknown)
    assert {name: datasheet_flop_per_s({"gpu": {"name": name}}, "bf16") for name in peaks} == peaks
    assert datasheet_flop_per_s({"gpu": {"name": "NVIDIA H100 NVL"}, "gpus": ["a", "b"]}, "fp32") == 2 * 60e12
    assert datasheet_flop_per_s({"gpu": {"name": "NVIDIA L40"}}, "fp32") is datasheet_flop_per_s({}, "fp32") is None


def test_bounds_and_verdict():
    metrics = roofline_metrics(STEADY, RUN, "counted", "fp32")
    assert {name: metrics[f"roofline/{name}"] for name in ("compute_s", "memory_s", "launch_s", "data_s")} == {
        "compute_s": pytest.approx(0.4), "memory_s": pytest.approx(0.5), "launch_s": pytest.approx(0.01), "data_s": 0.1
    }  # fmt: skip
    assert metrics["roofline/flop_per_byte"] == 4
    assert metrics["steady/mfu"] == pytest.approx(0.15)
    metrics["steady/e2e_s"] = 0.8
    assert verdict(metrics) == "memory-bound"
    assert verdict({**metrics, "steady/e2e_s": 1.1}) is None, "the bound explains too little"
    assert verdict({**metrics, "roofline/data_s": 0.6}) == "data-bound"
    assert verdict({**metrics, "roofline/launch_s": 0.6}) == "launch-bound"
    assert verdict({name: value for name, value in metrics.items() if name != "roofline/memory_s"}) is None
    peak = "MFU: 15 % of the measured peak, 1.00 TFLOP/s (counted FLOPs; 15 to 30 % over all conventions)."
    mfu = mfu_by_convention(metrics, RUN, "counted")
    assert mfu_line(metrics, mfu, "counted") == f"{peak} Roofline: memory-bound."
    assert mfu_line({}, mfu_by_convention({}, RUN, "counted"), "counted") == ""


def test_flops_of_a_script_may_be_per_step_and_the_time_to_count_them_is_left_out():
    run = run_info(model={"flops_per_step": 2e10, "recomputed_flops_per_step": 1e10}, training=TRAINING)
    expected = {"mfu": pytest.approx(0.05), "hfu": pytest.approx(0.1), "energy_per_gflop_j": pytest.approx(0.2)}
    assert epoch_utilization(EPOCH, run, "counted") == expected
    assert epoch_utilization({**EPOCH, "e2e_s": 2.5, "counting_s": 0.5}, run, "counted") == expected
    assert roofline_metrics(STEADY, run, "counted", "fp32", 1.0)["steady/mfu"] == pytest.approx(0.1)
    assert epoch_utilization({"e2e_s": 1.0, "steps": 2}, RUN, "counted") == {}, "samples are not known"


def test_datasheet_of_a_script_is_that_of_the_precision_it_computes_in():
    for precision, peak in (("bf16", 989.4e12), (None, None)):
        training = {"gpu": {"name": "NVIDIA H100 80GB HBM3"}, "step": {"precision": precision}}
        metrics = roofline_metrics(STEADY, run_info(training=training), "counted", "fp32")
        assert metrics.get("roofline/datasheet_flop_per_s") == peak


def test_uncounted_flops_make_lower_bounds_and_missing_ones_have_a_reason():
    run = run_info(model=MODEL, training={**TRAINING, "step": {"not_counted": {"b::c": 1, "a::b": 2}}})
    metrics = {**STEADY, **roofline_metrics(STEADY, run, "counted", "fp32")}
    (note,) = utilization_notes(metrics, run, "counted")
    assert "lower bounds" in note
    assert "a::b, b::c" in note
    mfu = mfu_by_convention(metrics, run, "counted")
    assert mfu_line(metrics, mfu, "counted", is_lower_bound=True).startswith("MFU: at least 15 %")
    unknown = run_info(training={"step": {"reason": "too few"}})
    assert ["too few" in note for note in utilization_notes({}, unknown, "counted")] == [True]


def test_missing_mfu_has_a_reason_and_one_above_one_is_a_defect_and_not_clipped():
    run = run_info(model=MODEL, training={**TRAINING, "peaks": {**TRAINING["peaks"], "flop_per_s": 1e11}})
    metrics = roofline_metrics(STEADY, run, "counted", "fp32")
    assert metrics["steady/mfu"] == pytest.approx(1.5)
    unmeasured = run_info(training={"peaks": {"reason": "out of memory"}})
    notes = [utilization_notes(*arguments) for arguments in (
        (metrics, run, "counted"), ({}, unmeasured, "counted"), ({}, RUN, "megatron"), ({}, run_info(), "counted"),
    )]  # fmt: skip
    expected = ["MFU is 1.500, more than the measured peak allows",
                "no MFU: the device's peak could not be measured: out of memory",
                "`roofline.flops=megatron` is not defined for this model; use 6n or counted"]  # fmt: skip
    assert [len(found) for found in notes] == [1, 1, 1, 0]
    assert all(part in note for part, (note,) in zip(expected, notes[:3], strict=True))
