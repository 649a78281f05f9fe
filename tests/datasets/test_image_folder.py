import pytest
from project import make_unreadable

from epochmeter.datasets.image_folder import scan
from epochmeter.worker.data.images import ImageFiles


def fill(folder, **counts):
    """Write this many empty files per class: no image is opened."""
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for index in range(count):
            (folder / name / f"{index:03}.jpg").touch()


@pytest.mark.parametrize(("held_out", "val"), [(5, 2 + 1 + 0), (2, 6 + 2 + 1)])
def test_every_nth_file_per_class_is_held_out_as_in_training(tmp_path, held_out, val):
    fill(tmp_path, cat=12, dog=5, eel=3)
    assert scan(tmp_path, print, held_out)["splits"] == {"train": 20 - val, "val": val}
    train, held = (ImageFiles(str(tmp_path), split, None, held_out) for split in ("train", "val"))
    assert (len(train), len(held)) == (20 - val, val)
    assert train.classes == held.classes == ["cat", "dog", "eel"]
    paths = {part.path(index, part.read(index)[1]) for part in (train, held) for index in range(len(part))}
    assert len(paths) == 20


def test_other_files_and_hidden_files_do_not_count(tmp_path):
    fill(tmp_path, cat=5)
    for name in ("cat/notes.txt", "cat/.005.jpg", "cat/005.JPEG", "cat/006.TIF", "readme.md", "loose.png"):
        (tmp_path / name).touch()
    (tmp_path / ".thumbnails").mkdir()
    (tmp_path / "cat" / "folder.jpg").mkdir()
    (tmp_path / "cat" / "link.png").symlink_to(tmp_path / "loose.png")
    (tmp_path / "cat" / "dangling.png").symlink_to(tmp_path / "nothing")
    facts = {"classes": 1, "channels": 3, "source": str(tmp_path)}
    assert scan(tmp_path, say=print) == {"splits": {"train": 8, "val": 1}, **facts}
    fill(tmp_path / "split/train", cat=3, dog=4)
    fill(tmp_path / "split/val", cat=1)
    assert scan(tmp_path / "split", say=print)["splits"] == {"train": 7, "val": 1}
    assert [len(ImageFiles(str(tmp_path), split, None)) for split in ("train", "val")] == [8, 1]


def test_entries_that_cannot_be_read_count_as_images_as_in_training(tmp_path):
    fill(tmp_path, cat=3)
    make_unreadable(tmp_path / "cat")
    (tmp_path / "dog").symlink_to("dog")  # a circle
    facts = scan(tmp_path, print)
    assert facts["splits"] == {"train": 6, "val": 1}
    assert [len(ImageFiles(str(tmp_path), split, None)) for split in ("train", "val")] == [6, 1]


@pytest.mark.parametrize(
    ("trees", "error"),
    [
        ({}, r"has no class folders"),
        ({"train": {"cat": 1}}, r"has only one of train/ and val/; .* evaluate=false\n  hint: add .* dataset.root="),
        ({"val": {"cat": 1}}, r"has only one of train/ and val/"),
        ({"train": {"cat": 1}, "val": {"cat": 1, "dog": 1}}, r"val has classes that \S+train lacks: dog"),
        ({".": {"z": 9, **dict.fromkeys("abcdefghi", 0)}}, r"has classes without images: a, b, c, d, e and 4 more"),
    ],
)
def test_unusable_folder_is_an_error_with_a_remedy(tmp_path, trees, error):
    for split, counts in trees.items():
        fill(tmp_path / split, **counts)
    with pytest.raises(ValueError, match=error):
        scan(tmp_path, say=print)
