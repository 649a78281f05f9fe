import pickle

import pytest
from PIL import Image

from trainmeter.worker.data.images import ImageFiles


def write(path, color="red", mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (4, 4), color).save(path)


def as_is(image):
    return image


@pytest.fixture
def folder(tmp_path):
    for name, color in [
        ("train/cat/b.png", "green"),
        ("train/cat/a.png", "red"),
        ("train/dog/ü.png", "blue"),
    ]:
        write(tmp_path / name, color)
    write(tmp_path / "val/dog/z.png", "white")
    return tmp_path


def test_samples_go_by_class_and_name(folder):
    samples = ImageFiles(str(folder), "train", as_is)
    seen = [(image.getpixel((0, 0)), label) for image, label in (samples[i] for i in range(len(samples)))]
    assert seen == [((255, 0, 0), 0), ((0, 128, 0), 0), ((0, 0, 255), 1)]


def test_classes_of_a_split_are_numbered_as_in_training(folder):
    samples = ImageFiles(str(folder), "val", as_is)
    assert [label for _, label in (samples[i] for i in range(len(samples)))] == [1]


def test_a_class_without_samples_in_a_split_keeps_its_number(folder):
    (folder / "train/bear").mkdir()
    assert ImageFiles(str(folder), "train", as_is)[0][1] == 1


def test_a_truncated_image_is_named(folder):
    path = folder / "train/cat/a.png"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(RuntimeError, match=rf"image {path} cannot be read: .* Put the whole file back"):
        ImageFiles(str(folder), "train", as_is)[0]


@pytest.mark.parametrize("contents", [b"", b"no image", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"\xff\xd8\xff\xe0"])
def test_what_is_no_image_is_named(folder, contents):
    (folder / "train/cat/a.png").write_bytes(contents)
    with pytest.raises(RuntimeError, match=r"a\.png cannot be read"):
        ImageFiles(str(folder), "train", as_is)[0]


def test_an_image_that_went_away_is_named(folder):
    samples = ImageFiles(str(folder), "train", as_is)
    (folder / "train/cat/a.png").unlink()
    with pytest.raises(RuntimeError, match=r"a\.png cannot be read: .*No such file"):
        samples[0]


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(RuntimeError, match=rf"{tmp_path / 'train'} cannot be read: No such file"):
        ImageFiles(str(tmp_path), "train", as_is)


def test_a_folder_without_images_is_named(folder):
    (folder / "val/dog/z.png").unlink()
    with pytest.raises(RuntimeError, match=rf"{folder / 'val'} holds no image in any folder of a class"):
        ImageFiles(str(folder), "val", as_is)


def test_a_path_costs_little_more_than_its_letters(tmp_path):
    (tmp_path / "train/class").mkdir(parents=True)
    for index in range(1000):
        (tmp_path / "train/class" / f"{index:012}.jpeg").touch()
    assert len(pickle.dumps(ImageFiles(str(tmp_path), "train", as_is))) < 1000 * (17 + 8) * 1.2
