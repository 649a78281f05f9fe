import pytest
from PIL import Image

from trainmeter.worker.data.transforms import Fit, preprocessing

HALF = {"mean": [0.5], "std": [0.5]}


def test_an_image_that_fits_is_left_as_it_is():
    image = Image.new("L", (32, 32))
    assert Fit(channels=1, size=32)(image) is image


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "CMYK"])
@pytest.mark.parametrize(("channels", "wanted"), [(1, "L"), (3, "RGB")])
def test_any_image_is_brought_to_the_channels_and_the_size(mode, channels, wanted):
    image = Fit(channels, size=32)(Image.new(mode, (8, 20)))
    assert (image.mode, image.size) == (wanted, (32, 32))


def test_black_and_white_become_minus_one_and_one():
    transform = preprocessing({"channels": 1, "size": 2, "normalize": HALF})
    assert transform(Image.new("L", (2, 2), 0)).tolist() == [[[-1, -1], [-1, -1]]]
    assert transform(Image.new("L", (2, 2), 255)).tolist() == [[[1, 1], [1, 1]]]
