import hashlib
import json
import os
from pathlib import Path

import pytest

from epochmeter.datasets import manifest

MAKER = {"_target_": "epochmeter.datasets.digits.make"}
DATASET = {"name": "tiny", "layout": "files", "make": MAKER}
FACTS = {"splits": {"train": 2, "val": 1}, "classes": 2, "channels": 1, "source": "this test"}


@pytest.fixture
def folder(tmp_path):
    for name, contents in {"train/a/0": b"first", "train/b/1": b"second", "val/a/2": b""}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(contents)
    manifest.write(tmp_path / manifest.MANIFEST_NAME, manifest.describe_made(tmp_path, DATASET, FACTS))
    return tmp_path


@pytest.fixture
def many(folder, monkeypatch):
    """The same folder, taken for one of more files than are looked at one by one."""
    monkeypatch.setattr(manifest, "CHECK_ALL_UP_TO", 2)
    manifest.write(folder / manifest.MANIFEST_NAME, manifest.describe_made(folder, DATASET, FACTS))
    return folder


def test_manifest_describes_a_complete_dataset(folder):
    described = [b"train/a/0\x005\x00first", b"train/b/1\x006\x00second", b"val/a/2\x000\x00"]
    digest = sum(int.from_bytes(hashlib.sha256(each).digest(), "big") for each in described) % 2**256
    assert manifest.load_valid(folder, DATASET) == {
        "format": 2,
        "name": "tiny",
        "version": 1,
        "maker": MAKER,
        "count": 3,
        "splits": {"train": 2, "val": 1},
        "classes": 2,
        "channels": 1,
        "source": "this test",
        "layout": "files",
        "files": 3,
        "bytes": 11,
        "digest": f"{digest:064x}",
        "digest_of": "contents",
    }


def test_secrets_are_not_in_the_manifest(tmp_path):
    secret = {**DATASET, "make": {**MAKER, "password": "hunter2", "url": "https://me:hunter2@host/set.tar"}}
    told = manifest.describe_made(tmp_path, secret, FACTS)
    assert "hunter2" not in json.dumps(told)
    assert told["maker"].keys() == secret["make"].keys()


def test_users_folder_is_recognized_with_other_secrets(tmp_path):
    (tmp_path / "train" / "a").mkdir(parents=True)
    (tmp_path / "train" / "a" / "0.png").write_bytes(b"first")
    adopted = {"name": "tiny", "layout": "files", "adopt": {**MAKER, "token": "hunter2"}}
    note = tmp_path.parent / "note.json"
    manifest.write(note, manifest.describe_user_folder(tmp_path, adopted, FACTS))
    assert "hunter2" not in note.read_text()
    assert manifest.load_valid(tmp_path, adopted, note)


def test_empty_folder_must_be_created(tmp_path):
    assert manifest.load_valid(tmp_path, DATASET) is None
    assert manifest.load_valid(tmp_path / "missing", DATASET) is None


def test_another_version_must_be_created_again(folder):
    assert manifest.load_valid(folder, {**DATASET, "version": 2}) is None


def test_older_format_must_be_created_again(folder):
    told = json.loads((folder / "manifest.json").read_text())
    del told["format"]
    (folder / "manifest.json").write_text(json.dumps(told))
    assert manifest.load_valid(folder, DATASET) is None


def test_newer_format_is_an_error(folder):
    told = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**told, "format": 3}))
    with pytest.raises(RuntimeError, match="written by a newer epochmeter, in format 3"):
        manifest.load_valid(folder, DATASET)


def test_another_dataset_is_rejected(folder):
    with pytest.raises(RuntimeError, match=r"contains another dataset, tiny\. Move that folder away"):
        manifest.load_valid(folder, {**DATASET, "make": {"_target_": "epochmeter.datasets.cifar.make"}})


def test_lost_file_among_very_many_is_detected(many):
    (many / "train/a/0").unlink()
    with pytest.raises(RuntimeError, match="has 2 files; its manifest lists 3 files"):
        manifest.load_valid(many, DATASET)


def test_truncated_sampled_file_among_very_many_is_named(many):
    (many / "train/b/1").write_bytes(b"sec")
    with pytest.raises(RuntimeError, match=f"{many}/train/b/1, of 6 bytes, has 3 bytes"):
        manifest.load_valid(many, DATASET)


def test_sample_is_evenly_spaced_and_small(folder, monkeypatch):
    monkeypatch.setattr(manifest, "CHECK_ALL_UP_TO", 2)
    monkeypatch.setattr(manifest, "SAMPLE_COUNT", 10)
    for number in range(500):
        (folder / "train/a" / f"{number + 100}").touch()
    sample = manifest.describe_made(folder, DATASET, FACTS)["sample"]
    assert 10 <= len(sample) < 20


def test_unreadable_image_is_named(folder):
    (folder / "train/b/3.png").write_bytes(b"no image")
    with pytest.raises(RuntimeError, match=f"annot read {folder}/train/b/3.png: cannot identify"):
        manifest.load_valid(folder, DATASET)


def test_lost_file_is_an_error(folder):
    (folder / "train/a/0").unlink()
    with pytest.raises(RuntimeError, match="has 2 files of 6 bytes; its manifest lists 3 files of 11 bytes"):
        manifest.load_valid(folder, DATASET)


def test_truncated_file_is_an_error(folder):
    (folder / "train/b/1").write_bytes(b"sec")
    with pytest.raises(RuntimeError, match="3 files of 8 bytes"):
        manifest.load_valid(folder, DATASET)


def test_foreign_folder_is_not_touched(folder):
    (folder / "manifest.json").unlink()
    with pytest.raises(RuntimeError, match=r"was not created by epochmeter: it has no manifest.json. .* dataset.root="):
        manifest.load_valid(folder, DATASET)


def test_file_instead_of_the_folder_is_not_touched(tmp_path):
    (tmp_path / "data").write_text("mine")
    with pytest.raises(RuntimeError, match="was not created by epochmeter"):
        manifest.load_valid(tmp_path / "data", DATASET)


@pytest.mark.parametrize("text", ["", "{", "{}", '{"version": 1}'])
def test_invalid_manifest_is_an_error(folder, text):
    (folder / "manifest.json").write_text(text)
    with pytest.raises(RuntimeError, match="is not a valid manifest"):
        manifest.load_valid(folder, DATASET)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody whom the folder is closed to")
def test_folder_without_permission_is_an_error(folder, monkeypatch):
    (folder / "train").chmod(0o700)
    folder.chmod(0o755)
    monkeypatch.chdir(folder)
    child = os.fork()
    if child == 0:
        os.setgid(65534)
        os.setuid(65534)
        try:
            manifest.load_valid(Path(), DATASET)
        except RuntimeError as error:
            os._exit(0 if "[Errno 13] Permission denied: './train'" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
