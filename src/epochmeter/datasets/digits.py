"""Scanned digits as image files: 1797 images of 8 x 8 pixels, from an archive in this package.

`digits.npz` has the test set of "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak, 1998), as
scikit-learn has it, under the license CC BY 4.0. Its arrays `source` and `license` name both.
"""

from pathlib import Path

import numpy as np
from PIL import Image

from epochmeter.datasets.manifest import Facts
from epochmeter.datasets.progress import Notify

ARCHIVE = Path(__file__).with_name("digits.npz")
LEVELS = 16  # gray levels in the archive are 0 to 16
VAL_EVERY = 5  # every fifth sample per class is for validation


def make(folder: Path, say: Notify) -> Facts:
    """Write `<split>/<class>/<index>.png`, 8-bit gray; each class is split in the same proportion."""
    splits = {"train": 0, "val": 0}
    seen = [0] * 10
    with np.load(ARCHIVE) as archive:
        images, labels, source = archive["images"], archive["labels"].tolist(), str(archive["source"])
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        split = "val" if seen[label] % VAL_EVERY == VAL_EVERY - 1 else "train"
        seen[label] += 1
        splits[split] += 1
        gray = (image * 255.0 / LEVELS).round().astype("uint8")
        path = folder / split / str(label) / f"{index:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(gray).save(path)
    return {"splits": splits, "classes": 10, "channels": 1, "source": source}
