import subprocess
import sys

import numpy
import pytest
from PIL import Image

from epochmeter.datasets import image_folder
from epochmeter.datasets.image_folder import look
from epochmeter.datasets.ready import SOURCES, ready
from epochmeter.worker.data.images import ImageFiles

STORAGE = {"name": "here", "root": "data"}


def fill(folder, **counts):
    """So many empty files in each class: looking opens none."""
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for index in range(count):
            (folder / name / f"{index:03}.jpg").touch()
    return folder


def test_train_and_val_are_counted_as_they_are(tmp_path):
    fill(tmp_path / "train", cat=3, dog=4)
    fill(tmp_path / "val", cat=1, dog=2)
    assert look(tmp_path, say=print, classes=2) == {
        "splits": {"train": 7, "val": 3},
        "classes": 2,
        "channels": 3,
        "source": str(tmp_path),
    }


def test_validation_that_lacks_a_class_is_told_of(tmp_path):
    fill(tmp_path / "train", cat=3, dog=4)
    fill(tmp_path / "val", cat=1)
    said = []
    assert look(tmp_path, say=said.append, classes=2)["splits"] == {"train": 7, "val": 1}
    assert said == [f"{tmp_path / 'val'} has no images of dog"]


def test_how_far_counting_is_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(image_folder, "EVERY", 10)
    said = []
    look(fill(tmp_path, a=8, b=8, c=8, d=8), say=said.append, classes=4)
    assert said == [f"{tmp_path}: {count} images in {count // 8} classes so far" for count in (16, 32)]


@pytest.mark.parametrize(("held_out", "val"), [(5, 2 + 1 + 0), (2, 6 + 2 + 1), (3, 4 + 1 + 1)])
def test_without_them_every_so_manieth_file_of_a_class_is_held_out_as_the_worker_has_it(tmp_path, held_out, val):
    fill(tmp_path, cat=12, dog=5, eel=3)
    found = look(tmp_path, say=print, classes=3, held_out=held_out)["splits"]
    assert found == {"train": 20 - val, "val": val}
    assert found == {split: len(ImageFiles(str(tmp_path), split, None, held_out)) for split in ("train", "val")}


def test_what_is_no_image_or_hidden_does_not_count(tmp_path):
    fill(tmp_path, cat=5)
    for name in ("cat/notes.txt", "cat/.005.jpg", "cat/005.JPEG", "cat/006.TIF", "readme.md", "loose.png"):
        (tmp_path / name).touch()
    (tmp_path / ".thumbnails").mkdir()
    (tmp_path / "cat" / "folder.jpg").mkdir()
    (tmp_path / "cat" / "link.png").symlink_to(tmp_path / "loose.png")
    (tmp_path / "cat" / "dangling.png").symlink_to(tmp_path / "nothing")
    assert look(tmp_path, say=print, classes=1)["splits"] == {"train": 7, "val": 1}


def test_a_class_may_be_a_link_to_a_folder_elsewhere(tmp_path):
    fill(tmp_path / "elsewhere", cat=5)
    fill(tmp_path / "here", dog=5)
    (tmp_path / "here" / "cat").symlink_to(tmp_path / "elsewhere" / "cat")
    assert look(tmp_path / "here", say=print, classes=2)["splits"] == {"train": 8, "val": 2}


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
def test_what_cannot_be_trained_on_is_said_with_what_to_do(tmp_path, trees, error):
    for split, counts in trees.items():
        fill(tmp_path / split, **counts)
    with pytest.raises(ValueError, match=error):
        look(tmp_path, say=print, classes=2)


@pytest.mark.parametrize("held_out", [1, 0, -5])
def test_a_share_that_leaves_nothing_to_train_on_is_refused(tmp_path, held_out):
    with pytest.raises(ValueError, match=f"dataset.held_out={held_out}: give 2 or more"):
        look(fill(tmp_path, cat=5), say=print, classes=1, held_out=held_out)


def test_images_in_no_class_are_told_from_no_images(tmp_path):
    for index in range(3):
        (tmp_path / f"{index}.jpg").touch()
    with pytest.raises(ValueError, match="has 3 images outside class folders"):
        look(tmp_path, say=print, classes=2)


def test_without_classes_given_the_number_to_give_is_told(tmp_path):
    fill(tmp_path, **{f"class{number}": 5 for number in range(9)})
    with pytest.raises(ValueError, match=r"classes is not set.* class4 and 4 more. Set dataset.classes=9"):
        look(tmp_path, say=print, classes=None)


def test_counting_opens_no_file(tmp_path):
    """Python tells of every file that a program opens."""
    fill(tmp_path, cat=5)
    program = (
        "import sys; from pathlib import Path; from epochmeter.datasets.image_folder import look;"
        "sys.addaudithook(lambda event, given: event == 'open' and print('opened', given[0]));"
        "print(look(Path(sys.argv[1]), say=print, classes=1)['splits'])"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, env={"PYTHONPATH": SOURCES}, capture_output=True, text=True, check=True)
    assert done.stdout == "{'train': 4, 'val': 1}\n"


@pytest.fixture
def pets(tmp_path):
    folder = tmp_path / "mine" / "pets"
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for index in range(5):
            Image.fromarray(numpy.full((9, 9, 3), index, dtype=numpy.uint8)).save(folder / name / f"{index}.png")
    return folder


def test_a_folder_of_ones_own_is_trained_on_where_it_lies_and_left_as_it_is(spec, pets, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    facts = ready(spec("imagefolder", f"dataset.root={pets}", "dataset.classes=2"), STORAGE, tmp_path, print)
    assert (facts["folder"], facts["splits"], facts["channels"]) == (str(pets), {"train": 8, "val": 2}, 3)
    assert [path for path in sorted(tmp_path.rglob("*")) if path.is_relative_to(pets)] == [
        path for path in before if path.is_relative_to(pets)
    ]


def test_a_copy_of_it_is_told_to_be_split_as_it_is_by_now(spec, pets, tmp_path):
    (tmp_path / "card").mkdir()
    card = {"name": "sd", "root": str(tmp_path / "card")}
    asked = ["dataset.classes=2", f"dataset.root={pets}"]
    splits = [
        ready(spec("imagefolder", *asked, f"dataset.held_out={each}"), card, tmp_path, print)["splits"]
        for each in (5, 2)
    ]
    assert splits == [{"train": 8, "val": 2}, {"train": 6, "val": 4}]


def test_asking_for_no_folder_or_for_another_number_of_classes_is_an_error(spec, pets, tmp_path):
    with pytest.raises(ValueError, match=r"dataset\.root="):
        ready(spec("imagefolder"), STORAGE, tmp_path, print)
    with pytest.raises(ValueError, match=rf"dataset.classes=37, but {pets} has 2 class folders: cat, dog"):
        ready(spec("imagefolder", f"dataset.root={pets}", "dataset.classes=37"), STORAGE, tmp_path, print)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=rf"dataset.root={tmp_path / 'empty'} does not exist or is empty"):
        ready(spec("imagefolder", f"dataset.root={tmp_path / 'empty'}"), STORAGE, tmp_path, print)
