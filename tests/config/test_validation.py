"""Validation of the values of a configuration."""

import copy
import itertools
import re
from pathlib import Path
from typing import get_args

import pytest
from omegaconf import OmegaConf

from epochmeter.config import job, validation
from epochmeter.config.rules import SENSOR_FIELDS
from epochmeter.config.schema import Job, Medium
from epochmeter.machine import disk
from epochmeter.machine.disk import SATISFYING_MEDIA
from epochmeter.power.uncertainty import Response
from epochmeter.shared.problem import InputError

REFUSED = {
    "batch checkpoint.every profiler.timeout_s strategy.timeout_s": ["0", "true"],
    "seed": ["-1", "4294967296"],
    "workers": ["-1", "1.5", "true", "many"],
    "threads": ["0", "-1", "1.5", "true", "many"],
    "power_limit": ["{a: 1}", "[15]", ".nan", "''", "0", "-5", "true", f"1{400 * '0'}"],
    "pin_memory rehearse": ["later", "'true'", "1", "null"],
    "evaluate": ["2", "'false'", "maybe"],
    "target_accuracy": ["0", "97", ".nan", "high"],
    "throughput.start": ["-1"],
    "footprint.intensity": ["-1", "true", "''", ".nan"],
    "footprint.price": ["-0.1", "free"],
    "footprint.pue": ["0.9", ".inf"],
    "meter.tdp_w": ["-5", ".nan"],
    "meter.cross_check": ["2"],
    "meter.rails meter.sensors device.slurm": ["5"],
    "meter.sensors device.sensors.ina3221": ["0.1"],
    "device.sensors.ina3221.averaging": ["0.1"],
    "device.sensors.ina3221.averaging_s meter.sensors.ina3221.renewal_s": ["-1", "'0.1'", ".inf", "true"],
    "device.sensors.ina3221.lag_s": ["null"],
    "device.slurm.python": ["[python3]"],
    "meter.rails.total": ["VDD_IN", "[1]", "null"],
    "meter.parts": ["null", "[]", "[5]", "[{tdp_w: 65}]"],
    "optimizer.lr": [".inf", "true", "-0.1", "high", f"1{400 * '0'}"],
    "optimizer.betas.x optimizer.dampening": ["-.inf", ".nan"],
    "device.match": ["5", "{model: 5}", "{model: '('}"],
    "sweep.repeats": ["0", "1001"],
    "sweep.cool_wait_s sweep.wait_idle": ["-1", ".inf", "null"],
    "sweep.cool_below_c": [".nan", "-300"],
    "sweep.timeout_s": [".nan", "0"],
    "storage.root": ["''", "null", "~nobody-here/data"],
    "dataset.root machine.lock_dir machine.state_dir": ["~nobody-here/data", f"/data/{256 * 'a'}"],
    "storage.medium dataset.layout": ["tape"],
    "tracking.uri device.title": ["''"],
    "machine.root measure.data": ["/nonexistent", 256 * "a"],
    "machine.root": ["/etc/passwd"],
    "dataset.on_bad": ["ignore"],
    "dataset.count": ["1e12", "0"],
    "dataset.words": ["1000000000000"],
    "dataset.normalize": ["5", "{mean: [0.5]}", "{mean: [0.5], std: [0]}", "{mean: [], std: []}"],
    "dataset.preprocess": ["null", "5", "warp"],
    "model.dropout": ["1.5", ".nan"],
    "warmup_epochs prefetch dataset.count lr_batch dataset.length": [23 * "1"],
    "sweep.timeout_s sweep.cool_wait_s meter.period_s meter.idle_s strategy.timeout_s": ["1.0e+22"],
    "dataset.space_bytes": [23 * "1"],
    "dataset.version": ["abc", "null", "-1", "1.5"],
    "dataset.make dataset.adopt dataset.open": ["5", "{}", "[]", "{seed: 1}"],
    "dataset.make.count dataset.make.seed dataset.open.memory.count": ["abc", "-1"],
    "scheduler.milestones": ["abc", "[]", "[60, 30]", "[30, 30]", "[0]", "[1.5]", "30"],
    "model._target_ optimizer._target_ dataset.make._target_": ["5", "null", "''", "a..b", "[a]", "{x: 1}", "a b"],
    "tracking.also": ["mlflow", "5", "''", "{a: 1}", "[wandb, wandb]", "[5]", "my module:Exporter", "a:b:c"],
    "tracking.experiment": ["''", 256 * "a", f"a/{255 * 'b'}", "5"],
    "device.name meter.name tracking.name dataset.name": ["null", "5", "{a: 1}", "''"],
    "strategy.launcher": ["mpirun", "5"],
    "model.in_features model.padding model.aux_logits model.activation task.loss": ["[]", "-1", "{}"],
}
"""Invalid values by keys, also of keys that only other options of a group have."""
INCOMPATIBLE = {
    "throughput.stop=5": "`throughput={start: null, stop: 5}` is not an interval",
    "throughput={start:5,stop:5}": "`throughput={start: 5, stop: 5}` is not an interval",
    "throughput.exit=true": "`throughput={start: null, stop: null}` is not an interval",
    "profiler=ncu profiler.start=10 profiler.stop=10": "`profiler.start=10 profiler.stop=10` is not an interval",
    "strategy=dp precision=bf16": "`precision=bf16` has no effect in the threads",
    "strategy=ddp dataset.on_bad=skip": "`dataset.on_bad=skip` is not valid",
    "deterministic=true cudnn_benchmark=true": "`cudnn_benchmark=true` may select other algorithms in each run",
    "power_limit=auto clocks=locked": "`clocks=locked` forbids `power_limit=auto`",
    "power_limit=auto gpu_clock=auto": "`power_limit=auto` and `gpu_clock=auto` are two searches",
    "gpu_clock=auto auto.objective=eta": "`auto.objective=eta` needs a limit in watts",
}


@pytest.fixture
def keys(composed):
    """The keys of the default job."""
    return job.to_plain(composed())


def test_invalid_values_are_refused_with_the_allowed_values(keys):
    for names, values in REFUSED.items():
        for key, text in itertools.product(names.split(), values):
            *sections, name = key.split(".")
            changed = part = copy.deepcopy(keys)
            for section in sections:
                part[section] = part = dict(part.get(section) or {})
            part[name] = OmegaConf.to_container(OmegaConf.create(f"value: {text}"))["value"]
            with pytest.raises(InputError) as refused:
                validation.check_values(Job.from_dict(changed))
            (problem,) = refused.value.problems
            assert re.fullmatch(rf"`{key.partition('.ina3221')[0]}.* is not valid", problem.message), (key, text)
            assert problem.hint.startswith("give "), (key, text)


@pytest.mark.parametrize(("overrides", "message"), INCOMPATIBLE.items())
def test_incompatible_values_are_refused(composed, overrides, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        validation.check_values(job.composed_job(composed(*overrides.split())))


def test_missing_keys_are_refused_and_all_problems_reported_at_once(keys):
    with pytest.raises(InputError) as refused:
        validation.check_values(Job.from_dict({**keys, "batch": 0, "epochs": 0}))
    assert len(refused.value.problems) == 2
    for key in ("dataset", "dataset.layout", "model.name"):
        lacking = copy.deepcopy(keys)
        section, _, name = key.rpartition(".")
        del (lacking[section] if section else lacking)[name]
        with pytest.raises(InputError, match=f"`{key}` is missing"):
            Job.from_dict(lacking)


def test_allowed_storage_media_equal_the_detected_ones():
    assert {*SATISFYING_MEDIA}.union(*SATISFYING_MEDIA.values()) <= {*get_args(Medium)}
    assert all(f"{medium}," in (Path(disk.__file__).read_text()) for medium in get_args(Medium)[:-2])


def test_fields_of_sensor_tables_are_the_times_of_a_response_and_may_be_unknown():
    assert {name for name in Response._fields if name.endswith("_s")} == SENSOR_FIELDS
    validation.check_all_values(
        {"device": {"sensors": {"ina3221": {"averaging_s": None, "renewal_s": None}, "ina238": None}}}
    )


def test_argument_of_a_script_may_be_empty():
    validation.check_all_values({"measure": {"command": ["train.py", "--name", ""]}})
    with pytest.raises(InputError):
        validation.check_all_values({"measure": {"name": ""}})
