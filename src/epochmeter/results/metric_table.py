"""The table of all metrics and gauges, one row each. `results/metrics.py` finds rows; a test compares the docs.

A metric that could not be measured is absent: it is never 0 and never NaN.
"""

from typing import Literal, NamedTuple

Place = Literal["epochs", "line", "sweep", "report", "page", "watch"]
"""A place that shows some of the metrics, in the order of the table.

epochs  columns of the terminal's table of epochs
line    an epoch's line in a file
sweep   columns of the terminal's table of a sweep; of the metrics in `epoch/`, their values in `steady/`
report  columns of the report's table of runs, likewise
page    figures of a run on the live view's page
watch   gauges of a run in the live view in the terminal
"""


class Metric(NamedTuple):
    """A metric, or a gauge: a column of `power.csv` (section `power/`) or of `gauges.csv` (`system/`).

    Attributes:
        name: Section and short name; `<domain>` and the like stand for a varying part of it, `<N>` for a number. A
            metric in `epoch/` also has a value in `steady/` and in `std/`.
        unit: In SI, or `currency`; `1` for counts, `0..1` for fractions.
        meaning: The description in docs/metrics.md, in Markdown.
        steps: Aggregation of the steps of an epoch: `sum`, `mean` (of samples), or a percentile such as `p95`. Empty if
            the metric is measured for the whole epoch, or computed from others.
        epochs: Aggregation of the steady epochs to `steady/`; `of the means` is computed from means as in one epoch.
            A quality of the model has the value of the `last` epoch, and none in `std/`: a mean over epochs would be
            that of no model.
        ranks: Aggregation of the ranks. `sum of nodes`: each node measures it. Empty: the first node measures it, or it
            is computed from others.
        better: Which values are better; empty if neither.
        windows: Sections of windows other than epochs that have the metric as well.
        title: Name for people; by default the words of the name. Gauges with the same title share a chart.
        short: Title of a column, and of a gauge in its chart; by default `title`. Both may have the varying part.
        decimals: Digits after the point in tables of the terminal and of a gauge, for fractions in percent; None: three
            significant digits.
        shown: The places that show it, of those that do not show all metrics.
        openmetrics: Name of its family at `/metrics`, with the unit at its end; empty if it has none.
    """

    name: str
    unit: str
    meaning: str
    steps: str = ""
    epochs: Literal["", "mean", "ratio of sums", "of the means", "of all steps", "maximum", "last"] = ""
    ranks: Literal["", "mean", "sum", "equal", "maximum", "sum of nodes"] = ""
    better: Literal["", "lower", "higher"] = ""
    windows: tuple[str, ...] = ()
    title: str = ""
    short: str = ""
    decimals: int | None = None
    shown: tuple[Place, ...] = ()
    openmetrics: str = ""

    @property
    def section(self) -> str:
        return self.name.partition("/")[0]

    @property
    def names(self) -> tuple[str, ...]:
        """The name in each kind of window that has the metric."""
        return (self.name, *(self.name.replace(self.section, window, 1) for window in self.windows))

    def name_in(self, section: str) -> str:
        """Return the name of a metric of epochs in `steady` or `std`; other metrics have one name."""
        return self.name.replace("epoch", section, 1) if self.section == "epoch" else self.name

    @property
    def symbol(self) -> str:
        """The unit next to a value: `s`, `%`, `samples/s`; empty for counts and currencies."""
        counted, per_s, _ = self.name.rpartition("/")[2].partition("_per_s")
        return SYMBOLS.get(self.unit, self.unit).format(counted.replace("_", " ") if per_s else "")


SYMBOLS = {"1": "", "0..1": "%", "1/s": "{}/s", "C": "°C", "currency": ""}
"""Unit -> symbol, if it is another text; `{}` is what `_per_s` in the name counts."""
EVERY = ("val", "<window>")
"""Windows other than epochs: evaluations, and windows that a script has named."""

# fmt: off
TABLE = (
    # Windows: epochs, and with `windows` others. Values over several epochs are `steady/` and `std/`.
    Metric("epoch/e2e_s", "s",
           "end-to-end wall time of the window; the device is synchronized before both ends of an epoch and of an "
           "evaluation",
           epochs="mean", ranks="mean", better="lower", windows=EVERY, title="time per epoch", short="time",
           decimals=3,
           shown=("epochs", "line", "sweep", "report", "page"), openmetrics="epoch_seconds"),
    Metric("epoch/data_stall_s", "s",
           "data stall: device idle time explained by waiting for data; per step min(idle gap, host wait)",
           steps="sum", epochs="mean", ranks="mean", better="lower", decimals=3,
           shown=("epochs", "sweep", "report")),
    Metric("epoch/prep_stall_s", "s",
           "part of the data stall: waiting for preprocessing. The data stall is divided as `loader_preprocess_s` to "
           "`loader_read_s`; all of it is prep stall if no storage device is read",
           epochs="of the means", better="lower", decimals=3,
           openmetrics="epoch_prep_stall_seconds"),
    Metric("epoch/fetch_stall_s", "s",
           "part of the data stall: waiting for storage; absent if no storage device is read, or if decoding was not "
           "timed",
           epochs="of the means", better="lower", decimals=3,
           openmetrics="epoch_fetch_stall_seconds"),
    Metric("epoch/data_stall_fraction", "0..1", "data_stall_s / e2e_s",
           epochs="ratio of sums", better="lower", title="data stall", short="stall", decimals=1,
           shown=("line", "sweep")),
    Metric("epoch/prep_stall_fraction", "0..1", "prep_stall_s / e2e_s",
           epochs="of the means", better="lower", decimals=1,
           shown=("page",)),
    Metric("epoch/fetch_stall_fraction", "0..1", "fetch_stall_s / e2e_s",
           epochs="of the means", better="lower", decimals=1,
           shown=("page",)),
    Metric("epoch/data_stall_model_s", "s",
           "data stall by [the model in the literature](measuring.md#timers-in-dataloader-workers): sum over steps of "
           "max(read + preprocess - compute, 0)",
           steps="sum", epochs="mean", ranks="mean", better="lower"),
    Metric("epoch/host_wait_s", "s", "time that the host waits for batches, including waits overlapped by device work",
           steps="sum", epochs="mean", ranks="mean", better="lower"),
    Metric("epoch/copy_s", "s", "host-to-device copy time on the device's timeline",
           steps="sum", epochs="mean", ranks="mean", better="lower", decimals=3,
           shown=("epochs", "report")),
    Metric("epoch/compute_s", "s",
           "compute time on the device's timeline: kernel launch, forward, loss, backward, optimizer step",
           steps="sum", epochs="mean", ranks="mean", better="lower", decimals=3,
           shown=("epochs", "sweep", "report")),
    Metric("epoch/preparation_s", "s",
           "part of compute_s, [whose parts](measuring.md#phases-of-compute) add up to it: from the arrival of a batch "
           "to the first forward pass; on a GPU, a script's copy of the batch",
           steps="sum", epochs="mean", ranks="mean", better="lower"),
    Metric("epoch/forward_s", "s", "part of compute_s: forward passes, calls of modules with parameters",
           steps="sum", epochs="mean", ranks="mean", better="lower"),
    Metric("epoch/loss_s", "s", "part of compute_s: from the end of a forward pass to the backward pass after it",
           steps="sum", epochs="mean", ranks="mean", better="lower"),
    Metric("epoch/backward_s", "s", "part of compute_s: backward passes, with recomputed activations and communication",
           steps="sum", epochs="mean", ranks="mean", better="lower"),
    Metric("epoch/optimizer_s", "s", "part of compute_s: optimizer steps",
           steps="sum", epochs="mean", ranks="mean", better="lower"),
    Metric("epoch/other_compute_s", "s", "part of compute_s: the rest, and phases that are not known",
           steps="sum", epochs="mean", ranks="mean", better="lower"),
    Metric("epoch/timed_steps", "1",
           "number of steps whose phases were timed, from which those of the epoch are [estimated]"
           "(measuring.md#phases-of-compute), since steps are short; absent if all were timed",
           epochs="mean", ranks="mean"),
    Metric("epoch/overhead_s", "s",
           "other device idle time: gaps between steps that waiting for data does not explain, and the end of the "
           "epoch",
           steps="sum", epochs="mean", ranks="mean", better="lower", decimals=3,
           shown=("epochs", "report")),
    Metric("epoch/communication_s", "s",
           "part of compute_s and overhead_s: [exposed communication](ranks.md#waits-for-other-ranks), the time in "
           "which a rank waits for collectives; only with several ranks",
           steps="sum", epochs="mean", ranks="mean", better="lower", title="exposed communication",
           short="communication", decimals=3),
    Metric("epoch/rank_wait_s", "s",
           "part of communication_s: waits for slower ranks. Per step, it is what exceeds the shortest communication "
           "of all ranks",
           steps="sum", epochs="mean", ranks="mean", better="lower", title="waiting for slower ranks",
           short="rank wait", decimals=3),
    Metric("epoch/own_s", "s", "e2e_s - communication_s: what a rank did itself",
           epochs="mean", ranks="mean", better="lower", title="own time of a rank", short="own time", decimals=3),
    Metric("epoch/clock_residual_s", "s",
           "e2e_s minus data stall, copy, compute and overhead: the disagreement of host clock and device timeline",
           epochs="mean", ranks="mean"),
    Metric("epoch/loader_start_s", "s", "part of the data stall: start of the DataLoader and wait for its first batch",
           epochs="mean", ranks="mean", better="lower"),
    Metric("epoch/loader_stop_s", "s", "part of the overhead: end of the DataLoader's pass",
           epochs="mean", ranks="mean", better="lower"),
    Metric("epoch/save_s", "s", "part of a script's overhead: calls of `torch.save` that take 1 ms or more",
           epochs="mean", ranks="mean", better="lower"),
    Metric("epoch/collection_s", "s",
           "part of a script's overhead: runs of the garbage collector that take 1 ms or more",
           epochs="mean", ranks="mean", better="lower"),
    Metric("epoch/counting_s", "s",
           "part of a script's compute and overhead: by how much longer than the median step that step was in which "
           "its FLOPs were counted; only in the epoch of that step",
           epochs="mean", ranks="mean"),
    Metric("epoch/loader_read_s", "s",
           "time that DataLoader workers spent reading samples, summed over workers; of a script, "
           "[waits of the dataset](stalls.md#scripts)",
           epochs="mean", ranks="sum", better="lower"),
    Metric("epoch/loader_preprocess_s", "s",
           "time that DataLoader workers spent decoding, transforming and collating samples, summed over workers; of a "
           "script, the rest of the time to load batches",
           epochs="mean", ranks="sum", better="lower"),
    Metric("epoch/loader_decode_s", "s",
           "part of loader_preprocess_s: decoding; absent if the dataset decodes while reading",
           epochs="mean", ranks="sum", better="lower"),
    Metric("epoch/loader_fetch_s", "s",
           "time in which a script's dataset fetched the samples of the batches, summed over workers; without workers, "
           "only some batches of less than 10 ms are timed, and the sum is scaled",
           epochs="mean", ranks="sum", better="lower"),
    Metric("epoch/loader_collate_s", "s", "time to collate these samples, summed over workers",
           epochs="mean", ranks="sum", better="lower"),
    Metric("epoch/loader_transform_s", "s",
           "part of loader_fetch_s: the slowest transform of a script's dataset, from one of 16 batches per worker; "
           "`loading` in the record has all by name",
           epochs="mean", ranks="sum", better="lower"),
    Metric("epoch/loader_queue_s", "s",
           "time from when a batch was ready in a script's worker until the training process got it, summed over "
           "batches",
           epochs="mean", ranks="sum"),
    Metric("epoch/loader_blocked_s", "s",
           "part of host_wait_s: waits for a batch of a script's worker while a later batch was ready, since batches "
           "are delivered in order",
           epochs="mean", ranks="mean", better="lower"),
    Metric("epoch/clock_waits", "1",
           "number of waits of the host for an old timestamp because too many were pending; absent on a CPU",
           epochs="mean", ranks="sum"),
    Metric("epoch/steps", "1", "number of training steps, including steps that the fp16 gradient scaler skipped",
           epochs="mean", ranks="equal"),
    Metric("epoch/samples", "1", "number of samples trained on", epochs="mean", ranks="sum"),
    Metric("epoch/images", "1", "number of images trained on; only for tasks on images", epochs="mean", ranks="sum"),
    Metric("epoch/tokens", "1",
           "number of target tokens trained on, without padding; only for tasks on tokens. Of a script: elements of "
           "`input_ids` that the `attention_mask` does not mask",
           epochs="mean", ranks="sum"),
    Metric("epoch/padding_tokens", "1", "number of tokens that the `attention_mask` of a script's batches masks",
           epochs="mean", ranks="sum", better="lower"),
    Metric("epoch/skipped_samples", "1", "number of unreadable samples that were skipped (dataset.on_bad=skip)",
           epochs="mean", ranks="sum", better="lower", windows=("val",)),
    Metric("epoch/samples_per_s", "1/s", "throughput: samples / e2e_s",
           epochs="ratio of sums", better="higher", title="throughput", short="samples", decimals=0,
           shown=("sweep", "report", "page")),
    Metric("epoch/images_per_s", "1/s", "throughput: images / e2e_s",
           epochs="ratio of sums", better="higher", title="throughput in images", short="images", decimals=0),
    Metric("epoch/tokens_per_s", "1/s", "throughput: tokens / e2e_s",
           epochs="ratio of sums", better="higher", title="throughput in tokens", short="tokens", decimals=0,
           shown=("report",)),
    Metric("epoch/mfu", "0..1",
           "model FLOPs utilization: FLOPs of the convention `roofline.flops` / e2e_s / measured peak of all devices",
           epochs="ratio of sums", better="higher", title="MFU",
           shown=("report",)),
    Metric("epoch/hfu", "0..1",
           "hardware FLOPs utilization: the same with all executed FLOPs, including recomputed activations",
           epochs="ratio of sums", better="higher", title="HFU"),
    Metric("epoch/step_p50_s", "s", "median step time, from the end of one step to the end of the next",
           steps="p50", epochs="of all steps", better="lower"),
    Metric("epoch/step_p95_s", "s", "95th percentile of the step time",
           steps="p95", epochs="of all steps", better="lower"),
    Metric("epoch/step_p99_s", "s", "99th percentile of the step time",
           steps="p99", epochs="of all steps", better="lower"),
    Metric("epoch/energy_j", "J", "gross energy: of the module (Jetson), of the GPUs used, or of CPU packages and DRAM",
           epochs="mean", ranks="sum of nodes", better="lower", windows=EVERY, title="energy per epoch", short="energy",
           decimals=1,
           shown=("epochs", "line", "sweep", "report", "page"), openmetrics="epoch_joules"),
    Metric("epoch/energy_<domain>_j", "J",
           "energy of one domain, such as VDD_IN, gpu0, cpu0 or dram0; gpu0_sampled, core0, uncore0 and psys are "
           "[cross-checks](energy.md#cross-checks)",
           epochs="mean", better="lower"),
    Metric("steady/energy_epochs", "1", "number of steady epochs with an energy, if some have none"),
    Metric("epoch/energy_uncertainty_j", "J", "95 % confidence interval of energy_j (plus or minus)",
           epochs="mean", ranks="sum of nodes", windows=EVERY),
    Metric("epoch/machine_energy_j", "J", "energy of GPUs and CPU together, if both are measured (meter=sum)",
           epochs="mean", ranks="sum of nodes", better="lower"),
    Metric("epoch/net_energy_j", "J",
           "net energy: energy_j minus idle power x duration of the energy window; may be negative",
           epochs="mean", ranks="sum of nodes", better="lower", windows=EVERY),
    Metric("epoch/net_energy_uncertainty_j", "J",
           "95 % confidence interval of net_energy_j (plus or minus), from those of energy_j and of the idle power",
           epochs="mean", ranks="sum of nodes", windows=EVERY),
    Metric("epoch/energy_per_sample_j", "J", "energy_j / samples", epochs="ratio of sums", better="lower"),
    Metric("epoch/stall_energy_j", "J", "energy used during data stalls; the four phases sum to energy_j",
           epochs="mean", better="lower"),
    Metric("epoch/copy_energy_j", "J", "energy used during host-to-device copies", epochs="mean", better="lower"),
    Metric("epoch/compute_energy_j", "J", "energy used during compute", epochs="mean", better="lower"),
    Metric("epoch/overhead_energy_j", "J", "energy used during overhead", epochs="mean", better="lower"),
    *(
        Metric(f"epoch/{phase}_energy_j", "J",
               f"part of compute_energy_j, in a script: energy used during {phase}_s", epochs="mean", better="lower")
        for phase in ("preparation", "forward", "loss", "backward", "optimizer", "other_compute")
    ),
    Metric("epoch/estimated_energy_j", "J", "estimated energy, if the machine cannot measure it",
           epochs="mean", ranks="sum of nodes", better="lower", windows=EVERY, title="energy per epoch, estimated",
           short="estimated energy", decimals=1,
           shown=("epochs", "sweep", "report", "page")),
    Metric("epoch/energy_per_gflop_j", "J", "energy_j / executed GFLOP (10^9 floating-point operations)",
           epochs="ratio of sums", better="lower"),
    Metric("epoch/co2e_g", "g",
           "carbon footprint of energy_j in grams of CO2e; only with `footprint.intensity` "
           "([footprint.md](footprint.md))",
           epochs="mean", better="lower", title="CO2e per epoch", short="CO2e",
           shown=("report",)),
    Metric("epoch/cost", "currency", "cost of energy_j in `footprint.currency`; only with `footprint.price`",
           epochs="mean", better="lower", title="cost per epoch", short="cost",
           shown=("report",)),
    Metric("epoch/power_mean_w", "W", "mean power: energy_j / duration of the energy window",
           epochs="ratio of sums", ranks="sum of nodes", title="mean power", short="power", decimals=1,
           shown=("report", "page")),
    Metric("epoch/power_peak_w", "W", "largest sample of the total power", epochs="maximum"),
    Metric("epoch/power_samples", "1", "number of samples of the total power", epochs="mean"),
    Metric("epoch/power_gap_max_s", "s", "longest time between two samples of the total power", epochs="maximum"),
    Metric("epoch/read_bytes", "B", "data read from the dataset's block device, by any process",
           epochs="mean", windows=("val",)),
    Metric("epoch/read_iops", "1/s", "completed read operations of the dataset's block device / e2e_s",
           epochs="ratio of sums"),
    Metric("epoch/read_bytes_per_s", "B/s", "read_bytes / e2e_s", epochs="ratio of sums"),
    Metric("epoch/page_cache_residency_before", "0..1",
           "page-cache residency before the epoch: cached fraction of the training files' pages",
           epochs="mean"),
    Metric("epoch/page_cache_residency_after", "0..1", "page-cache residency after the epoch", epochs="mean"),
    Metric("epoch/network_received_bytes", "B",
           "data received by the machine's network interfaces except loopback, by any process; RDMA is not included",
           epochs="mean"),
    Metric("epoch/network_sent_bytes", "B", "data sent by the same interfaces", epochs="mean"),
    Metric("epoch/cpu_utilization", "0..1", "fraction of time in which the CPU cores were busy, mean over all cores",
           epochs="mean", title="CPU utilization",
           shown=("page",)),
    Metric("epoch/other_cpu_fraction", "0..1",
           "fraction of the time of all cores that processes outside of the run used, or other virtual machines on "
           "the same host; absent for epochs shorter than 50 clock ticks of all cores (0.25 s on two cores)",
           epochs="mean", better="lower"),
    Metric("epoch/run_queue_wait_fraction", "0..1",
           "of the time in which threads of the run ran or were ready to run, the fraction in which they waited for a "
           "core; sleeping threads count for nothing, and the waits of threads that ended within the epoch are not "
           "included; absent for such short epochs, and if the kernel does not count waits",
           epochs="mean", better="lower", title="waiting for a core"),
    Metric("epoch/runnable_threads", "1",
           "mean number of threads of the run that ran or were ready to run; above the number of usable cores, the run "
           "[oversubscribes](troubleshooting.md#oversubscribed-more-threads-than-cores) them",
           epochs="mean"),
    Metric("epoch/gpu_utilization", "0..1", "fraction of time in which the GPU was busy, as reported by its driver",
           epochs="mean", title="GPU utilization",
           shown=("page",)),
    Metric("epoch/gpu_clock_mean_hz", "Hz", "mean clock frequency of the GPU", epochs="mean", title="GPU clock",
           shown=("page",)),
    Metric("epoch/gpu_sm_active_fraction", "0..1",
           "fraction of streaming multiprocessors (SM) with work, mean over time and GPUs (NVML GPM, Hopper and "
           "newer)",
           epochs="mean"),
    Metric("epoch/gpu_sm_occupancy_fraction", "0..1", "active warps as a fraction of the most that the SMs can hold",
           epochs="mean"),
    Metric("epoch/gpu_tensor_active_fraction", "0..1", "fraction of time in which the tensor cores were busy",
           epochs="mean"),
    Metric("epoch/gpu_fp64_active_fraction", "0..1", "the same for the FP64 pipe, without tensor cores", epochs="mean"),
    Metric("epoch/gpu_fp32_active_fraction", "0..1", "the same for the FP32 pipe, without tensor cores", epochs="mean"),
    Metric("epoch/gpu_fp16_active_fraction", "0..1", "the same for the FP16 pipe, without tensor cores", epochs="mean"),
    Metric("epoch/gpu_dram_active_fraction", "0..1",
           "used fraction of the bandwidth of the GPU's memory (NVML GPM; on AMD Instinct amdsmi, on other AMD GPUs "
           "sampled twice per second)",
           epochs="mean"),
    Metric("epoch/gpu_pcie_sent_bytes_per_s", "B/s", "data sent by the GPUs over PCIe, sum over GPUs", epochs="mean"),
    Metric("epoch/gpu_pcie_received_bytes_per_s", "B/s", "data received by the GPUs over PCIe", epochs="mean"),
    Metric("epoch/gpu_nvlink_sent_bytes_per_s", "B/s", "data sent by the GPUs over NVLink", epochs="mean"),
    Metric("epoch/gpu_nvlink_received_bytes_per_s", "B/s", "data received by the GPUs over NVLink", epochs="mean"),
    Metric("epoch/gpu_gfx_active_fraction", "0..1",
           "fraction of time in which the GPU computed, as its firmware accumulates it (amdsmi, AMD Instinct)",
           epochs="mean"),
    Metric("epoch/gpu_xgmi_sent_bytes_per_s", "B/s",
           "data sent by the GPUs over XGMI links to other GPUs, sum over GPUs",
           epochs="mean"),
    Metric("epoch/gpu_xgmi_received_bytes_per_s", "B/s", "data received by the GPUs over XGMI links", epochs="mean"),
    Metric("epoch/power_capped_fraction", "0..1",
           "fraction of time in which a power limit or over-current lowered the device's clocks: "
           "[causes](energy.md#power-capped-or-throttled-devices)",
           epochs="mean", better="lower", title="power-capped",
           shown=("page",)),
    Metric("epoch/thermal_throttled_fraction", "0..1", "fraction of time in which heat lowered the device's clocks",
           epochs="mean", better="lower", title="thermally throttled",
           shown=("page",)),
    Metric("epoch/temperature_max_c", "C", "temperature of the device's hottest sensor",
           epochs="maximum", better="lower", title="highest temperature",
           shown=("page",)),
    Metric("epoch/ram_peak_bytes", "B", "peak memory in use on the machine", epochs="maximum", better="lower"),
    Metric("epoch/process_memory_bytes", "B",
           "anonymous memory of the training process, or the script, with its DataLoader workers, at the end of the "
           "epoch",
           epochs="maximum", better="lower", title="memory of the processes"),
    Metric("epoch/gpu_memory_peak_bytes", "B", "peak memory allocated on the accelerator by PyTorch",
           epochs="maximum", ranks="maximum", better="lower"),
    Metric("epoch/learning_rate", "1", "learning rate of the optimizer's first parameter group",
           epochs="mean", ranks="equal"),
    Metric("epoch/train_loss", "1", "training loss, mean over the epoch's samples; includes auxiliary losses",
           steps="mean", epochs="last", ranks="mean", better="lower", title="training loss", short="train loss",
           decimals=4,
           shown=("epochs", "line", "report", "page")),
    Metric("epoch/train_accuracy", "0..1", "top-1 accuracy on the training samples, measured while training",
           steps="mean", epochs="last", ranks="mean", better="higher", title="training accuracy", short="train acc",
           decimals=1,
           shown=("epochs", "line", "report", "page")),
    Metric("rank_max/<part>_s", "s", "largest value over ranks of a time whose mean over ranks is epoch/<part>_s",
           better="lower"),
    Metric("straggler/excess_s", "s",
           "by how much the own time per step of [the straggler](ranks.md#stragglers) is longer than that of the next "
           "slowest rank; absent without a straggler, as the following",
           better="lower"),
    Metric("straggler/excess_uncertainty_s", "s", "95 % confidence interval of it (plus or minus)"),
    Metric("straggler/saving_s", "s",
           "mean over steps of what the straggler is slower than all other ranks: what the step would be shorter",
           better="lower"),
    Metric("straggler/slowest_fraction", "0..1", "fraction of the steps in which the straggler is the slowest rank"),
    Metric("straggler/steps", "1", "number of these steps, after the warm-up"),
    Metric("straggler/<part>_s", "s",
           "by how much its data stall, compute or overhead per step is longer than the median of the other ranks; "
           "only of the parts that make it slow",
           better="lower"),
    Metric("val/loss", "1", "validation loss, mean over the validation samples",
           better="lower", ranks="mean", title="validation loss", short="val loss", decimals=4,
           shown=("epochs", "report")),
    Metric("val/accuracy", "0..1", "top-1 accuracy on the validation samples",
           better="higher", ranks="mean", title="validation accuracy", short="val acc", decimals=1,
           shown=("epochs", "report")),
    # Runs.
    Metric("total/e2e_s", "s", "sum over all training and evaluation windows, including warm-up", better="lower"),
    Metric("total/energy_j", "J",
           "gross energy of all training and evaluation windows, including those too short for an energy of their own",
           better="lower", title="energy of the run",
           shown=("page",), openmetrics="energy_joules"),
    Metric("total/energy_uncertainty_j", "J", "95 % confidence interval of total/energy_j (plus or minus)"),
    Metric("total/estimated_energy_j", "J",
           "estimated energy of all training and evaluation windows, if the machine cannot measure it",
           better="lower", title="energy of the run, estimated",
           shown=("page",), openmetrics="estimated_energy_joules"),
    Metric("total/net_energy_j", "J", "net energy of these windows", better="lower"),
    Metric("total/net_energy_uncertainty_j", "J",
           "95 % confidence interval of total/net_energy_j (plus or minus); includes the [change of the idle "
           "power](energy.md#idle-power)"),
    Metric("total/machine_energy_j", "J", "energy of GPUs and CPU together in these windows (meter=sum)",
           better="lower"),
    Metric("total/read_bytes", "B", "data read from the dataset's block device in these windows"),
    Metric("total/edp_js", "Js", "energy-delay product: total/energy_j x total/e2e_s", better="lower"),
    Metric("total/idle_power_w", "W", "idle power before training, with the run's device settings applied"),
    Metric("total/idle_power_uncertainty_w", "W", "95 % confidence interval of total/idle_power_w (plus or minus)"),
    Metric("total/idle_power_after_w", "W", "idle power after training"),
    Metric("total/idle_power_after_uncertainty_w", "W",
           "95 % confidence interval of total/idle_power_after_w (plus or minus)"),
    Metric("total/power_limit_w", "W", "applied power limit, if the device has limits in watts"),
    Metric("total/power_limit_max_w", "W",
           "largest power limit that the device accepts; only for runs with power_limit="),
    Metric("total/power_limit_fraction", "0..1",
           "mean power of the GPUs used in the mean epoch, as a fraction of their power limit: the applied one, or "
           "else the highest one", title="power of its limit"),
    Metric("total/epochs", "1", "number of completed training epochs"),
    Metric("total/bleu", "1",
           "BLEU, 0 to 100, of the trained model's translations of the validation pairs (task.bleu=true)",
           better="higher", title="BLEU"),
    Metric("total/memory_growth_bytes", "B",
           "growth of epoch/process_memory_bytes per epoch after the warm-up; only if it is significant and goes on",
           better="lower"),
    Metric("total/memory_growth_uncertainty_bytes", "B", "95 % confidence interval of it (plus or minus)"),
    Metric("total/gpu_memory_growth_bytes", "B", "the same for epoch/gpu_memory_peak_bytes", better="lower"),
    Metric("total/gpu_memory_growth_uncertainty_bytes", "B", "95 % confidence interval of it (plus or minus)"),
    Metric("total/time_to_target_s", "s",
           "time to accuracy (or loss): total/e2e_s up to the window that reached the target; absent if none did",
           better="lower", title="time to the target", short="time to target", decimals=3,
           shown=("sweep", "report")),
    Metric("total/energy_to_target_j", "J", "energy to accuracy (or loss): gross energy of the same windows",
           better="lower", title="energy to the target", short="energy to target", decimals=1,
           shown=("sweep", "report")),
    Metric("total/estimated_energy_to_target_j", "J", "the same, estimated (meter=estimate)",
           better="lower", title="energy to the target, estimated", short="estimated energy to target", decimals=1,
           shown=("sweep", "report")),
    Metric("total/co2e_g", "g", "carbon footprint of total/energy_j in grams of CO2e; only with `footprint.intensity`",
           better="lower", title="CO2e of the run", short="CO2e of run",
           shown=("report",)),
    Metric("total/co2e_uncertainty_g", "g",
           "95 % confidence interval of total/co2e_g (plus or minus), from total/energy_uncertainty_j"),
    Metric("total/co2e_to_target_g", "g", "carbon footprint of total/energy_to_target_j",
           better="lower", title="CO2e to the target", short="CO2e to target",
           shown=("report",)),
    Metric("total/intensity_g_per_kwh", "g/kWh", "carbon intensity, mean weighted by energy"),
    Metric("total/intensity_min_g_per_kwh", "g/kWh", "lowest carbon intensity of the hours of the run"),
    Metric("total/intensity_max_g_per_kwh", "g/kWh", "highest carbon intensity of the hours of the run"),
    Metric("total/cost", "currency", "cost of total/energy_j in `footprint.currency`; only with `footprint.price`",
           better="lower", title="cost of the run", short="cost of run",
           shown=("report",)),
    Metric("total/cost_uncertainty", "currency",
           "95 % confidence interval of total/cost (plus or minus), from total/energy_uncertainty_j"),
    Metric("total/cost_to_target", "currency", "cost of total/energy_to_target_j",
           better="lower", title="cost to the target", short="cost to target",
           shown=("report",)),
    Metric("total/epochs_to_target", "1", "number of epochs up to the window that reached the target", better="lower"),
    Metric("run/wall_s", "s",
           "from the start of the command until the record is complete; of a resumed run, the sum over its attempts. "
           "The following rows add up to it", title="whole run", better="lower"),
    Metric("run/prepare_s", "s", "checks, wait for the device, settings and idle power, before training starts",
           title="preparation"),
    Metric("run/import_s", "s", "start of the training process or script, until torch is imported",
           title="start and imports"),
    Metric("run/build_s", "s", "from then on until the first window: model, data, optimizer", title="building"),
    Metric("run/peaks_s", "s", "measurement of the device's peaks, if they were not known", title="peaks"),
    Metric("run/warm_up_s", "s",
           "part of the compute of the first epoch: what its first steps took longer than later ones, as by "
           "compilation",
           title="compilation and warm-up"),
    Metric("run/data_stall_s", "s", "data stalls of all epochs"),
    Metric("run/copy_s", "s", "copies of all epochs"),
    Metric("run/compute_s", "s", "compute of all epochs, without warm_up_s"),
    Metric("run/overhead_s", "s", "overhead of all epochs, without saving"),
    Metric("run/unknown_s", "s", "epochs whose parts are not known", title="epochs without parts"),
    Metric("run/evaluation_s", "s", "evaluations"),
    Metric("run/window_s", "s", "windows that the script has named", title="named windows"),
    Metric("run/save_s", "s",
           "checkpoints and weights: of a script, `torch.save` of 1 ms or more; of earlier attempts, part of between_s",
           title="saving"),
    Metric("run/between_s", "s", "other time between windows; that in which only some of several ranks are in one",
           title="between epochs"),
    Metric("run/finish_s", "s",
           "from the last window until the process has ended, with the traced steps; without measured energy, also the "
           "analysis of the trace as far as it runs meanwhile", title="end of the process"),
    Metric("run/analyze_s", "s",
           "from then on until the record is complete: idle power, analysis of the trace (without measured energy, the "
           "rest of it)", title="analysis"),
    Metric("run/lost_s", "s",
           "time of earlier attempts of a resumed run after the windows that were kept: what was trained again, until "
           "the attempt ended", title="lost before resuming", better="lower"),
    Metric("run/open_s", "s", "of a run that goes on, the time since its last window", title="since the last window"),
    Metric("run/gap_s", "s",
           "time between the attempts of a resumed run, in which it did not run; no part of wall_s",
           title="between attempts"),
    Metric("run/residual_s", "s", "wall_s without the rows: difference of the clocks"),
    Metric("run/energy_j", "J",
           "gross energy from the start of the process until its end. The following rows add up to it. Absent with "
           "several nodes, of a resumed run, or if the energy of a part is not known", better="lower"),
    Metric("run/energy_uncertainty_j", "J", "95 % confidence interval of run/energy_j (plus or minus)"),
    Metric("run/start_energy_j", "J", "energy before the first window"),
    Metric("run/training_energy_j", "J", "energy of all epochs"),
    Metric("run/evaluation_energy_j", "J", "energy of all evaluations"),
    Metric("run/window_energy_j", "J", "energy of the windows that the script has named"),
    Metric("run/between_energy_j", "J", "energy between windows"),
    Metric("run/finish_energy_j", "J", "energy after the last window"),
    Metric("forecast/e2e_s", "s", "forecast of total/e2e_s before the epoch, with the evaluations", better="lower"),
    Metric("forecast/e2e_uncertainty_s", "s", "95 % interval of forecast/e2e_s (plus or minus)"),
    Metric("forecast/energy_j", "J", "forecast of total/energy_j before the epoch", better="lower"),
    Metric("forecast/energy_uncertainty_j", "J", "95 % interval of forecast/energy_j (plus or minus)"),
    Metric("forecast/cost", "currency",
           "cost of forecast/energy_j in `footprint.currency`; only with `footprint.price`",
           better="lower"),
    Metric("forecast/cost_uncertainty", "currency", "95 % interval of forecast/cost (plus or minus)"),
    Metric("model/parameters", "1", "number of trainable parameters"),
    Metric("model/flops_per_sample", "1", "training FLOPs per sample (forward + backward), as counted by PyTorch"),
    Metric("model/flops_per_step", "1", "the same per step, of a script whose samples are not known"),
    Metric("model/recomputed_flops_per_step", "1", "part of flops_per_step, as the next"),
    Metric("model/recomputed_flops_per_sample", "1",
           "part of flops_per_sample: forward operators that run again in the backward pass (activation "
           "checkpointing)"),
    Metric("model/operator_calls", "1", "operators per step, without views; on a GPU without those of the optimizer"),
    Metric("model/operator_bytes_per_sample", "1",
           "bytes of all operators' inputs and outputs, without fusion and caches; absent with bf16 and fp16"),
    Metric("model/uncached_bytes_per_sample", "1",
           "part of operator_bytes_per_sample: operators whose tensors exceed the device's last-level cache"),
    Metric("model/weight_bytes", "B", "memory of parameters and buffers"),
    Metric("model/gradient_bytes", "B", "memory of the gradients"),
    Metric("model/optimizer_bytes", "B", "memory of the optimizer's state"),
    Metric("model/activation_bytes", "B",
           "memory of the activations that one batch keeps for the backward pass, in fp32"),
    Metric("roofline/peak_flop_per_s", "FLOP/s",
           "measured peak of all devices used, in the run's precision and with its settings"),
    Metric("roofline/peak_bytes_per_s", "B/s",
           "measured memory bandwidth of all devices used: bytes read and written by a copy"),
    Metric("roofline/datasheet_flop_per_s", "FLOP/s",
           "dense peak of the GPUs used, as the vendor states it, where it is known"),
    Metric("roofline/flop_per_byte", "FLOP/B",
           "arithmetic intensity: model/flops_per_sample / model/operator_bytes_per_sample"),
    Metric("roofline/compute_s", "s", "time of a steady epoch's FLOPs at the measured peak"),
    Metric("roofline/memory_s", "s", "time of a steady epoch's uncached bytes at the measured bandwidth"),
    Metric("roofline/launch_s", "s", "time of a steady epoch's operator calls, if the operators had almost no work"),
    Metric("roofline/data_s", "s",
           "data stall of a steady epoch. The largest of compute_s, memory_s, launch_s and data_s decides the verdict"),
    Metric("memory/peak_bytes", "B",
           "peak of PyTorch's memory in one training step after the trace; the sum of its parts, weights_bytes to "
           "other_bytes",
           better="lower"),
    Metric("memory/weights_bytes", "B", "part of peak_bytes: parameters and buffers"),
    Metric("memory/gradients_bytes", "B", "part of peak_bytes: gradients of the parameters"),
    Metric("memory/optimizer_bytes", "B", "part of peak_bytes: state of the optimizer"),
    Metric("memory/inputs_bytes", "B", "part of peak_bytes: the batch"),
    Metric("memory/activations_bytes", "B",
           "part of peak_bytes: tensors that autograd keeps for the backward pass; memory.json lists them by module"),
    Metric("memory/temporary_bytes", "B", "part of peak_bytes: all other allocations of the step, such as workspaces"),
    Metric("memory/other_bytes", "B", "part of peak_bytes: other memory that existed before the step; only on a GPU"),
    Metric("memory/fragmentation_bytes", "B",
           "memory that PyTorch's allocator reserved but did not use at the peak; only on a GPU"),
    Metric("memory/reserved_bytes", "B", "memory that PyTorch's allocator reserved at the peak; only on a GPU"),
    Metric("memory/outside_torch_bytes", "B",
           "other memory in use: on a GPU by its driver, libraries and other processes; on a CPU by the training "
           "process"),
    Metric("memory/capacity_bytes", "B",
           "memory of the GPU; on a CPU, memory that is available to the training process, at most the limit of its "
           "container"),
    Metric("memory/largest_batch", "1",
           "predicted largest batch size per device: inputs, activations and temporary memory grow with it, the other "
           "kinds are fixed",
           better="higher"),
    Metric("step/train_loss", "1",
           "training loss, mean over up to 100 steps, at the last of them; losses.bin has every step",
           better="lower"),
    Metric("trace/steps", "1", "number of traced steps"),
    Metric("trace/traced_step_s", "s", "mean time of a traced step, with the overhead of the profiler"),
    Metric("trace/untraced_step_s", "s", "mean time of the same steps in the steady epochs, without the profiler"),
    Metric("trace/explained_fraction", "0..1",
           "fraction of the traced time (of steps, on a GPU of kernels) that belongs to a module, an operator, the "
           "optimizer or data loading"),
    Metric("trace/gpu_busy_fraction", "0..1",
           "GPU compute utilization: time in which a kernel ran / untraced wall time of the same steps",
           better="higher", title="GPU busy",
           shown=("report",)),
    Metric("trace/gpu_busy_traced_fraction", "0..1", "time in which a kernel ran / traced wall time", better="higher"),
    Metric("trace/idle_<cause>_fraction", "0..1",
           "time without a kernel / traced wall time, by cause: copy, data, sync, launch or other",
           better="lower"),
    Metric("trace/copy_overlap_fraction", "0..1", "fraction of the copies' time in which computation ran as well",
           better="higher"),
    Metric("trace/communication_fraction", "0..1", "time in which communication between GPUs ran / traced wall time"),
    Metric("trace/communication_overlap_fraction", "0..1",
           "fraction of the communication's time in which computation ran as well",
           better="higher"),
    Metric("trace/sm_efficiency", "0..1", "mean of min(thread blocks per SM, 1) over kernels, weighted by duration",
           better="higher"),
    Metric("trace/achieved_occupancy", "0..1", "mean of the kernels' estimated occupancy, weighted by duration",
           better="higher"),
    Metric("trace/tensor_core_fraction", "0..1",
           "fraction of the kernels' time, without communication, in kernels that are known to use tensor cores; "
           "absent if no kernel is of a known kind"),
    Metric("trace/precision_<precision>_fraction", "0..1",
           "fraction of the kernels' time, without communication, by numeric precision, such as fp32, tf32 or bf16; "
           "the rest is unknown"),
    Metric("trace/pipe_<pipe>_fraction", "0..1",
           "utilization of the pipe fma, alu, fp16, tensor or xu while kernels run, weighted by their duration "
           "(`profiler=ncu`)"),
    Metric("trace/kernels_per_step", "1", "number of kernels per step"),
    Metric("trace/kernel_mean_s", "s", "mean duration of a kernel"),
    Metric("trace/launch_latency_s", "s",
           "median time from a launch to the start of its kernel, for kernels that found their stream idle",
           better="lower"),
    Metric("trace/operators_per_step", "1", "number of operators per step, including those called by other operators"),
    Metric("trace/host_busy_fraction", "0..1", "largest fraction over the host's threads of the time in operators"),
    Metric("throughput/samples_per_s", "1/s",
           "throughput between throughput.start and throughput.stop: samples / time of these steps",
           better="higher", title="throughput", decimals=1,
           shown=("sweep",)),
    Metric("throughput/samples", "1", "number of samples in these steps, summed over ranks"),
    Metric("throughput/steps", "1", "number of these steps, over all epochs"),
    Metric("throughput/e2e_s", "s",
           "time of these steps, each from the end of the step before; excludes time between epochs",
           better="lower"),
    Metric("throughput/step_mean_s", "s", "mean step time: throughput/e2e_s / steps", better="lower"),
    # Gauges, by device in the order in which they are shown.
    Metric("power/total_w", "W", "total power", title="power", short="total",
           shown=("watch",), openmetrics="power_watts"),
    Metric("power/<domain>_w", "W", "power of one domain", title="power", short="<domain>",
           shown=("watch",), openmetrics="power_watts"),
    Metric("system/cpu_utilization", "0..1", "busy fraction of all cores", title="CPU utilization", short="cpu",
           shown=("watch",), openmetrics="utilization_ratio"),
    Metric("system/cpu<N>_utilization", "0..1", "busy fraction of one core",
           title="utilization per core", short="cpu<N>", shown=("watch",), openmetrics="utilization_ratio"),
    Metric("system/gpu<N>_utilization", "0..1", "busy fraction of a GPU, as its driver reports it",
           title="GPU utilization", short="gpu<N>", shown=("watch",), openmetrics="utilization_ratio"),
    Metric("system/gpu<N>_clock_hz", "Hz", "clock frequency of a GPU", title="GPU clock", short="gpu<N>",
           shown=("watch",), openmetrics="clock_hertz"),
    Metric("system/<sensor>_temperature_c", "C", "temperature of a sensor, such as gpu0 or coretemp",
           title="temperature", short="<sensor>", decimals=0, shown=("watch",), openmetrics="temperature_celsius"),
    Metric("system/gpu<N>_memory_used_bytes", "B",
           "memory in use of a GPU, as its driver reports it. On a Jetson the GPU has no memory of its own",
           title="memory in use", short="gpu<N>", shown=("watch",), openmetrics="memory_used_bytes"),
    Metric("system/ram_used_bytes", "B", "memory in use: the part that is not available without swapping",
           title="memory in use", short="ram", shown=("watch",), openmetrics="memory_used_bytes"),
    Metric("system/disk_read_bytes_per_s", "B/s", "data read from the dataset's storage device by all processes",
           title="disk throughput", short="read", shown=("watch",), openmetrics="throughput_bytes_per_second"),
    Metric("system/disk_written_bytes_per_s", "B/s", "data written to this device by all processes",
           title="disk throughput", short="written", openmetrics="throughput_bytes_per_second"),
    Metric("system/disk_reads_per_s", "requests/s", "read requests that this device completed",
           title="disk requests", short="reads", openmetrics="requests_per_second"),
    Metric("system/disk_writes_per_s", "requests/s", "write requests that this device completed",
           title="disk requests", short="writes", openmetrics="requests_per_second"),
    Metric("system/disk_read_await_s", "s",
           "mean time from a read request to its completion; empty if none was completed",
           title="disk latency", short="read", shown=("watch",), openmetrics="latency_seconds"),
    Metric("system/disk_write_await_s", "s", "the same of write requests",
           title="disk latency", short="write", openmetrics="latency_seconds"),
    Metric("system/disk_queue_requests", "requests", "mean number of requests in flight",
           title="disk queue", short="disk", shown=("watch",), openmetrics="queue_requests"),
    Metric("system/disk_utilization", "0..1", "fraction of time with a request in flight",
           title="disk utilization", short="disk", openmetrics="utilization_ratio"),
    Metric("system/throttling", "0..1",
           "the devices whose clocks were lowered, with the causes, or `none`; in MLflow the fraction of rows with a "
           "lowered clock"),
    Metric("system/network_received_bytes_per_s", "B/s", "data received by all interfaces except loopback",
           title="network", short="received", shown=("watch",), openmetrics="throughput_bytes_per_second"),
    Metric("system/network_sent_bytes_per_s", "B/s", "data sent by these interfaces",
           title="network", short="sent", shown=("watch",), openmetrics="throughput_bytes_per_second"),
)
# fmt: on
