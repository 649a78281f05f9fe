"""MNIST and CIFAR, read by torchvision: all samples are in memory from the start, so that an epoch reads no storage."""

from torchvision import datasets


def mnist(folder, split, transform):
    """Open `<folder>/MNIST/raw`; `val` is MNIST's test set."""
    return _open_dataset(datasets.MNIST, folder, split, transform)


def cifar10(folder, split, transform):
    """Open `<folder>/cifar-10-batches-py`; `val` is CIFAR's test batch."""
    return _open_dataset(_unverified(datasets.CIFAR10), folder, split, transform)


def cifar100(folder, split, transform):
    """Open `<folder>/cifar-100-python`, with the 100 fine labels."""
    return _open_dataset(_unverified(datasets.CIFAR100), folder, split, transform)


def _unverified(kind):
    """Return torchvision's class without checksums: hashing verified files again would take seconds on a board."""
    return type(kind.__name__, (kind,), {"meta": dict(kind.meta, md5=None), "_check_integrity": lambda self: True})


def _open_dataset(kind, folder, split, transform):
    try:
        return kind(folder, train=split == "train", transform=transform, download=False)
    except Exception as error:  # a file may be missing, unreadable or not a pickle
        raise RuntimeError(
            "cannot read {}'s files under {}: {}. Delete that folder to prepare the dataset again.".format(
                kind.__name__, folder, error
            )
        ) from error
