import pytest

from epochmeter.worker.models.vision import find_architecture


def test_unknown_classifier_is_rejected_with_similar_names():
    find_architecture("resnet34")
    with pytest.raises(ValueError, match=r"`model.name=resnet81` is not a classifier(?s:.)*resnet18, \w+, \w+\?$"):
        find_architecture("resnet81")
    with pytest.raises(ValueError, match=r"Did you mean alexnet, convnext_base, "):
        find_architecture("qqq")
