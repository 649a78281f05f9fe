"""What one asks for: the schema of a job, its checks, and its identity."""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError

from trainmeter.hints import KNOWN, unknown
from trainmeter.schema import Schema

ROOT = Path(__file__).resolve().parents[2]
"""The project's root, found from this file, whatever the working directory."""

GROUPS = (
    *("device", "model", "dataset", "task", "storage", "optimizer", "scheduler", "strategy"),
    *("meter", "profiler", "tracking"),
)
PREPROCESSING = ("resize", "crop", "pad")
UNMEASURED = (
    *("tracking", "sweep", "machine.lock_dir", "machine.state_dir"),
    *(
        f"{keys}.{key}"
        for keys in ("hydra.launcher", "device.slurm")
        for key in ("account", "qos", "time", "setup", "python", "poll_s")
    ),
)
"""Keys that change no measurement. What else is asked of Slurm, such as a partition, is what a run is made on."""

OF_SWEEPS = tuple(f"sweep.{key}" for key in ("sample", "repeats", "order", "cooldown_s", "max_failures"))
"""Keys that say nothing of a single run."""


@dataclass(frozen=True)
class Order:
    """One run as it was ordered: its job, composed and plain, and where its record goes."""

    job: dict[str, Any]
    choices: dict[str, str]
    """What stands for each group: `device` -> `nano`."""
    overrides: list[str]
    folder: Path
    of_sweep: bool
    elsewhere: bool = False
    """Whether a node of a cluster makes it, rather than this process."""

    @property
    def number(self) -> int:
        return int(self.folder.name)

    def on(self, device: str) -> Order:
        """The same order composed once more for a device, which may pick its own meter."""
        others = [override for override in self.overrides if override.partition("=")[0] != "device"]
        config = compose("train", overrides=[*others, f"device={device}"])
        choices = {**self.choices, "device": device, "meter": config.meter.name}
        return replace(self, job=plain(config), choices=choices)


def register(sweep_folder: Callable[[list[str], bool, bool], Path], found: Callable[[str], str] | None = None) -> None:
    """Makes the schema and the resolvers known to Hydra; once, before it composes.

    `sweep_folder` gives the folder for a command, told whether it is a sweep's and is to be measured again, as a single
    run is unless it is to be resumed. Its first answer stands for the whole process: Hydra asks again for each job of
    a sweep, and then tells of that job alone.
    `found` gives the device that the machine below a root is, for what a study sets by board before that is looked for.
    """
    answer: list[str] = []

    def folder(*, _root_: DictConfig) -> str:
        if not answer:
            many = _root_.hydra.mode == RunMode.MULTIRUN
            again = _root_.sweep.again or not (many or _root_.sweep.resume)
            typed = _root_.hydra.overrides
            # A search and a grid number their runs by rules of their own, a fleet makes them elsewhere, and on what
            # it is asked for: each has a folder of its own.
            own = ("hydra/sweeper=", "hydra/launcher=", "hydra.launcher.")
            how = [override for override in typed.hydra if override.lstrip("+").startswith(own)]
            answer.append(str(sweep_folder([*typed.task, *how], many, again)))
        return answer[0]

    ConfigStore.instance().store("schema", Schema)
    OmegaConf.register_new_resolver("root", lambda: str(ROOT), replace=True)
    OmegaConf.register_new_resolver("sweep_folder", folder, replace=True)
    OmegaConf.register_new_resolver("of_board", partial(of_board, found=found), replace=True)
    OmegaConf.register_new_resolver("number_in_sweep", number_in_sweep, replace=True)


def order(config: DictConfig) -> Order:
    """The order that Hydra is at."""
    hydra = HydraConfig.get()
    sent = hydra.runtime.choices["hydra/launcher"] == "slurm"
    many = hydra.mode == RunMode.MULTIRUN
    if sent and not many:
        raise ValueError("hydra/launcher=slurm sends the runs of a sweep: add -m, for one run as well.")
    if not many and OmegaConf.is_missing(hydra.job, "num"):  # nor is it a node's part of a sweep
        check_single(hydra.overrides.task)
    return Order(
        job=plain(config),
        choices=choices(hydra),
        overrides=list(hydra.overrides.task),
        folder=Path(hydra.runtime.output_dir),
        of_sweep=many,
        elsewhere=sent,
    )


def check_single(typed: Sequence[str]) -> None:
    """Refuses what says nothing of a single run; ValueError."""
    for override in typed:
        key, _, value = override.lstrip("+").partition("=")
        if key in OF_SWEEPS and value != "null":
            raise ValueError(f"{override} is of a sweep, and this is a single run: add -m.")


def asked(config: DictConfig) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """The job, the choices and the overrides of a configuration that has Hydra's part in it, as a sweep's points do."""
    job = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    return plain(job), choices(config.hydra), list(config.hydra.overrides.task)


def choices(hydra: Any) -> dict[str, str]:
    """What stands for each group."""
    return {group: str(hydra.runtime.choices[group]) for group in GROUPS}


def of_board(
    settings: Mapping[str, Any],
    otherwise: Any = None,
    *,
    found: Callable[[str], str] | None = None,
    _root_: DictConfig,
) -> Any:
    """What a study sets on the device that a configuration is for: `${of_board:{nano: sd, agx: ssd}}`."""
    device = _root_.device.name
    if device == "auto" and found:
        device = found(_root_.machine.root)
    return settings.get(device, otherwise)


def number_in_sweep() -> int:
    """Which run of its sweep this is, counted from 0: a seed of its own for each; 0 for a single run."""
    if not HydraConfig.initialized() or OmegaConf.is_missing(HydraConfig.get().job, "num"):
        return 0
    return int(HydraConfig.get().job.num)


@cache
def matches() -> dict[str, Any]:
    """Each device of conf/device and the facts that it matches."""
    files = sorted((ROOT / "conf" / "device").glob("*.yaml"))
    return {file.stem: OmegaConf.to_container(OmegaConf.load(file)).get("match") for file in files}  # type: ignore


def plain(config: DictConfig) -> dict[str, Any]:
    """A composed configuration as plain values, interpolations resolved, the power limit in one form."""
    try:
        job: Any = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
    except InterpolationKeyError as error:
        raise ValueError(apart(config, error)) from error
    return {**job, "power_limit": normalized(job["power_limit"])}


def apart(config: DictConfig, error: InterpolationKeyError) -> str:
    """What to say of a key that is made of another, which there is not: most often a model's, of a dataset's."""
    group, _, key = str(error.full_key).partition(".")
    if group != "model":
        return f"{error.full_key} is made of a key that is not there: {str(error).splitlines()[0]}. Give it a value."
    return (
        f"model={config.model.name} is not for dataset={config.dataset.name}, which has no {key}. Take two that go "
        "together: seq2seq or transformer with pairs, polynomial with polynomial, the other models with images."
    )


def normalized(power_limit: Any) -> int | float | str | None:
    """Watts as one number (15, 15.0 and "15" are one); a text is a power mode."""
    if power_limit is None or isinstance(power_limit, bool):
        return power_limit
    try:
        watts = float(power_limit)
    except ValueError:
        return str(power_limit)
    return int(watts) if watts.is_integer() else watts


def check(job: Mapping[str, Any]) -> None:
    """Refuses values out of range, each with what would be in it; ValueError."""
    least = {"batch": 1, "epochs": 1, "workers": 0, "prefetch": 1, "warmup_epochs": 0, "repeat": 0, "seed": 0,
             "lr_batch": 1}  # fmt: skip
    dataset = job["dataset"]
    strangers = sorted(set(job) - KNOWN)
    if strangers:
        raise ValueError(unknown(strangers[0]))
    wrong = [f"{key}={job[key]}: give {low} or more" for key, low in least.items() if job[key] < low]
    choices = {
        "pin_memory": (job["pin_memory"], ["auto", "true", "false"]),
        "rehearse": (job["rehearse"], ["auto", "true", "false"]),
        "device.accelerator": (job["device"]["accelerator"], ["auto", "cpu", "cuda"]),
        "dataset.layout": (dataset["layout"], layouts(dataset)),
        "dataset.on_bad": (dataset.get("on_bad", "error"), ["error", "skip"]),
    }
    wrong += [
        f"{key}={typed(value)}: give one of {', '.join(known)}"
        for key, (value, known) in choices.items()
        if typed(value) not in known
    ]
    preprocess = dataset.get("preprocess", "resize")
    if preprocess not in PREPROCESSING and "." not in preprocess:
        known = ", ".join(PREPROCESSING)
        wrong.append(f"dataset.preprocess={preprocess}: give one of {known}, or the dotted path of a function")
    every = job["checkpoint"]["every"]
    if every is not None and every < 1:
        wrong.append(f"checkpoint.every={every}: give 1 or more, or null for none")
    wrong += wrong_ranks(job["strategy"], dataset) + wrong_steps(job["throughput"]) + wrong_pauses(job["sweep"])
    if job["throughput"]["exit"] and dataset.get("on_bad") == "skip":
        wrong.append("throughput.exit=true: give dataset.on_bad=error, since a batch that is skipped is no step")
    if job["strategy"]["name"] == "dp" and job["precision"] in ("bf16", "fp16"):
        wrong.append(f"precision={job['precision']}: the threads of strategy=dp do not take it up: give strategy=ddp")
    watts, accuracy, loss = job["power_limit"], job["target_accuracy"], job["target_loss"]
    if watts is not None and not isinstance(watts, str) and (isinstance(watts, bool) or not 0 < watts < math.inf):
        wrong.append(f"power_limit={typed(watts)}: give watts above 0, a power mode, or null")
    if accuracy is not None and not 0 < accuracy <= 1:
        wrong.append(f"target_accuracy={accuracy}: give a share above 0 and up to 1")
    if loss is not None and not 0 < loss < math.inf:
        wrong.append(f"target_loss={loss}: give a loss above 0")
    if wrong:
        raise ValueError("; ".join(wrong) + ".")


def wrong_ranks(strategy: Mapping[str, Any], dataset: Mapping[str, Any]) -> list[str]:
    """What is wrong with the ranks asked for, and with what they cannot do together."""
    name, ranks = strategy["name"], strategy["ranks"]
    processes = "launcher" in strategy
    if name == "single" and ranks != 1:
        return [f"strategy.ranks={ranks}: strategy=single is one rank; give strategy=ddp or strategy=dp beside it"]
    if not (ranks is None and not processes) and (isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1):
        return [f"strategy.ranks={typed(ranks)}: give 1 or more" + ("" if processes else ", or null for all GPUs")]
    if processes and dataset.get("on_bad") == "skip":
        return [f"dataset.on_bad=skip: the ranks of strategy={name} all take as many steps; give error"]
    return []


def wrong_steps(throughput: Mapping[str, Any]) -> list[str]:
    """What is wrong with the steps between which throughput is asked for."""
    start, stop = throughput["start"], throughput["stop"]
    if stop is None and throughput["exit"]:
        return ["throughput.exit=true: give throughput.start and throughput.stop, where the run is to end"]
    if (start is None) != (stop is None):
        missing, there = ("start", "stop") if start is None else ("stop", "start")
        return [f"throughput.{there}={throughput[there]}: give throughput.{missing} too"]
    if start is not None and not 0 <= start < stop:
        return [f"throughput.start={start}: give 0 or more, and less than throughput.stop={stop}"]
    return []


def wrong_pauses(sweep: Mapping[str, Any]) -> list[str]:
    """What is wrong with how long the runs of a sweep may rest and take, and how many of them fail."""
    least = {"cooldown_s": 0, "cool_wait_s": 0, "max_failures": 1}
    wrong = [
        f"sweep.{key}={sweep[key]:g}: give {low} or more"
        for key, low in least.items()
        if sweep[key] is not None and not low <= sweep[key] < math.inf
    ]
    for key in ("timeout_s", "hung_after_s"):
        if sweep[key] is not None and not 0 < sweep[key] < math.inf:
            wrong.append(f"sweep.{key}={sweep[key]:g}: give seconds above 0, or null for no limit")
    below_c = sweep["cool_below_c"]
    if below_c is not None and not math.isfinite(below_c):
        wrong.append(f"sweep.cool_below_c={below_c:g}: give degrees Celsius, or null")
    return wrong


def layouts(dataset: Mapping[str, Any]) -> list[str]:
    """What a dataset's layout may be: those that it says how to open; with but one way to, what it is said to be."""
    opened = dataset["open"]
    if not opened:
        return ["tensors"]
    return [dataset["layout"]] if "_target_" in opened else list(opened)


def typed(value: Any) -> str:
    """A value as one types it."""
    return value if isinstance(value, str) else json.dumps(value)


def identity(
    job: Mapping[str, Any],
    digest: str | None,
    nodes: int = 1,
    gpus: Sequence[str] = (),
    host: str | None = None,
) -> str:
    """The hash of all that affects the measurement: the job, the host and its GPUs that are used, by their models, how
    many nodes, and the dataset's digest.

    The host is this one; "" is none, for what another one makes.
    """
    measured = {key: value for key, value in job.items() if key not in UNMEASURED}
    measured["machine"] = {"root": job["machine"]["root"]}
    measured["device"] = {key: value for key, value in job["device"].items() if key != "slurm"}
    if nodes > 1:
        measured["nodes"] = nodes
    if gpus:
        measured["gpus"] = list(gpus)
    return digest_of([measured, platform.node() if host is None else host, digest])


def measures(key: str) -> bool:
    """Whether an override of this key changes what is measured."""
    plain_key = key.lstrip("+~")
    return not any(plain_key == other or plain_key.startswith(f"{other}.") for other in UNMEASURED)


def digest_of(value: Any) -> str:
    """16 hexadecimal digits of a plain value's hash."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
