import pytest
import torch
from torch import nn
from torchvision import models

from trainmeter.build import build
from trainmeter.worker.learner import check_inputs
from trainmeter.worker.models.lenet import LeNet
from trainmeter.worker.models.vision import classifier, names, with_channels
from trainmeter.worker.tasks import Classification

IMAGES = Classification(auxiliary=0)
FAMILIES = ["resnet18", "vgg11", "squeezenet1_0", "densenet121", "mobilenet_v3_small", "shufflenet_v2_x0_5", "vit_b_16"]


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("channels", [1, 3])
def test_lenet_takes_32_by_32_pixels_and_gives_a_score_for_each_class(channels):
    assert LeNet(channels, classes=10)(torch.zeros(2, channels, 32, 32)).shape == (2, 10)


def test_lenet_has_the_61706_parameters_of_lenet_5():
    assert parameters(LeNet(channels=1, classes=10)) == 61_706


def test_lenets_scores_are_unbounded_as_cross_entropy_wants_them():
    torch.manual_seed(0)
    scores = LeNet(1, 10)(torch.randn(8, 1, 32, 32) * 100)
    assert scores.min() < 0 < scores.max()


def test_a_model_is_built_from_its_specification():
    spec = {"_target_": "trainmeter.worker.models.lenet.LeNet", "name": "lenet", "channels": 3, "classes": 7}
    assert build(spec)(torch.zeros(1, 3, 32, 32)).shape == (1, 7)


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_family_of_torchvision_takes_the_datasets_channels_and_classes(architecture, channels):
    with torch.device("meta"):
        model = classifier(architecture, channels, classes=5).eval()
        assert model(torch.empty(2, channels, 224, 224)).shape == (2, 5)


@pytest.mark.parametrize("architecture", ["googlenet", "inception_v3"])
def test_the_inception_family_gives_one_output_also_while_it_trains(architecture):
    with torch.device("meta"):
        model = classifier(architecture, 1, classes=5).train()
        assert model(torch.empty(2, 1, 299, 299)).shape == (2, 5)


def test_adapting_the_first_convolution_changes_nothing_but_its_channels():
    convolution = with_channels(nn.Sequential(nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False)), 1)[0]
    assert convolution.weight.shape == (8, 1, 7, 7)
    assert (convolution.stride, convolution.padding, convolution.bias) == ((2, 2), (3, 3), None)


def test_only_the_first_convolution_is_adapted():
    model = with_channels(nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)), 1)
    assert [layer.in_channels for layer in model] == [1, 3]


def test_a_model_without_a_convolution_says_so():
    with pytest.raises(ValueError, match="asked for 1 channels, but this model has no convolution"):
        with_channels(nn.Sequential(nn.Linear(3, 3)), 1)


def test_an_unknown_architecture_is_answered_by_those_there_are():
    with pytest.raises(ValueError, match=r"model\.name='resnet19' is not a classifier .* it has alexnet, .*resnet18"):
        classifier("resnet19", 3, 10)


def test_the_names_are_the_classifiers_that_torchvision_lists():
    assert names(models) == models.list_models(module=models)


def job(architecture="mine", size=32):
    return {"model": {"name": architecture}, "dataset": {"name": "digits", "size": size, "channels": 1, "classes": 10}}


class Masked(nn.Module):
    """Trains anywhere, and cannot be run on torch's meta device: its mask is a plain tensor."""

    def __init__(self):
        super().__init__()
        self.mask = torch.ones(32, 32)
        self.norm = nn.BatchNorm2d(1)

    def forward(self, images):
        return self.norm(images * self.mask).sum((1, 2, 3)) + float(self.mask.sum().item())


def test_a_model_that_takes_the_images_is_left_as_it_is():
    model = LeNet(1, 10)
    check_inputs(model, job(), IMAGES)
    assert all(parameter.device.type == "cpu" for parameter in model.parameters())


def test_a_model_that_only_the_meta_device_cannot_run_is_not_refused():
    model, state = Masked(), torch.random.get_rng_state()
    check_inputs(model, job(), IMAGES)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert model.norm.running_mean.item() == 0


def test_a_model_that_cannot_take_the_images_is_refused_with_what_to_set():
    with pytest.raises(
        ValueError, match=r"model lenet cannot take the images of dataset digits, 1 x 8 x 8: .* Set dataset.size"
    ):
        check_inputs(LeNet(1, 10), job("lenet", size=8), IMAGES)
