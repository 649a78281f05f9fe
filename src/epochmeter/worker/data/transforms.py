"""Image preprocessing with torchvision: its v2 transforms from 0.16 on, the first ones on older boards."""

import torch
from PIL import Image
from torchvision import transforms as v1

from epochmeter.shared.instantiate import import_object

try:
    from torchvision.transforms import v2
    from torchvision.transforms.v2.functional import to_dtype  # absent in 0.15, whose v2 is a beta
except ImportError:
    v2 = None

transforms = v2 or v1
MODES = {1: "L", 3: "RGB"}


def preprocessing(dataset, split):
    """Return the transform from an image to the dataset's size and normalization, by the dataset's `preprocess`."""
    name = dataset.get("preprocess", "resize")
    return (PREPROCESSING[name] if name in PREPROCESSING else import_object(name))(dataset, split)


def resize(dataset, split):
    """Gray or RGB, the full image resized to a square, scaled to 0 to 1, normalized; the same for both splits."""
    return _steps(dataset, [_resize_to(dataset["size"])])


def crop(dataset, split):
    """ImageNet's usual augmentation: random resized crop and flip in training, else center crop."""
    size = dataset["size"]
    if split == "train":
        return _steps(dataset, [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip()])
    return _steps(dataset, [transforms.Resize(size * 256 // 224), transforms.CenterCrop(size)])


def pad(dataset, split):
    """CIFAR's usual augmentation: random shift by up to an eighth of the side and flip in training, else none."""
    size = dataset["size"]
    augmentation = [transforms.RandomCrop(size, padding=size // 8), transforms.RandomHorizontalFlip()]
    return _steps(dataset, [_resize_to(size), *(augmentation if split == "train" else [])])


PREPROCESSING = {"resize": resize, "crop": crop, "pad": pad}


def _resize_to(side):
    size = (side, side)
    return lambda image: image if image.size == size else image.resize(size, Image.BILINEAR)


def _steps(dataset, geometry):
    channels = dataset["channels"]
    mean, std = (list(dataset["normalize"][name]) for name in ("mean", "std"))
    if channels not in MODES or not {len(mean), len(std)} <= {1, channels}:
        remedy = "give 1 (gray) or 3 (RGB), and in dataset.normalize one number for each channel, or one for all."
        raise ValueError("dataset.channels={}: {}".format(channels, remedy))

    def convert(image, mode=MODES[channels]):
        return image if image.mode == mode else image.convert(mode)

    def normalize(image):  # v2's functions, as its classes take twice as long on small images
        scaled = to_dtype(v2.functional.pil_to_tensor(image), torch.float32, scale=True)
        return v2.functional.normalize(scaled, mean, std)

    tensor = [normalize] if v2 else [v1.ToTensor(), v1.Normalize(mean, std)]
    return v1.Compose([convert, *geometry, *tensor])
