"""A few training images of a prepared dataset, as small pictures: of image files, CIFAR's batches or MNIST's arrays."""

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice, zip_longest
from pathlib import Path

from PIL import Image

from epochmeter.datasets import cifar, mnist
from epochmeter.shared.image_files import is_folder, is_image
from epochmeter.shared.problem import input_error

MAX_FILE_BYTES, MAX_PIXELS = 2**25, 50_000_000
"""Largest file and image that is decoded for a small picture."""
MAX_TRIED = 4  # files per picture that are tried, as some may be unreadable


def read_samples(folder: Path, count: int, side: int) -> list[Image.Image]:
    """Return up to `count` training images of a dataset's folder, in RGB and at most `side` pixels wide and high.

    Small ones are enlarged by a whole factor. Image files are taken from as many classes as possible.

    Raises:
        InputError: No image can be read.
    """
    try:
        images = list(islice(_readable(folder, count), count))
    except (OSError, LookupError, struct.error, ValueError, *cifar.DAMAGE) as error:
        raise input_error(f"{folder} cannot be read: {error}", "prepare the dataset again", file=str(folder)) from error
    if not images:
        raise input_error(f"{folder} has no image that can be read", "look at its files", file=str(folder))
    return [_fitted(image, side) for image in images]


def _readable(folder: Path, count: int) -> Iterator[Image.Image]:
    arrays = mnist.first_images(folder, count)
    arrays = cifar.first_images(folder, count) if arrays is None else arrays
    if arrays is not None:
        yield from map(Image.fromarray, arrays)
        return
    train = folder / "train"
    for path in islice(_image_files(train if train.is_dir() else folder, count), MAX_TRIED * count):
        with suppress(OSError, ValueError, SyntaxError, struct.error, Image.DecompressionBombError):
            yield _decoded(path)


def _image_files(folder: Path, count: int) -> Iterator[Path]:
    """Yield image files, the first of each of `count` classes, then the second of each, and so on."""
    classes = sorted(_names(folder, is_folder))
    step = max(1, len(classes) / count)
    chosen = [classes[int(place * step)] for place in range(min(count, len(classes)))]
    files = [[folder / name / file for file in sorted(_names(folder / name, is_image))] for name in chosen]
    yield from filter(None, chain.from_iterable(zip_longest(*files)))


def _names(folder: Path, is_kind: Callable[["os.DirEntry[str]"], bool]) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if not entry.name.startswith(".") and is_kind(entry)]


def _decoded(path: Path) -> Image.Image:
    if not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
        raise ValueError("not a file, or a large one")
    with Image.open(path) as image:
        if image.width * image.height > MAX_PIXELS:
            raise ValueError("a large image")
        loaded: Image.Image = image.copy()
    return loaded


def _fitted(image: Image.Image, side: int) -> Image.Image:
    image = image.convert("RGB")
    if max(image.size) > side:
        image.thumbnail((side, side))
        return image
    factor = side // max(image.size)
    return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)


def grid(images: Sequence[Image.Image], columns: int, side: int, gap: int) -> Image.Image:
    """Return images of at most `side` pixels in rows, `gap` pixels apart, on transparent ground."""
    rows = -(-len(images) // columns)
    size = [number * (side + gap) - gap for number in (min(columns, len(images)), rows)]
    picture = Image.new("RGBA", (size[0], size[1]))
    for place, image in enumerate(images):
        row, column = divmod(place, columns)
        left, top = (number * (side + gap) for number in (column, row))
        picture.paste(image, (left + (side - image.width) // 2, top + (side - image.height) // 2))
    return picture
