import itertools
import re

import numpy
import pytest
from numpy.random import RandomState
from PIL import Image

from epochmeter.datasets.jpeg import Scene, make

ARGUMENTS = {"count": 100, "classes": 10, "pixels": 128, "file_bytes": 11_000, "seed": 0}


def made(folder, **keys):
    folder.mkdir()
    return make(folder, say=print, **{**ARGUMENTS, **keys})


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.jpg")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "jpeg"
    facts = made(folder)
    assert facts == {"splits": {"train": 80, "val": 20}, "classes": 10, "channels": 3, "source": "generated, seed 0"}
    assert len(list(folder.glob("val/3/*.jpg"))) == 2
    return folder


def test_other_seed_gives_other_files(folder, tmp_path):
    made(tmp_path / "other", seed=1)
    assert not set(contents(tmp_path / "other").values()) & set(contents(folder).values())


@pytest.mark.parametrize("file_bytes", [6_000, 19_000])
def test_mean_file_size_is_as_configured(tmp_path, file_bytes):
    made(tmp_path / "sized", file_bytes=file_bytes)
    sizes = [len(data) for data in contents(tmp_path / "sized").values()]
    assert sum(sizes) / len(sizes) == pytest.approx(file_bytes, rel=0.1)


@pytest.mark.parametrize("pixels", [32, 64, 700])
def test_default_file_size_is_possible_for_any_number_of_pixels(tmp_path, pixels):
    default = round(0.6875 * pixels**2)
    made(tmp_path / "sized", pixels=pixels, count=10, classes=2, file_bytes=default)
    sizes = [len(data) for data in contents(tmp_path / "sized").values()]
    assert sum(sizes) / len(sizes) == pytest.approx(default, rel=0.1)


def mean_colors(folder, split):
    """Mean color and class of each image."""
    colors, labels = [], []
    for path in sorted(folder.glob(f"{split}/*/*.jpg")):
        with Image.open(path) as image:
            colors.append(numpy.asarray(image.convert("YCbCr"), dtype=float).mean((0, 1))[1:])
        labels.append(int(path.parent.name))
    return numpy.array(colors), numpy.array(labels)


def test_classes_are_separable(folder):
    """By the nearest mean color alone, far more often than one in ten."""
    colors, labels = mean_colors(folder, "train")
    means = numpy.array([colors[labels == label].mean(0) for label in range(10)])
    colors, labels = mean_colors(folder, "val")
    predicted = numpy.linalg.norm(colors[:, None] - means, axis=2).argmin(1)
    assert (predicted == labels).mean() > 0.7


def test_spectrum_is_that_of_photographs():
    """Power by frequency: 1/f**2, a line of slope -2 in logarithms; a few classes' gratings average out."""
    pixels = 256
    scene = Scene(classes=10, pixels=pixels, seed=0)
    planes = numpy.array([scene._planes(index, RandomState([0, index]))[0] for index in range(20)], dtype=float)
    window = numpy.hanning(pixels)
    windowed = (planes - planes.mean((1, 2), keepdims=True)) * numpy.outer(window, window)
    power = (numpy.abs(numpy.fft.fft2(windowed)) ** 2).mean(0)
    distance = numpy.hypot(*numpy.meshgrid(*2 * [numpy.fft.fftfreq(pixels, 1 / pixels)]))
    rings = numpy.geomspace(20, 100, 8)
    levels = [power[(distance >= low) & (distance < high)].mean() for low, high in itertools.pairwise(rings)]
    slope = numpy.polyfit(numpy.log(rings[1:]), numpy.log(levels), 1)[0]
    assert slope == pytest.approx(-2, abs=0.3)


def test_invalid_arguments_are_rejected_with_valid_ranges(tmp_path):
    impossible = r"dataset.file_bytes={} is impossible: files of 128 x 128 pixels have \d+ to \d+ b"
    errors = {("file_bytes", size): impossible.format(size) for size in (10, 10**6)}
    for (key, value), error in {
        **errors,
        ("count", 49): "dataset.count=49` is not valid\n  hint: give 5 for each class, 50",
    }.items():
        with pytest.raises(ValueError, match=error):
            made(tmp_path / f"{key}{value}", **{key: value})


def test_size_that_the_hint_suggests_is_valid(tmp_path):
    with pytest.raises(ValueError, match="is impossible") as refused:
        made(tmp_path / "refused", file_bytes=10)
    suggested = int(re.search(r"`dataset.file_bytes=(\d+)`", str(refused.value))[1])
    made(tmp_path / "suggested", file_bytes=suggested)
