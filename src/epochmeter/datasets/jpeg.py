"""Generated JPEG files with a photograph's size, spectrum and decoding cost, in classes that can be learned.

An image is the sum of two fields of 1/f noise (the spectrum of photographs), its class's grating and its class's tint.
Everything that depends on rounding is integer arithmetic, so that the same Pillow writes the same bytes everywhere.
"""

import io
import math
from bisect import bisect_right
from pathlib import Path

import numpy
from numpy import ndarray
from numpy.random import RandomState
from PIL import Image

from epochmeter.datasets.manifest import Facts
from epochmeter.datasets.progress import Notify, Progress
from epochmeter.shared.problem import input_error

VAL_EVERY = 5  # every fifth sample of a class is for validation
FIELDS = 6  # distinct noise fields; each sample combines random crops of four of them
FIELD_SIDE = 512  # period of the fields in pixels; the repetition is seamless
NOISE, GRATING, TINT, BRIGHTNESS = 45, 20, 25, 16  # standard deviation and amplitudes, of 255
WAVES = 12  # periods of a grating per image side
FINE_BITS = 4  # levels are summed in sixteenths
COLOR_BITS = 2  # a field's strength in color is a fourth of that in luma
PROBE_IMAGES = 16  # images encoded to find the quality for the requested file size
QUALITY = 90


def make(folder: Path, count: int, classes: int, pixels: int, file_bytes: int | None, seed: int, say: Notify) -> Facts:
    """Write squares as `<split>/<class>/<index>.jpg`, with the mean size `file_bytes` within a tenth."""
    if count < VAL_EVERY * classes:
        hint = f"give {VAL_EVERY} for each class, {VAL_EVERY * classes}"
        raise input_error(f"`dataset.count={count}` is not valid", hint, key="dataset.count")
    scene = Scene(classes, pixels, seed)
    quality, fraction = _quality(scene, count, file_bytes)
    names = [f"{label:0{len(str(classes - 1))}}" for label in range(classes)]
    for split in ("train", "val"):
        for name in names:
            (folder / split / name).mkdir(parents=True)
    splits = {"train": 0, "val": 0}
    progress = Progress("writing", say, count, "images")
    for index in range(count):
        split = "val" if index // classes % VAL_EVERY == VAL_EVERY - 1 else "train"
        splits[split] += 1
        (folder / split / names[index % classes] / f"{index:06}.jpg").write_bytes(scene.jpeg(index, quality, fraction))
        progress.update(index + 1)
    return {"splits": splits, "classes": classes, "channels": 3, "source": f"generated, seed {seed}"}


class Scene:
    """Image generator of a dataset. The class of an image is its index modulo `classes`."""

    def __init__(self, classes: int, pixels: int, seed: int) -> None:
        self.classes, self.pixels, self.seed = classes, pixels, seed
        numbers = RandomState(seed)  # its stream is guaranteed stable, unlike that of newer generators
        self.side = min(pixels, FIELD_SIDE)
        self.fields = [_field(numbers, self.side, pixels) for _ in range(FIELDS)]

    def jpeg(self, index: int, quality: int, fraction: float = 0) -> bytes:
        """Return an image as JPEG; this fraction of the images has a quality one higher."""
        numbers = RandomState([self.seed, index])
        quality += numbers.random_sample() < fraction
        planes = [Image.fromarray(plane) for plane in self._planes(index, numbers)]
        file = io.BytesIO()
        Image.merge("YCbCr", planes).save(file, "JPEG", quality=quality)
        return file.getvalue()

    def _planes(self, index: int, numbers: RandomState) -> list[ndarray]:
        """Return luma and the two chroma planes, 8 bits each."""
        label = index % self.classes
        parts = [self._part(numbers) for _ in range(4)]
        hue = 2 * math.pi * label / self.classes
        bright = int(numbers.randint(-BRIGHTNESS, BRIGHTNESS + 1))
        levels = [
            ((parts[0] + parts[1] + self._grating(label, numbers)) >> FINE_BITS) + (128 + bright),
            (parts[2] >> COLOR_BITS + FINE_BITS) + (128 + round(TINT * math.cos(hue))),
            (parts[3] >> COLOR_BITS + FINE_BITS) + (128 + round(TINT * math.sin(hue))),
        ]
        return [numpy.clip(level, 0, 255).astype(numpy.uint8) for level in levels]

    def _part(self, numbers: RandomState) -> ndarray:
        field = self.fields[numbers.randint(FIELDS)]
        down, right = numbers.randint(self.side, size=2)
        return field[down : down + self.pixels, right : right + self.pixels]

    def _grating(self, label: int, numbers: RandomState) -> ndarray:
        """Return cos(x + y + phase), computed from integer products."""
        angle, phase = math.pi * label / self.classes, numbers.randint(360) * math.pi / 180
        steps = numpy.arange(self.pixels) * (2 * math.pi * WAVES / self.pixels)
        along, down = steps * math.cos(angle) + phase, steps * math.sin(angle)
        x, y = (
            [numpy.rint(128 * wave(a)).astype(numpy.int32) for wave in (numpy.cos, numpy.sin)] for a in (along, down)
        )
        product = numpy.outer(y[0], x[0]) - numpy.outer(y[1], x[1])
        return ((product * (GRATING << FINE_BITS)) >> 14).astype(numpy.int16)


def _field(numbers: RandomState, side: int, pixels: int) -> ndarray:
    """Return 1/f noise with period `side`, extended so that any window of `pixels` can be cropped."""
    distance = numpy.hypot(numpy.fft.fftfreq(side)[:, None], numpy.fft.rfftfreq(side))
    distance[0, 0] = numpy.inf  # zero mean
    field = numpy.fft.irfft2(numpy.exp(2j * math.pi * numbers.random_sample(distance.shape)) / distance, (side, side))
    scaled = numpy.rint(field / field.std() * (NOISE / math.sqrt(2) * (1 << FINE_BITS))).astype(numpy.int16)
    return numpy.pad(scaled, (0, pixels), mode="wrap")


def _quality(scene: Scene, count: int, file_bytes: int | None) -> tuple[int, float]:
    """Return the JPEG quality, and the fraction of images with a quality one higher."""
    if file_bytes is None:
        return QUALITY, 0
    probes = range(0, count, max(1, count // PROBE_IMAGES))

    def mean(quality: int) -> float:
        return sum(len(scene.jpeg(index, quality)) for index in probes) / len(probes)

    least_bytes, most_bytes = mean(1), mean(100)
    if not least_bytes <= file_bytes <= most_bytes:
        raise input_error(
            f"dataset.file_bytes={file_bytes} is impossible: files of {scene.pixels} x {scene.pixels} pixels have "
            f"{least_bytes:.0f} to {most_bytes:.0f} bytes",
            f"set a size in this range, such as `dataset.file_bytes={mean(QUALITY):.0f}` (JPEG quality {QUALITY}), or "
            "another `dataset.pixels=`",
            key="dataset.file_bytes",
        )
    low = bisect_right(range(1, 100), float(file_bytes), key=mean)
    low_bytes, high_bytes = mean(low), mean(low + 1)
    return low, (file_bytes - low_bytes) / max(high_bytes - low_bytes, 1)
