import json

import numpy
from PIL import Image
from sklearn.datasets import load_digits
from tiny import make_config

from epochmeter.datasets.ready import make


def test_all_digits_are_written_as_eight_bit_gray_files(tmp_path):
    folder = tmp_path / "digits"
    make(make_config(make={"_target_": "epochmeter.datasets.digits.make"}), folder, say=print)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["splits"] == {"train": 1442, "val": 355}
    assert manifest["count"] == manifest["files"] == len(list(folder.glob("*/*/*.png"))) == 1797
    scans, labels = load_digits(return_X_y=True)
    with Image.open(folder / "train" / str(labels[0]) / "0000.png") as image:
        assert (image.mode, image.size) == ("L", (8, 8))
        assert numpy.array_equal(numpy.asarray(image), numpy.round(scans[0].reshape(8, 8) * 255 / 16))
