"""Which files in a folder of classes are images: the controller counts them, the training process reads them."""

import os

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
"""Extensions of image files, in lower case."""


def is_image(path: "os.DirEntry[str]") -> bool:
    """Return whether an entry of a folder counts as a sample, by its name.

    It may be unreadable, such as a link whose target is missing: that is an error, or skipped, when it is read.
    """
    return path.name.lower().endswith(IMAGE_SUFFIXES) and not path.name.startswith(".") and not is_folder(path)


def is_folder(path: "os.DirEntry[str]") -> bool:
    """Return whether an entry of a folder is a folder, or a link to one."""
    try:
        return path.is_dir()
    except OSError:  # a link in a circle, or to a place that may not be seen
        return False
