import pytest
import torch
from PIL import Image

from epochmeter.worker.data import transforms
from epochmeter.worker.data.transforms import preprocessing

COLOR = {"channels": 3, "size": 16, "normalize": {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4]}}


def gradient(width, height):
    """An image in which each pixel has another color."""
    image = Image.new("RGB", (width, height))
    image.putdata([(x * 255 // width, y * 255 // height, (x + y) % 256) for y in range(height) for x in range(width)])
    return image


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("how", ["resize", "crop", "pad"])
@pytest.mark.parametrize("split", ["train", "val"])
def test_image_is_converted_to_channels_and_size_within_minus_one_and_one(channels, how, split):
    normalize = {"mean": [0.5] * channels, "std": [0.5] * channels}
    transform = preprocessing({"channels": channels, "size": 32, "normalize": normalize, "preprocess": how}, split)
    for mode in ("1", "L", "P", "RGB", "RGBA", "CMYK"):
        tensor = transform(Image.new(mode, (48, 40)))
        assert (tensor.shape, tensor.dtype, type(tensor)) == ((channels, 32, 32), torch.float32, torch.Tensor)
    for gray, value in ((0, -1), (255, 1)):
        assert transform(Image.new("L", (32, 32), gray))[:, 16, 16].tolist() == [value] * channels


def test_old_torchvision_gives_the_same_tensor(monkeypatch):
    new = preprocessing(COLOR, "train")(gradient(16, 16))
    monkeypatch.setattr(transforms, "v2", None)
    assert torch.allclose(new, preprocessing(COLOR, "train")(gradient(16, 16)), atol=1e-6)


@pytest.mark.parametrize("how", ["crop", "pad"])
def test_random_crop_follows_the_seed_and_evaluation_is_deterministic(how):
    image = gradient(40, 40)
    train, val = (preprocessing({**COLOR, "preprocess": how}, split) for split in ("train", "val"))
    torch.manual_seed(3)
    first, second = train(image), train(image)
    torch.manual_seed(3)
    assert torch.equal(train(image), first)
    assert not torch.equal(first, second)
    assert torch.equal(val(image), val(image))


def test_user_preprocessing_is_a_dotted_path_and_a_mismatch_of_channels_rejected():
    own = {"preprocess": "itertools.zip_longest"}
    assert list(preprocessing(own, ["val"])) == [("preprocess", "val")]
    for keys in ({"channels": 2}, {"channels": 1}, {"normalize": {"mean": [0.5], "std": [0.1, 0.2]}}):
        with pytest.raises(
            ValueError,
            match=r"dataset\.channels=\d` is not valid\n  hint: give 1 \(gray\) or 3 \(RGB\), and in dataset",
        ):
            preprocessing({**COLOR, **keys}, "train")
