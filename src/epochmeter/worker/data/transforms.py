"""An image becomes the tensor that the model takes: by torchvision's v2 from 0.16 on, by its first on old boards."""

import torch
from PIL import Image
from torchvision import transforms as v1

from epochmeter.shared.instantiate import locate

try:
    from torchvision.transforms import v2
    from torchvision.transforms.v2.functional import to_dtype  # which 0.15, where v2 was on trial, has not
except ImportError:
    v2 = None

transforms = v2 or v1
MODES = {1: "L", 3: "RGB"}


def preprocessing(dataset, split):
    """What brings an image of a split, `train` or `val`, to the dataset's `channels`, `size` and `normalize`.

    Its `preprocess` is `resize`, `crop` or `pad`, or the dotted path of a function like those below.
    """
    how = dataset.get("preprocess", "resize")
    return (WAYS[how] if how in WAYS else locate(how))(dataset, split)


def resize(dataset, split):
    """Gray or RGB, resized whole to a square, 0 to 1, normalized: as the edge study does, in training too."""
    return _steps(dataset, [Resize(dataset["size"])])


def crop(dataset, split):
    """As is usual with ImageNet: in training a random part of the image, flipped or not; else its middle."""
    size = dataset["size"]
    if split == "train":
        return _steps(dataset, [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip()])
    return _steps(dataset, [transforms.Resize(size * 256 // 224), transforms.CenterCrop(size)])


def pad(dataset, split):
    """As is usual with CIFAR: in training moved by up to an eighth of its side, flipped or not; else as it is."""
    size = dataset["size"]
    moved = [transforms.RandomCrop(size, padding=size // 8), transforms.RandomHorizontalFlip()]
    return _steps(dataset, [Resize(size), *(moved if split == "train" else [])])


class Mode:
    """Gray or RGB; what is so already is left as it is."""

    def __init__(self, channels):
        self.mode = MODES[channels]

    def __call__(self, image):
        return image if image.mode == self.mode else image.convert(self.mode)


class Resize:
    """The whole image, in a square; what has that size already is left as it is."""

    def __init__(self, size):
        self.size = (size, size)

    def __call__(self, image):
        return image if image.size == self.size else image.resize(self.size, Image.BILINEAR)


class Normalized:
    """A tensor of values 0 to 1, less the mean, by the standard deviation.

    v2's functions rather than its classes, which take twice as long on small images.
    """

    def __init__(self, mean, std):
        self.mean, self.std = list(mean), list(std)

    def __call__(self, image):
        scaled = to_dtype(v2.functional.pil_to_tensor(image), torch.float32, scale=True)
        return v2.functional.normalize(scaled, self.mean, self.std)


def _steps(dataset, geometry):
    channels = dataset["channels"]
    mean, std = (dataset["normalize"][name] for name in ("mean", "std"))
    if channels not in MODES:
        raise ValueError("dataset.channels={}: give 1 (gray) or 3 (RGB).".format(channels))
    if not {len(mean), len(std)} <= {1, channels}:
        raise ValueError(
            "dataset.channels={}, and dataset.normalize has mean={} and std={}: give one number for each channel, or "
            "one for all.".format(channels, list(mean), list(std))
        )
    tensor = [Normalized(mean, std)] if v2 else [v1.ToTensor(), v1.Normalize(mean, std)]
    return v1.Compose([Mode(channels), *geometry, *tensor])


WAYS = {"resize": resize, "crop": crop, "pad": pad}
