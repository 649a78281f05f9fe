"""Each recipe of conf/experiment has the network, data, optimizer, schedule and loop of its source."""

from pathlib import Path

import pytest
from hydra import compose
from omegaconf import DictConfig, OmegaConf

from epochmeter.config import job

torch = pytest.importorskip("torch", reason="no torch in this environment, as on a board: models cannot be had")

from epochmeter.shared.instantiate import instantiate_spec  # noqa: E402
from epochmeter.worker.models.model_stats import compute_model_stats  # noqa: E402
from epochmeter.worker.schedules import scaled_optimizer  # noqa: E402

ROOT = Path(__file__).parents[2] / "conf" / "experiment"
OURS = {"smoke", "stalls"}
RECIPES = sorted({path.relative_to(ROOT).with_suffix("").as_posix() for path in ROOT.rglob("[!_]*.yaml")} - OURS)

CIFAR10 = {"dataset.channels": 3, "dataset.size": 32}
EDGE = {
    "batch": 16, "workers": 4, "prefetch": 2, "persistent_workers": False, "pin_memory": False, "epochs": 6,
    "evaluate": False, "timing": "synchronous", "drop_caches": True, "dataset.preprocess": "resize",
    "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 0.0}, "scheduler.name": "none",
}  # fmt: skip
SOURCES = {
    "edge/lenet_mnist": {
        **EDGE, "dataset.size": 28, "dataset.normalize": {"mean": [0.1307], "std": [0.3081]},
        "model.activation": "ReLU", "model.padding": 2,
    },
    "edge/lenet_cifar10_gray": {
        **EDGE, "dataset.size": 32, "dataset.channels": 1, "dataset.normalize": {"mean": [0.5], "std": [0.5]},
        "model.activation": "ReLU", "model.padding": 0,
    },
    "edge/resnet18_cifar10": {**EDGE, **CIFAR10, "model.norm": "instance"},
    "edge/grid": {**EDGE, **CIFAR10, "model.norm": "instance"},
    "edge/vgg11_cifar10": {**EDGE, **CIFAR10},
    "edge/mobilenet_v3_images": {
        **EDGE, "dataset.size": 224, "dataset.preprocess": "crop", "dataset.normalize": {"mean": [0.5], "std": [0.5]},
    },
    "lumi/resnet152_cifar100": {
        "batch": 128, "epochs": 4, "persistent_workers": False, "pin_memory": False, "evaluate": False,
        "timing": "synchronous", "dataset.size": 224, "dataset.preprocess": "resize",
        "dataset.normalize": {"mean": [0.5071, 0.4865, 0.4409], "std": [0.2673, 0.2564, 0.2762]},
        "optimizer": EDGE["optimizer"], "scheduler.name": "none",
    },
    "tbd/inception_v3_imagenet": {
        "batch": 32, "epochs": 90, "workers": 4, "evaluate": True, "cudnn_benchmark": True, "deterministic": False,
        "dataset.size": 299, "dataset.preprocess": "crop", "persistent_workers": False,
        "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4},
        "throughput": {"start": 1000, "stop": 2000, "exit": False},
    },
    "tbd/polynomial": {
        "batch": 32, "workers": 0, "target_loss": 1e-3, "task.loss": "smooth_l1_loss", "dataset.features": 4,
        "dataset.count": 5 * 32,
        "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0, "weight_decay": 0.0},
    },
    "tbd/seq2seq": {
        "batch": 128, "model.cell": "lstm", "model.width": 512, "model.layers": 2, "model.dropout": 0.0,
        "optimizer": {"name": "adam", "lr": 3e-4, "weight_decay": 0.0}, "scheduler.name": "none",
    },
    "tbd/transformer": {
        "model.width": 512, "model.heads": 8, "model.layers": 6, "model.hidden": 2048, "model.dropout": 0.1,
        "optimizer": {"name": "adam", "lr": 1e-4, "weight_decay": 0.0, "betas": [0.9, 0.98], "eps": 1e-9},
    },
    "zeus/resnet50_imagenet": {
        "epochs": 100, "target_accuracy": 0.65, "dataset.size": 224, "dataset.preprocess": "crop",
        "optimizer": {"name": "adadelta", "lr": 0.1, "weight_decay": 0.0},
        "scheduler": {"name": "step", "step_size": 30, "gamma": 0.1},
    },
}  # fmt: skip
"""What the sources set, by recipe; learning rates as they are before scaling."""

GRIDS = {
    "edge/grid": {"workers": "0,1,2,4"},
    "tbd/inception_v3_imagenet": {"batch": "1,2,4,8,16,32,64,96,128", "throughput.exit": "true"},
    "zeus/resnet50_imagenet": {"batch": "8,16,32,64,128,256,512,1024", "power_limit": "range(100,251,30)"},
}

FORWARD = {
    "edge/lenet_mnist": (416_520, 28 * 28 * 6 * 25),
    "edge/lenet_cifar10_gray": (416_520, 28 * 28 * 6 * 25),
    "edge/resnet18_cifar10": (555.42e6, 32 * 32 * 64 * 27),
    "edge/grid": (555.42e6, 32 * 32 * 64 * 27),
    "lumi/resnet152_cifar100": (11.51e9, 112 * 112 * 64 * 147),
    "tbd/inception_v3_imagenet": (5.71e9, 149 * 149 * 32 * 27),
    "zeus/resnet50_imagenet": (4.09e9, 112 * 112 * 64 * 147),
}
"""Published multiply-accumulates of a forward pass, and those of its first layer, which needs no gradient of inputs."""


def value_of(config: DictConfig, key: str) -> object:
    """Return the value of a key as stated by the sources: groups without their target."""
    value = OmegaConf.select(config, key)
    if isinstance(value, DictConfig):
        plain = OmegaConf.to_container(value, resolve=True)
        return {name: part for name, part in plain.items() if name != "_target_"}  # type: ignore[union-attr]
    return getattr(value, "name", value)


def flops_per_sample(config: DictConfig) -> float:
    plain = job.to_plain(config)
    with torch.device("meta"):
        model = instantiate_spec(plain["model"])
    return compute_model_stats(model, plain, instantiate_spec(plain["task"]))["flops_per_sample"]


def test_every_recipe_is_compared_with_its_source():
    assert sorted(SOURCES) == RECIPES


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_sets_what_its_source_sets(composed, name):
    config = composed(f"experiment={name}")
    assert {key: value_of(config, key) for key in SOURCES[name]} == SOURCES[name]


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_names_its_source_and_lists_the_differences(name):
    texts = [(ROOT / f"{name}.yaml").read_text()]
    texts += [(ROOT / "edge" / "_study.yaml").read_text()] if name.startswith("edge/") else []
    assert "# Differences from the source" in texts[0]
    assert "# Source: " in "".join(texts)


@pytest.mark.parametrize("name", GRIDS)
def test_grid_of_a_recipe_is_that_of_its_source(composed, name):
    composed()
    config = compose("train", overrides=[f"experiment={name}"], return_hydra_config=True)
    params = config.hydra.sweeper.params
    assert {key: params[key] for key in GRIDS[name]} == GRIDS[name]


@pytest.mark.parametrize("name", FORWARD)
def test_network_of_a_recipe_has_the_flops_of_its_source(composed, name):
    forward, first = FORWARD[name]
    assert flops_per_sample(composed(f"experiment={name}")) == pytest.approx(2 * (3 * forward - first), rel=0.01)


def test_resnet_of_the_edge_study_has_3_33_gflops_per_sample_and_torchvisions_0_217(composed):
    study, torchvisions = (composed("experiment=edge/resnet18_cifar10", *typed) for typed in ([], ["model=resnet18"]))
    assert flops_per_sample(study) == pytest.approx(3.33e9, rel=0.002)
    assert flops_per_sample(torchvisions) == pytest.approx(0.217e9, rel=0.002)


@pytest.mark.parametrize(
    ("batch", "steps"),
    [(32, {0: 0.0125, 29: 0.0125, 30: 0.00125, 59: 0.00125, 60: 1.25e-4, 79: 1.25e-4, 80: 1.25e-5, 89: 1.25e-5}),
     (128, {0: 0.05, 30: 0.005})],
)  # fmt: skip
def test_learning_rate_of_inception_depends_on_batch_size_and_epochs(composed, batch, steps):
    plain = job.to_plain(composed("experiment=tbd/inception_v3_imagenet", f"batch={batch}"))
    optimizer = instantiate_spec(scaled_optimizer(plain, ranks=1), [torch.nn.Parameter(torch.zeros(1))])
    schedule = instantiate_spec(plain["scheduler"], optimizer)
    rates = []
    for _ in range(plain["epochs"]):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert {epoch: rates[epoch] for epoch in steps} == pytest.approx(steps)
