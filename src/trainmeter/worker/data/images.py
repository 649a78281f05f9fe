"""Images in files, one a sample, in a folder a class."""

import array
import bisect
import os

from PIL import Image


class ImageFiles:
    """The samples of `<folder>/<split>/<class>/<file>`, read from the storage each time they are asked for.

    Classes are numbered by name, as `train` has them. A million paths take a few tens of megabytes, which
    loader processes share: there are no Python objects whose reference counts would copy the pages.
    """

    def __init__(self, folder, split, transform):
        self.folder = os.path.join(folder, split)
        self.classes = _names(os.path.join(folder, "train"), os.DirEntry.is_dir)
        self.transform = transform
        self.names = bytearray()
        self.ends = array.array("Q")  # of each file's name in `names`
        self.upto = []  # samples in this class and all before it
        here = _names(self.folder, os.DirEntry.is_dir)
        for label in self.classes:
            found = _names(os.path.join(self.folder, label), os.DirEntry.is_file) if label in here else []
            for name in found:
                self.names += os.fsencode(name)
                self.ends.append(len(self.names))
            self.upto.append(len(self.ends))
        if not self.ends:
            raise RuntimeError(
                "dataset folder {} holds no image in any folder of a class. Remove {} to have the dataset "
                "made again.".format(self.folder, folder)
            )

    def __len__(self):
        return len(self.ends)

    def __getitem__(self, index):
        label = bisect.bisect_right(self.upto, index)
        return self.transform(_read(self.path(index, label))), label

    def path(self, index, label):
        begin = self.ends[index - 1] if index else 0
        name = os.fsdecode(bytes(self.names[begin : self.ends[index]]))
        return os.path.join(self.folder, self.classes[label], name)


def _names(folder, wanted):
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if wanted(entry))
    except OSError as error:
        raise RuntimeError(
            "dataset folder {} cannot be read: {}. Check that its storage is mounted and readable; remove "
            "the dataset's folder to have it made again.".format(folder, error.strerror)
        ) from error


def _read(path):
    try:
        with open(path, "rb") as file:
            image = Image.open(file)
            image.load()
            return image
    except Exception as error:  # by format and fault, Pillow raises OSError, SyntaxError, ValueError, struct.error
        raise RuntimeError(
            "image {} cannot be read: {}. Put the whole file back, or remove the dataset's folder to have it "
            "made again.".format(path, error)
        ) from error
