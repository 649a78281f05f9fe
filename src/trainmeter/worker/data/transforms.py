"""An image becomes the tensor that the model takes."""

from PIL import Image
from torchvision.transforms import Compose, Normalize, ToTensor

MODES = {1: "L", 3: "RGB"}


class Fit:
    """Brings an image to the channels and the size asked for; what it has already is left as it is."""

    def __init__(self, channels, size):
        self.mode = MODES[channels]
        self.size = (size, size)

    def __call__(self, image):
        if image.mode != self.mode:
            image = image.convert(self.mode)
        if image.size != self.size:
            image = image.resize(self.size, Image.BILINEAR)
        return image


def preprocessing(dataset):
    """Gray or RGB, resized, 0 to 1, normalized, as the dataset's `channels`, `size` and `normalize` say."""
    normalize = dataset["normalize"]
    fit = Fit(dataset["channels"], dataset["size"])
    return Compose([fit, ToTensor(), Normalize(normalize["mean"], normalize["std"])])
