"""scikit-learn's digits as image files: 1797 scans of 8 x 8 pixels, available without a network."""

from pathlib import Path

from PIL import Image
from sklearn.datasets import load_digits

from epochmeter.datasets.manifest import Facts
from epochmeter.datasets.progress import Notify

LEVELS = 16  # gray levels in scikit-learn are 0 to 16
VAL_EVERY = 5  # every fifth sample per class is for validation


def make(folder: Path, say: Notify) -> Facts:
    """Write `<split>/<class>/<index>.png`, 8-bit gray; each class is split in the same proportion."""
    images, labels = load_digits(return_X_y=True)
    splits = {"train": 0, "val": 0}
    seen = [0] * 10
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        split = "val" if seen[label] % VAL_EVERY == VAL_EVERY - 1 else "train"
        seen[label] += 1
        splits[split] += 1
        gray = (image.reshape(8, 8) * 255 / LEVELS).round().astype("uint8")
        path = folder / split / str(label) / f"{index:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(gray).save(path)
    return {"splits": splits, "classes": 10, "channels": 1, "source": "scikit-learn's load_digits"}
