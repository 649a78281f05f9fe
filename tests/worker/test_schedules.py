import pytest
import torch

from epochmeter.config.job import to_plain
from epochmeter.shared.instantiate import instantiate_spec
from epochmeter.worker.schedules import scaled_optimizer


def test_learning_rate_scales_with_the_global_batch_size():
    job = {"optimizer": {"name": "sgd", "lr": 0.1}, "batch": 128, "lr_batch": 256}
    for scaling, lr in (("none", 0.1), ("linear", 0.1 * 2), ("sqrt", 0.1 * 2**0.5)):
        assert scaled_optimizer({**job, "lr_scaling": scaling}, ranks=4)["lr"] == pytest.approx(lr)


def test_configured_schedules_step_once_per_epoch(composed):
    for overrides, expected in (
        (["scheduler=none"], [1] * 5),
        (["scheduler=step", "scheduler.step_size=2"], [1, 1, 0.1, 0.1, 0.01]),
        (["scheduler=multistep", "scheduler.milestones=[1,3]"], [1, 0.1, 0.1, 0.01, 0.01]),
        (["scheduler=cosine", "epochs=4"], [1, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5, 0]),
    ):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        schedule = instantiate_spec(to_plain(composed(*overrides))["scheduler"], optimizer)
        for rate in expected:
            assert optimizer.param_groups[0]["lr"] == pytest.approx(rate)
            optimizer.step()
            schedule.step()
