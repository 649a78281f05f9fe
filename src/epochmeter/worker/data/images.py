"""Image folders: one file per sample, one folder per class."""

import array
import bisect
import io
import os
from typing import Any, Callable, List, Tuple, Union

from PIL import Image

from epochmeter.shared.image_files import is_folder, is_image
from epochmeter.shared.problem import machine_error
from epochmeter.worker.data.faults import REMAKE_HINT, BadSampleError, bad_sample_error


class ImageFiles:
    """The samples of `<folder>/<split>/<class>/<file>`, read from storage at each access.

    A folder without `train` and `val` contains the classes directly: every `held_out`-th file per class, by name,
    belongs to `val`. Classes are numbered by name, as in `train`. Paths are kept without Python objects, whose
    reference counts would copy the memory pages that DataLoader workers share.
    """

    def __init__(self, folder: str, split: str, transform: Callable[[Any], Any], held_out: int = 5) -> None:
        has_splits = os.path.isdir(os.path.join(folder, "train"))
        self.folder = os.path.join(folder, split) if has_splits else folder
        self.classes = _names(os.path.join(folder, "train") if has_splits else folder)
        self.transform = transform
        self.names = bytearray()
        self.ends: "array.array[int]" = array.array("Q")  # end offset of each file name in `names`
        self.class_ends: List[int] = []  # cumulative number of samples per class
        present = _names(self.folder)
        for label in self.classes:
            files = _names(os.path.join(self.folder, label), is_image) if label in present else []
            if not has_splits:
                in_val = files[held_out - 1 :: held_out]
                files = in_val if split == "val" else sorted(set(files).difference(in_val))
            for name in files:
                self.names += os.fsencode(name)
                self.ends.append(len(self.names))
            self.class_ends.append(len(self.ends))
        if not self.ends:
            message = "dataset folder {} has no images for split {} in its class folders".format(self.folder, split)
            raise machine_error(message, "add images. " + REMAKE_HINT, file=self.folder)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> Tuple[Any, int]:
        data, label = self.read(index)
        return self.transform(self.decode(data, index)), label

    def read(self, index: int) -> Tuple[Any, int]:
        """Return the bytes of a sample's file, and its label."""
        label = bisect.bisect_right(self.class_ends, index)
        path = self.path(index, label)
        try:
            with open(path, "rb", buffering=0, opener=_open_at_once) as file:
                return file.read() or b"", label  # None of a pipe
        except OSError as error:
            raise bad_sample_error(path, error, self.folder) from error

    def decode(self, data: Any, index: int) -> Image.Image:
        try:
            image = Image.open(io.BytesIO(data))
            image.load()
            return image
        except MemoryError:  # not the image's fault
            raise
        except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error
            reason: Union[Exception, str] = error if data else "the file is empty"
            if "cannot identify image file" in str(reason):
                reason = "not an image"
            path = self.path(index, bisect.bisect_right(self.class_ends, index))
            raise bad_sample_error(path, reason, self.folder) from error

    def path(self, index: int, label: int) -> str:
        begin = self.ends[index - 1] if index else 0
        name = os.fsdecode(bytes(self.names[begin : self.ends[index]]))
        return os.path.join(self.folder, self.classes[label], name)


class InMemoryImages(ImageFiles):
    """The same samples, decoded at construction and kept in memory: an epoch reads no storage."""

    def __init__(self, folder: str, split: str, transform: Callable[[Any], Any], held_out: int = 5) -> None:
        super().__init__(folder, split, transform, held_out)
        self._images = [self._load(index) for index in range(len(self))]

    def read(self, index: int) -> Tuple[Any, int]:
        image = self._images[index]
        if isinstance(image, BadSampleError):
            raise BadSampleError(*image.problems)  # a new one, whose traceback does not grow
        return image, bisect.bisect_right(self.class_ends, index)

    def decode(self, data: Image.Image, index: int) -> Image.Image:
        return data

    def _load(self, index: int) -> Union[Image.Image, BadSampleError]:
        try:
            image = super().decode(super().read(index)[0], index)
        except BadSampleError as bad:
            return BadSampleError(*bad.problems)  # without the traceback, which would keep file and image alive
        return image.convert(image.mode if image.mode in ("L", "RGB") else "RGB")


def _open_at_once(path: str, flags: int) -> int:
    """Open a file; a named pipe too, which would wait for its writer forever."""
    return os.open(path, flags | os.O_NONBLOCK)


def _names(folder: str, is_kind: "Callable[[os.DirEntry[str]], bool]" = is_folder) -> List[str]:
    """Return the names of the visible entries of one kind in a folder, in order."""
    try:
        with os.scandir(folder) as entries:
            return sorted(path.name for path in entries if not path.name.startswith(".") and is_kind(path))
    except OSError as error:
        message = "cannot read dataset folder {}: {}".format(folder, error.strerror)
        hint = "check that its storage is mounted and readable. " + REMAKE_HINT
        raise machine_error(message, hint, file=folder) from error
