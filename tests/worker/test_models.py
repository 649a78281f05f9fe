import pytest
import torch
from torch import nn
from torchvision import models

from epochmeter.worker.models.lenet import LeNet
from epochmeter.worker.models.vision import classifier, list_architectures

FAMILIES = ["resnet18", "vgg11", "squeezenet1_0", "densenet121", "mobilenet_v3_small", "shufflenet_v2_x0_5", "vit_b_16"]


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_lenet_with_padding_accepts_the_28_by_28_pixels_of_mnist():
    padded = LeNet(1, classes=10, padding=2)
    assert parameters(padded) == 61_706, "those of LeNet-5"
    images = torch.randn(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    around = LeNet(1, classes=10)
    around.load_state_dict(padded.state_dict())
    torch.testing.assert_close(padded(images), around(nn.functional.pad(images, (2, 2, 2, 2))))


@pytest.mark.parametrize(
    ("architecture", "outputs"), [*((name, 0) for name in FAMILIES), ("googlenet", 3), ("inception_v3", 2)]
)
def test_families_accept_channels_and_classes_and_inception_has_auxiliary_outputs(architecture, outputs):
    with torch.device("meta"):
        model, images = classifier(architecture, channels=1, classes=5), torch.empty(2, 1, 299, 299)
        if outputs:
            assert [scores.shape for scores in model.train()(images)] == [(2, 5)] * outputs
        assert model.eval()(images if outputs else images[..., :224, :224]).shape == (2, 5)


def test_all_classifiers_of_torchvision_have_the_published_number_of_parameters():
    assert sorted(list_architectures()) == models.list_models(module=models)
    for architecture, options, size, count in (
        ("resnet18", {}, 224, 11_689_512),
        ("inception_v3", {}, 299, 27_161_264),
        ("inception_v3", {"aux_logits": False}, 80, 23_834_568),
    ):
        with torch.device("meta"):
            model = classifier(architecture, 3, 1000, **options)
            assert parameters(model) == count
            assert model.eval()(torch.empty(2, 3, size, size)).shape == (2, 1000)


def test_resnet18_of_the_edge_study_has_instance_norm_and_a_small_stem():
    shapes = []
    with torch.device("meta"):
        model = classifier("resnet18", 3, 10, norm="instance", stem="cifar")
        model.layer1.register_forward_hook(lambda _, inputs, outputs: shapes.append(inputs[0].shape))
        assert model(torch.empty(2, 3, 32, 32)).shape == (2, 10)
    assert shapes == [(2, 64, 32, 32)]
    assert parameters(model) == 11_173_962
    norms = {type(module) for module in model.modules()} & {nn.InstanceNorm2d, nn.BatchNorm2d}
    assert norms == {nn.InstanceNorm2d}


def test_invalid_option_is_rejected():
    for architecture, options, error in (
        ("vgg11", {"norm": "instance"}, r"torchvision's vgg11 .*'norm_layer'\n  hint: set model.norm=batch"),
        ("resnet18", {"norm": "layer"}, r"model.norm=layer .*is not valid\n  hint: give model.norm=batch or instance"),
        ("vgg11", {"stem": "cifar"}, r"vgg11 is not a ResNet\n  hint: set model.stem=imagenet"),
        ("resnet18", {"stem": "small"}, r"model.stem=small` is not valid\n  hint: .*imagenet or cifar"),
        ("resnet81", {}, r"`model.name=resnet81` is not a classifier(?s:.)*resnet18, \w+, \w+\?$"),
        ("qqq", {}, r"did you mean alexnet, convnext_base, "),
    ):
        with pytest.raises(ValueError, match=error), torch.device("meta"):
            classifier(architecture, 3, 10, **options)
