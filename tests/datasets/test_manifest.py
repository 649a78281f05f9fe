import hashlib
import json

import pytest
from tiny import make_config

from epochmeter.datasets import checksum, manifest
from epochmeter.datasets.checksum import Checksum, hash_name_and_size, sum_files
from epochmeter.datasets.manifest import describe_folder, load_valid

MAKER = {"_target_": "epochmeter.datasets.digits.make"}
DATASET = make_config(make=MAKER)
FACTS = {"splits": {"train": 2, "val": 1}, "classes": 2, "channels": 1, "source": "this test"}


def describe(folder):
    describe_folder(folder, DATASET, FACTS, "make", print).write(folder / "manifest.json")


@pytest.fixture
def folder(tmp_path):
    for name, contents in {"train/a/0": b"first", "train/b/1": b"second", "val/a/2": b""}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(contents)
    describe(tmp_path)
    return tmp_path


def test_manifest_describes_a_complete_dataset(folder):
    described = [b"train/a/0\x005\x00first", b"train/b/1\x006\x00second", b"val/a/2\x000\x00"]
    digest = sum(int.from_bytes(hashlib.sha256(file).digest(), "big") for file in described) % 2**256
    expected = {
        "name": "tiny", "version": 1, "maker": MAKER, "count": 3, **FACTS, "layout": "files", "files": 3,
        "bytes": 11, "digest": f"{digest:064x}", "digest_of": "contents",
        "quick": sum_files(folder, hash_name_and_size).hexdigest,
    }  # fmt: skip
    assert load_valid(folder, DATASET).to_dict() == json.loads((folder / "manifest.json").read_text()) == expected


def test_secrets_are_not_in_the_manifest_of_a_users_folder_and_may_change(tmp_path):
    (tmp_path / "train" / "a").mkdir(parents=True)
    (tmp_path / "train" / "a" / "0.png").write_bytes(b"first")
    dataset = make_config(adopt={**MAKER, "token": "hunter2", "url": "https://me:hunter2@host/set.tar"})
    path = tmp_path.parent / "manifest of the user's folder.json"
    describe_folder(tmp_path, dataset, FACTS, "adopt", print).write(path)
    assert "hunter2" not in path.read_text()
    assert load_valid(tmp_path, make_config(adopt={**dataset.adopt, "token": "other"}), path)


@pytest.mark.parametrize("most_checked", [100, 2])
@pytest.mark.parametrize(
    ("path", "content", "difference"),
    [
        ("train/a/0", None, "has 2 files; its manifest lists 3"),
        ("train/b/1", b"sec", "has 3 files with other names or sizes"),
        ("train/b/3.png", b"more", "has 4 files;"),
    ],
)
def test_damaged_dataset_is_an_error(folder, monkeypatch, most_checked, path, content, difference):
    monkeypatch.setattr(manifest, "MAX_CHECKED", most_checked)
    describe(folder)
    (folder / path).unlink(missing_ok=True)
    if content is not None:
        (folder / path).write_bytes(content)
    with pytest.raises(RuntimeError, match=rf"{difference}.*\n  hint: move that folder away"):
        load_valid(folder, DATASET)


def test_sample_of_the_files_is_checked_if_there_are_very_many(folder, monkeypatch):
    monkeypatch.setattr(manifest, "MAX_CHECKED", 50)
    hashed = []
    monkeypatch.setattr(checksum, "hash_name_and_size", lambda top, path: hashed.append(path) or Checksum())
    for number in range(100, 597):
        (folder / f"train/a/{number}").touch()
    describe(folder)
    assert len(set(hashed)) == len(hashed) == 500 // 11


def test_foreign_folder_or_file_is_not_touched_and_an_invalid_manifest_is_an_error(folder):
    for text in ("{", "[]", '{"version": 1}'):
        (folder / "manifest.json").write_text(text)
        with pytest.raises(RuntimeError, match=r"it has no valid manifest\.json"):
            load_valid(folder, DATASET)
    (folder / "manifest.json").unlink()
    for path in (folder, folder / "train/a/0"):
        with pytest.raises(RuntimeError, match=r"was not created by epochmeter: it has no valid .*\n  hint: .*root="):
            load_valid(path, DATASET)
