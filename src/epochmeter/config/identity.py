"""The identity of a measurement: a hash of the keys, the dataset and the machine that affect it."""

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from epochmeter.config.schema import Budget, Job
from epochmeter.config.secrets import conceal_tree
from epochmeter.config.validation import flatten, format_value

SLURM_KEYS = ("account", "qos", "time", "setup", "python", "poll_s")
NON_MEASUREMENT_KEYS = (
    *("tracking", "sweep", "roofline", "footprint", "verbose", "format"),
    *("machine.lock_dir", "machine.state_dir", "machine.gauges_period_s", "measure.hide_arguments", "measure.events"),
    *("measure.pid", "measure.duration_s"),
    *(f"{keys}.{key}" for keys in ("hydra.launcher", "device.slurm") for key in SLURM_KEYS),
)
"""Keys that affect no measurement. Other options of Slurm, such as the partition, decide where a run is measured."""
ORIGIN = ("archives", "devkit")
"""Keys of a dataset, and arguments of its functions, that only name where its samples are unpacked from."""


def identity(
    job: Job,
    digest: str | None,
    nodes: int = 1,
    gpus: Sequence[str] = (),
    host: str | None = None,
    responses: Mapping[str, object] = MappingProxyType({}),
) -> str:
    """Return the hash of everything that affects the measurement; an empty `host` leaves the host out.

    `digest` is the dataset's checksum, and `gpus` has the models of the GPUs. `responses` of sensors were measured, and
    replace those of the keys. Of secrets, the masks are hashed.
    """
    measured = measured_keys(job)
    count = max(nodes, job.nodes or 1)
    measured |= {"nodes": count} if count > 1 else {}
    measured |= {"gpus": list(gpus)} if gpus else {}
    measured |= {"validated_response": dict(responses)} if responses else {}
    return hash_value([conceal_tree(measured), platform.node() if host is None else host, digest])


def measured_keys(job: Job) -> dict[str, object]:
    """Return the keys of a job that affect the measurement."""
    measured = {key: value for key, value in job.to_dict().items() if key not in NON_MEASUREMENT_KEYS}
    measured["machine"] = {"root": job.machine.root}
    measured["device"] = {key: value for key, value in job.device.to_dict().items() if key != "slurm"}
    of_script = {
        key: value for key, value in job.measure.to_dict().items() if f"measure.{key}" not in NON_MEASUREMENT_KEYS
    }
    measured["measure"] = of_script
    # Versions without these keys recorded the same runs.
    if job.nodes in (None, 1):
        del measured["nodes"]
    if job.threads is None:
        del measured["threads"]
    if job.log_every is None:
        del measured["log_every"]
    measured["task"] = {key: value for key, value in job.task.to_dict().items() if (key, value) != ("bleu", False)}
    measured["dataset"] = without_origin(job.dataset.to_dict())
    if job.budget == Budget():
        del measured["budget"]
    if job.measure.loader is None:
        del of_script["loader"]
    if not job.measure.flops:
        del of_script["flops"]
    if not job.measure.replay:
        del of_script["replay"], of_script["replay_precision"]
    return measured


def without_origin(dataset: Mapping[str, Any]) -> dict[str, object]:
    """Return the keys of a dataset without those of the place that its samples were once unpacked from."""
    kept = {key: value for key, value in dataset.items() if key not in ORIGIN}
    for action in ("make", "adopt"):
        if isinstance(kept.get(action), Mapping):
            kept[action] = {key: value for key, value in kept[action].items() if key not in ORIGIN}
    return kept


def key_differences(before: Job, now: Job) -> list[str]:
    """Return the keys that affect the measurement and differ, such as `workers=2, now 4`."""
    old, new = (dict(flatten(conceal_tree(measured_keys(job)))) for job in (before, now))
    shared = [key for key in old if key in new and old[key] != new[key]]
    return [f"{key}={format_value(old[key])}, now {format_value(new[key])}" for key in shared]


def affects_measurement(key: str) -> bool:
    plain_key = key.lstrip("+~")
    return not any(f"{plain_key}.".startswith(f"{other}.") for other in NON_MEASUREMENT_KEYS)


def hash_value(value: Any) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
