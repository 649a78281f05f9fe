import gzip
import hashlib
import io
import pickle
import tarfile

import numpy
import pytest

from trainmeter.datasets.ready import ready
from trainmeter.worker.data.loader import open_split

STORAGE = {"name": "here", "root": "data"}
BATCHES = ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]


def batch(number):
    """Three samples as CIFAR-10 lays them out: a row of 1024 reds, then greens, then blues."""
    data = numpy.full((3, 3072), number, dtype=numpy.uint8)
    data[:, 1024:] += 100
    return {"data": data, "labels": [number, 0, 9], "filenames": ["a", "b", "c"]}


def write_archive(path, contents):
    """The same bytes whenever it is written: gzip would stamp them with the time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.GzipFile(path, "w", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for name, value in contents.items():
            data = pickle.dumps(value, protocol=2)
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return hashlib.md5(path.read_bytes()).hexdigest()


@pytest.fixture
def small(spec, tmp_path):
    """CIFAR-10 with 15 + 3 samples, its archive placed by hand."""

    def composed(name, contents=None):
        whole = {each: batch(number) for number, each in enumerate(BATCHES)}
        whole["batches.meta"] = {"label_names": list("abcdefghij")}
        dataset = spec(name)
        archive = tmp_path / "data" / "cifar-10-python.tar.gz"
        dataset["make"]["md5"] = write_archive(archive, contents or whole)
        return dataset

    return composed


def test_an_archive_placed_by_hand_becomes_the_dataset(small, tmp_path):
    manifest = ready(small("cifar10"), STORAGE, tmp_path, print)
    assert manifest["splits"] == {"train": 15, "val": 3}
    assert manifest["layout"] == "memory"
    assert manifest["classes"] == 10


def test_the_worker_opens_it_in_color_and_in_gray_from_the_same_files(small, tmp_path):
    color, gray = small("cifar10"), small("cifar10_gray")
    folder = ready(color, STORAGE, tmp_path, print)["folder"]
    assert ready(gray, STORAGE, tmp_path, print)["folder"] == folder
    image, label = open_split(color, folder, "train")[3]
    assert (tuple(image.shape), label) == ((3, 32, 32), 1)
    assert image[0, 0, 0] == pytest.approx((1 / 255 - 0.4914) / 0.2470, abs=1e-5)
    image, label = open_split(gray, folder, "val")[0]
    assert (tuple(image.shape), label) == ((1, 32, 32), 5)
    luma = (299 * 5 + 587 * 105 + 114 * 105) // 1000
    assert image[0, 0, 0] == pytest.approx((luma / 255 - 0.5) / 0.5, abs=0.01)


def test_without_a_network_the_error_names_the_file_the_place_and_digits(spec, tmp_path):
    dataset = spec("cifar10")
    dataset["make"]["url"] = "http://127.0.0.1:9/cifar-10-python.tar.gz"
    place = tmp_path / "data" / "cifar-10-python.tar.gz"
    with pytest.raises(RuntimeError, match=rf"place that file as {place}, or use dataset=digits"):
        ready(dataset, STORAGE, tmp_path, print)


def test_an_archive_of_something_else_is_refused(small, tmp_path):
    with pytest.raises(ValueError, match="is not the archive of CIFAR-10's Python version"):
        ready(small("cifar10", {"readme": "no batches"}), STORAGE, tmp_path, print)
    assert not (tmp_path / "data" / "cifar10").exists()
