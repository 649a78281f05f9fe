"""Composed configurations as typed jobs, the identity of a measurement, and requests for runs."""

from dataclasses import replace
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf
from project import put

from epochmeter.config import job, request, resolvers
from epochmeter.config.identity import identity, measured_keys
from epochmeter.config.installation import ROOT
from epochmeter.config.schema import Job
from epochmeter.config.versions import DEFAULTS


@pytest.fixture
def made(composed):
    """made("batch=8", ...) -> the job."""
    return lambda *overrides: job.composed_job(composed(*overrides))


def test_power_limit_is_watts_or_a_power_mode(made):
    same = {None: None, "MAXN": "MAXN", "id:2": "id:2", 7.5: 7.5, 15.0: 15, "15": 15}
    for value, normal in same.items():
        normalized = job.normalize_power_limit(value)
        assert (normalized, type(normalized)) == (normal, type(normal))
    assert identity(made("power_limit='15.0'"), "digest") == identity(made("power_limit=15"), "digest")


def test_identity_changes_with_keys_that_affect_the_measurement_dataset_and_host(made, monkeypatch):
    default = made()
    here, anywhere = identity(default, "digest"), identity(default, "digest", host="")
    for override in ("tracking=none", "sweep.again=true", "sweep.wait_idle=9", "machine.lock_dir=/tmp"):
        assert identity(made(override), "digest") == here, override
    nano = ["device=nano", "device.slurm.constraint=other"]  # the node's own properties are in the identity
    assert identity(made(*nano), "digest") == identity(made(nano[0]), "digest")
    for override in ("repeat=1", "device=cpu", "optimizer.lr=0.1", "meter=estimate", "threads=1"):
        assert identity(made(override), "digest") != here, override
    assert len({identity(default, digest) for digest in ("0a", "0b", None)}) == 3
    assert len({identity(default, "digest", nodes) for nodes in (1, 2, 3)}) == 3
    monkeypatch.setattr("platform.node", lambda: "another")
    assert identity(default, "digest") != here
    assert identity(default, "digest", host="") == anywhere


def test_later_keys_are_part_of_the_identity_only_if_they_are_set_and_matter(made):
    """Records of versions without these keys have the identity of a run with the defaults."""
    assert measured_keys(made())["measure"].keys().isdisjoint({"loader", "events", "hide_arguments"})
    assert measured_keys(made("measure.loader=a:B"))["measure"]["loader"] == "a:B"
    assert "events" not in measured_keys(made("measure.events=/tmp"))["measure"]
    assert "threads" not in measured_keys(made())
    assert measured_keys(made("threads=2"))["threads"] == 2
    assert measured_keys(made()).keys().isdisjoint({"log_every", "nodes", "format"})
    assert measured_keys(made("log_every=10"))["log_every"] == 10
    translation = ["model=seq2seq", "dataset=pairs"]
    assert "bleu" not in measured_keys(made(*translation))["task"]
    assert measured_keys(made(*translation, "task.bleu=true"))["task"]["bleu"]
    assert measured_keys(made("dataset=imagenet")) == measured_keys(made("dataset=imagenet", "dataset.archives=/a"))


def test_record_without_keys_of_a_later_version_has_their_defaults(composed):
    keys = job.to_plain(composed("sweep.repeats=3"))
    del keys["sweep"]["hung_after_s"], keys["roofline"], keys["compile"], keys["threads"]
    assert Job.from_dict(keys) == job.composed_job(composed("sweep.repeats=3"))
    with pytest.raises(ValueError, match="`model` is missing"):
        Job.from_dict({key: value for key, value in keys.items() if key != "model"})


def test_request_for_the_detected_device_keeps_overrides_and_selects_its_meter(order, tmp_path, monkeypatch):
    request = order("device=auto", "batch=8", "device.python=/usr/bin/python3").with_device("cuda")
    assert (request.job.device.name, request.choices["device"]) == ("cuda", "cuda")
    assert (request.job.meter.name, request.choices["meter"]) == ("nvml", "nvml")
    assert (request.job.batch, request.job.device.python) == (8, "/usr/bin/python3")
    assert order("meter=estimate").with_device("cuda").job.meter.name == "estimate"
    assert order("device=auto", "meter.period_s=0.2").with_device("nano").job.meter.spec["period_s"] == 0.2
    with pytest.raises(ValueError, match="no key `cross_check`"):
        order("device=auto", "meter.cross_check=true").with_device("nano")
    put(tmp_path, {"study/mine.yaml": "# @package _global_\nbatch: 77\n"})
    hydra = OmegaConf.create({"overrides": {"hydra": ["hydra.mode=RUN", f"hydra.searchpath=[file://{tmp_path}]"]}})
    monkeypatch.setattr(HydraConfig, "initialized", lambda: True)
    monkeypatch.setattr(HydraConfig, "get", lambda: hydra)
    request = replace(order(), overrides=["+study=mine", "device=auto"]).with_device("nano")
    assert (request.job.batch, request.job.device.name) == (77, "nano")


def test_folder_of_a_sweep_depends_on_its_sweeper_grid_and_launcher():
    commands = []
    resolvers.register(lambda command, many, again: commands.append(command) or Path("nowhere"))
    keys = ["hydra/launcher=slurm", "hydra.launcher.mem=1", "hydra/sweeper=optuna", "+hydra.sweeper.params.seed=1"]
    with initialize_config_dir(str(ROOT / "conf"), **DEFAULTS):
        config = compose("train", overrides=["batch=8", *keys, "hydra.sweeper.trials=3"], return_hydra_config=True)
        assert config.hydra.run.dir == "nowhere/0"
    assert commands == [["batch=8", *keys]]


def test_keys_of_sweeps_are_refused_for_a_single_run():
    for key in request.SWEEP_ONLY_KEYS:
        with pytest.raises(ValueError, match=rf"`{key}=3` is for sweeps, and this is a single run"):
            request.forbid_sweep_keys(["batch=8", f"{key}=3"])
    request.forbid_sweep_keys(["sweep.timeout_s=60", "sweep.resume=true", "sweep.repeats=null", "batch=8"])
