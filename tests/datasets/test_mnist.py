import gzip
import hashlib
import struct

import numpy
import pytest
from PIL import Image

from epochmeter.datasets.mnist import make
from epochmeter.datasets.ready import prepare_dataset
from epochmeter.shared.instantiate import target_arguments
from epochmeter.worker.data.images import ImageFiles
from epochmeter.worker.data.torchvision_sets import mnist

STORAGE = {"name": "here", "root": "data"}
IMAGES = numpy.random.RandomState(0).randint(0, 256, (14, 28, 28)).astype(numpy.uint8)
LABELS = numpy.array([5, 0, 4, 1, 9, 2, 1, 3, 8, 6, 7, 9, 0, 5], dtype=numpy.uint8)
NAMES = {
    "train_images": "train-images-idx3-ubyte.gz",
    "train_labels": "train-labels-idx1-ubyte.gz",
    "val_images": "t10k-images-idx3-ubyte.gz",
    "val_labels": "t10k-labels-idx1-ubyte.gz",
}


def idx(array):
    """An array of bytes as MNIST's files hold it: magic number, shape, samples."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def small(spec, tmp_path):
    """MNIST with 12 + 2 samples, its files placed by hand; `parts` replaces some, already as IDX or not."""

    def composed(layout, **parts):
        whole = {
            "train_images": idx(IMAGES[:12]),
            "train_labels": idx(LABELS[:12]),
            "val_images": idx(IMAGES[12:]),
            "val_labels": idx(LABELS[12:]),
        }
        dataset = spec("mnist", f"dataset.layout={layout}", space_bytes=None)
        (tmp_path / "data").mkdir(exist_ok=True)
        for part, content in {**whole, **parts}.items():
            data = gzip.compress(content, mtime=0)
            (tmp_path / "data" / NAMES[part]).write_bytes(data)
            dataset["make"]["md5"][part] = hashlib.md5(data).hexdigest()
        return dataset

    return composed


def test_memory_layout_is_read_by_torchvision(small, tmp_path):
    facts = prepare_dataset(small("memory"), STORAGE, tmp_path, print)
    assert (facts["splits"], facts["classes"], facts["channels"]) == ({"train": 12, "val": 2}, 10, 1)
    assert facts["folder"] == str(tmp_path / "data" / "mnist-memory")
    samples = mnist(facts["folder"], "train", numpy.asarray)
    assert [label for _, label in samples] == LABELS[:12].tolist()
    assert numpy.array_equal(samples[3][0], IMAGES[3])
    assert len(mnist(facts["folder"], "val", None)) == 2


def test_files_layout_has_one_png_per_sample_in_class_folders(small, tmp_path):
    facts = prepare_dataset(small("files"), STORAGE, tmp_path, print)
    assert (facts["splits"], facts["files"]) == ({"train": 12, "val": 2}, 14)
    folder = tmp_path / "data" / "mnist-files"
    with Image.open(folder / "train" / "1" / "00003.png") as image:
        assert image.mode == "L"
        assert numpy.array_equal(numpy.asarray(image), IMAGES[3])
    found = sorted((label, int(image[0, 0])) for image, label in ImageFiles(str(folder), "train", numpy.asarray))
    assert found == sorted((int(label), int(image[0, 0])) for image, label in zip(IMAGES[:12], LABELS, strict=False))


def test_labels_are_kept_in_a_split_without_some_classes(small, tmp_path):
    few = numpy.array([9, 7], dtype=numpy.uint8)
    dataset = small("files", train_images=idx(IMAGES[:2]), train_labels=idx(few))
    folder = prepare_dataset(dataset, STORAGE, tmp_path, print)["folder"]
    assert [label for _, label in ImageFiles(folder, "train", numpy.asarray)] == [7, 9]


def made(dataset, tmp_path):
    folder = tmp_path / "data" / "new"
    folder.mkdir()
    return make(folder, say=print, **target_arguments(dataset["make"]))


@pytest.mark.parametrize(
    ("part", "content", "error"),
    [
        ("train_images", idx(LABELS), "in 3 dimensions: it should begin with 00000803, but begins with 00000801"),
        ("train_images", b"", "begins with nothing"),
        ("train_images", b"<html>", "begins with 3c68746d"),
        ("train_images", idx(IMAGES[:12])[:-1], "should have 12 x 28 x 28 bytes, but has 9407"),
        ("train_images", idx(IMAGES[:12]) + b"?", "should have 12 x 28 x 28 bytes, but has 9409"),
        ("train_images", idx(IMAGES[:0]), "should have 0 x 28 x 28 bytes, but has 0"),
        ("train_images", idx(IMAGES[:12])[:9], "bytes, but has 0"),
        ("train_images", idx(IMAGES[:11]), "has 11 images, but train-labels-idx1-ubyte.gz has 12 labels"),
        ("val_labels", idx(LABELS[:2] + 10), "has label 15; MNIST's are 0 to 9"),
    ],
)
def test_invalid_file_is_rejected(small, tmp_path, part, content, error):
    path = tmp_path / "data" / NAMES[part]
    with pytest.raises(ValueError, match=f"{path}.*{error}"):
        made(small("memory", **{part: content}), tmp_path)


def test_truncated_archive_and_wrong_checksum_are_errors(small, tmp_path):
    dataset = small("memory")
    path = tmp_path / "data" / NAMES["train_images"]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=rf"{path} has the MD5 .* dataset.make.md5.train_images="):
        made(dataset, tmp_path)
    dataset["make"]["md5"]["train_images"] = None
    with pytest.raises(ValueError, match=f"{path} is truncated or not gzipped"):
        prepare_dataset(dataset, STORAGE, tmp_path, print)
    assert not (tmp_path / "data" / "mnist-memory").exists()
