"""MNIST and CIFAR as torchvision reads them: all samples in memory from the start, so that storage plays no part."""

from typing import ClassVar

from torchvision import datasets

# The archives were verified when the dataset was made ready; here a file has but to be there. To hash 186 MB again at
# every start would cost a board seconds and warm its page cache.


class Cifar10(datasets.CIFAR10):
    """torchvision's, without its checksums."""

    train_list: ClassVar = [[name, None] for name, _ in datasets.CIFAR10.train_list]
    test_list: ClassVar = [[name, None] for name, _ in datasets.CIFAR10.test_list]
    meta: ClassVar = dict(datasets.CIFAR10.meta, md5=None)


class Cifar100(datasets.CIFAR100):
    """torchvision's, without its checksums."""

    train_list: ClassVar = [[name, None] for name, _ in datasets.CIFAR100.train_list]
    test_list: ClassVar = [[name, None] for name, _ in datasets.CIFAR100.test_list]
    meta: ClassVar = dict(datasets.CIFAR100.meta, md5=None)


def mnist(folder, split, transform):
    """The samples of `<folder>/MNIST/raw`; `val` is what MNIST calls its test set."""
    return _opened(datasets.MNIST, "MNIST", folder, split, transform)


def cifar10(folder, split, transform):
    """The samples of `<folder>/cifar-10-batches-py`; `val` is what CIFAR calls its test batch."""
    return _opened(Cifar10, "CIFAR-10", folder, split, transform)


def cifar100(folder, split, transform):
    """The samples of `<folder>/cifar-100-python`, with the hundred fine labels."""
    return _opened(Cifar100, "CIFAR-100", folder, split, transform)


def _opened(kind, name, folder, split, transform):
    try:
        return kind(folder, train=split == "train", transform=transform, download=False)
    except Exception as error:  # a file may be missing, unreadable or no pickle at all
        raise RuntimeError(
            "{}'s files under {} cannot be read: {}. Remove that folder to have the dataset made again.".format(
                name, folder, error
            )
        ) from error
