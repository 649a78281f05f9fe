import json

import pytest

from epochmeter.worker import check_spec
from epochmeter.worker.models.vision import find_architecture


def check(capsys, **specs):
    check_spec.main(json.dumps(specs))
    return capsys.readouterr().out


def test_unknown_classifier_is_rejected_with_similar_names(capsys):
    assert check(capsys, model={"architecture": "resnet34"}) == ""
    assert "`model.name=resnet81` is not a classifier" in check(capsys, model={"architecture": "resnet81"})
    with pytest.raises(ValueError, match=r"Did you mean resnet18, \w+, \w+\?$"):
        find_architecture("resnet81")
    with pytest.raises(ValueError, match=r"Did you mean alexnet, convnext_base, "):
        find_architecture("qqq")


def test_unknown_arguments_are_rejected(capsys):
    sgd = {"_target_": "torch.optim.SGD", "name": "sgd", "lr": 0.1}
    step = {"_target_": "torch.optim.lr_scheduler.StepLR", "name": "step", "step_size": 3}
    assert check(capsys, optimizer={**sgd, "nesterov": True}, scheduler=step) == ""
    first, second = check(capsys, optimizer={**sgd, "nestrov": True}, scheduler={**step, "steps": 3}).splitlines()
    assert first.startswith("torch.optim.SGD does not accept these arguments: got an unexpected keyword argument 'nes")
    assert second.startswith("torch.optim.lr_scheduler.StepLR does not accept")


def test_missing_target_is_reported(capsys):
    assert check(capsys, model={"_target_": "nowhere.Net"}).startswith("cannot import _target_ 'nowhere.Net'")
