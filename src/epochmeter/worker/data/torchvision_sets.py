"""MNIST and CIFAR, read by torchvision: all samples are in memory from the start, so that an epoch reads no storage."""

from typing import ClassVar

from torchvision import datasets


class Unverified:
    """Omit torchvision's checksums, as the archives were verified when the dataset was prepared.

    Hashing 186 MB again at every start would take seconds on a board.
    """

    def _check_integrity(self):
        return True


class Cifar10(Unverified, datasets.CIFAR10):
    """torchvision's CIFAR-10, without checksums."""

    meta: ClassVar = dict(datasets.CIFAR10.meta, md5=None)


class Cifar100(Unverified, datasets.CIFAR100):
    """torchvision's CIFAR-100, without checksums."""

    meta: ClassVar = dict(datasets.CIFAR100.meta, md5=None)


def mnist(folder, split, transform):
    """Open `<folder>/MNIST/raw`; `val` is MNIST's test set."""
    return _open_dataset(datasets.MNIST, "MNIST", folder, split, transform)


def cifar10(folder, split, transform):
    """Open `<folder>/cifar-10-batches-py`; `val` is CIFAR's test batch."""
    return _open_dataset(Cifar10, "CIFAR-10", folder, split, transform)


def cifar100(folder, split, transform):
    """Open `<folder>/cifar-100-python`, with the 100 fine labels."""
    return _open_dataset(Cifar100, "CIFAR-100", folder, split, transform)


def _open_dataset(kind, name, folder, split, transform):
    try:
        return kind(folder, train=split == "train", transform=transform, download=False)
    except Exception as error:  # a file may be missing, unreadable or not a pickle
        raise RuntimeError(
            "cannot read {}'s files under {}: {}. Delete that folder to prepare the dataset again.".format(
                name, folder, error
            )
        ) from error
