"""Every file of conf/ composes, and what it names is there and takes what it is given."""

import inspect
import subprocess
from pathlib import Path

import pytest
from hydra import compose
from hydra.errors import ConfigCompositionException, MissingConfigException
from omegaconf import OmegaConf

from epochmeter.config import job
from epochmeter.shared.instantiate import import_object, target_arguments

CONF = Path(__file__).parents[2] / "conf"
OURS = subprocess.run(["git", "ls-files", "-z", "conf"], cwd=CONF.parent, capture_output=True, text=True).stdout
"""Names of the files that are the project's: a person's own stand beside them. None outside a git work tree."""
FILES = sorted(
    path
    for path in CONF.rglob("*.yaml")
    if path.parent != CONF and path.relative_to(CONF).parts[0] != "hydra"
    if not OURS or str(path.relative_to(CONF.parent)) in OURS.split("\0")
)


def choice(path: Path) -> tuple[str, str]:
    """The group that a file is a choice of, and by which name: experiment, edge/lenet_mnist."""
    group, _, name = path.relative_to(CONF).with_suffix("").as_posix().partition("/")
    return group, name


CHOICES = [choice(path) for path in FILES]
DEVICES = [path for path in FILES if path.parent.name == "device" and path.stem != "auto"]
SETTING = ("experiment", "data_source")
"""Groups whose files set keys of the job, and are no part of it themselves."""
EXPERIMENTS = [path for path in FILES if choice(path)[0] in SETTING]
GIVEN = {
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
"""What the program gives to each target beside the keys of its specification."""


BESIDE = {
    ("model", "seq2seq"): ["dataset=pairs"],
    ("model", "transformer"): ["dataset=pairs"],
    ("model", "polynomial"): ["dataset=polynomial"],
}
"""What goes with a choice that does not go with the defaults."""
NOT_TAKEN = {("meter", "idle_s")}
"""What the program reads itself."""


def specifications(tree: dict, path: str = "") -> dict[str, dict]:
    """Every part of a job that names a target, by its place."""
    found = {path: tree} if "_target_" in tree else {}
    for key, value in tree.items():
        if isinstance(value, dict):
            found |= specifications(value, f"{path}.{key}".lstrip("."))
    return found


@pytest.mark.parametrize(("group", "name"), CHOICES)
def test_each_file_composes_and_its_targets_take_what_they_are_given(composed, group, name):
    pytest.importorskip("torch", reason="no torch in this environment, as on a board: models cannot be had")
    found = specifications(job.to_plain(composed(f"{group}={name}", *BESIDE.get((group, name), ()))))
    assert {"model", "task", "optimizer", "scheduler", "strategy", "meter", "profiler"} <= found.keys() <= GIVEN.keys()
    for place, specification in found.items():
        args, kwargs = GIVEN[place]
        taken = {key: value for key, value in target_arguments(specification).items() if (place, key) not in NOT_TAKEN}
        inspect.signature(import_object(specification["_target_"])).bind(*args, **taken, **kwargs)


@pytest.mark.parametrize(("group", "name"), [choice for choice in CHOICES if choice[0] not in (*SETTING, "model")])
def test_each_choice_but_a_model_of_many_architectures_goes_by_the_name_of_its_file(composed, group, name):
    assert composed(f"{group}={name}")[group].name == name


@pytest.mark.parametrize("path", [*FILES, *CONF.glob("*.yaml"), *CONF.glob("hydra/*/*.yaml")], ids=lambda p: p.stem)
def test_each_file_begins_with_what_it_is(path):
    lines = [line for line in path.read_text().splitlines()[:2] if not line.startswith("# @package")]
    assert lines[0].startswith("# ")
    assert len(lines[0]) > len("# a word")


def test_each_group_that_a_person_chooses_from_is_one_that_jobs_know():
    assert {group for group, _ in CHOICES} == {*job.GROUPS, *SETTING}


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_an_experiment_holds_only_what_it_changes(composed, path):
    default, changed = (
        OmegaConf.to_container(config, resolve=False) for config in (composed(), composed("=".join(choice(path))))
    )
    content = OmegaConf.load(path)
    keys = [key for key in content if key not in ("defaults", "hydra")]
    assert keys or any("override" in str(entry) for entry in content.defaults)
    assert [key for key in keys if changed[key] == default[key]] == []


EDGE = [name for group, name in CHOICES if group == "experiment" and name.startswith("edge/")]


@pytest.mark.parametrize("name", EDGE)
def test_each_run_of_the_edge_study_has_its_recipe(composed, name):
    job = composed(f"experiment={name}", "device=agx")
    assert (job.batch, job.workers, job.prefetch, job.persistent_workers) == (16, 4, 2, False)
    assert (job.optimizer.name, job.optimizer.lr, job.optimizer.momentum) == ("sgd", 0.01, 0.9)
    assert (job.epochs, job.warmup_epochs, job.cache.name, job.drop_caches) == (6, 1, "cold", True)
    assert (job.clocks.name, job.fan.name, job.precision.name, job.task.name) == (
        *("locked", "max", "fp32", "classification"),
    )


@pytest.mark.parametrize(
    ("device", "power_limit", "medium"),
    [
        *[("agx", "MAXN", "ssd"), ("nx", 15, "ssd"), ("nano", "MAXN", "sd")],
        *[(path.stem, None, None) for path in DEVICES if path.stem not in ("agx", "nx", "nano")],
        ("auto", None, None),
    ],
)
def test_the_edge_study_sets_power_and_storage_by_board(composed, device, power_limit, medium):
    job = composed("experiment=edge/lenet_mnist", f"device={device}")
    assert (job.power_limit, job.storage.medium) == (power_limit, medium)


def test_overrides_win_over_the_edge_study_s_values_per_board(composed):
    job = composed("experiment=edge/lenet_mnist", "device=nano", "storage=hdd_usb", "power_limit=5")
    assert (job.power_limit, job.storage.medium) == (5, "hdd_usb")


@pytest.mark.parametrize(
    ("found", "modes"), [("agx", "MAXN,30,15"), ("nx", "15,10"), ("nano", "MAXN,5"), ("cuda", "null")]
)
def test_the_edge_grid_takes_the_power_modes_of_the_board_that_is_found(composed, found, modes):
    composed()
    job.register(lambda *asked: Path("nowhere"), lambda root: {"/": found}[root])
    grid = compose("train", overrides=["experiment=edge/grid"], return_hydra_config=True)
    assert grid.hydra.sweeper.params.power_limit == modes


def test_a_grids_points_each_have_a_seed_of_their_own(composed):
    assert OmegaConf.to_container(composed("experiment=zeus/resnet50_imagenet"), resolve=False)["seed"] == (
        "${number_in_sweep:}"
    )


def test_the_command_line_wins_over_an_experiment_and_an_experiment_over_the_defaults(composed):
    assert composed().batch == 16
    assert composed("experiment=smoke").batch == 64
    assert composed("experiment=smoke", "batch=3").batch == 3


@pytest.mark.parametrize("path", DEVICES, ids=lambda path: path.stem)
def test_a_device_picks_its_meter_and_the_command_line_another(composed, path):
    picked = OmegaConf.load(path).defaults[0]["override /meter@_global_.meter"]
    assert composed(f"device={path.stem}").meter.name == picked
    assert composed(f"device={path.stem}", "meter=estimate").meter.name == "estimate"


@pytest.mark.parametrize(
    ("device", "meter"), [("cpu", "rapl"), ("cuda", "nvml"), ("rocm", "amd"), ("nano", "rails"), ("jetson", "rails")]
)
def test_each_machine_is_metered_by_the_instruments_it_has(composed, device, meter):
    assert composed(f"device={device}").meter.name == meter


def test_a_boards_table_of_rails_is_its_meters(composed):
    assert composed("device=nano").meter.rails.total == ["POM_5V_IN"]
    assert composed("device=jetson").meter.rails is None
    assert composed("device=agx_orin", "meter=jtop").meter.rails.gpu == "VDD_GPU_SOC"


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("epochs=two", "'two' of type 'str' could not be converted to Integer"),
        ("batch=abc", "'abc' of type 'str' could not be converted to Integer"),
        ("batch=1.5", "'1.5' of type 'float' could not be converted to Integer"),
        ("cache=hot", "expected one of [keep, cold, cold_each_epoch, warm]"),
        ("timing=now", "expected one of [deferred, synchronous]"),
        ("evaluate=maybe", "'maybe' is not a valid bool"),
        ("target_accuracy=high", "could not be converted to Float"),
        ("bathc=8", "Key 'bathc' not in 'Schema'"),
        ("machine.rot=/", "Key 'rot' not in 'Machine'"),
    ],
)
def test_a_value_of_another_type_and_an_unknown_key_are_refused(composed, typed, says):
    with pytest.raises(ConfigCompositionException) as refused:
        composed(typed)
    assert says in f"{refused.value} {refused.value.__cause__}"


@pytest.mark.parametrize("group", job.GROUPS)
def test_an_unknown_choice_is_refused_with_all_that_there_are(composed, group):
    with pytest.raises(MissingConfigException) as refused:
        composed(f"{group}=unheard_of")
    assert [name for known, name in CHOICES if known == group] == sorted(refused.value.options)


@pytest.mark.parametrize(
    ("dataset", "task", "model"),
    [("pairs", "translation", "transformer"), ("polynomial", "regression", "polynomial")],
)
def test_a_dataset_picks_its_task_and_a_model_and_the_command_line_another(composed, dataset, task, model):
    picked = composed(f"dataset={dataset}")
    assert (picked.task.name, picked.model.name) == (task, model)
    assert composed("dataset=pairs", "model=seq2seq").model.name == "seq2seq"


def test_a_model_of_an_experiment_wins_over_that_of_its_dataset(composed):
    assert composed("experiment=tbd/seq2seq").model.name == "seq2seq"
    assert composed("experiment=tbd/seq2seq").task.name == "translation"


@pytest.mark.parametrize(
    ("typed", "lacks"), [(["dataset=pairs", "model=lenet"], "channels"), (["model=transformer"], "words")]
)
def test_a_model_that_is_not_for_the_dataset_is_refused_with_a_hint(composed, typed, lacks):
    with pytest.raises(
        ValueError, match=rf"which has no {lacks}\n  hint: use seq2seq or transformer with dataset=pairs"
    ):
        job.to_plain(composed(*typed))
