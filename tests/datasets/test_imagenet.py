import hashlib
import io
import shutil
import tarfile
from collections import namedtuple
from contextlib import nullcontext
from pathlib import Path

import numpy
import pytest
from tiny import pack

from epochmeter.config.schema import Dataset, Storage
from epochmeter.datasets import imagenet
from epochmeter.datasets.imagenet import FILES, read_labels, scan
from epochmeter.datasets.ready import prepare_dataset
from epochmeter.shared.problem import InputError

WNIDS = ("n02119789", "n01440764", "n02123045")  # by ILSVRC2012_ID, which is not their order by name
TRUTH = (2, 1, 3, 3, 2)
LABELS = [WNIDS[number - 1] for number in TRUTH]
PROJECT = Storage.from_dict({"name": "project", "root": "data", "medium": None})
NO_MD5 = dict.fromkeys(FILES)
Usage = namedtuple("Usage", "total used free")


def tar(contents):
    """The bytes of an archive."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, data in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def meta_mat():
    """The devkit's list of synsets: classes, then a group of them."""
    from scipy.io import savemat

    fields = [(name, object) for name in ("ILSVRC2012_ID", "WNID", "words", "gloss", "num_children", "children")]
    rows = [(number, wnid, f"animal {number}, beast", "", 0, 0) for number, wnid in enumerate(WNIDS, 1)]
    rows.append((4, "n00001740", "entity", "", 3, numpy.array([1, 2, 3])))
    stream = io.BytesIO()
    savemat(stream, {"synsets": numpy.array(rows, dtype=fields).reshape(-1, 1)})
    return stream.getvalue()


@pytest.fixture(autouse=True)
def _memory_is_the_disk(monkeypatch):
    """Flush nothing to disk, which may take seconds."""
    for module in ("atomic_folder", "imagenet"):
        monkeypatch.setattr(f"epochmeter.datasets.{module}.synced", nullcontext)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A folder of the three archives in the publisher's form, of three classes."""
    folder = tmp_path_factory.mktemp("published")
    truth = "".join(f"{number}\n" for number in TRUTH).encode()
    top = "ILSVRC2012_devkit_t12"
    pack(folder / FILES["devkit"], {f"{top}/data/meta.mat": meta_mat(), f"{top}/{imagenet.TRUTH}": truth})
    pack(folder / FILES["val"], {val_name(number): b"val %d" % number for number in (2, 1, 3, 4, 5)})
    pack(folder / FILES["train"], {f"{wnid}.tar": tar(train_images(wnid)) for wnid in WNIDS})
    return folder


def val_name(number):
    return f"ILSVRC2012_val_{number:08}.JPEG"


def train_images(wnid, count=2):
    return {f"{wnid}_{number}.JPEG": f"{wnid} {number}".encode() for number in range(count)}


@pytest.fixture
def archives(published, tmp_path):
    return Path(shutil.copytree(published, tmp_path / "archives"))


@pytest.fixture
def prepare(tmp_path, archives):
    """prepare(md5, say, **keys): the facts of the prepared dataset in the folder `home`."""

    def run(md5=NO_MD5, say=print, **keys):
        make = {"_target_": "epochmeter.datasets.imagenet.make", "archives": str(archives), "md5": dict(md5)}
        adopt = {"_target_": "epochmeter.datasets.imagenet.scan", "held_out": 5, "devkit": None}
        options = {"name": "imagenet", "layout": "files", "open": None, "classes": 3, "resumable": True, "make": make}
        options |= {"root": str(tmp_path / "home"), "adopt": adopt, **keys}
        return prepare_dataset(Dataset.from_dict(options), PROJECT, tmp_path, say)

    return run


def files_below(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


EXPECTED = {
    *(f"train/{wnid}/{name}" for wnid in WNIDS for name in train_images(wnid)),
    *(f"val/{label}/{val_name(number)}" for number, label in enumerate(LABELS, 1)),
    "manifest.json",
}


def test_archives_are_unpacked_into_class_folders_that_torchvision_opens_as_well(prepare, archives, tmp_path):
    facts = prepare({part: hashlib.md5((archives / name).read_bytes()).hexdigest() for part, name in FILES.items()})
    assert (facts["splits"], facts["classes"]) == ({"train": 6, "val": 5}, 3)
    assert files_below(tmp_path / "home") == EXPECTED
    assert {path.name for path in tmp_path.iterdir()} == {"archives", "home", ".home.lock"}
    datasets = pytest.importorskip("torchvision.datasets")
    samples = datasets.ImageFolder(tmp_path / "home" / "val", loader=lambda path: Path(path).read_text())
    assert [(name, samples.classes[label]) for name, label in samples] == sorted(
        ((f"val {number}", label) for number, label in enumerate(LABELS, 1)), key=lambda sample: sample[::-1]
    )
    shutil.rmtree(archives)  # no longer needed
    assert prepare()["digest"] == facts["digest"]


def test_labels_of_the_devkit_are_those_that_torchvision_reads(archives, monkeypatch, tmp_path):
    reader = pytest.importorskip("torchvision.datasets.imagenet")
    monkeypatch.setitem(reader.ARCHIVE_META, "devkit", (FILES["devkit"], None))
    reader.parse_devkit_archive(archives)
    assert read_labels(archives / FILES["devkit"]) == LABELS == reader.load_meta_file(archives)[1]
    with tarfile.open(archives / FILES["devkit"]) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    assert read_labels(tmp_path / "unpacked") == read_labels(tmp_path / "unpacked" / imagenet.DEVKIT_FOLDER) == LABELS


@pytest.mark.parametrize("interrupted", [2, 7, 9, "checksum"])
def test_interrupted_preparation_continues_and_is_never_taken_for_a_dataset(
    prepare, tmp_path, monkeypatch, interrupted
):
    written, messages = [], []
    write_bytes = Path.write_bytes

    def write(path, content):
        if len(written) == interrupted:
            raise KeyboardInterrupt
        written.append(path)
        return write_bytes(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", write)
        if interrupted == "checksum":
            patched.setattr("epochmeter.datasets.checksum.hash_contents", lambda *_: 1 / 0)
        with pytest.raises((KeyboardInterrupt, ZeroDivisionError)):
            prepare()
    assert not (tmp_path / "home").exists()
    again = []
    monkeypatch.setattr(Path, "write_bytes", lambda path, content: again.append(path) or write_bytes(path, content))
    assert prepare(say=messages.append)["splits"] == {"train": 6, "val": 5}
    assert files_below(tmp_path / "home") == EXPECTED
    assert any("continuing in" in message for message in messages)
    classes = {2: 0, 7: 1, 9: 2, "checksum": 3}[interrupted]  # complete ones of training, after val/
    assert len(again) == (11 if interrupted == 2 else 6 - 2 * classes)


def test_other_archives_are_unpacked_from_the_start(prepare, archives, tmp_path, monkeypatch):
    pack(archives / FILES["train"], {f"{wnid}.tar": tar(train_images(wnid, 1)) for wnid in WNIDS[:2]})
    with pytest.raises(InputError, match="2 classes, its devkit lists 3"):
        prepare()
    assert (tmp_path / ".home.partial" / "train" / WNIDS[0]).is_dir()
    pack(archives / FILES["train"], {f"{wnid}.tar": tar(train_images(wnid)) for wnid in WNIDS})
    assert prepare()["splits"]["train"] == 6


@pytest.mark.parametrize(
    ("part", "contents", "error"),
    [
        ("train", {"train/n01440764/n01440764_1.JPEG": b""}, "contains `train/n01440764/n01440764_1.JPEG`"),
        ("train", {"n01440764.tar": tar({"n01440764_1.txt": b""})}, "contains `n01440764_1.txt`"),
        ("train", {"n01440764.tar": tar({})}, "n01440764.tar has no images"),
        ("train", {"n01440764.tar": tar({"a/n01440764_1.JPEG": b"", "b/n01440764_1.JPEG": b""})}, "twice"),
        ("train", {"n01440764.tar": b"no archive"}, "is not a complete ILSVRC2012_img_train.tar"),
        ("val", {"val/n01440764/a.JPEG": b""}, "contains `val/n01440764/a.JPEG`"),
        ("val", {val_name(1): b""}, "has 1 images, its devkit lists 5"),
        ("val", {val_name(number): b"" for number in range(1, 7)}, "image number 6, its devkit 5 labels"),
        ("val", {"../ILSVRC2012_val_00000001.txt": b""}, "contains `../ILSVRC2012_val_00000001.txt`"),
        ("devkit", {"ILSVRC2011_devkit/data/meta.mat": b""}, "is not a complete ILSVRC2012_devkit_t12.tar.gz"),
        (
            "devkit",
            {"ILSVRC2012_devkit_t12/data/meta.mat": b"no", f"ILSVRC2012_devkit_t12/{imagenet.TRUTH}": b"1"},
            "is not a complete ILSVRC2012_devkit_t12.tar.gz",
        ),
    ],
)
def test_archive_of_another_version_is_an_error(prepare, archives, tmp_path, part, contents, error):
    pack(archives / FILES[part], contents)
    with pytest.raises(InputError, match=error) as raised:
        prepare()
    assert raised.value.problems[0].hint
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("part", FILES)
@pytest.mark.parametrize("share", [0.0, 0.3, 0.45])
def test_truncated_archive_is_an_error_with_and_without_checksums(prepare, archives, tmp_path, part, share):
    md5 = {name: hashlib.md5((archives / file).read_bytes()).hexdigest() for name, file in FILES.items()}
    path = archives / FILES[part]
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(InputError, match=rf"(?s){path} has the MD5 .* instead of {md5[part]}: .*make.md5.{part}=null"):
        prepare(md5)
    with pytest.raises(InputError, match=f"{path} is not a complete {FILES[part]}"):
        prepare()
    assert not (tmp_path / "home").exists()


def test_missing_archives_are_named(prepare, archives, tmp_path):
    (archives / FILES["val"]).rename(archives / "val.tar")
    with pytest.raises(InputError, match=r"archives has no ILSVRC2012_img_val\.tar\n  hint: set `dataset.archives="):
        prepare()
    with pytest.raises(InputError, match=r"must be unpacked from its archives\n  hint: set `dataset.archives="):
        imagenet.make(tmp_path, None, NO_MD5, print)


def test_full_disk_is_an_error_before_anything_is_unpacked(prepare, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 10**9, 100))
    with pytest.raises(
        RuntimeError, match=r"needed to unpack, 0.0 GB free: .*\n  hint: free disk space, or set another"
    ):
        prepare()
    assert not (tmp_path / "home").exists()
    assert files_below(tmp_path / ".home.partial") == set()


@pytest.fixture
def flat(tmp_path):
    """A user's folder whose validation images are in no class folders."""
    folder = tmp_path / "own"
    for wnid in WNIDS:
        (folder / "train" / wnid).mkdir(parents=True)
        (folder / "train" / wnid / f"{wnid}_1.JPEG").touch()
    (folder / "val").mkdir()
    for number in range(1, len(TRUTH) + 1):
        (folder / "val" / val_name(number)).write_text(str(number))
    return folder


def test_flat_val_is_moved_into_classes_only_if_the_devkit_is_named_for_it(flat, archives):
    with pytest.raises(InputError, match=r"is flat: 5 images .*\n  hint: set `dataset.devkit="):
        scan(flat, print, held_out=5, devkit=None)
    assert len(list((flat / "val").glob("*.JPEG"))) == 5
    (flat / "val" / LABELS[0]).mkdir()  # an interrupted move
    (flat / "val" / val_name(1)).rename(flat / "val" / LABELS[0] / val_name(1))
    facts = scan(flat, print, held_out=5, devkit=str(archives / FILES["devkit"]))
    assert facts["splits"] == {"train": 3, "val": 5}
    assert {(path.parent.name, path.read_text()) for path in flat.glob("val/*/*")} == {
        (label, str(number)) for number, label in enumerate(LABELS, 1)
    }
    assert scan(flat, print, held_out=5, devkit=None) == facts


def test_flat_val_of_classes_without_training_images_is_not_moved(flat, archives):
    with pytest.raises(InputError, match=r"is not a complete ILSVRC2012_devkit_t12.tar.gz.*meta.mat"):
        scan(flat, print, held_out=5, devkit=str(archives))
    shutil.rmtree(flat / "train" / WNIDS[2])
    with pytest.raises(InputError, match=r"has no folder of 1 classes of .* such as n02123045"):
        scan(flat, print, held_out=5, devkit=str(archives / FILES["devkit"]))
    assert len(list((flat / "val").glob("*.JPEG"))) == 5
