import json
from io import BytesIO

import numpy
import pytest
from PIL import Image
from tiny import make_config

from epochmeter.datasets.digits import ARCHIVE
from epochmeter.datasets.ready import make


def test_all_digits_are_written_as_eight_bit_gray_files(tmp_path):
    folder = tmp_path / "digits"
    make(make_config(make={"_target_": "epochmeter.datasets.digits.make"}), folder, say=print)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["splits"] == {"train": 1442, "val": 355}
    assert manifest["count"] == manifest["files"] == len(list(folder.glob("*/*/*.png"))) == 1797
    with numpy.load(ARCHIVE) as archive:
        label, scan = archive["labels"][0], archive["images"][0]
    with Image.open(folder / "train" / str(label) / "0000.png") as image:
        assert (image.mode, image.size) == ("L", (8, 8))
        assert numpy.array_equal(numpy.asarray(image), numpy.round(scan * 255.0 / 16))


def test_archive_gives_the_files_of_scikit_learn_s_scans_and_names_their_source_and_license(tmp_path):
    datasets = pytest.importorskip("sklearn.datasets", reason="no scikit-learn in this environment")
    scans, labels = datasets.load_digits(return_X_y=True)
    folder = tmp_path / "digits"
    make(make_config(make={"_target_": "epochmeter.datasets.digits.make"}), folder, say=print)
    files = {int(path.stem): path for path in folder.glob("*/*/*.png")}
    assert [int(files[index].parent.name) for index in range(len(labels))] == labels.tolist()
    for index, scan in enumerate(scans):
        expected = BytesIO()
        Image.fromarray((scan.reshape(8, 8) * 255 / 16).round().astype("uint8")).save(expected, "PNG")
        assert files[index].read_bytes() == expected.getvalue()
    with numpy.load(ARCHIVE) as archive:
        assert "doi:10.24432/C50P49" in str(archive["source"])
        assert str(archive["license"]) == "CC BY 4.0"
