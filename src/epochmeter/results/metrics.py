"""The names of all metrics, and how epochs are aggregated to `steady/`; docs/metrics.md has units and meanings.

A metric that could not be measured is absent: it is never 0 and never NaN.
"""

MEAN = """
    e2e_s data_stall_s data_stall_model_s host_wait_s copy_s compute_s overhead_s clock_residual_s
    loader_start_s loader_stop_s loader_read_s loader_preprocess_s loader_decode_s clock_waits
    steps samples images tokens skipped_samples
    energy_j energy_<domain>_j energy_uncertainty_j machine_energy_j net_energy_j estimated_energy_j
    stall_energy_j copy_energy_j compute_energy_j overhead_energy_j power_samples co2e_g cost
    read_bytes page_cache_residency_before page_cache_residency_after
    network_received_bytes network_sent_bytes
    cpu_utilization other_cpu_fraction gpu_utilization gpu_clock_mean_hz
    power_capped_fraction thermal_throttled_fraction
    gpu_sm_active_fraction gpu_sm_occupancy_fraction gpu_tensor_active_fraction gpu_fp64_active_fraction
    gpu_fp32_active_fraction gpu_fp16_active_fraction gpu_dram_active_fraction
    gpu_pcie_sent_bytes_per_s gpu_pcie_received_bytes_per_s gpu_nvlink_sent_bytes_per_s gpu_nvlink_received_bytes_per_s
    gpu_gfx_active_fraction gpu_xgmi_sent_bytes_per_s gpu_xgmi_received_bytes_per_s
    learning_rate train_loss train_accuracy
"""
RATIO_OF_SUMS = """
    samples_per_s images_per_s tokens_per_s energy_per_sample_j energy_per_gflop_j power_mean_w read_iops
    read_bytes_per_s mfu hfu
"""
POOLED = "step_p50_s step_p95_s step_p99_s"
"""Percentiles of the steps of all steady epochs."""
MAXIMUM = "power_peak_w power_gap_max_s temperature_max_c ram_peak_bytes gpu_memory_peak_bytes"

EPOCH = {
    **dict.fromkeys(MEAN.split(), "mean"),
    **dict.fromkeys(RATIO_OF_SUMS.split(), "ratio of sums"),
    **dict.fromkeys(POOLED.split(), "of all steps"),
    **dict.fromkeys(MAXIMUM.split(), "maximum"),
}
"""Name of a per-epoch metric -> aggregation of the steady epochs. Each also has a `steady/` and a `std/` value."""

OTHERS = {
    "rank_max": "<part>_s",
    "val": "e2e_s loss accuracy skipped_samples read_bytes energy_j net_energy_j estimated_energy_j",
    "<window>": "e2e_s energy_j net_energy_j estimated_energy_j",
    "total": """
        e2e_s energy_j energy_uncertainty_j estimated_energy_j net_energy_j machine_energy_j read_bytes edp_js
        idle_power_w idle_power_after_w power_limit_w power_limit_max_w
        epochs time_to_target_s energy_to_target_j estimated_energy_to_target_j epochs_to_target
        co2e_g co2e_uncertainty_g co2e_to_target_g cost cost_uncertainty cost_to_target
        intensity_g_per_kwh intensity_min_g_per_kwh intensity_max_g_per_kwh
    """,
    "forecast": "e2e_s e2e_uncertainty_s energy_j energy_uncertainty_j cost cost_uncertainty",
    "model": """
        parameters flops_per_sample recomputed_flops_per_sample operator_calls operator_bytes_per_sample
        uncached_bytes_per_sample weight_bytes gradient_bytes optimizer_bytes activation_bytes
    """,
    "roofline": """
        peak_flop_per_s peak_bytes_per_s datasheet_flop_per_s flop_per_byte compute_s memory_s launch_s data_s
    """,
    "memory": """
        peak_bytes weights_bytes gradients_bytes optimizer_bytes inputs_bytes activations_bytes temporary_bytes
        other_bytes fragmentation_bytes outside_torch_bytes reserved_bytes capacity_bytes largest_batch
    """,
    "power": "total_w",
    "step": "train_loss",
    "trace": """
        steps traced_step_s untraced_step_s explained_fraction
        gpu_busy_fraction gpu_busy_traced_fraction idle_<cause>_fraction
        copy_overlap_fraction communication_fraction communication_overlap_fraction
        sm_efficiency achieved_occupancy tensor_core_fraction precision_<precision>_fraction pipe_<pipe>_fraction
        kernels_per_step kernel_mean_s launch_latency_s operators_per_step host_busy_fraction
    """,
    "throughput": "samples_per_s samples steps e2e_s step_mean_s",
}
METRICS = {f"epoch/{name}" for name in EPOCH} | {
    f"{section}/{name}" for section, names in OTHERS.items() for name in names.split()
}
"""Full names, without `steady/` and `std/`."""
