import pickle

import numpy
import pytest
from PIL import Image

from epochmeter.datasets import cifar
from epochmeter.datasets.ready import prepare_dataset
from epochmeter.shared.instantiate import target_arguments
from epochmeter.worker.data.images import ImageFiles
from epochmeter.worker.data.loader import open_split
from epochmeter.worker.data.torchvision_sets import cifar100

STORAGE = {"name": "here", "root": "data"}
BATCHES = ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]
FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar10_gray": "cifar-10-batches-py", "cifar100": "cifar-100-python"}
ARCHIVES = {"cifar10": "cifar-10-python", "cifar10_gray": "cifar-10-python", "cifar100": "cifar-100-python"}


class Open:
    """Pickled, it calls what opens a file for writing: a stand-in for anything that a pickle may call."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


def batch(number, labels="labels"):
    """Three samples as CIFAR lays them out: a row of 1024 reds, then greens, then blues."""
    data = numpy.full((3, 3072), number, dtype=numpy.uint8)
    data[:, 1024:] += 100
    data[:, 2048:] += 50
    return {"data": data, labels: [number, 0, 9], "filenames": ["a", "b", "c"]}


def ten():
    whole = {each: batch(number) for number, each in enumerate(BATCHES)}
    return {**whole, "batches.meta": {"label_names": list("abcdefghij")}}


def hundred():
    names = {"fine_label_names": [f"{number:02}" for number in range(100)]}
    return {"train": batch(99, "fine_labels"), "test": batch(42, "fine_labels"), "meta": names}


@pytest.fixture
def small(spec, pack, tmp_path):
    """A CIFAR of a few samples, its archive placed by hand; `parts` replaces some of its files."""

    def composed(name, *overrides, **parts):
        contents = {**(hundred() if name == "cifar100" else ten()), **parts}
        dataset = spec(name, *overrides, space_bytes=None)
        archive = tmp_path / "data" / f"{ARCHIVES[name]}.tar.gz"
        files = {f"{FOLDERS[name]}/{part}": pickle.dumps(value, protocol=2) for part, value in contents.items()}
        dataset["make"]["md5"] = pack(archive, files)
        return dataset

    return composed


def test_existing_archive_becomes_the_dataset(small, tmp_path):
    facts = prepare_dataset(small("cifar10"), STORAGE, tmp_path, print)
    assert (facts["splits"], facts["classes"], facts["layout"]) == ({"train": 15, "val": 3}, 10, "memory")
    assert {path.name for path in (tmp_path / "data" / "cifar10-memory").iterdir()} == {
        FOLDERS["cifar10"],
        "manifest.json",
    }


def test_memory_layout_opens_in_color_and_in_gray(small, tmp_path):
    color, gray = small("cifar10"), small("cifar10_gray")
    folder = prepare_dataset(color, STORAGE, tmp_path, print)["folder"]
    assert prepare_dataset(gray, STORAGE, tmp_path, print)["folder"] == folder
    (image,), (label,) = open_split(color, folder, "train")[[3]][0]
    assert (tuple(image.shape), label) == ((3, 32, 32), 1)
    assert image[0, 0, 0] == pytest.approx((1 / 255 - 0.4914) / 0.2470, abs=1e-5)
    (image,), (label,) = open_split(gray, folder, "val")[[0]][0]
    assert (tuple(image.shape), label) == ((1, 32, 32), 5)
    luma = (299 * 5 + 587 * 105 + 114 * 155) // 1000
    assert image[0, 0, 0] == pytest.approx((luma / 255 - 0.5) / 0.5, abs=0.01)


def test_files_layout_has_one_png_per_sample_in_class_folders(small, tmp_path):
    facts = prepare_dataset(small("cifar10", "dataset.layout=files"), STORAGE, tmp_path, print)
    assert (facts["splits"], facts["files"]) == ({"train": 15, "val": 3}, 18)
    with Image.open(tmp_path / "data" / "cifar10-files" / "train" / "3" / "00009.png") as image:
        assert (image.mode, image.size) == ("RGB", (32, 32))
        assert image.getpixel((0, 0)) == image.getpixel((31, 31)) == (3, 103, 153)


def test_cifar100_has_100_fine_labels_in_either_layout(small, tmp_path):
    facts = prepare_dataset(small("cifar100"), STORAGE, tmp_path, print)
    assert (facts["splits"], facts["classes"]) == ({"train": 3, "val": 3}, 100)
    assert [label for _, label in cifar100(facts["folder"], "train", None)] == [99, 0, 9]
    facts = prepare_dataset(small("cifar100", "dataset.layout=files"), STORAGE, tmp_path, print)
    assert facts["classes"] == 100
    assert [label for _, label in ImageFiles(facts["folder"], "train", numpy.asarray)] == [0, 9, 99]


def test_error_without_network_names_the_file_and_digits(spec, tmp_path):
    dataset = spec("cifar10")
    dataset["make"]["url"] = "http://127.0.0.1:9/cifar-10-python.tar.gz"
    place = tmp_path / "data" / "cifar-10-python.tar.gz"
    with pytest.raises(RuntimeError, match=rf"put the file at {place}, or use dataset=digits"):
        prepare_dataset(dataset, STORAGE, tmp_path, print)


def test_pickle_with_calls_is_rejected_without_calling(small, tmp_path):
    proof = tmp_path / "called"
    with pytest.raises(ValueError, match=r"is not the archive of CIFAR-10's .*: it refers to \w+.open"):
        prepare_dataset(small("cifar10", data_batch_5={**batch(4), "call": Open(str(proof))}), STORAGE, tmp_path, print)
    assert not proof.exists()
    assert not (tmp_path / "data" / "cifar10-memory").exists()


def made(dataset, folder):
    folder.mkdir()
    return cifar.cifar10(folder, say=print, **target_arguments(dataset["make"]))


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ({"data_batch_3": "no batch"}, "data_batch_3 does not contain"),
        ({"data_batch_3": {"data": batch(3)["data"]}}, "'labels'"),
        ({"data_batch_3": {**batch(3), "labels": [0, 1]}}, r"train has 14 labels for uint8 of the shape \(15, 3072\)"),
        ({"data_batch_3": {**batch(3), "labels": [0, 1, 10]}}, "train has labels that are not from 0 to 9"),
        ({"test_batch": {**batch(5), "data": batch(5)["data"] * 1.0}}, "val has 3 labels for float64"),
    ],
)
def test_batches_with_invalid_contents_are_rejected(small, tmp_path, parts, error):
    with pytest.raises(ValueError, match=f"is not the archive of CIFAR-10's Python version: {error}"):
        made(small("cifar10", **parts), tmp_path / "data" / "new")


@pytest.mark.parametrize("data", [b"", b"\x80\x02}q\x00(", b"\x80\x02]q\x00e.", b"ccopy_reg\n"])
def test_invalid_pickle_is_an_error(tmp_path, data):
    (tmp_path / "batch").write_bytes(data)
    with pytest.raises(pickle.UnpicklingError, match=r"batch is not a pickle|truncated|MARK"):
        cifar.load_pickle(tmp_path / "batch")


def test_other_or_truncated_archive_is_rejected(spec, pack, tmp_path):
    dataset = spec("cifar10")
    archive = tmp_path / "data" / "cifar-10-python.tar.gz"
    dataset["make"]["md5"] = pack(archive, {"readme": b"no batches" * 1000})
    with pytest.raises(ValueError, match=r"is not the archive of CIFAR-10's Python version: .*No such file"):
        made(dataset, tmp_path / "data" / "new")
    archive.write_bytes(archive.read_bytes()[:-10])
    dataset["make"]["md5"] = None
    with pytest.raises(ValueError, match=f"{archive} is not a complete tar archive"):
        made(dataset, tmp_path / "data" / "newer")
