import pytest
import torch

from epochmeter.shared.instantiate import instantiate_spec
from epochmeter.worker.schedules import Constant, scaled_optimizer


def job(scaling="none", batch=64, lr_batch=256):
    return {"optimizer": {"name": "sgd", "lr": 0.1}, "lr_scaling": scaling, "batch": batch, "lr_batch": lr_batch}


@pytest.mark.parametrize(("scaling", "lr"), [("none", 0.1), ("linear", 0.1 * 2), ("sqrt", 0.1 * 2**0.5)])
def test_learning_rate_scales_with_the_global_batch_size(scaling, lr):
    assert scaled_optimizer(job(scaling, batch=128), ranks=4)["lr"] == pytest.approx(lr)


def rates(spec, epochs):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = instantiate_spec(spec, optimizer)
    learning_rates = []
    for _ in range(epochs):
        learning_rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return learning_rates


def test_constant_schedule_keeps_the_learning_rate():
    assert rates({"_target_": f"{Constant.__module__}.Constant", "name": "none"}, 3) == [1.0] * 3


def test_configured_schedules_step_once_per_epoch(composed):
    from epochmeter.config.job import to_plain

    step = to_plain(composed("scheduler=step", "scheduler.step_size=2"))["scheduler"]
    assert rates(step, 5) == pytest.approx([1, 1, 0.1, 0.1, 0.01])
    multistep = to_plain(composed("scheduler=multistep", "scheduler.milestones=[1,3]"))["scheduler"]
    assert rates(multistep, 5) == pytest.approx([1, 0.1, 0.1, 0.01, 0.01])
    cosine = to_plain(composed("scheduler=cosine", "epochs=4"))["scheduler"]
    assert rates(cosine, 5) == pytest.approx([1, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5, 0])
