"""The file of a recording: a tar archive with the files of a machine below `root/`, and documents about them.

An archive may come from anybody. It is unpacked only if nothing in it can be outside of its folder: files and folders
are created one by one, none through a link, and each link has to end inside.
"""

import gzip
import io
import json
import math
import os
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from epochmeter.machine.recorded.tree import Entry
from epochmeter.shared.problem import InputError, input_error
from epochmeter.shared.types import Document

FORMAT, VERSION = "epochmeter machine recording", 1
MANIFEST, SERIES, NVML, AMDSMI, JTOP = "manifest.json", "series.json", "nvml.json", "amdsmi.json", "jtop.json"
NVIDIA_SMI = "nvidia-smi.txt"
DOCUMENTS = (MANIFEST, SERIES, NVML, AMDSMI, JTOP, NVIDIA_SMI)
"""What an archive contains besides `root/`; the manifest is the first."""
ROOT = "root"
MAX_BYTES, MAX_MEMBERS, MAX_PATH = 1 << 28, 200_000, 4096
"""Most bytes and members of an unpacked archive, and the longest path in it."""
HEADER_BYTES = 2048  # of a member, with its permissions in a header of its own
ACCESS = "comment"  # a keyword that other programs ignore
"""Header of a file: what the user who recorded it was allowed to do, a part of `rw`."""
AGAIN = "ask for another one, which `python src/doctor.py record=board.tar.gz` writes"
DAMAGES = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, UnicodeError, RecursionError)
"""What Python raises for a truncated or damaged archive."""


def write_archive(path: Path, documents: Mapping[str, bytes], entries: Iterable[Entry]) -> None:
    """Write an archive atomically: it is there completely, or not at all.

    Times and owners are left out. FileExistsError if there is such a file already.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(partial, "xb") as file:
            with (
                gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed,
                tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
            ):
                for name, content in documents.items():
                    _add_file(archive, name, content)
                for entry in entries:
                    _add_entry(archive, entry)
            file.flush()
            os.fsync(file.fileno())
        os.link(partial, path)  # which replaces no file
    finally:
        partial.unlink(missing_ok=True)


def _add_entry(archive: tarfile.TarFile, entry: Entry) -> None:
    name = f"{ROOT}/{entry.path}"
    if entry.target is not None or entry.is_folder:
        member = tarfile.TarInfo(name)
        member.type, member.mode = tarfile.DIRTYPE if entry.is_folder else tarfile.SYMTYPE, entry.mode
        member.linkname = entry.target or ""
        archive.addfile(member)
    else:
        _add_file(archive, name, entry.content or b"", entry.mode, {ACCESS: entry.access})


def _add_file(
    archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644, headers: Mapping[str, str] | None = None
) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.pax_headers = len(content), mode, dict(headers or {})
    archive.addfile(member, io.BytesIO(content))


def unpack(path: Path, folder: Path) -> dict[str, bytes]:
    """Unpack the files of a machine into a folder, and return the documents; InputError for any other archive."""
    try:
        with gzip.open(path) as opened:
            packed = _Limited(opened)
            with tarfile.open(fileobj=packed, mode="r|") as archive:  # type: ignore[call-overload]  # it only reads
                unpacking = _Unpacking(path, folder)
                for member in archive:
                    unpacking.add(archive, member)
            while packed.read(1 << 20):  # up to the checksum
                pass
    except DAMAGES as error:
        raise refusal(path, f"it is truncated or damaged ({str(error) or type(error).__name__})") from error
    except OSError as error:
        raise input_error(f"`machine.root={path}` cannot be unpacked: {error.strerror or error}") from error
    unpacking.finish()
    return unpacking.documents


def read_document(path: Path, documents: Mapping[str, bytes], name: str) -> Document:
    """Return a document of an archive, empty without it; InputError if it is damaged.

    Numbers that no driver and no file has, such as NaN, become null.
    """
    try:
        content = documents.get(name, b"{}")
        value: Any = json.loads(content, parse_constant=_none, parse_float=_finite, parse_int=_whole)
    except (ValueError, RecursionError) as error:
        raise refusal(path, f"its {name} is damaged") from error
    if not isinstance(value, dict):
        raise refusal(path, f"its {name} is damaged")
    return value


def _none(_: str) -> None:
    return None


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def _whole(text: str) -> int | None:
    number = int(text)
    return number if abs(number) < 1 << 64 else None


def refusal(path: Path, why: str) -> InputError:
    """Return the error of an archive that is not replayed."""
    return input_error(f"`machine.root={path}` is not replayed: {why}", AGAIN, file=str(path))


class _Limited:
    """A file that ends with an error after `MAX_BYTES` and the headers of `MAX_MEMBERS`: also headers may be long."""

    def __init__(self, file: gzip.GzipFile) -> None:
        self._file, self._left = file, MAX_BYTES + HEADER_BYTES * MAX_MEMBERS

    def read(self, size: int) -> bytes:
        content = self._file.read(size)
        self._left -= len(content)
        if self._left < 0:
            raise EOFError("it is too large")
        return content


class _Unpacking:
    """The members of an archive so far; links are created last, so that no member is written through one."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.documents: dict[str, bytes] = {}
        self._path, self._folder = path, folder
        self._links: dict[str, str] = {}
        self._files: set[str] = set()
        self._bytes = self._entries = 0

    def add(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """Add a member; InputError if it may not be in such an archive."""
        self._bytes += max(0, member.size)
        if self._bytes > MAX_BYTES or self._entries > MAX_MEMBERS:
            raise refusal(self._path, f"it has more than {MAX_MEMBERS:,} files or {MAX_BYTES >> 20} MiB")
        if not self.documents:
            self._check_first(archive, member)
            return
        if member.name in DOCUMENTS and member.isreg() and member.name not in self.documents:
            self.documents[member.name] = self._content(archive, member)
            return
        self._entries += 1
        place = self._place(member)
        if member.issym():
            self._links[place] = member.linkname
        elif member.isdir():
            self._make_folder(place)
        elif member.isreg():
            self._write(place, member, self._content(archive, member))
        else:
            raise refusal(self._path, f"`{member.name}` is a device, a pipe or a hard link")

    def finish(self) -> None:
        """Create the links; InputError if one leads out, or if members are missing."""
        manifest = read_document(self._path, self.documents, MANIFEST)
        if manifest.get("entries") != self._entries:
            raise refusal(self._path, f"it has {self._entries} of {manifest.get('entries')} files")
        for place, target in self._links.items():
            link = self._folder / place
            self._make_folder(str(PurePosixPath(place).parent))
            if os.path.lexists(link):
                raise self._twice(place)
            os.symlink(target, link)
        inside = os.path.realpath(self._folder)
        for place in self._links:  # when all are there, as one may lead through others
            if not Path(os.path.realpath(self._folder / place)).is_relative_to(inside):
                raise refusal(self._path, f"`{place}` is a link out of it")

    def _check_first(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """Accept the manifest of a known version as the first member."""
        content = self._content(archive, member) if member.isreg() and member.name == MANIFEST else b"{}"
        self.documents[MANIFEST] = content
        manifest = read_document(self._path, self.documents, MANIFEST)
        if manifest.get("format") != FORMAT:
            raise refusal(self._path, "it is not a recording of a machine")
        if type(manifest.get("version")) is not int or manifest["version"] != VERSION:
            raise refusal(self._path, f"it has version {manifest.get('version')}, and this is version {VERSION}")

    def _content(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
        file = archive.extractfile(member)
        content = file.read() if file else b""
        if len(content) < member.size:
            raise EOFError(f"{member.name} ends early")
        return content

    def _place(self, member: tarfile.TarInfo) -> str:
        """Return the path of a member below the root; InputError if it is not below it."""
        path = PurePosixPath(member.name)
        is_inside = path.parts[:1] == (ROOT,) and len(path.parts) > 1 and ".." not in path.parts
        if not is_inside or "\0" in f"{member.name}{member.linkname}" or len(member.name) > MAX_PATH:
            raise refusal(self._path, f"`{member.name}` is outside of its root")
        return str(path.relative_to(ROOT))

    def _make_folder(self, place: str) -> None:
        """Create a folder and those above it; InputError if one of them is a file or a link."""
        folder = self._folder
        for name in PurePosixPath(place).parts:
            folder = folder / name
            if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
                raise self._twice(str(folder.relative_to(self._folder)))
            folder.mkdir(exist_ok=True)

    def _write(self, place: str, member: tarfile.TarInfo, content: bytes) -> None:
        """Write a file with the permissions that the user who recorded it had; InputError if its place is taken."""
        self._make_folder(str(PurePosixPath(place).parent))
        access = member.pax_headers.get(ACCESS, "rw")
        mode = member.mode & 0o177 | (0o400 if "r" in access else 0) | (0o200 if "w" in access else 0)
        file = self._folder / place
        if os.path.lexists(file):
            raise self._twice(place)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as opened:
            opened.write(content)
        file.chmod(mode)

    def _twice(self, place: str) -> InputError:
        return refusal(self._path, f"`{place}` is in it twice, with different types or contents")
