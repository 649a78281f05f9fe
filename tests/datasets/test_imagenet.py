import io
import shutil

import numpy
import pytest
from PIL import Image
from scipy.io import savemat
from tiny import pack

from epochmeter.datasets import imagenet
from epochmeter.shared.instantiate import target_arguments
from epochmeter.worker.data.images import ImageFiles

CLASSES = {1: "n02119789", 2: "n02100735", 3: "n02110185"}
TRUTH = [3, 1, 2, 1, 3]
NAMES = {"train": "ILSVRC2012_img_train.tar", "val": "ILSVRC2012_img_val.tar", "devkit": "ILSVRC2012_devkit_t12.tar.gz"}
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
def arguments(composed_dataset, tmp_path):
    """arguments(**parts): arguments to make ImageNet of three classes, from archives of which some are replaced."""
    train = {}
    for number, wnid in enumerate(CLASSES.values()):
        pack(tmp_path / "inner.tar", {f"{wnid}_{index}.JPEG": jpeg(10 * number + index) for index in range(2)})
        train[f"{wnid}.tar"] = (tmp_path / "inner.tar").read_bytes()

    def write(**parts):
        folder = tmp_path / "archives"
        contents = {"train": train, "val": val(), "devkit": devkit(), **parts}
        md5 = {part: pack(folder / NAMES[part], files) for part, files in contents.items()}
        dataset = composed_dataset("imagenet", f"dataset.make.archives={folder}", "dataset.classes=3")
        return {**target_arguments(dataset.make), "md5": md5}

    return write


@pytest.fixture
def prepare(tmp_path):
    def run(arguments):
        folder = tmp_path / "made"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return imagenet.make(folder, say=print, **arguments)

    return run


def test_archives_become_class_folders_sorted_by_the_devkit(arguments, prepare, tmp_path):
    facts = prepare(arguments())
    assert (facts["splits"], facts["classes"], facts["channels"]) == ({"train": 6, "val": 5}, 3, 3)
    folder = tmp_path / "made"
    assert {path.name for path in (folder / "train").iterdir()} == set(CLASSES.values())
    assert {path.suffix for path in folder.rglob("*") if path.is_file()} == {".JPEG"}
    for number, label in enumerate(TRUTH, 1):
        image = folder / "val" / CLASSES[label] / f"ILSVRC2012_val_{number:08}.JPEG"
        assert image.read_bytes() == jpeg(100 + number)
    assert (folder / "train" / "n02100735" / "n02100735_1.JPEG").read_bytes() == jpeg(11)
    assert len(ImageFiles(str(folder), "train", None)) == 6


def test_missing_wrong_or_too_large_archives_are_refused_before_unpacking(arguments, prepare, tmp_path):
    complete, archives = arguments(), tmp_path / "archives"
    with pytest.raises(ValueError, match=r"cannot be downloaded. .* image-net.org.*dataset.make.archives="):
        prepare({**complete, "archives": None})
    with pytest.raises(ValueError, match=r"img_val.tar has the MD5 .* instead of 0{32}.* dataset.make.md5.val="):
        prepare({**complete, "md5": {**complete["md5"], "val": "0" * 32}})
    assert prepare({**complete, "md5": dict.fromkeys(NAMES)})["splits"] == {"train": 6, "val": 5}
    with open(archives / NAMES["train"], "r+b") as sparse:
        sparse.truncate(1 << 43)
    with pytest.raises(RuntimeError, match=r"not enough disk space in .*: dataset imagenet from \S+ needs 9,0"):
        prepare(complete)
    (archives / NAMES["val"]).unlink()
    with pytest.raises(ValueError, match=rf"lacks {archives / NAMES['val']}. Request them"):
        prepare(complete)


@pytest.mark.parametrize(
    ("part", "contents", "error"),
    [
        ("val", val(4), "has 4 images; the devkit lists 5"),
        ("devkit", {"readme": b""}, "is not ILSVRC 2012's devkit: KeyError"),
        ("devkit", devkit(truth=[1, 2, 3, 7, 1]), "is not ILSVRC 2012's devkit: KeyError"),
        ("devkit", devkit(truth=[1, 2, 2, 2, 1]), "dataset.classes=3, but .* has 3 classes, and .* 2"),
        ("train", {}, "dataset.classes=3, but .* has 0 classes, and .* 3"),
        ("train", {"n02119789.tar": b"no tar" * 100}, "train.tar/n02119789.tar is not a complete tar archive"),
    ],
)
def test_invalid_archives_are_rejected(arguments, prepare, part, contents, error):
    with pytest.raises(ValueError, match=error):
        prepare(arguments(**{part: contents}))
