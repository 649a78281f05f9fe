"""Image preprocessing with torchvision: its v2 transforms from 0.16 on, the first ones on older boards."""

from typing import Any, Callable, List

import torch
from PIL import Image
from torchvision import transforms as v1

from epochmeter.shared.instantiate import import_object
from epochmeter.shared.problem import input_error
from epochmeter.shared.types import Document

try:
    from torchvision.transforms import v2
    from torchvision.transforms.v2.functional import to_dtype  # absent in 0.15, whose v2 is a beta
except ImportError:
    v2 = None

transforms = v2 or v1
MODES = {1: "L", 3: "RGB"}
Transform = Callable[[Any], Any]


def preprocessing(dataset: Document, split: str) -> Transform:
    """Return the transform from an image to the dataset's size and normalization, by the dataset's `preprocess`."""
    name = dataset.get("preprocess", "resize")
    make: Callable[[Document, str], Transform] = PREPROCESSING.get(name) or import_object(name)
    return make(dataset, split)


def resize(dataset: Document, split: str) -> Transform:
    """Gray or RGB, the full image resized to a square, scaled to 0 to 1, normalized; the same for both splits."""
    return _steps(dataset, [_resize_to(dataset["size"])])


def crop(dataset: Document, split: str) -> Transform:
    """ImageNet's usual augmentation: random resized crop and flip in training, else center crop."""
    size = dataset["size"]
    if split == "train":
        return _steps(dataset, [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip()])
    return _steps(dataset, [transforms.Resize(size * 256 // 224), transforms.CenterCrop(size)])


def pad(dataset: Document, split: str) -> Transform:
    """CIFAR's usual augmentation: random shift by up to an eighth of the side and flip in training, else none."""
    size = dataset["size"]
    augmentation = [transforms.RandomCrop(size, padding=size // 8), transforms.RandomHorizontalFlip()]
    return _steps(dataset, [_resize_to(size), *(augmentation if split == "train" else [])])


PREPROCESSING = {"resize": resize, "crop": crop, "pad": pad}


def _resize_to(side: int) -> Transform:
    size = (side, side)
    bilinear = Image.BILINEAR  # type: ignore[attr-defined]  # Pillow sets it at its import
    return lambda image: image if image.size == size else image.resize(size, bilinear)


def _steps(dataset: Document, geometry: List[Transform]) -> Transform:
    channels = dataset["channels"]
    mean, std = (list(dataset["normalize"][name]) for name in ("mean", "std"))
    if channels not in MODES or not {len(mean), len(std)} <= {1, channels}:
        hint = "give 1 (gray) or 3 (RGB), and in dataset.normalize one number for each channel, or one for all"
        raise input_error("`dataset.channels={}` is not valid".format(channels), hint, key="dataset.channels")

    def convert(image: Image.Image, mode: str = MODES[channels]) -> Image.Image:
        return image if image.mode == mode else image.convert(mode)

    def normalize(image: Image.Image) -> torch.Tensor:
        # v2's functions, as its classes take twice as long on small images
        scaled = to_dtype(v2.functional.pil_to_tensor(image), torch.float32, scale=True)
        normalized: torch.Tensor = v2.functional.normalize(scaled, mean, std)
        return normalized

    tensor = [normalize] if v2 else [v1.ToTensor(), v1.Normalize(mean, std)]
    steps: Transform = v1.Compose([convert, *geometry, *tensor])
    return steps
