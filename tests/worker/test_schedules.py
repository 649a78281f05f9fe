import pytest
import torch

from epochmeter.config.job import to_plain
from epochmeter.shared.instantiate import instantiate_spec
from epochmeter.worker.schedules import scaled_optimizer


@pytest.mark.parametrize(("scaling", "lr"), [("none", 0.1), ("linear", 0.1 * 2), ("sqrt", 0.1 * 2**0.5)])
def test_learning_rate_scales_with_the_global_batch_size(scaling, lr):
    job = {"optimizer": {"name": "sgd", "lr": 0.1}, "lr_scaling": scaling, "batch": 128, "lr_batch": 256}
    assert scaled_optimizer(job, ranks=4)["lr"] == pytest.approx(lr)


def rates(spec, epochs):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = instantiate_spec(spec, optimizer)
    learning_rates = []
    for _ in range(epochs):
        learning_rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return learning_rates


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["scheduler=none"], [1] * 5),
        (["scheduler=step", "scheduler.step_size=2"], [1, 1, 0.1, 0.1, 0.01]),
        (["scheduler=multistep", "scheduler.milestones=[1,3]"], [1, 0.1, 0.1, 0.01, 0.01]),
        (["scheduler=cosine", "epochs=4"], [1, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5, 0]),
    ],
)
def test_configured_schedules_step_once_per_epoch(composed, overrides, expected):
    assert rates(to_plain(composed(*overrides))["scheduler"], 5) == pytest.approx(expected)
