import pickle

import numpy
import pytest
from PIL import Image
from tiny import pack

from epochmeter.config.job import to_plain
from epochmeter.datasets import cifar
from epochmeter.shared.instantiate import target_arguments
from epochmeter.testing import check_dataset
from epochmeter.worker.data import torchvision_sets
from epochmeter.worker.data.images import ImageFiles
from epochmeter.worker.data.loader import open_split

BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}


def batch(number, labels="labels"):
    """Three samples as CIFAR lays them out: a row of 1024 reds, then greens, then blues."""
    data = numpy.repeat(numpy.array([[number, number + 100, number + 150]] * 3, dtype=numpy.uint8), 1024, axis=1)
    return {"data": data, labels: [number, 0, 9], "filenames": ["a", "b", "c"]}


CONTENTS = {
    "cifar10": {
        **{part: batch(number) for number, part in enumerate(BATCHES)},
        "batches.meta": {"label_names": list("abcdefghij")},
    },
    "cifar100": {
        "train": batch(99, "fine_labels"), "test": batch(42, "fine_labels"),
        "meta": {"fine_label_names": [f"{number:02}" for number in range(100)]},
    },
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "made").mkdir()
    return tmp_path / "made"


@pytest.fixture
def prepare(composed, tmp_path, folder):
    """prepare(name, *overrides, **parts): configuration and facts of a small CIFAR, with some files replaced."""

    def run(name, *overrides, **parts):
        dataset = to_plain(composed(f"dataset={name}", *overrides))["dataset"]
        contents = {**CONTENTS[name], **parts}
        files = {f"{FOLDERS[name]}/{part}": pickle.dumps(value, protocol=2) for part, value in contents.items()}
        arguments = target_arguments(dataset["make"])
        arguments["md5"] = pack(tmp_path / arguments["url"].rpartition("/")[2], files)
        return dataset, cifar.make(folder, say=print, **arguments)

    return run


def test_memory_layout_opens_in_color_and_in_gray(prepare, folder):
    color, facts = prepare("cifar10")
    assert facts == {"splits": {"train": 15, "val": 3}, "classes": 10, "channels": 3, "source": color["make"]["url"]}
    assert [path.name for path in folder.iterdir()] == [FOLDERS["cifar10"]]
    check_dataset(torchvision_sets.cifar10, folder=folder, splits=facts["splits"], classes=10)
    (image,), (label,) = open_split(color, folder, "train")[[3]][0]
    assert (tuple(image.shape), label) == ((3, 32, 32), 1)
    assert image[0, 0, 0] == pytest.approx((1 / 255 - 0.4914) / 0.2470, abs=1e-5)
    gray = {**color, "channels": 1, "normalize": {"mean": [0.5], "std": [0.5]}}
    (image,), (label,) = open_split(gray, folder, "val")[[0]][0]
    assert (tuple(image.shape), label) == ((1, 32, 32), 5)
    luma = (299 * 5 + 587 * 105 + 114 * 155) // 1000
    assert image[0, 0, 0] == pytest.approx((luma / 255 - 0.5) / 0.5, abs=0.01)


def test_files_layout_has_one_png_per_sample_in_class_folders(prepare, folder):
    _, facts = prepare("cifar10", "dataset.layout=files")
    assert facts["splits"] == {"train": 15, "val": 3}
    assert len(list(folder.glob("*/*/*.png"))) == 18
    with Image.open(folder / "train" / "3" / "00009.png") as image:
        assert (image.mode, image.size) == ("RGB", (32, 32))
        assert image.getpixel((0, 0)) == image.getpixel((31, 31)) == (3, 103, 153)


def test_cifar100_has_100_fine_labels_in_either_layout(prepare, folder):
    _, facts = prepare("cifar100")
    assert (facts["splits"], facts["classes"]) == ({"train": 3, "val": 3}, 100)
    assert [label for _, label in torchvision_sets.cifar100(str(folder), "train", None)] == [99, 0, 9]
    _, facts = prepare("cifar100", "dataset.layout=files")
    assert facts["classes"] == 100
    assert [label for _, label in ImageFiles(str(folder), "train", numpy.asarray)] == [0, 9, 99]


class Open:
    """Opens a file for writing when it is unpickled."""

    def __reduce__(self):
        return open, ("called", "w")


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("no batch", "'str' object has no attribute|string indices"),
        ({"data": batch(3)["data"]}, "'fine_labels'"),
        ({**batch(3), "data": batch(3)["data"][:, 1:]}, "all the input array dimensions"),
        ({**batch(3), "labels": [0, 1]}, r"zip\(\) argument 2 is shorter"),
        ({**batch(3), "call": Open()}, r"it refers to \w+.open"),
    ],
)
def test_invalid_batches_are_rejected_and_pickled_calls_not_executed(prepare, tmp_path, monkeypatch, content, error):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"is not the archive of CIFAR's Python version: {error}"):
        prepare("cifar10", "dataset.layout=files", data_batch_3=content)
    assert not (tmp_path / "called").exists()


def test_damaged_archive_and_one_with_files_outside_its_folder_are_rejected(tmp_path, folder):
    archive = tmp_path / "cifar.tar.gz"
    pack(archive, {"top/a": bytes(1000)})
    for content in (archive.read_bytes()[:60], b"no archive"):
        archive.write_bytes(content)
        with pytest.raises(ValueError, match=f"{archive} is not the archive of CIFAR's Python version"):
            cifar.make(folder, "memory", f"http://127.0.0.1:9/{archive.name}", None, print)
    pack(archive, {"../outside": b""})
    with pytest.raises(ValueError, match="outside"):
        cifar.make(folder, "memory", f"http://127.0.0.1:9/{archive.name}", None, print)
    assert {path.name for path in tmp_path.iterdir()} == {archive.name, f".{archive.name}.lock", folder.name}


@pytest.mark.parametrize(("name", "called"), [("mnist", "MNIST"), ("cifar10", "CIFAR10"), ("cifar100", "CIFAR100")])
def test_missing_file_is_an_error_when_training_opens_it(tmp_path, name, called):
    with pytest.raises(RuntimeError, match=rf"{called}'s files under {tmp_path}: "):
        getattr(torchvision_sets, name)(str(tmp_path), "train", transform=None)
