import json
from dataclasses import replace

import pytest
from omegaconf import OmegaConf

from epochmeter.config import job
from epochmeter.config.schema import Cache, Timing


@pytest.fixture
def made(composed):
    """made("batch=8", ...) -> the job."""
    return lambda *typed: job.composed_job(composed(*typed))


def test_a_job_is_plain_json_with_nothing_left_to_resolve(made):
    plain = made("model=torchvision", "dataset=cifar10").to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert "${" not in json.dumps(plain)
    assert plain["cache"] == "cold"
    assert plain["model"]["channels"] == 3


@pytest.mark.parametrize("typed", ["power_limit=15", "power_limit=15.0", "power_limit='15'", 'power_limit="15.0"'])
def test_a_power_limit_in_watts_is_one_number_however_it_is_typed(made, typed):
    reference = made("power_limit=15")
    assert made(typed) == reference
    assert job.identity(made(typed), "digest") == job.identity(reference, "digest")


@pytest.mark.parametrize(
    ("typed", "normal"),
    [
        (None, None),
        (15, 15),
        (15.0, 15),
        ("15", 15),
        (7.5, 7.5),
        ("MAXN", "MAXN"),
        ("MODE_30W", "MODE_30W"),
        ("id:2", "id:2"),
    ],
)
def test_a_power_limit_is_watts_or_the_name_of_a_mode(typed, normal):
    found = job.normalize_power_limit(typed)
    assert (found, type(found)) == (normal, type(normal))


@pytest.mark.parametrize(
    "typed",
    [
        "tracking=none",
        "tracking.experiment=mine",
        "tracking.tensorboard=true",
        "sweep.again=true",
        "machine.lock_dir=/tmp",
    ],
)
def test_what_changes_no_measurement_is_no_part_of_the_identity(made, typed):
    assert job.identity(made(typed), "digest") == job.identity(made(), "digest")


@pytest.mark.parametrize(
    "typed",
    [
        "batch=32",
        "repeat=1",
        "seed=1",
        "device=cpu",
        "optimizer.lr=0.1",
        "profiler=none",
        "meter=estimate",
        "cache=warm",
    ],
)
def test_what_changes_the_measurement_changes_the_identity(made, typed):
    assert job.identity(made(typed), "digest") != job.identity(made(), "digest")


def test_other_images_are_another_job(made):
    assert len({job.identity(made(), digest) for digest in ("0a", "0b", None)}) == 3


def test_another_host_is_another_job(made, monkeypatch):
    here, anywhere = job.identity(made(), "digest"), job.identity(made(), "digest", host="")
    monkeypatch.setattr(job.platform, "node", lambda: "another")
    assert job.identity(made(), "digest") != here
    assert job.identity(made(), "digest", host="") == anywhere


def test_the_order_for_a_found_device_keeps_what_was_typed_and_takes_the_devices_meter(order):
    asked = order("device=auto", "batch=8", "device.python=/usr/bin/python3")
    found = asked.with_device("cuda")
    assert (found.job.device.name, found.choices["device"]) == ("cuda", "cuda")
    assert (found.job.meter.name, found.choices["meter"]) == ("nvml", "nvml")
    assert found.job.batch == 8
    assert found.job.device.python == "/usr/bin/python3"


def test_the_order_for_a_found_device_keeps_the_meter_that_was_typed(order):
    assert order("meter=estimate").with_device("cuda").job.meter.name == "estimate"


@pytest.mark.parametrize("choice", [Cache.cold_each_epoch, Timing.deferred])
def test_a_choice_is_written_as_it_is_typed(choice):
    assert str(choice) == choice.name


@pytest.mark.parametrize("key", job.SWEEP_ONLY_KEYS)
def test_keys_of_sweeps_are_refused_for_a_single_run(key):
    with pytest.raises(ValueError, match=rf"`{key}=3` is for sweeps, and this is a single run"):
        job.forbid_sweep_keys(["batch=8", f"{key}=3"])


def test_what_a_single_run_may_have_of_a_sweeps_keys_is_let_pass():
    job.forbid_sweep_keys(["sweep.timeout_s=60", "sweep.resume=true", "sweep.repeats=null", "batch=8"])


def test_order_for_the_device_found_has_the_groups_of_the_typed_search_path(order, tmp_path, monkeypatch):
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "mine.yaml").write_text("# @package _global_\nbatch: 77\n")
    path = f"hydra.searchpath=[file://{tmp_path}]"
    hydra = OmegaConf.create({"overrides": {"hydra": ["hydra.mode=RUN", path]}})
    monkeypatch.setattr(job.HydraConfig, "initialized", lambda: True)
    monkeypatch.setattr(job.HydraConfig, "get", lambda: hydra)
    typed = replace(order(), overrides=["+study=mine", "device=auto"])
    assert (typed.with_device("nano").job.batch, typed.with_device("nano").job.device.name) == (77, "nano")
