"""Configurations of a sweep: equal to those of Hydra, with files read once."""

from copy import deepcopy

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import OmegaConf
from project import put

from epochmeter.run.preflight import validate_sweep
from epochmeter.sweep.compose import SweepLoader, Template


@pytest.fixture
def loader(composed):
    """Hydra's own loader, initialized for conf/."""
    return GlobalHydra.instance().config_loader()


@pytest.fixture
def master(loader):
    return loader.load_configuration("train", ["batch=8,16", "hydra.mode=MULTIRUN"], RunMode.MULTIRUN)


def test_configuration_equals_hydras_own(loader, tmp_path):
    put(tmp_path, {"study/mine.yaml": "# @package _global_\nbatch: 77\nepochs: 3\n"})
    fast = SweepLoader(loader)
    for overrides in (
        ["batch=2", "model=resnet18", "optimizer.lr=0.3"],
        ["experiment=edge/resnet18_cifar10", "device=nano", "epochs=2"],
        ["+note=x", "~scheduler", "~optimizer.momentum"],
        ["hydra.job.name=me", "seed=3", "model={name: mine}"],
        ["experiment=edge/grid", "power_limit=null", "storage=hdd_usb"],
        [f"hydra.searchpath=[file://{tmp_path}]", "+study=mine", "epochs=4"],
    ):
        # Hydra 1.4 refuses settings of the sweeper that only one run of a sweep has.
        recipe = [override for override in overrides if override.startswith("experiment=")]
        master = loader.load_configuration("train", [*recipe, "hydra.mode=MULTIRUN"], RunMode.MULTIRUN)
        expected = OmegaConf.to_container(loader.load_sweep_config(master, overrides))
        fast.load_sweep_config(master, [*overrides, "seed=99"])  # makes the template
        composed = OmegaConf.to_container(fast.load_sweep_config(master, overrides))
        for config in (expected, composed):
            del config["hydra"]["job"]["override_dirname"]  # names of folders, which are numbers here
        assert composed == expected


def test_grid_reads_files_once_per_choice_of_groups(loader, master, monkeypatch):
    read, hydras = [], type(loader).load_sweep_config
    monkeypatch.setattr(type(loader), "load_sweep_config", lambda *args: read.append(args[2]) or hydras(*args))
    fast = SweepLoader(loader)
    grid = [(model, batch) for model in ("lenet", "resnet18") for batch in range(1, 6)]
    points = [[f"model={model}", f"batch={batch}"] for model, batch in grid]
    validate_sweep(points, lambda point: fast.load_sweep_config(master, point))
    configs = [fast.load_sweep_config(master, point) for point in points]
    assert [(config.model.name, config.batch) for config in configs] == grid
    assert read == [["model=lenet"], ["model=resnet18"]]


def test_copy_of_a_template_has_the_same_types_flags_and_cache(loader, master):
    config = loader.load_sweep_config(master, ["model=resnet18", "+note=x", "experiment=edge/grid"])
    cache = {"user": {"a": lambda: None}}  # a resolver may return anything
    OmegaConf.set_cache(config, cache)
    copy = Template(config).copy()
    assert described(copy) == described(deepcopy(config))
    assert OmegaConf.get_cache(copy).keys() == OmegaConf.get_cache(config).keys() == cache.keys()
    copy.batch = 77
    assert config.batch != 77


def described(node, parent=None):
    """Return everything of a node of OmegaConf: its parent is the right one, its own facts, and its children."""
    assert node._get_parent() is parent
    facts = {name: value for name, value in vars(node._metadata).items() if name != "resolver_cache"}
    content = vars(node).get("_content", vars(node).get("_val"))
    if isinstance(content, dict):
        content = {key: described(child, node) for key, child in content.items()}
    elif isinstance(content, list):
        content = [described(child, node) for child in content]
    return type(node), facts, content


def test_device_of_this_machine_replaces_auto(loader, master, composed, monkeypatch):
    monkeypatch.setenv("BOARD", "/b")
    roots = []
    fast = SweepLoader(loader, lambda root: roots.append(root) or "nano")
    for root in ("machine.root=/a", "machine.root=${oc.env:BOARD}", "machine={root: /c}"):
        config = fast.load_sweep_config(master, ["device=auto", "batch=4", root])
        assert (config.device.name, config.hydra.runtime.choices.device) == ("nano", "nano")
        assert config.hydra.overrides.task == ["device=auto", "batch=4", root]
    assert roots == ["/a", "/b", "/c"]
    assert config.meter.name == composed("device=nano").meter.name
    assert fast.load_sweep_config(master, ["device=agx"]).device.name == "agx"
    assert SweepLoader(loader).load_sweep_config(master, []).device.name == "auto", "on another machine"
