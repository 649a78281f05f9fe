"""Every file of conf/ composes, and its targets exist and accept its keys."""

import inspect
import subprocess
from itertools import zip_longest
from pathlib import Path

import pytest
from hydra import compose
from omegaconf import OmegaConf

from epochmeter.config import job, resolvers
from epochmeter.shared.instantiate import import_object, target_arguments

CONF = Path(__file__).parents[2] / "conf"
TRACKED = subprocess.run(["git", "ls-files", "-z", "conf"], cwd=CONF.parent, capture_output=True, text=True).stdout
"""Names of the project's own files, without those that a user added; empty outside a git work tree."""
FILES = sorted(
    path
    for path in CONF.rglob("*.yaml")
    if path.parent != CONF and path.relative_to(CONF).parts[0] != "hydra"
    if not TRACKED or str(path.relative_to(CONF.parent)) in TRACKED.split("\0")
)


def choice(path: Path) -> tuple[str, str]:
    """Return the group and the option of a file: experiment, edge/lenet_mnist."""
    group, _, name = path.relative_to(CONF).with_suffix("").as_posix().partition("/")
    return group, name


CHOICES = [choice(path) for path in FILES]
DEVICES = [path for path in FILES if path.parent.name == "device" and path.stem != "auto"]
SETTING = ("experiment", "data_source")  # groups that set keys of the job, and are not part of it themselves
CALLS = {
    "model": ((), {}),
    "task": ((), {}),
    "optimizer": (("parameters",), {}),
    "scheduler": (("optimizer",), {}),
    "strategy": ((), {}),
    "meter": ((), {"gpus": [], "root": "/"}),
    "profiler": ((), {}),
    "dataset.make": (("folder",), {"say": print}),
    "dataset.adopt": (("folder",), {"say": print}),
    "dataset.open.files": (("folder", "train", "preprocessing"), {}),
    "dataset.open.memory": (("folder", "train", "preprocessing"), {}),
}
"""Arguments that the program passes to each target in addition to the keys of its specification."""
REQUIRES = {
    ("model", "seq2seq"): ["dataset=pairs"],
    ("model", "transformer"): ["dataset=pairs"],
    ("model", "polynomial"): ["dataset=polynomial"],
}
"""Overrides that an option needs because it is not compatible with the defaults."""
READ_BY_CONTROLLER = {("meter", "idle_s")}  # keys of specifications that are not arguments of their targets


def specifications(tree: dict, path: str = "") -> dict[str, dict]:
    """Return every part of a job that has a target, by its dotted key."""
    nodes = {path: tree} if "_target_" in tree else {}
    for key, value in tree.items():
        if isinstance(value, dict):
            nodes |= specifications(value, f"{path}.{key}".lstrip("."))
    return nodes


def compatible_choices() -> list[list[tuple[str, str]]]:
    """Return all options, those of groups that do not select each other together: a composition takes 0.1 s."""
    options = {group: [chosen for chosen in CHOICES if chosen[0] == group] for group in (*job.GROUPS, *SETTING)}
    selecting = [[*filter(None, row)] for row in zip_longest(options.pop("dataset"), options.pop("meter"))]
    alone = [[chosen] for group in SETTING for chosen in options.pop(group)]
    return [*selecting, *alone, *([*filter(None, row)] for row in zip_longest(*options.values()))]


def test_every_option_composes_and_its_targets_accept_its_keys(composed):
    pytest.importorskip("torch", reason="models need torch")
    for choices in compatible_choices():
        requires = [override for chosen in choices for override in REQUIRES.get(chosen, ())]
        config = composed(*map("=".join, choices), *requires)
        nodes = specifications(job.to_plain(config))
        targets = {"model", "task", "optimizer", "scheduler", "strategy", "meter", "profiler"}
        assert targets <= nodes.keys() <= CALLS.keys(), choices
        for place, specification in nodes.items():
            args, kwargs = CALLS[place]
            keys = target_arguments(specification)
            keys = {key: value for key, value in keys.items() if (place, key) not in READ_BY_CONTROLLER}
            inspect.signature(import_object(specification["_target_"])).bind(*args, **keys, **kwargs)
        for group, name in choices:
            if group not in (*SETTING, "model"):  # some models have the name of an architecture
                assert config[group].name == name
    assert {group for group, _ in CHOICES} == {*job.GROUPS, *SETTING}


def test_edge_studies_set_power_and_storage_by_board(composed):
    boards = {"agx": ("MAXN", "ssd"), "nx": (15, "ssd"), "nano": ("MAXN", "sd")}
    for device in [*boards, "cpu", "auto"]:
        config = composed("experiment=edge/lenet_mnist", f"device={device}")
        assert (config.power_limit, config.storage.medium) == boards.get(device, (None, None)), device
    config = composed("experiment=edge/lenet_mnist", "device=nano", "storage=hdd_usb", "power_limit=5")
    assert (config.power_limit, config.storage.medium) == (5, "hdd_usb")
    for device, modes in {"agx": "MAXN,30,15", "nano": "MAXN,5", "cuda": "null"}.items():
        resolvers.register(lambda *_: Path("nowhere"), lambda root: {"/": device}[root])  # noqa: B023
        grid = compose("train", overrides=["experiment=edge/grid"], return_hydra_config=True)
        assert grid.hydra.sweeper.params.power_limit == modes


def test_devices_select_a_meter_and_datasets_a_task_and_model_unless_given(composed):
    for path in DEVICES:
        meter = OmegaConf.load(path).defaults[0]["override /meter@_global_.meter"]
        assert composed(f"device={path.stem}").meter.name == meter
    assert composed("device=nano", "meter=estimate").meter.name == "estimate"
    assert composed("device=nano").meter.rails.total == ["POM_5V_IN"]
    assert composed("device=jetson").meter.rails is None
    assert composed("device=agx_orin", "meter=jtop").meter.rails.gpu == "VDD_GPU_SOC"
    for overrides, names in {
        ("dataset=pairs",): ("translation", "transformer"),
        ("dataset=polynomial",): ("regression", "polynomial"),
        ("dataset=pairs", "model=seq2seq"): ("translation", "seq2seq"),
        ("experiment=tbd/seq2seq",): ("translation", "seq2seq"),
    }.items():
        config = composed(*overrides)
        assert (config.task.name, config.model.name) == names, overrides


def test_default_that_depends_on_a_key_follows_it_and_can_be_set(composed):
    for overrides, expected in {
        ("dataset=jpeg",): {"count": 1000, "file_bytes": 110_000},
        ("dataset=jpeg", "dataset.pixels=256"): {"count": 1000, "file_bytes": 45_056},
        ("dataset=jpeg", "dataset.classes=1000"): {"count": 5000, "file_bytes": 110_000},
        ("dataset=jpeg", "dataset.pixels=256", "dataset.file_bytes=null", "dataset.count=60"): {
            "count": 60,
            "file_bytes": None,
        },
        ("profiler=ncu",): {"start": 1, "stop": 10},
        ("profiler=nsys", "profiler.start=20"): {"start": 20, "stop": 29},
        ("profiler=ncu", "profiler.start=20", "profiler.stop=21"): {"start": 20, "stop": 21},
        ("scheduler=cosine", "epochs=30"): {"T_max": 30},
    }.items():
        group = overrides[0].partition("=")[0]
        keys = job.to_plain(composed(*overrides))[group]
        assert {key: keys[key] for key in expected} == expected, overrides
    config = composed("dataset=jpeg", "dataset.pixels=256")
    assert config.dataset.root == "data/jpeg-1000x256-45056-10-0"
    assert config.dataset.make.file_bytes == 45_056
    assert composed("profiler=ncu", "profiler.start=x").profiler.stop is None  # a rule refuses the start
