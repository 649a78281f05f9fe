import subprocess
import sys

import numpy
import pytest
from PIL import Image

from epochmeter.datasets import image_folder
from epochmeter.datasets.image_folder import scan
from epochmeter.datasets.ready import SOURCE_ROOT, prepare_dataset
from epochmeter.worker.data.images import ImageFiles

STORAGE = {"name": "here", "root": "data"}


def fill(folder, **counts):
    """So many empty files in each class: looking opens none."""
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for index in range(count):
            (folder / name / f"{index:03}.jpg").touch()
    return folder


def test_train_and_val_are_counted(tmp_path):
    fill(tmp_path / "train", cat=3, dog=4)
    fill(tmp_path / "val", cat=1, dog=2)
    assert scan(tmp_path, say=print, classes=2) == {
        "splits": {"train": 7, "val": 3},
        "classes": 2,
        "channels": 3,
        "source": str(tmp_path),
    }


def test_classes_missing_in_validation_are_reported(tmp_path):
    fill(tmp_path / "train", cat=3, dog=4)
    fill(tmp_path / "val", cat=1)
    said = []
    assert scan(tmp_path, say=said.append, classes=2)["splits"] == {"train": 7, "val": 1}
    assert said == [f"{tmp_path / 'val'} has no images of dog"]


def test_counting_reports_progress(tmp_path, monkeypatch):
    monkeypatch.setattr(image_folder, "PROGRESS_EVERY", 10)
    said = []
    scan(fill(tmp_path, a=8, b=8, c=8, d=8), say=said.append, classes=4)
    assert said == [f"{tmp_path}: {count} images in {count // 8} classes so far" for count in (16, 32)]


@pytest.mark.parametrize(("held_out", "val"), [(5, 2 + 1 + 0), (2, 6 + 2 + 1), (3, 4 + 1 + 1)])
def test_every_nth_file_per_class_is_held_out_as_in_training(tmp_path, held_out, val):
    fill(tmp_path, cat=12, dog=5, eel=3)
    found = scan(tmp_path, say=print, classes=3, held_out=held_out)["splits"]
    assert found == {"train": 20 - val, "val": val}
    assert found == {split: len(ImageFiles(str(tmp_path), split, None, held_out)) for split in ("train", "val")}


def test_other_files_and_hidden_files_do_not_count(tmp_path):
    fill(tmp_path, cat=5)
    for name in ("cat/notes.txt", "cat/.005.jpg", "cat/005.JPEG", "cat/006.TIF", "readme.md", "loose.png"):
        (tmp_path / name).touch()
    (tmp_path / ".thumbnails").mkdir()
    (tmp_path / "cat" / "folder.jpg").mkdir()
    (tmp_path / "cat" / "link.png").symlink_to(tmp_path / "loose.png")
    (tmp_path / "cat" / "dangling.png").symlink_to(tmp_path / "nothing")
    assert scan(tmp_path, say=print, classes=1)["splits"] == {"train": 7, "val": 1}


def test_class_can_be_a_link(tmp_path):
    fill(tmp_path / "elsewhere", cat=5)
    fill(tmp_path / "here", dog=5)
    (tmp_path / "here" / "cat").symlink_to(tmp_path / "elsewhere" / "cat")
    assert scan(tmp_path / "here", say=print, classes=2)["splits"] == {"train": 8, "val": 2}


@pytest.mark.parametrize(
    ("trees", "error"),
    [
        ({}, r"has no class folder"),
        ({"train": {"cat": 1}}, r"no val/. Add val/ .* or set dataset.root=\S+train .* evaluate=false"),
        ({"val": {"cat": 1}}, r"has val/ and no train/. Add train/"),
        ({".": {"cat": 9, "dog": 0, "eel": 0}}, r"has classes without images: dog, eel"),
        ({"train": {"cat": 1}, "val": {"cat": 0}}, r"val has classes without images: cat"),
        ({"train": {"cat": 1}, "val": {"cat": 1, "dog": 1}}, r"val has classes that \S+train lacks: dog"),
        ({".": {"cat": 4, "dog": 4}}, r"no class in \S+ has 5 images, so none is held out.* evaluate=false"),
        ({".": {"cat": 5, "dog": 5, "eel": 5}}, r"dataset.classes=2, but \S+ has 3 class folders: cat, dog, eel"),
    ],
)
def test_unusable_folder_is_an_error_with_a_remedy(tmp_path, trees, error):
    for split, counts in trees.items():
        fill(tmp_path / split, **counts)
    with pytest.raises(ValueError, match=error):
        scan(tmp_path, say=print, classes=2)


@pytest.mark.parametrize("held_out", [1, 0, -5])
def test_held_out_interval_without_training_files_is_rejected(tmp_path, held_out):
    with pytest.raises(ValueError, match=f"dataset.held_out={held_out}: give 2 or more"):
        scan(fill(tmp_path, cat=5), say=print, classes=1, held_out=held_out)


def test_images_outside_class_folders_have_their_own_error(tmp_path):
    for index in range(3):
        (tmp_path / f"{index}.jpg").touch()
    with pytest.raises(ValueError, match="has 3 images outside class folders"):
        scan(tmp_path, say=print, classes=2)


def test_missing_number_of_classes_is_suggested(tmp_path):
    fill(tmp_path, **{f"class{number}": 5 for number in range(9)})
    with pytest.raises(ValueError, match=r"classes is not set.* class4 and 4 more. Set dataset.classes=9"):
        scan(tmp_path, say=print, classes=None)


def test_counting_opens_no_file(tmp_path):
    """Python tells of every file that a program opens."""
    fill(tmp_path, cat=5)
    program = (
        "import sys; from pathlib import Path; from epochmeter.datasets.image_folder import scan;"
        "sys.addaudithook(lambda event, given: event == 'open' and print('opened', given[0]));"
        "print(scan(Path(sys.argv[1]), say=print, classes=1)['splits'])"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, env={"PYTHONPATH": SOURCE_ROOT}, capture_output=True, text=True, check=True)
    assert done.stdout == "{'train': 4, 'val': 1}\n"


@pytest.fixture
def pets(tmp_path):
    folder = tmp_path / "mine" / "pets"
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for index in range(5):
            Image.fromarray(numpy.full((9, 9, 3), index, dtype=numpy.uint8)).save(folder / name / f"{index}.png")
    return folder


def test_users_folder_is_used_in_place_and_not_changed(spec, pets, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    facts = prepare_dataset(spec("imagefolder", f"dataset.root={pets}", "dataset.classes=2"), STORAGE, tmp_path, print)
    assert (facts["folder"], facts["splits"], facts["channels"]) == (str(pets), {"train": 8, "val": 2}, 3)
    assert [path for path in sorted(tmp_path.rglob("*")) if path.is_relative_to(pets)] == [
        path for path in before if path.is_relative_to(pets)
    ]


def test_staged_copy_uses_the_current_split(spec, pets, tmp_path):
    (tmp_path / "card").mkdir()
    card = {"name": "sd", "root": str(tmp_path / "card")}
    asked = ["dataset.classes=2", f"dataset.root={pets}"]
    splits = [
        prepare_dataset(spec("imagefolder", *asked, f"dataset.held_out={each}"), card, tmp_path, print)["splits"]
        for each in (5, 2)
    ]
    assert splits == [{"train": 8, "val": 2}, {"train": 6, "val": 4}]


def test_missing_root_or_wrong_number_of_classes_is_an_error(spec, pets, tmp_path):
    with pytest.raises(ValueError, match=r"dataset\.root="):
        prepare_dataset(spec("imagefolder"), STORAGE, tmp_path, print)
    with pytest.raises(ValueError, match=rf"dataset.classes=37, but {pets} has 2 class folders: cat, dog"):
        prepare_dataset(spec("imagefolder", f"dataset.root={pets}", "dataset.classes=37"), STORAGE, tmp_path, print)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=rf"dataset.root={tmp_path / 'empty'} does not exist or is empty"):
        prepare_dataset(spec("imagefolder", f"dataset.root={tmp_path / 'empty'}"), STORAGE, tmp_path, print)
