import json

import numpy
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from tiny import make_config

from epochmeter.datasets.make import make


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("storage") / "digits"
    make(make_config(make={"_target_": "epochmeter.datasets.digits.make"}), folder, say=print)
    return folder


def test_all_digits_are_written_one_file_each(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["splits"] == {"train": 1442, "val": 355}
    assert manifest["count"] == manifest["files"] == 1797
    assert len(list(folder.glob("*/*/*.png"))) == 1797


def test_images_are_eight_bit_gray(folder):
    scans, labels = load_digits(return_X_y=True)
    path = folder / "train" / str(labels[0]) / "0000.png"
    with Image.open(path) as image:
        assert (image.mode, image.size) == ("L", (8, 8))
        assert numpy.array_equal(numpy.asarray(image), numpy.round(scans[0].reshape(8, 8) * 255 / 16))
