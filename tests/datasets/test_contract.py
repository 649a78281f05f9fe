"""The datasets that need no download keep the contract of `epochmeter.testing`."""

from functools import partial

from cases import case, cases

from epochmeter.datasets import digits, jpeg, pairs
from epochmeter.testing import check_dataset
from epochmeter.worker.data.images import ImageFiles, InMemoryImages
from epochmeter.worker.data.pairs import Pairs
from epochmeter.worker.data.polynomial import Polynomial

JPEG = partial(jpeg.make, count=40, classes=4, pixels=64, file_bytes=3000, seed=0)
PAIRS = partial(pairs.make, count=50, seed=0, words=30, length=12)


@cases(
    case("digits", kind=ImageFiles, how={"make": digits.make}),
    case("jpeg", kind=ImageFiles, how={"make": JPEG}),
    case("jpeg in memory", kind=InMemoryImages, how={"make": JPEG}),
    case("pairs", kind=partial(Pairs, words=30), how={"make": PAIRS}),
    case("polynomial", kind=partial(Polynomial, count=40, features=4, seed=0), how={"splits": {"train": 40, "val": 8}}),
)
def test_dataset_keeps_the_contract(kind, how):
    check_dataset(kind, **how)
