"""The rules for the next steps after a run, one row each (next_steps.py).

A rule is a condition on the run, an advice, and the change to make: in a training of this project, or in a script.
Each row is tested with a run to which it applies, and with one to which it does not.
"""

import shlex
from collections.abc import Callable

from epochmeter.config.secrets import CONCEALED
from epochmeter.results.bottleneck import COMPUTE, COPY, DATA_STALL, FETCH_STALL, OVERHEAD, PREP_STALL, STALLS
from epochmeter.results.measured_run import (
    DECODED_PER_BYTE,
    Gain,
    MeasuredRun,
    half_precision,
    more_workers,
)
from epochmeter.results.run_info import DIVERGED, OVERSUBSCRIBED
from epochmeter.results.step_rule import Change, Rank, Rule
from epochmeter.results.summary import excessive_variation

SLOW_MEDIA = ("hdd", "hdd_usb", "sd", "emmc")
MIN_EPOCHS = 3  # after the warm-up, for an interval that is not much wider than with more
EPOCHS_TO_TRAIN = 5  # after the warm-up
LOWER_RATE = 10  # factor to a learning rate that may train without overflows
COOL_DOWN_C, COOL_C = 20, 40  # by how much a device should cool down before a run, and the lowest limit, in degrees
TENSORS = "torch.utils.data.dataset.TensorDataset"
USUAL_BATCHES = "torch.utils.data.sampler.BatchSampler"
USUAL_SAMPLERS = ("torch.utils.data.sampler.RandomSampler", "torch.utils.data.sampler.SequentialSampler")
USUAL_COLLATE = "torch.utils.data._utils.collate.default_collate"
NOT_REPEATED = ("cache", "data_source", "synthetic_batches", "experiment", "repeat", "sweep", "hydra", "profiler")
"""Keys of a run that `experiment=stalls` sets itself, or that are of a sweep."""


def _workers(run: MeasuredRun) -> int:
    """Return the number of DataLoader workers to try next."""
    return more_workers(run.loader.get("workers") or 0, run.cores_per_rank)


def _has_spare_cores(run: MeasuredRun, *, has_workers: bool) -> bool:
    workers = run.loader.get("workers")
    is_alike = workers is not None and bool(workers) == has_workers and run.reads_samples
    if OVERSUBSCRIBED in run.run.flags:
        return False
    return is_alike and run.cores_per_rank > 1 and _workers(run) > (workers or 0)


def _reads_slow_disk(run: MeasuredRun) -> bool:
    """Return whether the device waits for a disk that parallel reads do not make faster."""
    return run.is_bottleneck(FETCH_STALL) and run.run.medium in SLOW_MEDIA


def _fitting_threads(run: MeasuredRun) -> int:
    """Return the number of threads that fits the cores beside the DataLoader workers."""
    return max(1, run.cores_per_rank - (run.loader.get("workers") or 0))


def _has_many_threads(run: MeasuredRun) -> bool:
    threads = run.run.training.get("threads")
    return OVERSUBSCRIBED in run.run.flags and (threads is None or threads > _fitting_threads(run))


def _epochs(run: MeasuredRun) -> int:
    """Return a number of epochs, warm-up included, that narrows the intervals."""
    return run.job.warmup_epochs + max(EPOCHS_TO_TRAIN, 2 * len(run.epochs))


def _missed_target(run: MeasuredRun) -> bool:
    """Return whether the run ended with its last epoch, before it reached its quality target."""
    has_target = run.job.target_accuracy is not None or run.job.target_loss is not None
    return has_target and run.trained_all_epochs and "total/epochs_to_target" not in run.metrics


def _is_all_warmup(run: MeasuredRun) -> bool:
    """Return whether the run ended with its last epoch, and measured nothing after the warm-up."""
    is_short = 0 < run.metrics.get("total/epochs", 0.0) <= run.job.warmup_epochs
    return is_short and run.trained_all_epochs and "throughput/samples_per_s" not in run.metrics


def _sync_gain(run: MeasuredRun) -> Gain | None:
    return run.traced("idle_sync_fraction")


def _copy_gain(run: MeasuredRun) -> Gain | None:
    return run.gain("copy_s") or run.traced("idle_copy_fraction")


def _is_pinned(run: MeasuredRun) -> bool | None:
    return run.loader.get("pin_memory")


def _half_precision(run: MeasuredRun) -> str:
    return half_precision(run.run.training.get("gpu", {}).get("name", ""))


def _may_split(run: MeasuredRun) -> bool:
    is_alone = (run.job.strategy.ranks or 1) == 1 and run.job.strategy.name != "dp"
    return run.on_gpu and run.machine.gpus > 1 and is_alone and run.is_bottleneck(COMPUTE)


def _split_gain(run: MeasuredRun) -> Gain | None:
    compute = run.gain("compute_s")
    return compute and compute.scaled(1 - 1 / run.machine.gpus)


def _overrides(run: MeasuredRun) -> str:
    """Return the overrides of a run that `experiment=stalls` may have too, quoted for the shell."""
    keys = [(text, text.lstrip("+").partition("=")[0].partition(".")[0]) for text in run.run.overrides]
    return shlex.join(text for text, key in keys if key not in NOT_REPEATED)


def _script_command(run: MeasuredRun) -> str:
    """Return the overrides and the command of a measured script, quoted for the shell."""
    data = [] if run.job.measure.data else ["measure.data=/path/of/data"]
    return " ".join(filter(None, [*data, _overrides(run), "--", shlex.join(run.job.measure.command or [])]))


def _can_compare_sources(run: MeasuredRun) -> bool:
    """Return whether `experiment=stalls` can divide the data stall of a run: its files, or a script, can be read again.

    A command with concealed secrets cannot be repeated, nor a notebook.
    """
    if not run.is_script:
        return run.reads_samples and run.job.dataset.layout == "files"
    command = shlex.join(run.job.measure.command or [])
    is_compared = any(text.startswith(("experiment=", "data_source=")) for text in run.run.overrides)
    return not (is_compared or "ipykernel" in command or CONCEALED.search(command))


def _stall_gain(stall: str) -> Callable[[MeasuredRun], Gain | None]:
    return lambda run: run.stall_gain(stall)


def _loading_gain(part: str) -> Callable[[MeasuredRun], Gain | None]:
    """Return the part of the data stall that is the time of a part of loading, whose metric this is."""

    def gain(run: MeasuredRun) -> Gain | None:
        loading_s = run.steady.get("loader_fetch_s", 0.0) + run.steady.get("loader_collate_s", 0.0)
        stall = run.gain("data_stall_s")
        return stall and stall.scaled(run.steady.get(part, 0.0) / loading_s) if loading_s else None

    return gain


def _slowest_transform(run: MeasuredRun) -> str:
    return next(iter(run.loading.get("transforms", {})), "")


def _on_straggler(command: str) -> Callable[[MeasuredRun], str]:
    """Return a function that returns a command on the host of a run's straggler."""

    def written(run: MeasuredRun) -> str:
        host = run.straggler.get("host", "")
        return command if host in ("", run.run.host) else f"ssh {shlex.quote(host)} {command}"

    return written


def _straggler(run: MeasuredRun) -> int:
    return run.straggler["rank"]


def _has_low_clock(run: MeasuredRun) -> bool:
    return run.is_slowed_by(COMPUTE) and "lower_clock" in run.straggler


def _delaying_worker(run: MeasuredRun) -> int | None:
    """Return the worker for which ready batches of others wait longest, if torch can deliver these first."""
    delays = run.loading.get("delays") if run.loader.get("in_order") else None
    return delays[0]["worker"] if delays else None


def _is_of_tensors(run: MeasuredRun) -> bool:
    """Return whether a script collates samples one by one that its dataset can index as a whole batch."""
    loader = run.loader
    is_usual = (loader.get("batch_sampler"), loader.get("collate")) == (USUAL_BATCHES, USUAL_COLLATE)
    return is_usual and loader.get("dataset") == TENSORS and loader.get("sampler") in USUAL_SAMPLERS


def _whole_batches(run: MeasuredRun) -> str:
    """Return the sampler of a DataLoader's whole batches."""
    sampler = str(run.loader["sampler"]).rpartition(".")[2]
    return f"BatchSampler({sampler}(dataset), {run.loader['batch']}, drop_last={bool(run.loader.get('drop_last'))})"


def _cool_limit_c(run: MeasuredRun) -> int:
    return max(COOL_C, int(run.steady["temperature_max_c"]) - COOL_DOWN_C)


RULES = (
    Rule(
        "end_gpu_processes", "End the other processes on the GPU, then measure again.",
        "another process computed on the GPU",
        lambda run: "gpu_shared" in run.run.flags and run.machine.gpu_vendor == "nvidia",
        own=Change("command", "nvidia-smi"), script=Change("command", "nvidia-smi"), rank=Rank.DOUBT,
    ),
    Rule(
        "end_amd_gpu_processes", "End the other processes on the GPU, then measure again.",
        "another process computed on the GPU",
        lambda run: "gpu_shared" in run.run.flags and run.machine.gpu_vendor == "amd",
        own=Change("command", "amd-smi process"), script=Change("command", "amd-smi process"), rank=Rank.DOUBT,
    ),
    Rule(
        "end_processes", "Find and end the other processes, then measure again.",
        "other processes used the processor, and no core was free",
        lambda run: "cpu_shared" in run.run.flags,
        own=Change("command", "top"), script=Change("command", "top"), rank=Rank.DOUBT,
    ),
    Rule(
        "fewer_threads", "Compute with fewer threads.", "more threads were ready to run than there are cores",
        _has_many_threads,
        own=Change("setting", "threads={}", _fitting_threads), script=Change("command", "export OMP_NUM_THREADS=1"),
        rank=Rank.DOUBT,
    ),
    Rule(
        "fan", "Set the fan to its full speed.", "heat lowered the clocks",
        lambda run: run.is_lowered("thermal_throttled_fraction") and run.machine.has_fan and run.job.fan != "max",
        own=Change("setting", "fan=max"), script=Change("setting", "fan=max"), rank=Rank.DOUBT,
    ),
    Rule(
        "cool_down", "Let the device cool down before the run.", "heat lowered the clocks",
        lambda run: (
            run.is_lowered("thermal_throttled_fraction")
            and not run.machine.has_fan
            and run.job.sweep.cool_below_c is None
            and "temperature_max_c" in run.steady
        ),
        own=Change("setting", "sweep.cool_below_c={}", _cool_limit_c),
        script=Change("setting", "sweep.cool_below_c={}", _cool_limit_c), rank=Rank.DOUBT,
    ),
    Rule(
        "more_epochs", "Train more epochs, to see which part is the largest.",
        "the difference of the parts is not significant over so few epochs",
        lambda run: run.is_undecided and run.trained_all_epochs,
        own=Change("setting", "epochs={}", _epochs),
        script=Change("code", "for epoch in range({}):", _epochs), rank=Rank.DOUBT,
    ),
    Rule(
        "memory_growth", "Keep no tensors of earlier steps.", "the memory of the training grows from epoch to epoch",
        lambda run: run.memory_grows,
        own=None,
        script=Change("code", "losses.append(loss.item())  # a tensor would keep its graph"), rank=Rank.DOUBT,
    ),
    Rule(
        "lower_rate", "Lower the learning rate.", "the loss was not finite: the training diverged",
        lambda run: DIVERGED in run.run.flags and bool(run.job.optimizer.spec.get("lr")),
        own=Change("setting", "optimizer.lr={:g}", lambda run: run.job.optimizer.spec["lr"] / LOWER_RATE), script=None,
        rank=Rank.DOUBT,
    ),
    Rule(
        "past_warmup", "Train more epochs than the warm-up.", "the means are of the epochs after the warm-up",
        _is_all_warmup,
        own=Change("setting", "epochs={}", _epochs), script=Change("code", "for epoch in range({}):", _epochs),
        rank=Rank.DOUBT,
    ),
    Rule(
        "reach_target", "Train more epochs, which may reach the target.",
        "the target was not reached in the last epoch",
        _missed_target,
        own=Change("setting", "epochs={}", lambda run: 2 * run.job.epochs), script=None, rank=Rank.DOUBT,
    ),
    Rule(
        "start_workers", "Load batches while the device computes.",
        "without DataLoader workers, the device waits while each batch is loaded",
        lambda run: _has_spare_cores(run, has_workers=False),
        own=Change("setting", "workers={}", _workers),
        script=Change("code", "DataLoader(..., num_workers={}, persistent_workers=True)", _workers),
        parts=STALLS, gain=_stall_gain(DATA_STALL),
    ),
    Rule(
        "more_workers", "Prepare more batches in parallel.", "each DataLoader worker prepares one batch at a time",
        lambda run: _has_spare_cores(run, has_workers=True) and not _reads_slow_disk(run),
        own=Change("setting", "workers={}", _workers),
        script=Change("code", "DataLoader(..., num_workers={})", _workers),
        parts=STALLS, gain=_stall_gain(DATA_STALL),
    ),
    Rule(
        "whole_batches", "Index the tensors by whole batches.",
        "a tensor gives a batch in one operation, and the samples need no `collate_fn`",
        _is_of_tensors,
        own=None,
        script=Change("code", "DataLoader(dataset, batch_size=None, sampler={})  # torch.utils.data", _whole_batches),
        parts=(PREP_STALL, DATA_STALL), gain=lambda run: run.gain("data_stall_s"),
    ),
    Rule(
        "slow_worker", "Deliver each batch as soon as it is ready, unless their order matters.",
        "batches are delivered in order: those of the other workers wait for the slow one",
        lambda run: _delaying_worker(run) is not None,
        own=None, script=Change("code", "DataLoader(..., in_order=False)  # worker {} is slow", _delaying_worker),
        parts=STALLS, gain=lambda run: run.gain("loader_blocked_s"),
    ),
    Rule(
        "slow_transform", "Make the slowest transform faster, or apply it to the stored data.",
        "it takes a large part of the time to load each batch",
        lambda run: bool(_slowest_transform(run)),
        own=None, script=Change("code", "# the slowest transform of the dataset: {}", _slowest_transform),
        parts=(PREP_STALL, DATA_STALL), gain=_loading_gain("loader_transform_s"),
    ),
    Rule(
        "slow_collate", "Make `collate_fn` faster.", "it takes a large part of the time to load each batch",
        lambda run: "loader_collate_s" in run.steady and not _is_of_tensors(run),
        own=None,
        script=Change(
            "code", "# much of the time to load a batch: {}", lambda run: run.loader.get("collate") or "collate_fn"
        ),
        parts=(PREP_STALL, DATA_STALL), gain=_loading_gain("loader_collate_s"),
    ),
    Rule(
        "persistent_workers", "Keep the DataLoader workers between epochs.",
        "the DataLoader workers are started again for every epoch",
        lambda run: bool(run.loader.get("workers")) and run.loader.get("persistent_workers") is False,
        own=Change("setting", "persistent_workers=true"),
        script=Change("code", "DataLoader(..., persistent_workers=True)"),
        parts=(*STALLS, OVERHEAD), gain=lambda run: run.gain("loader_start_s", "loader_stop_s"),
    ),
    Rule(
        "warm_cache", "Read the dataset into memory once.", "data that fits in memory is then read from the page cache",
        lambda run: run.job.cache == "cold_each_epoch" and run.fits_in_memory(run.dataset_bytes),
        own=Change("setting", "cache=warm"), script=None, parts=(FETCH_STALL, DATA_STALL),
        gain=_stall_gain(FETCH_STALL),
    ),
    Rule(
        "ram", "Read the dataset from memory.", "a file system in memory is faster than a storage device",
        lambda run: (
            run.job.dataset.layout == "files"
            and run.run.medium not in (None, "ram", "memory", "synthetic")
            and run.fits_in_memory(run.dataset_bytes)
        ),
        own=Change("setting", "storage=ram"), script=None, parts=(FETCH_STALL, DATA_STALL),
        gain=_stall_gain(FETCH_STALL),
    ),
    Rule(
        "decoded", "Decode the images once.", "images in memory are decoded already",
        lambda run: (
            run.job.dataset.layout == "files"
            and "memory" in (run.job.dataset.open or {})
            and run.dataset_bytes is not None
            and run.fits_in_memory(DECODED_PER_BYTE * run.dataset_bytes)
        ),
        own=Change("setting", "dataset.layout=memory"), script=None, parts=(PREP_STALL, DATA_STALL),
        gain=_stall_gain(PREP_STALL),
    ),
    Rule(
        "straggler_data", "Make the data of the slowest rank as fast as that of the others.",
        "in each step, all ranks wait for the slowest one, which waits for its data",
        lambda run: run.is_slowed_by(DATA_STALL),
        own=Change("command", "{}", _on_straggler("top")),
        script=Change("code", "# the slowest DataLoader: that of rank {}", _straggler),
        parts=(COMPUTE, *STALLS), gain=MeasuredRun.straggler_gain,
    ),
    Rule(
        "straggler_clock", "Find what lowers the clock of the slowest rank's GPU.",
        "in each step, all ranks wait for the slowest one",
        lambda run: _has_low_clock(run) and run.machine.gpu_vendor == "nvidia",
        own=Change("command", "{}", _on_straggler("nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE")),
        script=Change("command", "{}", _on_straggler("nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE")),
        parts=(COMPUTE,), gain=MeasuredRun.straggler_gain,
    ),
    Rule(
        "straggler_compute", "Find what slows down the slowest rank, such as other processes on its host.",
        "in each step, all ranks wait for the slowest one",
        lambda run: (run.is_slowed_by(COMPUTE) or run.is_slowed_by(OVERHEAD)) and not _has_low_clock(run),
        own=Change("command", "{}", _on_straggler("top")), script=Change("command", "{}", _on_straggler("top")),
        parts=(COMPUTE,), gain=MeasuredRun.straggler_gain,
    ),
    Rule(
        "divide_stall", "Measure whether the data stall is reading or preprocessing.", "the data stall is not divided",
        lambda run: run.is_bottleneck(DATA_STALL) and _can_compare_sources(run),
        own=Change("command", "python src/train.py -m experiment=stalls {}", _overrides),
        script=Change("command", "python src/measure.py experiment=stalls {}", _script_command), parts=STALLS,
    ),
    Rule(
        "pin_memory", "Copy batches from page-locked memory.", "copies from other memory are slower",
        lambda run: run.on_gpu and _is_pinned(run) is False,
        own=Change("setting", "pin_memory=true"), script=Change("code", "DataLoader(..., pin_memory=True)"),
        parts=(COPY,), gain=_copy_gain,
    ),
    Rule(
        "non_blocking", "Copy batches while the device computes.", "the host then does not wait for the copy",
        lambda run: run.on_gpu and _is_pinned(run) is True,
        own=None, script=Change("code", "inputs = inputs.to(device, non_blocking=True)"),
        parts=(COPY,), gain=_copy_gain,
    ),
    Rule(
        "deferred", "Do not wait for the device in each step.", "`timing=synchronous` waits in each step",
        lambda run: run.on_gpu and run.job.timing == "synchronous",
        own=Change("setting", "timing=deferred"), script=None, parts=(OVERHEAD, COMPUTE), gain=_sync_gain,
    ),
    Rule(
        "no_loss", "Do not show the loss while training.", "reading the loss waits for the device",
        lambda run: run.on_gpu and run.job.log_loss,
        own=Change("setting", "log_loss=false"), script=None, parts=(OVERHEAD, COMPUTE), gain=_sync_gain,
    ),
    Rule(
        "no_item", "Do not wait for the device in each step.", "`.item()` and `.cpu()` wait for the device",
        lambda run: run.on_gpu,
        own=None, script=Change("code", "total_loss += loss.detach()  # instead of loss.item()"),
        parts=(OVERHEAD, COMPUTE), gain=_sync_gain,
    ),
    Rule(
        "compile_launches", "Compile the model.", "compiled kernels are fewer, and the host was too slow to start them",
        lambda run: run.compiles and not run.job.compile,
        own=Change("setting", "compile=true"), script=Change("code", "model = torch.compile(model)"),
        parts=(COMPUTE, OVERHEAD), gain=lambda run: run.traced("idle_launch_fraction"),
    ),
    Rule(
        "precision", "Compute in 16 bits.", "it computes in 32 bits",
        lambda run: run.on_gpu and run.is_bottleneck(COMPUTE) and run.computes_in_fp32,
        own=Change("setting", "precision={}", _half_precision),
        script=Change(
            "code", "with torch.autocast('cuda', torch.{}):",
            lambda run: {"bf16": "bfloat16", "fp16": "float16"}[_half_precision(run)],
        ),
        parts=(COMPUTE,),
    ),
    Rule(
        "more_gpus", "Train on all GPUs.", "each GPU then computes a part of the batches",
        _may_split,
        own=Change("setting", "strategy=ddp strategy.ranks={}", lambda run: run.machine.gpus), script=None,
        parts=(COMPUTE,), gain=_split_gain,
    ),
    Rule(
        "batch", "Train on larger batches, which may change how fast the model learns.",
        "larger batches need fewer steps and may use the device better",
        lambda run: (
            run.on_gpu and run.fits_larger_batch and (run.is_launch_bound or run.is_bottleneck(COMPUTE, OVERHEAD))
        ),
        own=Change("setting", "batch={}", lambda run: 2 * (run.loader["batch"] or 0)),
        script=Change("code", "DataLoader(..., batch_size={})", lambda run: 2 * (run.loader["batch"] or 0)),
        parts=(COMPUTE, OVERHEAD),
    ),
    Rule(
        "channels_last", "Store images channels last.", "tensor cores read that format without converting it",
        lambda run: (
            run.on_gpu and run.is_bottleneck(COMPUTE) and run.job.precision in ("bf16", "fp16")
            and run.job.dataset.channels is not None and not run.job.channels_last
        ),
        own=Change("setting", "channels_last=true"), script=None, parts=(COMPUTE,),
    ),
    Rule(
        "compile", "Compile the model.", "compiled kernels may be fewer and faster",
        lambda run: run.compiles and not run.job.compile and (run.is_launch_bound or run.is_bottleneck(COMPUTE)),
        own=Change("setting", "compile=true"), script=Change("code", "model = torch.compile(model)"), parts=(COMPUTE,),
    ),
    Rule(
        "raise_limit", "Raise the power limit.", "the power limit lowered the clocks",
        lambda run: run.is_lowered("power_capped_fraction") and run.is_limited_below_maximum,
        own=Change("setting", "power_limit={:g}", lambda run: run.run.power_limit_max_w),
        script=Change("setting", "power_limit={:g}", lambda run: run.run.power_limit_max_w), parts=(COMPUTE,),
    ),
    Rule(
        "save_less", "Save the model less often.", "`torch.save` takes a part of each epoch",
        lambda run: "save_s" in run.steady,
        own=None, script=Change("code", "if epoch % 5 == 4: torch.save(...)"), parts=(OVERHEAD,),
        gain=lambda run: run.gain("save_s"),
    ),
    Rule(
        "freeze_garbage", "Exclude lasting objects from garbage collection.",
        "the garbage collector looks at all objects again and again",
        lambda run: "collection_s" in run.steady,
        own=None, script=Change("code", "gc.freeze()  # before the first epoch"), parts=(OVERHEAD,),
        gain=lambda run: run.gain("collection_s"),
    ),
    Rule(
        "view_trace", "See which part of the model takes the time.", "the trace shows modules, operators and idle time",
        lambda run: run.has_trace and run.is_bottleneck(COMPUTE, OVERHEAD) and bool(run.folder),
        own=Change("command", "python src/report.py run={} view=trace", lambda run: run.folder),
        script=Change("command", "python src/report.py run={} view=trace", lambda run: run.folder),
        parts=(COMPUTE, OVERHEAD), rank=Rank.MEASURE,
    ),
    Rule(
        "trace", "Record a trace, which shows what takes the time.", "no trace was recorded",
        lambda run: not run.has_trace and run.is_bottleneck(COMPUTE, OVERHEAD) and run.job.profiler.name != "torch",
        own=Change("setting", "profiler=torch"), script=Change("setting", "profiler=torch"),
        parts=(COMPUTE, OVERHEAD), rank=Rank.MEASURE,
    ),
    Rule(
        "few_epochs", "Train more epochs, for narrower confidence intervals.",
        "few epochs, and epochs that vary, have wide intervals",
        lambda run: (
            (0 < len(run.epochs) < MIN_EPOCHS or excessive_variation(run.metrics) is not None)
            and not run.is_undecided
            and run.trained_all_epochs
        ),
        own=Change("setting", "epochs={}", _epochs), script=Change("code", "for epoch in range({}):", _epochs),
        rank=Rank.MEASURE,
    ),
    Rule(
        "measure_energy", "Measure the energy.", "this machine has a meter that the run did not use",
        lambda run: not run.run.energy.is_measured and bool(run.machine.meters),
        own=Change("setting", "meter={}", lambda run: run.machine.meters[0]),
        script=Change("setting", "meter={}", lambda run: run.machine.meters[0]), rank=Rank.MEASURE,
    ),
)  # fmt: skip
"""Rows with the same rank that help against the bottleneck are ordered by their gain, then as they are here."""
WHY = {rule.name: rule.why for rule in RULES}
"""Name of a rule -> why it helps."""
