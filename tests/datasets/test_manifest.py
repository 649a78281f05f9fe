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
    manifest.write(tmp_path / manifest.NAME, manifest.made(tmp_path, DATASET, FACTS))
    return tmp_path


@pytest.fixture
def many(folder, monkeypatch):
    """The same folder, taken for one of more files than are looked at one by one."""
    monkeypatch.setattr(manifest, "EACH", 2)
    manifest.write(folder / manifest.NAME, manifest.made(folder, DATASET, FACTS))
    return folder


def test_a_manifest_says_what_a_whole_dataset_is(folder):
    described = [b"train/a/0\x005\x00first", b"train/b/1\x006\x00second", b"val/a/2\x000\x00"]
    digest = sum(int.from_bytes(hashlib.sha256(each).digest(), "big") for each in described) % 2**256
    assert manifest.fitting(folder, DATASET) == {
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


def test_a_secret_that_a_maker_was_given_is_in_no_manifest(tmp_path):
    secret = {**DATASET, "make": {**MAKER, "password": "hunter2", "url": "https://me:hunter2@host/set.tar"}}
    told = manifest.made(tmp_path, secret, FACTS)
    assert "hunter2" not in json.dumps(told)
    assert told["maker"].keys() == secret["make"].keys()


def test_a_folder_of_ones_own_is_known_again_whatever_secret_was_given(tmp_path):
    (tmp_path / "train" / "a").mkdir(parents=True)
    (tmp_path / "train" / "a" / "0.png").write_bytes(b"first")
    adopted = {"name": "tiny", "layout": "files", "adopt": {**MAKER, "token": "hunter2"}}
    note = tmp_path.parent / "note.json"
    manifest.write(note, manifest.adopted(tmp_path, adopted, FACTS))
    assert "hunter2" not in note.read_text()
    assert manifest.fitting(tmp_path, adopted, note)


def test_nothing_there_is_to_be_made(tmp_path):
    assert manifest.fitting(tmp_path, DATASET) is None
    assert manifest.fitting(tmp_path / "missing", DATASET) is None


def test_what_another_version_made_is_to_be_made_anew(folder):
    assert manifest.fitting(folder, {**DATASET, "version": 2}) is None


def test_what_an_older_format_tells_of_is_to_be_made_anew(folder):
    told = json.loads((folder / "manifest.json").read_text())
    del told["format"]
    (folder / "manifest.json").write_text(json.dumps(told))
    assert manifest.fitting(folder, DATASET) is None


def test_what_a_newer_epochmeter_made_is_left_to_it(folder):
    told = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**told, "format": 3}))
    with pytest.raises(RuntimeError, match="written by a newer epochmeter, in format 3"):
        manifest.fitting(folder, DATASET)


def test_another_dataset_is_not_taken_for_this_one(folder):
    with pytest.raises(RuntimeError, match=r"contains another dataset, tiny\. Move that folder away"):
        manifest.fitting(folder, {**DATASET, "make": {"_target_": "epochmeter.datasets.cifar.make"}})


def test_of_very_many_files_a_lost_one_is_noticed(many):
    (many / "train/a/0").unlink()
    with pytest.raises(RuntimeError, match="has 2 files; its manifest lists 3 files"):
        manifest.fitting(many, DATASET)


def test_of_very_many_files_one_of_the_sample_that_was_cut_short_is_named(many):
    (many / "train/b/1").write_bytes(b"sec")
    with pytest.raises(RuntimeError, match=f"{many}/train/b/1, of 6 bytes, has 3 bytes"):
        manifest.fitting(many, DATASET)


def test_the_sample_is_spread_over_all_files_and_stays_small(folder, monkeypatch):
    monkeypatch.setattr(manifest, "EACH", 2)
    monkeypatch.setattr(manifest, "SAMPLE", 10)
    for number in range(500):
        (folder / "train/a" / f"{number + 100}").touch()
    sample = manifest.made(folder, DATASET, FACTS)["sample"]
    assert 10 <= len(sample) < 20


def test_an_image_that_cannot_be_read_is_named(folder):
    (folder / "train/b/3.png").write_bytes(b"no image")
    with pytest.raises(RuntimeError, match=f"annot read {folder}/train/b/3.png: cannot identify"):
        manifest.fitting(folder, DATASET)


def test_a_dataset_that_lost_a_file_is_refused(folder):
    (folder / "train/a/0").unlink()
    with pytest.raises(RuntimeError, match="has 2 files of 6 bytes; its manifest lists 3 files of 11 bytes"):
        manifest.fitting(folder, DATASET)


def test_a_file_that_was_cut_short_is_noticed(folder):
    (folder / "train/b/1").write_bytes(b"sec")
    with pytest.raises(RuntimeError, match="3 files of 8 bytes"):
        manifest.fitting(folder, DATASET)


def test_a_folder_of_somebody_else_is_not_touched(folder):
    (folder / "manifest.json").unlink()
    with pytest.raises(RuntimeError, match=r"was not created by epochmeter: it has no manifest.json. .* dataset.root="):
        manifest.fitting(folder, DATASET)


def test_a_file_in_the_place_of_the_folder_is_not_touched(tmp_path):
    (tmp_path / "data").write_text("mine")
    with pytest.raises(RuntimeError, match="was not created by epochmeter"):
        manifest.fitting(tmp_path / "data", DATASET)


@pytest.mark.parametrize("text", ["", "{", "{}", '{"version": 1}'])
def test_a_broken_manifest_is_said_to_be_one(folder, text):
    (folder / "manifest.json").write_text(text)
    with pytest.raises(RuntimeError, match="is not a valid manifest"):
        manifest.fitting(folder, DATASET)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody whom the folder is closed to")
def test_a_folder_closed_to_this_user_is_said_to_be(folder, monkeypatch):
    (folder / "train").chmod(0o700)
    folder.chmod(0o755)
    monkeypatch.chdir(folder)
    child = os.fork()
    if child == 0:
        os.setgid(65534)
        os.setuid(65534)
        try:
            manifest.fitting(Path(), DATASET)
        except RuntimeError as error:
            os._exit(0 if "[Errno 13] Permission denied: './train'" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
