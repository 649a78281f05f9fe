"""Validation of the values of a configuration."""

import copy
import re
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from epochmeter.config import job, validation
from epochmeter.config.errors import InputError
from epochmeter.config.schema import Job
from epochmeter.machine import disk
from epochmeter.machine.disk import SATISFYING_MEDIA

REFUSED = [
    "batch=0",
    "seed=-1",
    "seed=4294967296",
    "repeat=-1",
    "prefetch=0",
    "lr_batch=0",
    "power_limit={a: 1}",
    "power_limit=.nan",
    "power_limit=''",
    "target_loss=inf",
    "checkpoint.every=0",
    "meter.period_s=0",
    "meter.period_s=-1",
    "meter.tdp_w=-5",
    "meter.cross_check=2",
    "meter.idle_s=-1",
    "meter.idle_s=nan",
    "optimizer.lr=inf",
    "optimizer.lr=true",
    "optimizer.lr=-0.1",
    "dataset.count=1e12",
    "dataset.count=0",
    "dataset.channels=0",
    "strategy.timeout_s=0",
    "scheduler.step_size=0",
    "profiler.steps=0",
    "sweep.seed=-1",
    "sweep.timeout_s=nan",
    "sweep.max_failures=0",
    "storage.reread=1",
    "tracking.tensorboard=maybe",
    "device.python=''",
    "storage.root=''",
    "storage.root=null",
    "storage.medium=tape",
    "dataset.root=''",
    "tracking.experiment=''",
    "tracking.experiment=null",
    "machine.root=/nonexistent",
    "machine.root=/etc/passwd",
    "machine.state_dir=/proc/nope",
    "machine.lock_dir=/etc/passwd",
    "warmup_epochs=-1",
    "workers=-1",
    "workers=1.5",
    "workers=true",
    "workers=many",
    "epochs=0",
    "epochs=null",
    "power_limit=0",
    "power_limit=-5",
    "power_limit=true",
    "target_accuracy=0",
    "target_accuracy=97",
    "target_accuracy=nan",
    "target_loss=0",
    "pin_memory=maybe",
    "rehearse=later",
    "throughput.start=-1",
    "throughput.stop=0",
    "sweep.sample=0",
    "sweep.repeats=0",
    "sweep.repeats=1001",
    "sweep.cooldown_s=-1",
    "sweep.cooldown_s=inf",
    "sweep.cool_wait_s=nan",
    "sweep.cool_below_c=nan",
    "sweep.timeout_s=0",
    "sweep.hung_after_s=-1",
    "device.accelerator=gpu",
    "device.match=5",
    "device.rails=5",
    "meter.rails=5",
    "meter.file=/nonexistent",
    "dataset.pixels=1",
    "dataset.words=1000000000000",
    "dataset.on_bad=ignore",
    "model.dropout=1.5",
    "model.dropout=nan",
    "model.width=0",
    "scheduler.gamma=0",
    "task.auxiliary=-1",
    "dataset.held_out=1",
    "dataset.file_bytes=0",
    "tracking.uri=''",
    "device.title=''",
    "meter.tdp_w=nan",
    "optimizer.betas.x=-.inf",
    "meter.rails.shunt_ohm=.inf",
]
"""Overrides of the default configuration, also of keys that only other options of a group have."""


@pytest.fixture
def made(composed):
    """made("batch=8", ...) -> the job."""
    return lambda *typed: job.composed_job(composed(*typed))


def test_default_values_are_valid(made):
    validation.check_values(made())


@pytest.fixture(scope="module")
def plain_job():
    """The default job, composed once."""
    job.register(lambda command, many, again: Path("nowhere"))
    with initialize_config_dir(str(job.ROOT / "conf"), version_base="1.3"):
        return job.to_plain(compose("train"))


@pytest.mark.parametrize("typed", REFUSED)
def test_an_invalid_value_is_refused_with_the_allowed_values(plain_job, typed):
    key, _, text = typed.partition("=")
    *above, name = key.split(".")
    changed = part = copy.deepcopy(plain_job)
    for each in above:
        part[each] = part = dict(part.get(each) or {})
    part[name] = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]))["value"]
    with pytest.raises(InputError) as refused:
        validation.check_values(Job.from_dict(changed))
    (problem,) = refused.value.problems
    assert problem.message.startswith(f"`{key}")
    assert problem.message.endswith("` is not valid")
    assert problem.hint.startswith("give ")


def test_allowed_storage_media_equal_the_detected_ones():
    assert {*SATISFYING_MEDIA}.union(*SATISFYING_MEDIA.values()) <= {*validation.STORAGE_MEDIA}
    assert all(f"{medium}," in (Path(disk.__file__).read_text()) for medium in validation.STORAGE_MEDIA[:-2])


@pytest.mark.parametrize("key", validation.REQUIRED)
def test_a_required_key_that_is_missing_is_named(plain_job, key):
    lacking = copy.deepcopy(plain_job)
    *above, name = key.split(".")
    del (lacking[above[0]] if above else lacking)[name]
    with pytest.raises(InputError, match=f"`{key}` is missing"):
        validation.check_keys(lacking)


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("dataset.preprocess=null", "`dataset.preprocess=null` is not valid"),
        ("dataset.preprocess=5", "`dataset.preprocess=5` is not valid"),
        ("dataset.preprocess=warp", "`dataset.preprocess=warp` is not valid"),
        ("dataset.layout=tape", "`dataset.layout=tape` is not valid"),
        (
            "dataset=polynomial target_accuracy=0.9",
            "`target_accuracy=0.9` is not valid: task=regression has no accuracy",
        ),
        ("throughput.start=5", "`throughput.start=5` is only one end of an interval"),
        ("throughput.stop=5", "`throughput.stop=5` is only one end of an interval"),
        ("throughput={start:5,stop:5}", "`throughput.start=5` is not below throughput.stop=5"),
        ("throughput.exit=true", "`throughput.exit=true` needs a step to end at"),
        ("strategy=dp precision=bf16", "`precision=bf16` has no effect in the threads"),
        (
            "deterministic=true cudnn_benchmark=true",
            "`cudnn_benchmark=true` may select other algorithms in each run",
        ),
    ],
)
def test_incompatible_values_are_refused(made, typed, says):
    with pytest.raises(InputError, match=f"^{re.escape(says)}"):
        validation.check_values(made(*typed.split()))


def test_all_problems_are_reported_at_once(made):
    with pytest.raises(ValueError, match=r"(?s)^`batch=0` .*\nerror: `epochs=0` "):
        validation.check_values(made("batch=0", "epochs=0"))


def test_an_added_unknown_key_is_refused_with_a_suggestion(made):
    with pytest.raises(ValueError, match=r"unknown key `bach`\n  hint: did you mean `batch=`\?"):
        validation.check_keys({**made().to_dict(), "bach": 8})
