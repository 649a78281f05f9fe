"""All hosts, and how each is started."""

from hosts.harness import Host

ENDINGS = (
    "code0", "code3", "code256", "text", "none", "error", "base", "os_exit", "system_exit_object", "SIGTERM", "SIGKILL",
    "SIGINT", "SIGHUP", "abort", "thread", "interrupt",
)  # fmt: skip
NOT_WITH = "with Python -I, -E or -S, no process is measured"
TORCHRUN = ("{python}", "-m", "torch.distributed.run", "--nproc_per_node=2")
NOT_SEEN = "no process of the script imported torch"


def each(name: str, *kinds: str, **options: object) -> list[Host]:
    """Return a host for each first argument of a script."""
    return [Host(name, (kind,), **options) for kind in kinds]  # type: ignore[arg-type]


HOSTS = [
    # Loops
    Host("plain", is_quick=True),
    *each("max_steps", "same", "new", "stream", "ahead", "single"),
    *each("held_iterator", "5", "8"),
    Host("restarted_iterator"),
    Host("failing_loader"),
    Host("failing_loader", ("raise",)),
    *each("trials", "1", "2"),
    Host("folds"),
    *each("progress_bars", "islice", "map", "chain", "ahead"),
    *each("progress_bars", "tqdm", needs=("tqdm",)),
    *each("progress_bars", "rich", needs=("rich",)),
    Host("read_at_once"),
    *each("endless", "generator", "loader", "cycle"),
    *each("stream", "finite", "endless"),
    *each("without_loader", "list", "random", keys=("measure.steps_per_window=20",)),
    *each("two_loaders", "even", "uneven", "next"),
    Host("tasks"),
    *each("growing", "32,48,64", "64,48,32"),
    *each("own_loader", "other", "subclass", "patched", "patched_late", "next", "replaced", "iterator"),
    # Training steps
    *each("gan", "batch", "zip"),
    Host("lbfgs"),
    *each("accumulation", "last", "after", "carried", "whole"),
    Host("autocast"),
    *each("compiled", "model", "step", "fullgraph", "inplace", environment={"TORCH_LOGS_FORMAT": "%(message)s"}),
    *each("checkpointed", "reentrant", "other"),
    Host("no_optimizer", ("backward",)),
    Host("no_optimizer", ("grad",), is_measured=False, failure="no optimizer step and no backward pass was seen"),
    *each("hooks_removed", "modules", "optimizers", "collector"),
    Host("patching"),
    *each("functional", "call", "vmap", "tensors", "sample_grads"),
    # Evaluations
    Host("evaluation_within"),
    Host("evaluations"),
    # Threads and processes
    Host("two_threads"),
    *each("thread", "plain", "raise"),
    Host("read_ahead_thread"),
    Host("read_ahead_subclass"),
    *each("workers", "fork", "spawn", "forkserver"),
    Host("workers", ("fork", "persistent")),
    *each("loader_times", "0", "2"),
    *each("forked", "reads", "trains"),
    *(Host("helping_data", (how, workers)) for how, workers in [("fork", "0"), ("pool", "2")]),
    *(Host("failing_sampler", (when, workers)) for when, workers in [("later", "0"), ("first", "2"), ("later", "2")]),
    *each("distributed", "ddp", "fsdp", launcher=TORCHRUN),
    Host("distributed", ("spawn",)),
    Host("ray_train", needs=("ray",)),
    # Batches
    *each("layouts", "map", "sampler", "stream"),
    *(Host("samplers", (kind, "0")) for kind in ("resumed", "filtered", "repeats", "shorter")),
    Host("samplers", ("resumed", "2")),
    # Loaders of further libraries
    *(Host("more_libraries", (name,), needs=(name,)) for name in ("prefetch_generator", "torchdata", "timm")),
    Host("more_libraries", ("fastai",), needs=("fastai",), keys=("measure.loader=fastai.data.load:DataLoader",)),
    Host(
        "more_libraries",
        ("webdataset",),
        needs=("webdataset",),
        keys=("measure.loader=webdataset.pipeline:DataPipeline",),
    ),
    Host(
        "libraries",
        ("lightning_several",),
        needs=("lightning",),
        keys=("measure.loader=lightning.pytorch.utilities.combined_loader:CombinedLoader",),
    ),
    # Pickling
    *each("pickled", "cloudpickle", needs=("cloudpickle",)),
    *each("pickled", "dill", needs=("dill",)),
    *each("pickled", "joblib", needs=("joblib",)),
    *each("pickled", "pickle", "spawn", "forkserver"),
    # Output and end
    *each("ending", *ENDINGS),
    Host("errors", is_quick=True),
    *each("replaced_streams", "text", "none", "closed", "folder", "files"),
    Host("interrupted"),
    Host("not_noticed", is_quick=True),
    # Starts
    *each("from_code", "exec", "runpy", "main"),
    Host("as_module", command=("-m", "plain"), environment={"PYTHONPATH": "{scripts}"}),
    Host("as_code", command=("{python}", "-c", "import sys; sys.path.insert(0, {scripts!r}); import plain")),
    Host("from_stdin", command=("bash", "-c", "cd {scripts}; cat plain.py | {python}")),
    Host("plain", ("customized",), environment={"PYTHONPATH": "{scripts}/customized"}),
    *each("started_again", "-I", "-E", "-S", is_measured=False, failure=NOT_WITH),
    *each("started_again", "-u", "-B"),
    Host("without_environment", command=("{python}", "-E", "{scripts}/plain.py"), is_measured=False, failure=NOT_SEEN),
    Host("without_site", command=("{python}", "-S", "-c", "print()"), is_measured=False, failure=NOT_SEEN),
    # Libraries
    Host("two_frameworks", ("both",), needs=("jax",)),
    Host(
        "two_frameworks", ("jax",), needs=("jax",), is_measured=False, failure="no optimizer step and no backward pass"
    ),
    *(
        Host("libraries", (name,), needs=(name,))
        for name in (
            "accelerate",
            "lightning",
            "transformers",
            "optuna",
            "torchmetrics",
            "tensorboard",
            "torchvision",
            "ignite",
            "skorch",
            "peft",
            "timm",
        )
    ),
]
