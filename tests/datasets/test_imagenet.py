import io
from pathlib import Path

import numpy
import pytest
from PIL import Image
from scipy.io import savemat

from epochmeter.datasets import imagenet
from epochmeter.datasets.ready import prepare_dataset
from epochmeter.shared.instantiate import target_arguments
from epochmeter.worker.data.images import ImageFiles

STORAGE = {"name": "here", "root": "data"}
CLASSES = {1: "n02119789", 2: "n02100735", 3: "n02110185"}
TRUTH = [3, 1, 2, 1, 3]
NAMES = {
    "train": "ILSVRC2012_img_train.tar",
    "val": "ILSVRC2012_img_val.tar",
    "devkit": "ILSVRC2012_devkit_t12.tar.gz",
}
SYNSET = [("ILSVRC2012_ID", float), ("WNID", object), ("words", object), ("num_children", float)]


def jpeg(level):
    file = io.BytesIO()
    Image.fromarray(numpy.full((16, 16, 3), level, dtype=numpy.uint8)).save(file, "JPEG")
    return file.getvalue()


def meta(classes=CLASSES):
    """The devkit's table of classes; the last one is an inner node of WordNet, which no image is of."""
    rows = [(number, wnid, "a dog", 0) for number, wnid in classes.items()] + [(4, "n02084071", "dog", 3)]
    file = io.BytesIO()
    savemat(file, {"synsets": numpy.array(rows, dtype=SYNSET).reshape(-1, 1)})
    return file.getvalue()


def devkit(table=None, truth=TRUTH):
    top = "ILSVRC2012_devkit_t12/data"
    return {
        "ILSVRC2012_devkit_t12/readme.txt": b"read me",
        f"{top}/meta.mat": table or meta(),
        f"{top}/ILSVRC2012_validation_ground_truth.txt": "".join(f"{number}\n" for number in truth).encode(),
    }


def val(count=5):
    return {f"ILSVRC2012_val_{number:08}.JPEG": jpeg(100 + number) for number in range(1, count + 1)}


@pytest.fixture
def train(pack, tmp_path):
    """The contents of the tar of tars: two images a class, or those given."""

    def contents(*classes, **inner):
        found = {}
        for number, wnid in enumerate(classes or CLASSES.values()):
            pack(tmp_path / "inner.tar", {f"{wnid}_{each}.JPEG": jpeg(10 * number + each) for each in range(2)})
            found[f"{wnid}.tar"] = inner.get(wnid, (tmp_path / "inner.tar").read_bytes())
        (tmp_path / "inner.tar").unlink()
        return found

    return contents


@pytest.fixture
def small(spec, pack, train, tmp_path):
    """ImageNet of three classes, from archives laid out as the official ones are; `parts` replaces some."""

    def composed(**parts):
        place = tmp_path / "archives"
        dataset = spec("imagenet", f"dataset.make.archives={place}", "dataset.classes=3")
        whole = {"train": parts.get("train") or train(), "val": val(), "devkit": devkit()}
        dataset["make"]["md5"] = {
            part: pack(place / NAMES[part], contents) for part, contents in {**whole, **parts}.items()
        }
        return dataset

    return composed


def made(dataset, tmp_path):
    (tmp_path / "made").mkdir()
    return imagenet.make(tmp_path / "made", say=print, **target_arguments(dataset["make"]))


def test_archives_become_class_folders_sorted_by_the_devkit(small, tmp_path):
    facts = prepare_dataset(small(), STORAGE, tmp_path, print)
    assert (facts["splits"], facts["classes"], facts["channels"]) == ({"train": 6, "val": 5}, 3, 3)
    folder = Path(facts["folder"])
    assert folder == tmp_path / "data" / "imagenet"
    assert {path.name for path in (folder / "train").iterdir()} == set(CLASSES.values())
    for number, label in enumerate(TRUTH, 1):
        image = folder / "val" / CLASSES[label] / f"ILSVRC2012_val_{number:08}.JPEG"
        assert image.read_bytes() == jpeg(100 + number)
    assert (folder / "train" / "n02100735" / "n02100735_1.JPEG").read_bytes() == jpeg(11)
    assert len(ImageFiles(str(folder), "train", None)) == 6


def test_only_images_are_written_and_progress_is_reported(small, tmp_path, monkeypatch):
    monkeypatch.setattr(imagenet, "PROGRESS_INTERVAL_S", 0)
    said = []
    dataset = small()
    (tmp_path / "made").mkdir()
    imagenet.make(tmp_path / "made", say=said.append, **target_arguments(dataset["make"]))
    assert {path.suffix for path in tmp_path.joinpath("made").rglob("*") if path.is_file()} == {".JPEG"}
    assert any("img_train.tar: 2 of 3 classes, 0 of 0 MB" in line and "s left" in line for line in said)
    assert any("img_val.tar: 5 of 5 images" in line for line in said)


def test_missing_archives_are_an_error_with_a_remedy(spec, small, tmp_path):
    with pytest.raises(
        ValueError, match=r"cannot be downloaded. Request them at image-net.org.*dataset.make.archives="
    ):
        prepare_dataset(spec("imagenet"), STORAGE, tmp_path, print)
    dataset = small()
    missing = tmp_path / "archives" / NAMES["val"]
    missing.unlink()
    with pytest.raises(ValueError, match=rf"lacks {missing}. Request them"):
        made(dataset, tmp_path)


def test_wrong_checksum_is_rejected_and_none_accepts_any_file(small, tmp_path):
    dataset = small()
    dataset["make"]["md5"]["val"] = "0" * 32
    with pytest.raises(ValueError, match=r"img_val.tar has the MD5 .* instead of 0{32}.* dataset.make.md5.val="):
        made(dataset, tmp_path)
    dataset["make"]["md5"] = dict.fromkeys(NAMES)
    assert prepare_dataset(dataset, STORAGE, tmp_path, print)["count"] == 11


def test_disk_space_is_checked_before_unpacking(small, tmp_path):
    dataset = small()
    with open(tmp_path / "archives" / NAMES["train"], "r+b") as sparse:
        sparse.truncate(1 << 43)
    with pytest.raises(
        RuntimeError, match=rf"not enough disk space in {tmp_path}: the images of \S+ need 90\d+ MB, and \d+ MB are"
    ):
        made(dataset, tmp_path)


@pytest.mark.parametrize(
    ("part", "contents", "error"),
    [
        (
            "val",
            {**val(), "ILSVRC2012_val_00000006.JPEG": b""},
            "contains ILSVRC2012_val_00000006.JPEG; .* images 1 to 5",
        ),
        ("val", val(4), "has 4 images; the devkit lists 5"),
        ("val", {**val(), "notes.txt": b""}, "contains notes.txt, which is not an image"),
        ("devkit", {"readme": b""}, "is not ILSVRC 2012's devkit: KeyError"),
        ("devkit", devkit(table=b"no table"), "is not ILSVRC 2012's devkit: "),
        ("devkit", devkit(truth=[1, 2, 3, 7, 1]), "is not ILSVRC 2012's devkit: it has class 7"),
        ("devkit", devkit(meta({1: "n02119789", 2: "../../x", 3: "n02110185"})), "it has class ../../x"),
        ("devkit", devkit(meta({**CLASSES, 9: "n00000009"})), "dataset.classes=3, but .* has 4"),
        ("train", {"n99999999.tar": b""}, "contains n99999999.tar, which is a duplicate or not a class"),
        ("train", {"n02119789.tar": b"no tar" * 100}, "train.tar/n02119789.tar is not a complete tar archive"),
    ],
)
def test_invalid_archives_are_rejected(small, tmp_path, part, contents, error):
    with pytest.raises(ValueError, match=f"{tmp_path / 'archives' / NAMES[part]}|{error}") as raised:
        made(small(**{part: contents}), tmp_path)
    assert str(raised.value).startswith((str(tmp_path), "dataset.classes"))
    assert raised.match(error)


def test_missing_class_and_truncated_archive_are_rejected(small, train, tmp_path):
    two = tuple(CLASSES.values())[:2]
    with pytest.raises(ValueError, match=r"lacks classes of the devkit: n02110185"):
        made(small(train=train(*two)), tmp_path)
    (tmp_path / "made").rename(tmp_path / "first")
    torn = train()["n02100735.tar"][:900]
    with pytest.raises(ValueError, match=r"img_train.tar/n02100735.tar is not a complete tar archive"):
        made(small(train=train(n02100735=torn)), tmp_path)


def tree(folder, sorted_val=True):
    for wnid in CLASSES.values():
        for split in ("train", "val"):
            (folder / split / wnid).mkdir(parents=True)
            (folder / split / wnid / f"{wnid}_1.JPEG").write_bytes(jpeg(1))
    if not sorted_val:
        for image in [*(folder / "val").glob("*/*")]:
            image.rename(folder / "val" / image.name)
            image.parent.rmdir()
    return folder


def test_unpacked_folder_is_used_in_place(spec, tmp_path):
    folder = tree(tmp_path / "mine")
    facts = prepare_dataset(spec("imagenet", f"dataset.root={folder}", "dataset.classes=3"), STORAGE, tmp_path, print)
    assert (facts["folder"], facts["splits"]) == (str(folder), {"train": 3, "val": 3})
    assert {path.name for path in folder.iterdir()} == {"train", "val"}


def test_subset_needs_its_number_of_classes(spec, tmp_path):
    folder = tree(tmp_path / "mine")
    with pytest.raises(ValueError, match=rf"dataset.classes=1000, but {folder} has 3 .* Set dataset.classes=3"):
        imagenet.scan_imagenet(folder, say=print, classes=spec("imagenet")["classes"])


def test_unsorted_validation_images_are_an_error_with_a_remedy(tmp_path):
    with pytest.raises(ValueError, match=r"no class folders. Sort .*ground_truth.txt; or .*archives="):
        imagenet.scan_imagenet(tree(tmp_path / "mine", sorted_val=False), say=print, classes=3)
