"""A configuration is composed once, and is the one that Hydra composes for the run."""

import sys

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf

from epochmeter.commands.train import detected_device
from epochmeter.config import app, composition, resolvers
from epochmeter.config.config_source import use_device
from epochmeter.config.request import current_request
from epochmeter.config.versions import ADDED_TO_RUNS, IS_HYDRA_1_3


def composed(monkeypatch, tmp_path, *arguments):
    """Return what the runs of a command with these arguments get, and how often Hydra has composed for the first.

    They get a configuration, the request for it, and the request for the device `cpu`.
    """
    configs, counts, seen, requests = [], [], [], []
    compose = ConfigLoaderImpl._load_configuration_impl
    monkeypatch.setattr(
        ConfigLoaderImpl,
        "_load_configuration_impl",
        lambda *args, **options: counts.append(1) or compose(*args, **options),
    )
    monkeypatch.setattr(sys, "argv", ["train.py", f"hydra.run.dir={tmp_path}/0", *arguments])
    monkeypatch.chdir(tmp_path)
    resolvers.register(lambda keys, many, again: tmp_path / "sweep")

    def task(config):
        seen.append(len(counts))
        request = current_request(config)
        requests.append((request, request.with_device("cpu")))
        full = OmegaConf.create({"config": config, "hydra": HydraConfig.get()})
        configs.append(OmegaConf.to_container(full, resolve=False, enum_to_str=True))

    app.run("train", task, "help")
    return configs, seen[0], requests


def test_a_single_run_is_composed_once_as_hydra_composes_it(monkeypatch, tmp_path):
    arguments = ["batch=8", "model=torchvision", "+hydra.job.env_set.A=b"]
    with monkeypatch.context() as patch:
        once, count, _ = composed(patch, tmp_path, *arguments)
    assert count == 1
    with monkeypatch.context() as patch:
        get_mode, compose_config = composition.Hydra.get_mode, composition.Hydra.compose_config
        patch.setattr(app, "composed_once", lambda: pytest.MonkeyPatch.context())
        twice, count, _ = composed(patch, tmp_path, *arguments)
    assert (get_mode, compose_config) == (composition.Hydra.get_mode, composition.Hydra.compose_config)
    assert count == (2 if IS_HYDRA_1_3 else 1)
    assert once == twice
    assert once[0]["hydra"]["mode"] == RunMode.RUN.name
    assert once[0]["hydra"]["overrides"]["hydra"][2:] == [*ADDED_TO_RUNS]


def test_a_recipe_that_is_a_sweep_remains_one(monkeypatch, tmp_path):
    folder = f"hydra.sweep.dir={tmp_path}/sweep"
    configs, _, _ = composed(monkeypatch, tmp_path, "experiment=stalls", folder)
    assert len(configs) > 1
    assert {config["hydra"]["mode"] for config in configs} == {RunMode.MULTIRUN.name}


@pytest.mark.parametrize(
    "arguments", [[], ["batch=8", "device.python=/usr/bin/python3"], ["meter=estimate"], ["meter.idle_s=3"]]
)
def test_a_run_is_composed_for_the_detected_device_at_once_as_it_would_be_later(monkeypatch, tmp_path, arguments):
    with monkeypatch.context() as patch:
        _, _, [(earlier, later)] = composed(patch, tmp_path, *arguments)
    use_device("cpu")
    try:
        with monkeypatch.context() as patch:
            _, count, [(at_once, request)] = composed(patch, tmp_path, *arguments)
    finally:
        use_device(None)
    assert count == 1
    assert (earlier.choices["device"], earlier.job.device.name) == ("auto", "auto")
    assert (at_once.choices["device"], at_once.job.device.name) == ("auto", "cpu")
    assert request == later
    assert request.choices["device"] == "cpu"


@pytest.mark.parametrize(
    ("arguments", "device"),
    [
        (["batch=8"], "nano"),
        (["-m", "batch=8,16"], "nano"),
        (["device=cuda"], None),
        (["-m", "device=cuda,cpu"], None),
        (["machine.root=board.tar.gz"], None),
        (["-m", "hydra/launcher=slurm"], None),
        (["hydra.searchpath=[file:///conf]"], None),
        (["--cfg", "job"], None),
    ],
)
def test_the_device_is_detected_first_only_for_runs_on_this_machine(arguments, device):
    assert detected_device(arguments, lambda root: "nano") == device


def test_a_device_that_cannot_be_detected_is_reported_by_the_run():
    def detect(root):
        raise ValueError(root)

    assert detected_device([], detect) is None
