import hashlib
import shutil
import signal
import subprocess
import sys
from json import dumps
from pathlib import Path

import pytest

from epochmeter.datasets import checksum, manifest
from epochmeter.datasets.ready import SOURCE_ROOT, dataset_checksum, peek_manifest, prepare_dataset, training_folder

HERE = {"name": "here", "root": "data", "medium": None, "reread": False}


def make_two(folder, say):
    """A maker of two samples."""
    (folder / "train").mkdir()
    for name in ("0.png", "1.png"):
        (folder / "train" / name).write_bytes(b"sample")
    return make_facts()


def make_some(folder, say, count, **given):
    """A maker of so many samples."""
    for index in range(count):
        (folder / f"{index}.png").write_bytes(b"sample")
    return {"splits": {"train": count, "val": 0}}


def look_at(folder, say, held_out):
    """What a user's folder holds."""
    count = sum(1 for _ in checksum.iter_files(str(folder), images=True))
    return {"splits": {"train": count, "val": 0}, "classes": 1, "channels": 3, "source": str(folder)}


@pytest.fixture
def on_path(monkeypatch):
    """This file, for the process that makes datasets."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


@pytest.fixture
def tiny(on_path):
    make = {"_target_": "test_ready.make_two"}
    return {"name": "tiny", "root": "data/tiny", "layout": "files", "classes": 2, "space_bytes": 100, "make": make}


@pytest.fixture
def some(on_path):
    """some(count, ...) -> a dataset of so many samples, whose maker is given what follows as well."""

    def dataset(count, **given):
        make = {"_target_": "test_ready.make_some", "count": count, **given}
        return {"name": "some", "root": "data/some", "layout": "files", "count": count, "make": make}

    return dataset


@pytest.fixture
def pets(on_path, tmp_path):
    """A folder of a user's own, and the dataset that it is."""
    folder = tmp_path / "my pets"
    (folder / "cat").mkdir(parents=True)
    (folder / "cat" / "1.jpg").write_bytes(b"cat")
    adopt = {"_target_": "test_ready.look_at", "held_out": 5}
    return {"name": "pets", "root": str(folder), "layout": "files", "classes": 1, "make": None, "adopt": adopt}


@pytest.fixture
def card(tmp_path):
    """A storage that is not where datasets are made."""
    folder = tmp_path / "card"
    folder.mkdir()
    return {"name": "sd", "root": str(folder), "medium": "sd", "reread": False}


def test_dataset_is_created_once_and_then_reused(spec, tmp_path, monkeypatch):
    said = []
    made = prepare_dataset(spec("digits"), HERE, tmp_path, said.append)
    assert said == [f"preparing dataset digits in {tmp_path / 'data' / 'digits'}"]
    assert made["folder"] == made["home"] == str(tmp_path / "data" / "digits")
    monkeypatch.setattr(subprocess, "Popen", "none is begun, as one that makes or looks through a dataset would be")
    assert prepare_dataset(spec("digits"), HERE, tmp_path, said.append) == made
    assert len(said) == 1


def test_unmounted_storage_is_an_error_and_creates_no_folder(spec, tmp_path):
    place = tmp_path / "media" / "sd"
    with pytest.raises(ValueError, match=f"`storage.root={place}` is not an existing folder"):
        prepare_dataset(spec("digits"), {**HERE, "root": str(place)}, tmp_path, print)
    assert not place.exists()


def test_home_on_an_unmounted_device_is_an_error_and_creates_no_folder(tiny, tmp_path):
    with pytest.raises(ValueError, match=f"dataset.root={tmp_path}/media/tiny: {tmp_path}/media does not exist. Mount"):
        prepare_dataset({**tiny, "root": str(tmp_path / "media" / "tiny")}, HERE, tmp_path, print)
    assert not (tmp_path / "media").exists()


def test_dataset_is_created_at_home_and_staged(tiny, card, tmp_path):
    said = []
    facts = prepare_dataset(tiny, card, tmp_path, said.append)
    assert (facts["folder"], facts["home"]) == (str(tmp_path / "card" / "tiny"), str(tmp_path / "data" / "tiny"))
    assert len(list(checksum.iter_files(facts["folder"]))) == facts["files"] == 2
    assert [line.split()[0] for line in said] == ["preparing", "staging", "staging"]
    assert prepare_dataset(tiny, card, tmp_path, said.append) == facts
    assert len(said) == 3


def test_staged_copy_from_another_machine_needs_no_home(tiny, card, tmp_path):
    facts = prepare_dataset(tiny, card, tmp_path, print)
    shutil.rmtree(tmp_path / "data")
    assert prepare_dataset(tiny, card, tmp_path, pytest.fail) == facts
    assert not (tmp_path / "data").exists()


def test_other_version_is_created_and_staged_again(tiny, card, tmp_path):
    prepare_dataset(tiny, card, tmp_path, print)
    said = []
    assert prepare_dataset({**tiny, "version": 2}, card, tmp_path, said.append)["version"] == 2
    assert [line.split()[0] for line in said] == ["preparing", "staging", "staging"]


def test_other_arguments_are_rejected_with_both_values(some, card, tmp_path):
    prepare_dataset(some(2, seed=0), card, tmp_path, print)
    asked, made = "dataset.count=3, dataset.make.seed=1", "dataset.count=2, dataset.make.seed=0"
    with pytest.raises(ValueError, match=f"{asked}, but {tmp_path}/data/some was made with {made}. Move"):
        prepare_dataset(some(3, seed=1), HERE, tmp_path, pytest.fail)
    shutil.rmtree(tmp_path / "data")
    with pytest.raises(ValueError, match=f"{asked}, but {tmp_path}/card/some was made with {made}. .* storage.root="):
        prepare_dataset(some(3, seed=1), card, tmp_path, pytest.fail)


@pytest.mark.parametrize("given", [{"seed": 0, "url": "there"}, {"seed": 0, "url": "here", "quality": 9}, {}], ids=str)
def test_source_arguments_and_unknown_arguments_are_ignored(some, tmp_path, given):
    facts = prepare_dataset(some(2, seed=0, url="here"), HERE, tmp_path, print)
    assert prepare_dataset(some(2, **given), HERE, tmp_path, pytest.fail) == facts


def test_other_version_is_created_again_with_any_arguments(some, tmp_path):
    prepare_dataset(some(2), HERE, tmp_path, print)
    assert prepare_dataset({**some(3), "version": 2}, HERE, tmp_path, print)["files"] == 3


@pytest.mark.parametrize(("there", "error"), [([], ValueError), (["lost+found"], RuntimeError)])
def test_mount_point_is_rejected_and_a_folder_on_it_suggested(tiny, tmp_path, monkeypatch, there, error):
    card = tmp_path / "media" / "sd"
    for name in ["", *there]:
        (card / name).mkdir(parents=True)
    monkeypatch.setattr(Path, "is_mount", lambda path: path == card)
    with pytest.raises(
        error, match=f"A storage device is mounted there: use a folder on it, dataset.root={card}/tiny."
    ):
        prepare_dataset({**tiny, "root": str(card)}, HERE, tmp_path, pytest.fail)
    assert [path.name for path in card.parent.iterdir()] == ["sd"]


def test_dataset_on_a_mounted_device_is_used(tiny, tmp_path, monkeypatch):
    facts = prepare_dataset(tiny, HERE, tmp_path, print)
    monkeypatch.setattr(Path, "is_mount", lambda path: path == Path(facts["home"]))
    assert prepare_dataset(tiny, HERE, tmp_path, pytest.fail) == facts


def test_home_can_be_a_link(tiny, tmp_path):
    (tmp_path / "large" / "tiny").mkdir(parents=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "tiny").symlink_to(tmp_path / "large" / "tiny")
    facts = prepare_dataset(tiny, HERE, tmp_path, print)
    assert facts["folder"] == facts["home"] == str(tmp_path / "large" / "tiny")
    assert (tmp_path / "data" / "tiny").is_symlink()
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["tiny"], "nothing is written beside the link"


def test_home_on_the_storage_is_not_copied(tiny, card, tmp_path):
    home = str(tmp_path / "card" / "tiny")
    assert prepare_dataset({**tiny, "root": home}, card, tmp_path, print)["folder"] == home


def test_storage_inside_the_dataset_is_rejected(pets, tmp_path):
    inside = {**HERE, "root": str(Path(pets["root"]) / "cat")}
    with pytest.raises(ValueError, match="is inside the dataset's own folder"):
        prepare_dataset(pets, inside, tmp_path, print)


def test_users_folder_is_used_in_place_and_never_written(pets, tmp_path):
    before = sorted(Path(pets["root"]).rglob("*"))
    facts = prepare_dataset(pets, HERE, tmp_path, print)
    assert facts["folder"] == facts["home"] == pets["root"]
    assert (facts["files"], facts["bytes"], facts["digest_of"]) == (1, 3, "names and sizes")
    assert sorted(Path(pets["root"]).rglob("*")) == before
    told = hashlib.sha256(pets["root"].encode()).hexdigest()[:12]
    assert [path.name for path in (tmp_path / "data" / ".manifests").iterdir()] == [f"pets-{told}.json"]
    assert prepare_dataset(pets, HERE, tmp_path, pytest.fail) == facts


def test_extended_user_folder_is_inspected_again(pets, card, tmp_path):
    first = prepare_dataset(pets, card, tmp_path, print)
    (Path(pets["root"]) / "cat" / "2.jpg").write_bytes(b"cat")
    second = prepare_dataset(pets, card, tmp_path, print)
    assert (first["files"], second["files"]) == (1, 2)
    assert sorted(checksum.iter_files(second["folder"])) == ["cat/1.jpg", "cat/2.jpg"]


@pytest.mark.parametrize("moved", ["cat/2.jpg", "dog/1.jpg"])
def test_moved_file_in_a_users_folder_is_inspected_and_staged_again(pets, card, tmp_path, moved):
    first, mine = prepare_dataset(pets, card, tmp_path, print), Path(pets["root"])
    assert dataset_checksum(pets, card, tmp_path) == first["digest"]
    (mine / "dog").mkdir()
    (mine / "cat" / "1.jpg").rename(mine / moved)
    assert dataset_checksum(pets, card, tmp_path) is None, "as no run of before is one of it"
    second = prepare_dataset(pets, card, tmp_path, print)
    assert dataset_checksum(pets, card, tmp_path) == second["digest"] != first["digest"]
    assert list(checksum.iter_files(second["folder"])) == [moved]


def test_missing_user_folder_is_identified_by_its_copy(pets, card, tmp_path):
    facts = prepare_dataset(pets, card, tmp_path, print)
    shutil.rmtree(pets["root"])
    assert dataset_checksum(pets, card, tmp_path) == facts["digest"]
    assert prepare_dataset(pets, card, tmp_path, pytest.fail) == facts


def test_changed_split_inspects_a_users_folder_again(pets, tmp_path):
    prepare_dataset(pets, HERE, tmp_path, print)
    said = []
    prepare_dataset({**pets, "adopt": {**pets["adopt"], "held_out": 3}}, HERE, tmp_path, said.append)
    assert said == [f"inspecting dataset pets in {pets['root']}"]


def test_users_own_manifest_json_is_ignored(pets, tmp_path):
    (Path(pets["root"]) / "manifest.json").write_text('{"name": "web app", "version": 3}')
    assert prepare_dataset(pets, HERE, tmp_path, print)["files"] == 1


@pytest.mark.parametrize(
    ("root", "says"), [(None, "set dataset.root="), ("/nowhere", "dataset.root=/nowhere does not exist")]
)
def test_user_dataset_needs_a_root(pets, tmp_path, root, says):
    with pytest.raises(ValueError, match=says):
        prepare_dataset({**pets, "root": root}, HERE, tmp_path, print)


def test_wrong_number_of_classes_is_an_error_with_both_numbers(tiny, tmp_path):
    prepare_dataset(tiny, HERE, tmp_path, print)
    with pytest.raises(ValueError, match=r"dataset.classes=3, but .*/data/tiny has 2: give dataset.classes=2"):
        prepare_dataset({**tiny, "classes": 3}, HERE, tmp_path, print)


def test_missing_folder_in_shared_memory_is_created(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("epochmeter.datasets.ready.SHARED_MEMORY", tmp_path)
    memory = {"name": "ram", "root": str(tmp_path / "epochmeter"), "medium": "ram", "reread": False}
    assert prepare_dataset(tiny, memory, tmp_path, print)["folder"] == str(tmp_path / "epochmeter" / "tiny")


def test_generated_dataset_has_no_folder_and_its_own_checksum(tmp_path):
    tensors = {"name": "tensors", "root": None, "layout": "tensors", "make": None, "count": 1000, "classes": 10,
               "channels": 3, "size": 224}  # fmt: skip
    facts = prepare_dataset(tensors, HERE, tmp_path, pytest.fail)
    assert (facts["splits"]["train"], facts["files"], facts["folder"]) == (1000, 0, None)
    assert prepare_dataset({**tensors, "size": 32}, HERE, tmp_path, pytest.fail)["digest"] != facts["digest"]
    assert training_folder(tensors, HERE, tmp_path) is None
    assert dataset_checksum(tensors, HERE, tmp_path) == facts["digest"]


def test_known_manifest_before_and_after_preparation(tiny, card, tmp_path):
    assert peek_manifest(tiny, card, tmp_path) is dataset_checksum(tiny, card, tmp_path) is None
    assert training_folder(tiny, card, tmp_path) == tmp_path / "card" / "tiny"
    assert training_folder(tiny, HERE, tmp_path) == tmp_path / "data" / "tiny"
    facts = prepare_dataset(tiny, card, tmp_path, print)
    assert peek_manifest(tiny, card, tmp_path)["digest"] == dataset_checksum(tiny, card, tmp_path) == facts["digest"]
    shutil.rmtree(tmp_path / "data")
    assert peek_manifest(tiny, card, tmp_path)["digest"] == facts["digest"]


def test_sample_of_file_sizes_is_not_recorded(tiny, tmp_path, monkeypatch):
    folder = Path(prepare_dataset(tiny, HERE, tmp_path, print)["folder"])
    monkeypatch.setattr(manifest, "CHECK_ALL_UP_TO", 1)
    manifest.write(folder / manifest.MANIFEST_NAME, manifest.describe_made(folder, tiny, make_facts()))
    assert "sample" not in prepare_dataset(tiny, HERE, tmp_path, print)


def make_facts():
    return {"splits": {"train": 2, "val": 0}, "classes": 2, "channels": 1, "source": "this test"}


def test_makers_error_is_raised_in_the_controller(spec, tmp_path):
    with pytest.raises(RuntimeError, match=r"not enough disk space in .*: dataset digits needs 1000000000000 MB"):
        prepare_dataset(spec("digits", space_bytes=10**18), HERE, tmp_path, print)


def test_emptied_dataset_is_an_error(spec, tmp_path):
    folder = Path(prepare_dataset(spec("digits"), HERE, tmp_path, print)["folder"])
    for image in folder.glob("*/*/*.png"):
        image.unlink()
    with pytest.raises(RuntimeError, match="has 0 files of 0 bytes; its manifest lists 1797 files"):
        prepare_dataset(spec("digits"), HERE, tmp_path, print)


def test_killed_maker_leaves_no_valid_dataset(spec, tmp_path):
    folder = tmp_path / "data" / "digits"
    arguments = dumps({"dataset": spec("digits"), "folder": str(folder)})
    command = [sys.executable, "-m", "epochmeter.datasets", "make", arguments]
    with subprocess.Popen(command, env={"PYTHONPATH": SOURCE_ROOT}, stdout=subprocess.DEVNULL) as maker:
        while not any(folder.with_name(".digits.partial").glob("train/*/*.png")):
            assert maker.poll() is None
        maker.send_signal(signal.SIGKILL)
    assert not folder.exists()
    assert prepare_dataset(spec("digits"), HERE, tmp_path, print)["count"] == 1797
    assert not folder.with_name(".digits.partial").exists()
