"""MNIST and CIFAR, read by torchvision: all samples are in memory from the start, so that an epoch reads no storage."""

from functools import partial
from typing import Any, Callable, ClassVar, Dict

from torchvision import datasets

from epochmeter.shared.problem import machine_error


class CIFAR10(datasets.CIFAR10):  # type: ignore[misc]  # torchvision has no types
    """torchvision's, without checksums: hashing verified files again would take seconds on a board."""

    meta: ClassVar[Dict[str, Any]] = dict(datasets.CIFAR10.meta, md5=None)

    def _check_integrity(self) -> bool:
        return True


class CIFAR100(datasets.CIFAR100):  # type: ignore[misc]
    """The same with 100 classes."""

    meta: ClassVar[Dict[str, Any]] = dict(datasets.CIFAR100.meta, md5=None)

    def _check_integrity(self) -> bool:
        return True


def _open_dataset(kind: Any, folder: str, split: str, transform: Callable[[Any], Any]) -> Any:
    """Open `MNIST/raw`, `cifar-10-batches-py` or `cifar-100-python` in a folder; `val` is the test set."""
    try:
        return kind(folder, train=split == "train", transform=transform, download=False)
    except Exception as error:  # a file may be missing, unreadable or not a pickle
        message = "cannot read {}'s files under {}: {}".format(kind.__name__, folder, error)
        raise machine_error(message, "delete that folder to prepare the dataset again", file=str(folder)) from error


mnist = partial(_open_dataset, datasets.MNIST)
cifar10 = partial(_open_dataset, CIFAR10)
cifar100 = partial(_open_dataset, CIFAR100)
