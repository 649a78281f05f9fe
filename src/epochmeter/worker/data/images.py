"""Images in files, one a sample, in a folder a class."""

import array
import bisect
import io
import os

from PIL import Image

from epochmeter.worker.data.faults import REMADE, BadSampleError, unreadable

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


class ImageFiles:
    """The samples of `<folder>/<split>/<class>/<file>`, read from the storage each time they are asked for.

    A folder without `train` and `val` holds classes at once: of each class every `held_out`-th file by name is of
    `val`, the others are of `train`. Classes are numbered by name, as `train` has them. A million paths take a few
    tens of megabytes, which loader processes share: there are no Python objects whose reference counts would copy
    the pages.
    """

    def __init__(self, folder, split, transform, held_out=5):
        split_apart = os.path.isdir(os.path.join(folder, "train"))
        self.folder = os.path.join(folder, split) if split_apart else folder
        self.classes = _names(os.path.join(folder, "train") if split_apart else folder, os.DirEntry.is_dir)
        self.transform = transform
        self.names = bytearray()
        self.ends = array.array("Q")  # of each file's name in `names`
        self.upto = []  # samples in this class and all before it
        here = self.classes if self.folder == folder else _names(self.folder, os.DirEntry.is_dir)
        for label in self.classes:
            found = _names(os.path.join(self.folder, label), _is_image) if label in here else []
            if not split_apart:
                last, held = held_out - 1, split == "val"
                found = [name for index, name in enumerate(found) if (index % held_out == last) == held]
            for name in found:
                self.names += os.fsencode(name)
                self.ends.append(len(self.names))
            self.upto.append(len(self.ends))
        if not self.ends:
            raise RuntimeError(
                "dataset folder {} holds no image in any folder of a class that is of {}. Put images there. {}".format(
                    self.folder, split, REMADE
                )
            )

    def __len__(self):
        return len(self.ends)

    def __getitem__(self, index):
        data, label = self.read(index)
        return self.transform(self.decode(data, index)), label

    def read(self, index):
        """The bytes of a sample's file, and its label."""
        label = bisect.bisect_right(self.upto, index)
        path = self.path(index, label)
        try:
            with open(path, "rb", buffering=0) as file:
                return file.read(), label
        except OSError as error:
            raise unreadable(path, error, self.folder) from error

    def decode(self, data, index):
        """The image that a file's bytes hold."""
        try:
            image = Image.open(io.BytesIO(data))
            image.load()
            return image
        except MemoryError:  # which says nothing of the image
            raise
        except Exception as error:  # by format and fault, Pillow raises OSError, SyntaxError, ValueError, struct.error
            path = self.path(index, bisect.bisect_right(self.upto, index))
            raise unreadable(path, _why(error, data), self.folder) from error

    def path(self, index, label):
        begin = self.ends[index - 1] if index else 0
        name = os.fsdecode(bytes(self.names[begin : self.ends[index]]))
        return os.path.join(self.folder, self.classes[label], name)


class HeldImages(ImageFiles):
    """The same samples, all decoded at the start and held as the bytes of their pixels: no storage plays a part in
    an epoch.

    `unheld` are the bad ones: exceptions, for whoever does not skip them to raise at the start.
    """

    def __init__(self, folder, split, transform, held_out=5):
        super().__init__(folder, split, transform, held_out)
        self.unheld = []
        self._held = [self._hold(index) for index in range(len(self))]

    def read(self, index):
        """The pixels of a sample, and its label."""
        if isinstance(self._held[index], BadSampleError):
            raise _again(self._held[index])
        return self._held[index], bisect.bisect_right(self.upto, index)

    def decode(self, data, index):
        """The image of these pixels."""
        return Image.frombytes(*data)

    def _hold(self, index):
        try:
            image = super().decode(super().read(index)[0], index)
        except BadSampleError as bad:
            self.unheld.append(_again(bad))
            return self.unheld[-1]
        if image.mode not in ("L", "RGB"):
            image = image.convert("RGB")
        return image.mode, image.size, image.tobytes()


def _again(bad):
    """The same exception without what it has passed through, which would hold on to file and image."""
    return BadSampleError(str(bad), bad.name)


def _names(folder, wanted):
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if not entry.name.startswith(".") and wanted(entry))
    except OSError as error:
        raise RuntimeError(
            "dataset folder {} cannot be read: {}. Check that its storage is mounted and readable. {}".format(
                folder, error.strerror, REMADE
            )
        ) from error


def _is_image(entry):
    return entry.name.lower().endswith(EXTENSIONS) and entry.is_file()


def _why(error, data):
    if not data:
        return "it is empty"
    return "it is no image" if "cannot identify image file" in str(error) else error
