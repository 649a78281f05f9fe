"""The contract of datasets finds each way to break it."""

import os
import random
from itertools import count

import numpy
import pytest
import torch
from cases import case, cases

from epochmeter.testing import check_dataset

SPLITS = {"train": 8, "val": 2}
NUMBERS = count()


class Squares:
    """A correct dataset; the others break one rule each."""

    def __init__(self, folder, split, transform):
        self.count, self.transform = 8 if split == "train" else 2, transform

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.transform(self.value(index)), index % 2

    def value(self, index):
        return torch.tensor([index**2])


class Longer(Squares):
    def __len__(self):
        return self.count + 1


class Drawn(Squares):
    def value(self, index):
        return random.random()


class OfOpening(Squares):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.offset = next(NUMBERS)

    def value(self, index):
        return index + self.offset


class OfProcess(Squares):
    def value(self, index):
        return index, os.getpid()


class Untransformed(Squares):
    def __getitem__(self, index):
        return self.value(index), 0


class TwiceTransformed(Squares):
    def value(self, index):
        return self.transform(index)


class Unlabeled(Squares):
    def __getitem__(self, index):
        return self.transform(index)


class OfManyClasses(Squares):
    def __getitem__(self, index):
        return self.transform(index), index + 1


class Open(Squares):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.file = open(os.devnull)  # noqa: SIM115 (as a careless dataset)


class Steps(Squares):
    def read(self, index):
        return str(index), index % 2

    def decode(self, data, index):
        return self.value(int(data))


class OfNumpyClasses(Squares):
    def __getitem__(self, index):
        return self.transform(index), numpy.int64(index % 2)


class OfTensorClasses(Squares):
    def __getitem__(self, index):
        return self.transform(index), torch.tensor(index % 2)


class OfMappings(Squares):
    def value(self, index):
        return {"ids": torch.tensor([index, 1]), "mask": [torch.ones(2)]}


class OfDrawnMappings(Squares):
    def value(self, index):
        return {"ids": torch.rand(2)}


class OtherSteps(Steps):
    def decode(self, data, index):
        return self.value(int(data) + 1)


@pytest.mark.parametrize("kind", [Squares, Steps, OfNumpyClasses, OfTensorClasses, OfMappings])
def test_dataset_with_the_same_samples_everywhere_passes(kind):
    check_dataset(kind, splits=SPLITS, classes=2)


@cases(
    case(kind=Longer, reason="the split train has 9 samples, not 8"),
    case(kind=Drawn, reason="is another one in another order"),
    case(kind=OfDrawnMappings, reason="is another one in another order"),
    case(kind=OfOpening, reason="is another one after opening the split train again"),
    case(kind=OfProcess, reason="is another one in DataLoader workers"),
    case(kind=Untransformed, reason="not the result of one call of `transform`"),
    case(kind=TwiceTransformed, reason="not the result of one call of `transform`"),
    case(kind=Unlabeled, reason=r"is no \(input, label\)"),
    case(kind=OfManyClasses, reason="is none of 2 classes"),
    case(kind=Open, reason="cannot be pickled"),
    case(kind=OtherSteps, reason="is another one by `read` and `decode`"),
)
def test_sample_that_training_cannot_rely_on_is_found(kind, reason):
    with pytest.raises(AssertionError, match=reason):
        check_dataset(kind, splits=SPLITS, classes=2)


def make(folder, say, text="same", splits=SPLITS, **facts):
    say("making it")
    (folder / "a").mkdir()
    (folder / "a" / "samples.txt").write_text(text if isinstance(text, str) else text())
    return {"splits": splits, "classes": 2, "source": "here", **facts}


@cases(
    case(
        how={"text": lambda: str(random.random())}, reason=r"other files with the same arguments: \['a/samples.txt'\]"
    ),
    case(how={"splits": {"train": 0}}, reason="a number of samples for each"),
    case(how={"splits": None}, reason="a number of samples for each"),
    case(how={"source": None}, reason="does not return the `source`"),
    case(how={"splits": {"val": 2}}, reason="no number of samples of the split `train`"),
    case(how={"splits": {"train": 9}}, reason="has 8 samples, not 9"),
)
def test_maker_whose_folder_or_facts_differ_is_found(how, reason):
    check_dataset(Squares, make=make)
    with pytest.raises(AssertionError, match=reason):
        check_dataset(Squares, make=lambda folder, say: make(folder, say, **how))
