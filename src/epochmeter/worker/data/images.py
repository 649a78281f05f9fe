"""Image folders: one file per sample, one folder per class."""

import array
import bisect
import io
import os

from PIL import Image

from epochmeter.shared.units import IMAGE_SUFFIXES
from epochmeter.worker.data.faults import REMAKE_HINT, BadSampleError, bad_sample_error


class ImageFiles:
    """The samples of `<folder>/<split>/<class>/<file>`, read from storage at each access.

    A folder without `train` and `val` contains the classes directly: every `held_out`-th file per class, by name,
    belongs to `val`. Classes are numbered by name, as in `train`. Paths are kept without Python objects, whose
    reference counts would copy the memory pages that DataLoader workers share.
    """

    def __init__(self, folder, split, transform, held_out=5):
        has_splits = os.path.isdir(os.path.join(folder, "train"))
        self.folder = os.path.join(folder, split) if has_splits else folder
        self.classes = _names(os.path.join(folder, "train") if has_splits else folder)
        self.transform = transform
        self.names = bytearray()
        self.ends = array.array("Q")  # end offset of each file name in `names`
        self.class_ends = []  # cumulative number of samples per class
        present = _names(self.folder)
        for label in self.classes:
            files = _names(os.path.join(self.folder, label), IMAGE_SUFFIXES) if label in present else []
            if not has_splits:
                in_val = files[held_out - 1 :: held_out]
                files = in_val if split == "val" else sorted(set(files).difference(in_val))
            for name in files:
                self.names += os.fsencode(name)
                self.ends.append(len(self.names))
            self.class_ends.append(len(self.ends))
        if not self.ends:
            message = "dataset folder {} has no images for split {} in its class folders. Add images. {}"
            raise RuntimeError(message.format(self.folder, split, REMAKE_HINT))

    def __len__(self):
        return len(self.ends)

    def __getitem__(self, index):
        data, label = self.read(index)
        return self.transform(self.decode(data, index)), label

    def read(self, index):
        """Return the bytes of a sample's file, and its label."""
        label = bisect.bisect_right(self.class_ends, index)
        path = self.path(index, label)
        try:
            with open(path, "rb", buffering=0) as file:
                return file.read(), label
        except OSError as error:
            raise bad_sample_error(path, error, self.folder) from error

    def decode(self, data, index):
        try:
            image = Image.open(io.BytesIO(data))
            image.load()
            return image
        except MemoryError:  # not the image's fault
            raise
        except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error
            reason = error if data else "the file is empty"
            if "cannot identify image file" in str(reason):
                reason = "not an image"
            path = self.path(index, bisect.bisect_right(self.class_ends, index))
            raise bad_sample_error(path, reason, self.folder) from error

    def path(self, index, label):
        begin = self.ends[index - 1] if index else 0
        name = os.fsdecode(bytes(self.names[begin : self.ends[index]]))
        return os.path.join(self.folder, self.classes[label], name)


class InMemoryImages(ImageFiles):
    """The same samples, decoded at construction and kept in memory: an epoch reads no storage."""

    def __init__(self, folder, split, transform, held_out=5):
        super().__init__(folder, split, transform, held_out)
        self._images = [self._load(index) for index in range(len(self))]

    def read(self, index):
        image = self._images[index]
        if isinstance(image, BadSampleError):
            raise BadSampleError(str(image), image.name)  # a new one, whose traceback does not grow
        return image, bisect.bisect_right(self.class_ends, index)

    def decode(self, data, index):
        return data

    def _load(self, index):
        try:
            image = super().decode(super().read(index)[0], index)
        except BadSampleError as bad:
            return BadSampleError(str(bad), bad.name)  # without the traceback, which would keep file and image alive
        return image.convert(image.mode if image.mode in ("L", "RGB") else "RGB")


def _names(folder, suffixes=None):
    """Return the visible files with one of these suffixes in a folder, or its folders, in order."""
    try:
        with os.scandir(folder) as entries:
            visible = [entry for entry in entries if not entry.name.startswith(".")]
            if suffixes is None:
                return sorted(entry.name for entry in visible if entry.is_dir())
            return sorted(entry.name for entry in visible if entry.name.lower().endswith(suffixes) and entry.is_file())
    except OSError as error:
        message = "cannot read dataset folder {}: {}. Check that its storage is mounted and readable. {}"
        raise RuntimeError(message.format(folder, error.strerror, REMAKE_HINT)) from error
