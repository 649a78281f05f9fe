import errno
import hashlib
import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
from tiny import make_config

from epochmeter.config.schema import Storage
from epochmeter.datasets import checksum
from epochmeter.datasets.ready import (
    dataset_checksum,
    inspect_users_folder,
    peek_manifest,
    prepare_dataset,
    training_folder,
)

PROJECT = Storage.from_dict({"name": "project", "root": "data", "medium": None})


def make_samples(folder, say, count=2, **ignored):
    for index in range(count):
        (folder / f"{index}.png").write_bytes(b"sample")
    return {"splits": {"train": count, "val": 0}, "classes": 2, "channels": 1, "source": "this test"}


def scan_samples(folder, say, held_out):
    count = sum(1 for _ in checksum.iter_files(folder, samples_only=True))
    return {"splits": {"train": count, "val": 0}, "classes": 1, "channels": 3, "source": str(folder)}


@pytest.fixture(autouse=True)
def makers(monkeypatch):
    """The functions that datasets name, to which a test may add."""
    functions = {"make": make_samples, "scan": scan_samples}
    monkeypatch.setattr("epochmeter.shared.instantiate.import_object", functions.__getitem__)
    return functions


def tiny(**arguments):
    """A dataset that epochmeter creates."""
    return make_config(root="data/tiny", classes=2, make={"_target_": "make", **arguments})


def changed(dataset, **keys):
    return type(dataset).from_dict({**dataset.to_dict(), **keys})


@pytest.fixture
def pets(tmp_path):
    """A user's own folder."""
    folder = tmp_path / "my pets"
    (folder / "cat").mkdir(parents=True)
    (folder / "cat" / "1.jpg").write_bytes(b"cat")
    return make_config(root=str(folder), classes=1, adopt={"_target_": "scan", "held_out": 5})


@pytest.fixture
def card(tmp_path):
    """A storage other than the project."""
    (tmp_path / "card").mkdir()
    return Storage.from_dict({"name": "sd", "root": str(tmp_path / "card"), "medium": "sd"})


@pytest.fixture
def prepare(tmp_path):
    """prepare(dataset, storage, say): the facts of a prepared dataset of the project."""
    return lambda dataset, storage=PROJECT, say=print: prepare_dataset(dataset, storage, tmp_path, say)


def test_unusable_folder_is_refused_and_none_is_created(prepare, pets, tmp_path, monkeypatch):
    card = tmp_path / "media" / "sd"
    refused = {
        f"`storage.root={card}` is not an existing folder": (tiny(), changed(PROJECT, root=str(card))),
        f"dataset.root={card}: {card.parent} does not exist\n  hint: mount": (changed(tiny(), root=str(card)), PROJECT),
        r"set dataset\.root=": (changed(pets, root=None), PROJECT),
        "dataset.root=/nowhere does not": (changed(pets, root="/nowhere"), PROJECT),
    }
    for message, (dataset, storage) in refused.items():
        with pytest.raises(ValueError, match=message):
            prepare(dataset, storage)
    assert not card.parent.exists()
    card.mkdir(parents=True)
    monkeypatch.setattr(Path, "is_mount", lambda path: path == card)
    with pytest.raises(ValueError, match=f"set a folder on it, as {card}/tiny"):
        prepare(changed(tiny(), root=str(card)), say=pytest.fail)
    assert [path.name for path in card.parent.iterdir()] == ["sd"]


def test_dataset_is_created_at_home_and_staged_and_the_copy_needs_no_home(prepare, card, tmp_path):
    messages, home, folder = [], tmp_path / "data" / "tiny", tmp_path / "card" / "tiny"
    assert peek_manifest(tiny(), card, tmp_path) is dataset_checksum(tiny(), card, tmp_path) is None
    assert [training_folder(tiny(), storage, tmp_path) for storage in (card, PROJECT)] == [folder, home]
    facts = prepare(tiny(), card, messages.append)
    assert (facts["folder"], facts["home"]) == (str(folder), str(home))
    assert (len(list(checksum.iter_files(folder))), facts["files"], facts["splits"]) == (2, 2, {"train": 2, "val": 0})
    assert [line.split()[0] for line in messages] == ["preparing", "staging"]
    assert prepare(tiny(), card, pytest.fail) == facts
    assert dataset_checksum(tiny(), card, tmp_path) == facts["digest"]
    shutil.rmtree(tmp_path / "data")
    assert prepare(tiny(), card, pytest.fail) == facts
    assert peek_manifest(tiny(), card, tmp_path).digest == facts["digest"]
    assert not (tmp_path / "data").exists()


def test_other_arguments_are_rejected_with_both_values_unless_the_version_changed(prepare, card, tmp_path):
    prepare(tiny(count=2, seed=0), card)
    expected, actual = "count=3, seed=1", "count=2, seed=0"
    with pytest.raises(
        ValueError, match=f"{expected} .* but {tmp_path}/data/tiny was made with {actual}\n  hint: move"
    ):
        prepare(tiny(count=3, seed=1), say=pytest.fail)
    shutil.rmtree(tmp_path / "data")
    with pytest.raises(
        ValueError, match=f"{expected} .* but {tmp_path}/card/tiny was made with {actual}\n  hint: .* storage."
    ):
        prepare(tiny(count=3, seed=1), card, pytest.fail)
    facts = prepare(changed(tiny(count=3), version=2), card)
    assert (facts["version"], facts["files"]) == (2, 3), "created and staged again"


def test_interrupted_replacement_leaves_the_earlier_version(prepare, tmp_path, monkeypatch):
    """The earlier folder is renamed, then the new one: the interruption is between the two."""
    prepare(tiny())
    rename = Path.rename

    def interrupted_rename(path, target):
        if path.name == ".tiny.partial":
            raise KeyboardInterrupt
        rename(path, target)

    monkeypatch.setattr(Path, "rename", interrupted_rename)
    with pytest.raises(KeyboardInterrupt):
        prepare(changed(tiny(), version=2))
    assert prepare(tiny(), say=pytest.fail)["version"] == 1


def test_home_can_be_a_link_and_source_arguments_and_unknown_arguments_are_ignored(prepare, tmp_path):
    (target := tmp_path / "large" / "tiny").mkdir(parents=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "tiny").symlink_to(target)
    facts = prepare(tiny(seed=0, url="first"))
    assert facts["folder"] == facts["home"] == str(target)
    assert [path.is_symlink() for path in (tmp_path / "data").iterdir()] == [True]
    for arguments in ({"seed": 0, "url": "second"}, {"seed": 0, "url": "first", "quality": 9}, {}):
        assert prepare(tiny(**arguments), say=pytest.fail) == facts


def test_users_folder_is_used_in_place_and_never_written(prepare, pets, tmp_path):
    (Path(pets.root) / "manifest.json").write_text('{"name": "web app", "version": 3}')
    before = sorted(Path(pets.root).rglob("*"))
    facts = prepare(pets)
    assert facts["folder"] == facts["home"] == pets.root
    assert (facts["files"], facts["bytes"], facts["digest_of"]) == (1, 3, "names and sizes")
    assert sorted(Path(pets.root).rglob("*")) == before
    key = hashlib.sha256(pets.root.encode()).hexdigest()[:12]
    assert [path.name for path in (tmp_path / "data" / ".manifests").iterdir()] == [f"tiny-{key}.json"]
    assert prepare(pets, say=pytest.fail) == facts


def test_changed_user_folder_is_inspected_and_staged_again(prepare, pets, card, tmp_path):
    first, folder = prepare(pets, card), Path(pets.root)
    assert dataset_checksum(pets, card, tmp_path) == first["digest"]
    (folder / "dog").mkdir()
    (folder / "cat" / "1.jpg").rename(folder / "dog" / "1.jpg")
    assert dataset_checksum(pets, card, tmp_path) is None
    second = prepare(pets, card)
    assert dataset_checksum(pets, card, tmp_path) == second["digest"] != first["digest"]
    assert list(checksum.iter_files(Path(second["folder"]))) == ["dog/1.jpg"]


def test_unreadable_folder_is_an_error_with_a_remedy(prepare, pets, card, monkeypatch):
    monkeypatch.setattr(Path, "iterdir", Mock(side_effect=PermissionError(errno.EACCES, "Permission denied")))
    for storage in (PROJECT, card):
        with pytest.raises(
            RuntimeError, match=rf"cannot read dataset folder {pets.root}: .*\n  hint: check its permissions"
        ):
            prepare(pets, storage)


def test_wrong_number_of_classes_is_an_error_with_both_numbers(prepare):
    for classes, text in ((3, "3"), (None, "null")):
        with pytest.raises(
            ValueError, match=rf"classes={text}, but .*/data/tiny has 2\n  hint: give dataset.classes=2"
        ):
            prepare(changed(tiny(), classes=classes))


def test_generated_dataset_has_no_folder_and_its_own_checksum(prepare, tmp_path):
    synthetic = make_config(layout="tensors", count=1000, size=224)
    facts = prepare(synthetic, say=pytest.fail)
    assert json.loads(json.dumps(facts)) == {
        "name": "tiny", "version": 1, "count": 1000, "splits": {"train": 1000, "val": 200}, "source": "generated",
        "layout": "tensors", "files": 0, "bytes": 0, "digest": dataset_checksum(synthetic, PROJECT, tmp_path),
        "digest_of": "specification", "folder": None, "home": None,
    }  # fmt: skip
    assert prepare(changed(synthetic, size=32), say=pytest.fail)["digest"] != facts["digest"]
    assert training_folder(synthetic, PROJECT, tmp_path) is None


@pytest.mark.parametrize(
    ("end", "expected", "message"),
    [
        (ValueError("wrong"), ValueError, "^wrong$"),
        (KeyError("typo"), RuntimeError, "dataset tiny: make failed\nTraceback .*(?s:.*)KeyError: 'typo'"),
        (KeyboardInterrupt("stop"), KeyboardInterrupt, "stop"),
        (
            OSError(errno.ENOSPC, "No space left"),
            RuntimeError,
            r"dataset tiny.*\n  hint: free disk space, .*dataset.root=",
        ),
        (OSError(errno.EROFS, "Read-only file system"), RuntimeError, r"Read-only.*\n  hint: check its permissions"),
        (None, ValueError, r"returned NoneType without splits\.train, splits\.val, classes\n  hint: see docs"),
        ({"splits": {"train": 1}}, ValueError, r"returned dict without splits\.val, classes\n  hint: see docs"),
    ],
)
def test_maker_that_fails_or_returns_too_few_facts_leaves_nothing(prepare, makers, tmp_path, end, expected, message):
    def half(folder, say):
        (folder / "0.png").write_bytes(b"sample")
        if isinstance(end, BaseException):
            raise end
        return end

    makers["make"] = half
    with pytest.raises(expected, match=message):
        prepare(tiny())
    assert [path.name for path in (tmp_path / "data").iterdir()] == [".tiny.lock"]


def test_second_process_waits_for_the_first_and_checks_its_arguments(prepare, makers, tmp_path):
    is_waiting = threading.Event()
    calls = []

    def make_slowly(folder, say, count):
        calls.append(count)
        assert is_waiting.wait(timeout=10)
        return make_samples(folder, say, count)

    def say(text):
        if text == f"waiting for another process that prepares {tmp_path / 'data' / 'tiny'}":
            is_waiting.set()

    makers["make"] = make_slowly
    with ThreadPoolExecutor() as pool:
        both = [pool.submit(prepare, tiny(count=count), say=say) for count in (2, 3)]
    (error,) = filter(None, [future.exception() for future in both])
    assert len(calls) == 1
    assert f"was made with count={calls[0]}\n" in str(error)


def test_users_folder_has_the_same_checksum_before_and_after_its_manifest_is_lost(prepare, pets, tmp_path):
    digest = prepare(pets)["digest"]
    shutil.rmtree(tmp_path / "data")  # as in a fresh checkout
    assert dataset_checksum(pets, PROJECT, tmp_path) is None
    assert inspect_users_folder(pets, tmp_path, print) == digest
    assert dataset_checksum(pets, PROJECT, tmp_path) == digest
    assert inspect_users_folder(tiny(), tmp_path, print) is None
