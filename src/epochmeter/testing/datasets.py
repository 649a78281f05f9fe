"""The contract of a dataset: what training relies on, so that runs with the same seed have the same samples."""

import hashlib
import operator
import pickle
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, equal
from torch.utils.data import DataLoader, Dataset

COMPARED = 16  # samples of each split that are compared, in several ways
BATCH = 4
Transform = Callable[[Any], Any]
Open = Callable[[str, str, Transform], Any]


class MakeDataset(Protocol):
    """The function that `make._target_` in `conf/dataset/NAME.yaml` names; it also gets the other keys of `make`.

    Example:
        >>> def make(folder, say, count):
        ...     for split in ("train", "val"):
        ...         (folder / f"{split}.txt").write_text("sample" * count)
        ...     return {"splits": {"train": count, "val": count}, "source": "generated"}
    """

    def __call__(self, folder: Path, *, say: Callable[[str], object]) -> Mapping[str, Any]:
        """Write the files into an empty folder.

        Returns:
            `splits` (number of samples by name), `source`, and `classes` and `channels` if they apply.
        """


class OpenDataset(Protocol):
    """The class or function that `open._target_` names; it also gets the other keys of `open`.

    Example:
        >>> def open_numbers(folder, split, transform):
        ...     return [(transform(number), number % 2) for number in range(8)]
        >>> open_numbers("", "train", float)[3]
        (3.0, 1)
    """

    def __call__(self, folder: str, split: str, transform: Transform) -> Sequence[tuple[Any, Any]]:
        """Return the samples of a split, `train` or `val`, each as `(transform(input), label)`."""


def check_dataset(
    open_dataset: Open,
    *,
    make: MakeDataset | None = None,
    folder: Path | None = None,
    splits: Mapping[str, int] | None = None,
    classes: int | None = None,
) -> None:
    """Check that samples are the same in any order, process and opening, and as many as stated.

    Example:
        >>> from epochmeter.testing import check_dataset
        >>> class Squares:
        ...     def __init__(self, folder, split, transform):
        ...         self.numbers, self.transform = range(8 if split == "train" else 2), transform
        ...     def __len__(self):
        ...         return len(self.numbers)
        ...     def __getitem__(self, index):
        ...         return self.transform(self.numbers[index] ** 2), index % 2
        >>> check_dataset(Squares, splits={"train": 8, "val": 2}, classes=2)

    Args:
        open_dataset: The class or function of `open._target_`, with its other keys bound by `partial`.
        make: The function of `make._target_`, likewise, unless there is an existing folder, or none.
        folder: An existing folder with the samples. Without it and `make`, they are generated, without files.
        splits: Number of samples of each split; by default those that `make` returns.
        classes: Number of classes, if labels are class numbers; by default that of `make`.

    Raises:
        AssertionError: The dataset is not as the tool needs it, with the reason.
    """
    with tempfile.TemporaryDirectory() as temporary:
        facts = _check_maker(make, Path(temporary)) if make else {}
        path = str(Path(temporary) / "first") if make else str(folder or "")
        found = splits or facts.get("splits") or {}
        _require(bool(found.get("train")), "there is no number of samples of the split `train`: give `splits=`")
        for split, count in found.items():
            _check_split(open_dataset, path, split, count, classes or facts.get("classes"))


def _check_maker(make: MakeDataset, folder: Path) -> Mapping[str, Any]:
    facts, files = [], []
    for name in ("first", "second"):
        (folder / name).mkdir()
        facts.append(make(folder / name, say=lambda text: None))
        paths = sorted(path for path in (folder / name).rglob("*") if path.is_file())
        digests = (hashlib.sha256(path.read_bytes()).hexdigest() for path in paths)
        files.append(dict(zip((str(path.relative_to(folder / name)) for path in paths), digests, strict=True)))
    first, second = files
    changed = sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
    _require(not changed, f"`make` wrote other files with the same arguments: {changed[:3]}")
    _require(dict(facts[0]) == dict(facts[1]), f"`make` returned {facts[0]}, then {facts[1]}")
    splits = facts[0].get("splits")
    is_counted = isinstance(splits, Mapping) and all(type(count) is int and count > 0 for count in splits.values())
    _require(is_counted, f"`make` returned the splits {splits!r}: give a number of samples for each")
    _require(isinstance(facts[0].get("source"), str), "`make` does not return the `source` of the samples")
    return facts[0]


def _check_split(open_dataset: Open, folder: str, split: str, count: int, classes: int | None) -> None:
    samples = open_dataset(folder, split, _identity)
    _require(len(samples) == count, f"the split {split} has {len(samples)} samples, not {count}")
    numbers = random.Random(0).sample(range(count), min(count, COMPARED))
    loaded = {number: samples[number] for number in numbers}
    for number, sample in loaded.items():
        _require(isinstance(sample, tuple) and len(sample) == 2, f"sample {number} is no (input, label): {sample!r}")
        label = sample[1]
        is_class = classes is None or _is_number_below(classes, label)
        _require(is_class, f"the label {label!r} of sample {number} is none of {classes} classes")
    _check_same(loaded, {number: samples[number] for number in reversed(numbers)}, "in another order")
    again = open_dataset(folder, split, _identity)
    _check_same(loaded, {number: again[number] for number in sorted(numbers)}, f"after opening the split {split} again")
    _check_transform(open_dataset(folder, split, _marked), samples, numbers[0])
    _check_workers(samples, loaded)


def _check_transform(marked: Any, samples: Any, number: int) -> None:
    sample = marked[number]
    value = sample if type(sample) is _Marked else sample[0]  # a transform may also make the whole pair
    is_marked = type(value) is _Marked and type(value.value) is not _Marked
    _require(is_marked, f"the input of sample {number} is not the result of one call of `transform`")
    if hasattr(samples, "read") and hasattr(samples, "decode"):
        data, label = samples.read(number)
        _check_same(
            {number: samples[number]}, {number: (samples.decode(data, number), label)}, "by `read` and `decode`"
        )


def _check_workers(samples: Any, loaded: Mapping[int, Any]) -> None:
    """Check that a process which was spawned, or forked, has the same samples."""
    try:
        copied = pickle.loads(pickle.dumps(samples))  # noqa: S301 (own)
    except Exception as error:
        raise AssertionError(f"the samples cannot be pickled, as for workers that are spawned: {error}") from error
    _check_same(loaded, {number: copied[number] for number in loaded}, "after pickling")
    loader = DataLoader(_Of(samples, [*loaded]), BATCH, num_workers=2, collate_fn=list, multiprocessing_context="fork")
    in_workers = [sample for batch in loader for sample in batch]
    _check_same(loaded, dict(zip(loaded, in_workers, strict=True)), "in DataLoader workers")


def _check_same(expected: Mapping[int, Any], found: Mapping[int, Any], how: str) -> None:
    for number, sample in expected.items():
        _require(_is_same(sample, found[number]), f"sample {number} is another one {how}: {found[number]!r}")


def _is_number_below(limit: int, label: Any) -> bool:
    """Return whether a label is a whole number, also one of NumPy or torch, from 0 on and below a limit."""
    try:
        return 0 <= operator.index(label) < limit
    except TypeError:
        return False


def _is_same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return type(one).__name__.endswith("ImageFile") and _is_same_image(one, other)
    if isinstance(one, Tensor):
        return one.shape == other.shape and equal(one, other)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if hasattr(one, "tobytes"):
        return _is_same_image(one, other)
    return bool(one == other)


def _is_same_image(one: Any, other: Any) -> bool:
    """Compare images, or arrays, by their content: a file of an image becomes an image when it is pickled."""
    names = ("mode", "size", "shape", "dtype")
    is_alike = all(getattr(one, name, None) == getattr(other, name, None) for name in names)
    return is_alike and hasattr(other, "tobytes") and bool(one.tobytes() == other.tobytes())


class _Of(Dataset[Any]):
    """Some samples of a dataset."""

    def __init__(self, samples: Any, numbers: Sequence[int]) -> None:
        self._samples, self._numbers = samples, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> Any:
        return self._samples[self._numbers[index]]


class _Marked:
    """What a transform has made of a value."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _identity(value: Any) -> Any:
    return value


def _marked(value: Any) -> _Marked:
    return _Marked(value)


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise AssertionError(reason)
