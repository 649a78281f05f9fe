"""A few images of prepared datasets: of files, of MNIST's arrays and of CIFAR's batches."""

import pickle
import struct
import zlib

import numpy
import pytest
from PIL import Image

from epochmeter.datasets import sample_images
from epochmeter.datasets.sample_images import grid, read_samples
from epochmeter.shared.problem import InputError

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def save(folder, name, color, size=(8, 8)):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path)


def colors(images):
    return [image.getpixel((image.width // 2, image.height // 2)) for image in images]


def test_first_files_of_all_classes_come_before_second_ones(tmp_path):
    for split, name, color in (("train", "a/1.png", RED), ("train", "a/2.png", BLUE), ("train", "b/1.png", GREEN),
                               ("val", "a/0.png", (9, 9, 9))):  # fmt: skip
        save(tmp_path / split, name, color)
    assert colors(read_samples(tmp_path, 2, 64)) == [RED, GREEN]
    assert colors(read_samples(tmp_path, 5, 64)) == [RED, GREEN, BLUE]


def test_classes_are_spread_evenly_in_a_folder_without_splits(tmp_path):
    for number in range(8):
        save(tmp_path, f"{number}/x.png", (number, 0, 0))
    assert colors(read_samples(tmp_path, 4, 64)) == [(number, 0, 0) for number in (0, 2, 4, 6)]


def test_images_are_enlarged_by_whole_factors_or_reduced(tmp_path):
    for number, size in enumerate([(8, 8), (28, 20), (400, 100)]):
        save(tmp_path / "train", f"{number}/x.png", RED, size)
    assert [image.size for image in read_samples(tmp_path, 3, 64)] == [(64, 64), (56, 40), (64, 16)]


def test_unreadable_files_are_left_out_and_a_folder_without_images_is_refused(tmp_path, monkeypatch):
    save(tmp_path / "train", "a/3.png", RED)
    save(tmp_path / "train", "a/2.png", BLUE, (20, 20))
    (tmp_path / "train/a/1.png").write_bytes(b"no image")
    (tmp_path / "train/a/0.png").mkdir()
    (tmp_path / "train/a/00.png").symlink_to("nowhere")
    assert colors(read_samples(tmp_path, 4, 64)) == [BLUE, RED]
    monkeypatch.setattr(sample_images, "MAX_PIXELS", 100)
    assert colors(read_samples(tmp_path, 4, 64)) == [RED]
    monkeypatch.setattr(sample_images, "MAX_FILE_BYTES", 10)
    with pytest.raises(InputError, match="has no image that can be read"):
        read_samples(tmp_path, 4, 64)
    with pytest.raises(InputError, match="cannot be read"):
        read_samples(tmp_path / "nowhere", 4, 64)


def test_arrays_of_mnist_are_gray_images(tmp_path):
    raw = tmp_path / "MNIST/raw"
    raw.mkdir(parents=True)
    pixels = bytes([0] * 784 + [255] * 784 + [7] * 784)
    (raw / "train-images-idx3-ubyte").write_bytes(struct.pack(">4I", 2051, 3, 28, 28) + pixels)
    assert colors(read_samples(tmp_path, 2, 64)) == [(0, 0, 0), (255, 255, 255)]
    (raw / "train-images-idx3-ubyte").write_bytes(b"short")
    with pytest.raises(InputError, match="cannot be read"):
        read_samples(tmp_path, 2, 64)


@pytest.mark.parametrize("name", ["data_batch_1", "train"])
def test_batches_of_cifar_are_in_color(tmp_path, name):
    batches = tmp_path / "cifar-python"
    batches.mkdir()
    rows = [numpy.repeat(numpy.array(color, numpy.uint8), 1024) for color in (RED, GREEN, BLUE)]
    (batches / name).write_bytes(pickle.dumps({"data": numpy.array(rows)}, protocol=2))
    (batches / "test_batch").write_bytes(b"not read")
    assert colors(read_samples(tmp_path, 2, 64)) == [RED, GREEN]
    (batches / name).write_bytes(zlib.compress(b"damaged"))
    with pytest.raises(InputError, match="cannot be read"):
        read_samples(tmp_path, 2, 64)


def test_grid_has_images_in_order_in_the_middle_of_their_places():
    images = [Image.new("RGB", size, color) for size, color in (((4, 4), RED), ((2, 2), GREEN), ((4, 2), BLUE))]
    picture = grid(images, 2, 4, 1)
    assert picture.size == (9, 9)
    assert [picture.getpixel(at) for at in ((0, 0), (5, 0), (6, 1), (0, 6))] == [
        (*RED, 255), (0, 0, 0, 0), (*GREEN, 255), (*BLUE, 255),
    ]  # fmt: skip
    assert grid(images[:1], 2, 4, 1).size == (4, 4)
