import gzip
import hashlib

import numpy
import pytest
from PIL import Image
from tiny import MNIST as NAMES
from tiny import idx

from epochmeter.datasets.mnist import make
from epochmeter.testing import check_dataset
from epochmeter.worker.data.images import ImageFiles
from epochmeter.worker.data.torchvision_sets import mnist

IMAGES = numpy.random.RandomState(0).randint(0, 256, (14, 28, 28)).astype(numpy.uint8)
LABELS = numpy.array([5, 0, 4, 1, 9, 2, 1, 3, 8, 6, 7, 9, 0, 5], dtype=numpy.uint8)


@pytest.fixture
def prepare(tmp_path):
    """prepare(layout, **parts): MNIST with 12 + 2 samples, prepared from files of which some are replaced."""

    def run(layout, **parts):
        contents = {"train_images": IMAGES[:12], "train_labels": LABELS[:12]}
        contents |= {"val_images": IMAGES[12:], "val_labels": LABELS[12:]}
        files = {**{part: idx(array) for part, array in contents.items()}, **parts}
        data = {part: gzip.compress(content, mtime=0) for part, content in files.items()}
        for part, packed in data.items():
            (tmp_path / NAMES[part]).write_bytes(packed)
        (tmp_path / "made").mkdir()
        md5 = {part: hashlib.md5(packed).hexdigest() for part, packed in data.items()}
        return make(tmp_path / "made", layout, "http://127.0.0.1:9", md5, print)

    return run


def test_memory_layout_is_read_by_torchvision(prepare, tmp_path):
    facts = prepare("memory")
    assert (facts["splits"], facts["classes"], facts["channels"]) == ({"train": 12, "val": 2}, 10, 1)
    samples = mnist(str(tmp_path / "made"), "train", numpy.asarray)
    assert [label for _, label in samples] == LABELS[:12].tolist()
    assert numpy.array_equal(samples[3][0], IMAGES[3])
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["MNIST"]
    check_dataset(mnist, folder=tmp_path / "made", splits=facts["splits"], classes=10)


def test_files_layout_has_one_png_per_sample_in_class_folders(prepare, tmp_path):
    assert prepare("files")["splits"] == {"train": 12, "val": 2}
    folder = tmp_path / "made"
    with Image.open(folder / "train" / "1" / "00003.png") as image:
        assert image.mode == "L"
        assert numpy.array_equal(numpy.asarray(image), IMAGES[3])
    samples = sorted((label, int(image[0, 0])) for image, label in ImageFiles(str(folder), "train", numpy.asarray))
    assert samples == sorted((int(label), int(image[0, 0])) for image, label in zip(IMAGES[:12], LABELS, strict=False))
    assert [label for _, label in ImageFiles(str(folder), "val", numpy.asarray)] == [0, 5], "without the other classes"


def test_damaged_file_is_rejected(prepare, tmp_path):
    path = tmp_path / NAMES["train_images"]
    with pytest.raises(ValueError, match=f"{path} is damaged: cannot reshape array of size 9407"):
        prepare("memory", train_images=idx(IMAGES[:12])[:-1])
    path.write_bytes(gzip.compress(idx(IMAGES))[:-20])
    with pytest.raises(
        ValueError, match=f"{path} is damaged: .* ended before .*\n  hint: delete it to download it again"
    ):
        make(tmp_path / "new", "memory", "http://127.0.0.1:9", dict.fromkeys(NAMES), print)
    with pytest.raises(ValueError, match=r"has the MD5 .*\n  hint: .* dataset\.make\.md5\.train_images="):
        make(tmp_path / "new", "memory", "http://127.0.0.1:9", dict.fromkeys(NAMES, "0"), print)
