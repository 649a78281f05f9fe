"""Recipes of conf/experiment have the network and schedule of their source."""

import pytest
import torch
from omegaconf import DictConfig

from epochmeter.config import job
from epochmeter.shared.instantiate import instantiate_spec
from epochmeter.worker.models.model_stats import compute_model_stats
from epochmeter.worker.schedules import scaled_optimizer

FORWARD = {
    "edge/lenet_mnist": (416_520, 28 * 28 * 6 * 25),
    "edge/resnet18_cifar10": (555.42e6, 32 * 32 * 64 * 27),
    "lumi/resnet152_cifar100": (11.51e9, 112 * 112 * 64 * 147),
    "tbd/inception_v3_imagenet": (5.71e9, 149 * 149 * 32 * 27),
    "zeus/resnet50_imagenet": (4.09e9, 112 * 112 * 64 * 147),
}
"""Published multiply-accumulates of a forward pass, and those of its first layer, which needs no gradient of inputs."""


def flops_per_sample(config: DictConfig) -> float:
    plain = job.to_plain(config)
    with torch.device("meta"):
        model = instantiate_spec(plain["model"])
    stats = compute_model_stats(model, plain, instantiate_spec(plain["task"]), torch.device("cpu"))
    return stats.metrics["flops_per_sample"]


@pytest.mark.parametrize("name", FORWARD)
def test_network_of_a_recipe_has_the_flops_of_its_source(composed, name):
    forward, first = FORWARD[name]
    assert flops_per_sample(composed(f"experiment={name}")) == pytest.approx(2 * (3 * forward - first), rel=0.01)


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
