import pytest

from epochmeter.shared.instantiate import resolve_target
from epochmeter.worker.models.vision import find_architecture


def test_unknown_classifier_is_rejected_with_similar_names():
    find_architecture("resnet34")
    with pytest.raises(ValueError, match=r"`model.name=resnet81` is not a classifier(?s:.)*resnet18, \w+, \w+\?$"):
        find_architecture("resnet81")
    with pytest.raises(ValueError, match=r"Did you mean alexnet, convnext_base, "):
        find_architecture("qqq")


def test_unknown_arguments_and_targets_are_rejected():
    sgd = {"_target_": "torch.optim.SGD", "name": "sgd", "lr": 0.1}
    resolve_target({**sgd, "nesterov": True}, "parameters")
    with pytest.raises(ValueError, match=r"^torch.optim.SGD does not accept these arguments: got an .* argument 'nes"):
        resolve_target({**sgd, "nestrov": True}, "parameters")
    with pytest.raises(ValueError, match=r"^cannot import _target_ 'nowhere\.Net'"):
        resolve_target({"_target_": "nowhere.Net"})
